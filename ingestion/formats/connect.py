"""JSON from Kafka Connect's converter, with or without a schema next to the payload.

Many values it encodes indirectly: decimals in base64, timestamps as numbers, NaN as text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from ctypes import c_float
from decimal import Decimal
from typing import Any, Final, NamedTuple

from pyspark.sql import types as sql

from oncelake.ingestion.formats.coerce import (
    Convert,
    MisfitError,
    Source,
    array_of,
    columns_of,
    decimal_of,
    decimal_text,
    exact,
    exact_ticks,
    from_base64,
    map_of,
    moment,
    refuse,
    struct_of,
)
from oncelake.ingestion.formats.decoder import BadBytesError, Decoded
from oncelake.ingestion.formats.spelling import spelt
from oncelake.ingestion.formats.strict_json import parse

_SPLIT: Final = b',"payload":'
_MOST_SCHEMAS: Final = 100
DEBEZIUM_TICKS: Final = {
    "io.debezium.time.Timestamp": 10**3,
    "io.debezium.time.MicroTimestamp": 10**6,
    "io.debezium.time.NanoTimestamp": 10**9,
}
_TICKS: Final = {"org.apache.kafka.connect.data.Timestamp": 10**3, **DEBEZIUM_TICKS}
_DAYS: Final = ("org.apache.kafka.connect.data.Date", "io.debezium.time.Date")
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"

_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?0*\d{1,3})?", re.ASCII)
# A number as text that may be base64, too.
_DIGITS: Final = re.compile(r"\+?\d+([eE]\+?\d+)?", re.ASCII)
_MOMENT: Final = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:\d\d)?", re.ASCII
)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_SCALE: Final = re.compile(r"-?\d{1,6}", re.ASCII)
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_SCALARS: Final = {
    sql.BooleanType: (bool, "boolean"),
    sql.StringType: (str, "string"),
    sql.VarcharType: (str, "string"),
}
_DAY: Final = 86_400_000_000

FindUndeclared = Callable[[Any, str], Iterator[str]]


class Hint(NamedTuple):
    """The facts about a value that its JSON does not tell.

    Attributes:
        unit: Ticks per second of a numeric timestamp; 0 if unknown.
        days: Whether a number may be a date.
        scale: The scale of a decimal in base64; ``None`` if decimals are plain text.
        is_guess: Whether nothing but the declaration says that a text is base64.
        items: The hint for the items of a list.
    """

    unit: int = 0
    days: bool = False
    scale: int | None = None
    is_guess: bool = False
    items: Any = None


class ConnectJson:
    """Splits documents into schema and payload; parses each schema once, not once per record."""

    def __init__(self) -> None:
        self._known: dict[bytes, Any] = {}

    def split(self, raw: bytes) -> tuple[Any, Any]:
        """Return both; raise ``ValueError`` if one is missing, or the bytes are not JSON."""
        front, found, rest = raw.partition(_SPLIT)
        if found and front in self._known and rest.endswith(b"}"):
            return self._known[front], parse(rest[:-1])
        whole = parse(raw)
        if type(whole) is not dict or whole.keys() != {"schema", "payload"}:
            raise ValueError("no object of `schema` and `payload`")
        self._remember(front, whole["schema"])
        return whole["schema"], whole["payload"]

    def _remember(self, front: bytes, schema: Any) -> None:
        """Cache the schema by the bytes before the payload, if they contain nothing else."""
        with suppress(ValueError):
            if len(self._known) < _MOST_SCHEMAS and parse(front + b"}") == {"schema": schema}:
                self._known[front] = schema


class ConnectKeys:
    """Reads Kafka keys that have their schema beside them: by name, or one that is a bare value."""

    def __init__(self, columns: sql.StructType) -> None:
        self._columns, self._split = columns, ConnectJson().split
        self._schema: Any = None
        self._to_row = self._reader(None)

    def __call__(self, raw: bytes) -> Decoded:
        """Read one key; raise ``BadBytesError`` if it belongs in quarantine."""
        try:
            schema, payload = self._split(raw)
            if schema is not self._schema:
                self._to_row = self._reader(schema)
                self._schema = schema
            return Decoded(self._to_row(self._by_name(payload)))
        except ValueError as error:
            raise BadBytesError("malformed_key", str(error)) from None

    def _by_name(self, payload: Any) -> Mapping[str, Any]:
        """Return the values of a payload by the names of their columns."""
        if type(payload) is dict:
            return payload
        if len(self._columns) > 1:
            raise ValueError("a bare value, and several columns")
        return dict.fromkeys(self._columns.names, payload)

    def _reader(self, schema: Any) -> Callable[[Any], list[Any]]:
        told = hints(schema)
        if not told and isinstance(schema, dict):
            told = dict.fromkeys(self._columns.names, hint(schema))
        meant = {name: told.get(name, Hint()) for name in self._columns.names}
        return columns_of(meant, self._columns, json_value)


def schema_before_payload(front: bytes) -> Any:
    """Return the schema of the bytes before a document's payload; ``None`` if there is none."""
    try:
        found = parse(front + b"}")
    except ValueError:
        return None
    return found.get("schema") if isinstance(found, dict) else None


def hints(schema: Any, *path: str) -> Mapping[str, Hint]:
    """Return the hints of a schema for the fields of a struct inside it, by name."""
    for name in path:
        schema = next((each for each in _fields(schema) if each.get("field") == name), None)
    return {str(each.get("field")): hint(each) for each in _fields(schema)}


def hint(schema: Mapping[str, Any]) -> Hint:
    """Return what a field's schema says of its values."""
    name = schema.get("name")
    items = schema.get("items")
    if name == _DECIMAL:
        return Hint(scale=_scale(schema.get("parameters")))
    return Hint(
        unit=_TICKS.get(str(name), 0),
        days=name in _DAYS,
        items=hint(items) if isinstance(items, dict) else None,
    )


def _scale(parameters: Any) -> int:
    """Return the scale of a decimal; ``int`` of what a record says could take for ever."""
    found = parameters.get("scale", 0) if isinstance(parameters, dict) else 0
    if type(found) not in (int, str) or not _SCALE.fullmatch(str(found)):
        raise MisfitError(f"the schema has a decimal of scale {found!s:.80}")
    return int(found)


def _fields(schema: Any) -> list[Mapping[str, Any]]:
    found = schema.get("fields") if isinstance(schema, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def json_value(hint: Hint, target: sql.DataType) -> Convert:
    """Return the conversion of a parsed, non-null value to the declared type."""
    if isinstance(target, sql.StructType):
        inner = struct_of(dict.fromkeys(target.names, hint), target, json_value)
        return lambda value: inner(_of(dict, value, target))
    if isinstance(target, sql.ArrayType):
        items = array_of(hint.items or hint, target, json_value)
        return lambda value: items(_of(list, value, target))
    if isinstance(target, sql.MapType):
        values = map_of(hint, target, json_value)
        return lambda value: values(_of(dict, value, target))
    if isinstance(target, sql.DecimalType):
        return lambda value: _decimal(value, hint, target)
    if isinstance(target, sql.DateType):
        return lambda value: _days(value, hint, target)
    if isinstance(target, sql.TimestampType | sql.TimestampNTZType):
        return lambda value: _moment(value, hint, target)
    if isinstance(target, sql.BinaryType):
        return lambda value: _converted(from_base64, _of(str, value, target), target)
    if isinstance(target, sql.FloatType | sql.DoubleType):
        return lambda value: _float(value, target)
    kind, name = _SCALARS.get(type(target), (int, "integer"))
    convert = exact(Source(name), target)
    if isinstance(target, sql.StringType):
        return lambda value: (
            decimal_text(*_variable_scale(value, target), target)
            if _has_scale(value)
            else convert(_of(kind, value, target))
        )
    return lambda value: convert(_of(kind, value, target))


def undeclared(target: sql.DataType) -> FindUndeclared | None:
    """Return what finds the fields of objects that a STRUCT in their place lacks, if there is one.

    It takes a value and its path, and yields the paths of the fields.
    """
    if isinstance(target, sql.StructType):
        return _undeclared_fields({each.name: undeclared(each.dataType) for each in target})
    if isinstance(target, sql.ArrayType) and (find := undeclared(target.elementType)):
        return _undeclared_within(find, lambda v: v if type(v) is list else (), "[]")
    if isinstance(target, sql.MapType) and (find := undeclared(target.valueType)):
        return _undeclared_within(find, lambda v: v.values() if type(v) is dict else (), "{}")
    return None


def _undeclared_fields(parts: Mapping[str, FindUndeclared | None]) -> FindUndeclared:
    def find(value: Any, path: str) -> Iterator[str]:
        prefix = f"{path}." if path else ""
        for name, each in value.items() if type(value) is dict else ():
            if name not in parts:
                yield prefix + spelt(name)
            elif find_within := parts[name]:
                yield from find_within(each, prefix + spelt(name))

    return find


def _undeclared_within(
    find: FindUndeclared, items_of: Callable[[Any], Iterable[Any]], step: str
) -> FindUndeclared:
    def find_within(value: Any, path: str) -> Iterator[str]:
        for each in items_of(value):
            yield from find(each, path + step)

    return find_within


def _decimal(value: Any, hint: Hint, target: sql.DecimalType) -> Any:
    convert = exact(Source("decimal"), target)
    if _has_scale(value):
        return convert(decimal_of(*_variable_scale(value, target), target))
    if type(value) is int or isinstance(value, Decimal):
        return convert(Decimal(value))
    text = _of(str, value, target)
    if hint.scale is not None:
        raw = (_sure_bytes if hint.is_guess else _bytes)(text, target)
        return convert(decimal_of(raw, hint.scale, target))
    return convert(Decimal(text)) if _NUMBER.fullmatch(text) else refuse(value, target)


def _bytes(text: str, target: sql.DataType) -> bytes:
    return bytes(_converted(from_base64, text, target))


def _sure_bytes(text: str, target: sql.DataType) -> bytes:
    """Return the bytes of a text that can be nothing but what Java makes of a number."""
    plain = "where the connector writes numbers as text, the option is `decimals: string`"
    try:
        raw = from_base64(text)
    except ValueError:
        raise MisfitError(f"{text:.80} is not base64; {plain}") from None
    if _DIGITS.fullmatch(text):
        or_not = "where it writes base64, `decimals: base64`"
        raise MisfitError(f"{text:.80} may be a number, or base64; {plain}; {or_not}")
    # A sign that is repeated: Java writes as few bytes as there can be.
    if not raw or (raw[0] in (0, 255) and len(raw) > 1 and raw[0] >> 7 == raw[1] >> 7):
        raise MisfitError(f"{text:.80} is not the base64 of a number; {plain}")
    return raw


def _has_scale(value: Any) -> bool:
    """Tell a VariableScaleDecimal, which says its own scale."""
    return type(value) is dict and value.keys() == {"scale", "value"}


def _variable_scale(value: Any, target: sql.DataType) -> tuple[bytes, int]:
    number = _bytes(_of(str, value["value"], target), target)
    return number, _of(int, value["scale"], target)


def _days(value: Any, hint: Hint, target: sql.DataType) -> int:
    if type(value) is int and hint.days:
        return int(exact(Source("date"), target)(value))
    if type(value) is not str or not _DATE.fullmatch(value):
        refuse(value, target)
    return int(_converted(moment, value, target)) // _DAY


def _moment(value: Any, hint: Hint, target: sql.DataType) -> int:
    zoned = isinstance(target, sql.TimestampType)
    if type(value) is int:
        if not hint.unit:
            raise MisfitError(f"{value} has no unit; say which in the option `timestamps`")
        return int(exact_ticks(hint.unit, target)(value))
    found = _MOMENT.fullmatch(value) if type(value) is str else None
    if found is None or bool(found[3]) != zoned or (found[2] or "")[7:].strip("0"):
        refuse(value, target)
    return int(_converted(moment, value, target))


def _float(value: Any, target: sql.DataType) -> float:
    """Round a number to the nearest float: writers use the shortest text that identifies it."""
    if type(value) is str and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if type(value) is not int and not isinstance(value, Decimal):
        refuse(value, target)
    try:
        near = float(value)
    except OverflowError:
        return refuse(value, target)
    if isinstance(target, sql.FloatType):
        near = c_float(near).value
    return near if math.isfinite(near) else refuse(value, target)


def _converted(convert: Callable[[str], Any], text: str, target: sql.DataType) -> Any:
    try:
        return convert(text)
    except ValueError:
        return refuse(text, target)


def _of(kind: type, value: Any, target: sql.DataType) -> Any:
    return value if type(value) is kind else refuse(value, target)
