"""JSON read one record after the other, in pure Python: the last word on every doubtful record."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final, NoReturn

from pyspark.sql import types as sql

from ingestion.formats.coerce import (
    FIRST_MOMENT,
    LAST_MOMENT,
    Convert,
    MisfitError,
    Source,
    exact,
    from_base64,
    moment,
    named,
    nearest_single,
    rescaled,
)
from ingestion.formats.decoder import BadBytesError, Decoded, Encoded
from ingestion.formats.json.names import Undeclared, names_in_another_case, paths_of, undeclared
from ingestion.formats.nested import array_of, map_of, struct_of
from ingestion.formats.strict_json import NotJsonError, StrictParser

MOST_DIGITS: Final = 38
# Of the longest number, name (as UTF-16) and value that Spark's own parser takes for a VARIANT.
LONGEST_NUMBER: Final = 1_000
LONGEST_NAME: Final = 50_000
LONGEST_VARIANT: Final = 16 * 2**20
_PLAIN: Final = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_MOMENT: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?"
    r"(Z|[+-](?:(?:0\d|1[0-7]):[0-5]\d|18:00))?)?",
    re.ASCII,
)
_NOT_FINITE: Final = frozenset(
    {"NaN", *(sign + word for sign in ("", "+", "-") for word in ("INF", "Infinity"))}
)
_MICROS: Final = 1_000_000
_MOST_SECONDS: Final = 10**12


class WrittenNumber(str):
    """A number with a point or an exponent, as it was written."""

    __slots__ = ()


# To VARIANT, null is a value.
_NULL: Final = WrittenNumber("null")


class StrictReader:
    """Reads a record as one object with the declared fields.

    A field that is absent is null. A key that is a single column may be a bare value.
    """

    def __init__(self, encoded: Encoded) -> None:
        self._encoded = encoded
        self._columns = [(each.name, reader_of(each.dataType)) for each in encoded.schema]
        self._variants = [each.name for each in encoded.schema if _is_variant(each.dataType)]
        self._paths = {path.lower() for path in paths_of(encoded.schema)}

    def __call__(self, raw: bytes) -> Decoded:
        """Read one record.

        Raises:
            BadBytesError: it belongs in quarantine.
        """
        return self.read(raw)[0]

    def read(self, raw: bytes) -> tuple[Decoded, Iterable[Undeclared]]:
        """Read one record, and return what it has that is not declared, too.

        Raises:
            BadBytesError: it belongs in quarantine.
        """
        try:
            return self._decoded(self._fields(raw))
        except NotJsonError as error:
            raise BadBytesError(error.reason, str(error)) from None
        except RecursionError:
            raise BadBytesError("malformed_json", "nested too deeply") from None

    def _fields(self, raw: bytes) -> dict[str, Any]:
        found = self._key(raw) if self._encoded.is_key else _parse(raw)
        if type(found) is not dict:
            raise NotJsonError("not_an_object", "an array, a scalar or null")
        return found

    def _decoded(self, fields: Mapping[str, Any]) -> tuple[Decoded, Iterable[Undeclared]]:
        row = self._row(fields)
        others = list(dict.fromkeys(undeclared(fields, self._encoded.schema)))
        extra = [each.path for each in others]
        if misspelt := names_in_another_case(extra, self._paths):
            raise BadBytesError("wrong_case", ", ".join(misspelt)[:500])
        if extra and self._encoded.extra_fields == "reject":
            raise BadBytesError("unknown_field", ", ".join(extra)[:500])
        return Decoded(row, extra, kept=self._kept(fields)), others

    def _row(self, fields: Mapping[str, Any]) -> list[Any]:
        row: list[Any] = []
        misfits = []
        given = _with_nulls(fields, self._variants)
        for name, read in self._columns:
            value = given.get(name)
            try:
                row.append(None if value is None else read(value))
            except MisfitError as error:
                misfits.append(error.within(name))
        if misfits:
            _refuse_first(misfits)
        return row

    def _kept(self, fields: Mapping[str, Any]) -> str | None:
        if self._encoded.extra_fields != "keep":
            return None
        others = {n: v for n, v in fields.items() if n not in self._encoded.schema.names}
        return variant_text(others) if others else None

    def _key(self, raw: bytes) -> Any:
        """Read a Kafka key: an object, or for a single column a bare value, JSON or plain text."""
        columns = self._encoded.schema
        if len(columns) != 1 or raw.lstrip().startswith(b"{"):
            return _parse(raw)
        if isinstance(columns[0].dataType, sql.StringType) and not raw.startswith(b'"'):
            try:
                return {columns[0].name: raw.decode("utf-8")}
            except UnicodeDecodeError as error:
                raise NotJsonError("invalid_utf8", str(error)) from None
        return {columns[0].name: _parse(raw)}


def reader_of(type_: sql.DataType) -> Convert:
    """Return the conversion of a parsed value that is not null.

    It raises ``MisfitError`` with a reason, or for a VARIANT ``NotJsonError``.
    """
    if isinstance(type_, sql.StructType):
        to_struct = struct_of(dict.fromkeys(type_.names), type_, _reader_within)
        names = [each.name for each in type_ if each.nullable and _is_variant(each.dataType)]
        return lambda value: to_struct(_with_nulls(_nested(dict, value, type_), names))
    if isinstance(type_, sql.ArrayType):
        to_list, null = array_of(None, type_, _reader_within), _null_of(type_.elementType)
        return lambda value: to_list(
            [null if each is None else each for each in _nested(list, value, type_)]
        )
    if isinstance(type_, sql.MapType):
        to_map, null = map_of(None, type_, _reader_within), _null_of(type_.valueType)
        return lambda value: to_map(
            {n: null if v is None else v for n, v in _nested(dict, value, type_).items()}
        )
    convert = _leaf(type_)

    def read(value: Any) -> Any:
        try:
            return convert(value)
        except MisfitError as error:
            raise MisfitError(f"expected {named(type_)}", error.reason) from None

    return read


def _reader_within(_: Any, type_: sql.DataType) -> Convert:
    return reader_of(type_)


def _nested(kind: type, value: Any, type_: sql.DataType) -> Any:
    if type(value) is not kind:
        raise MisfitError(f"expected {named(type_)}", "wrong_type")
    return value


def _is_variant(type_: sql.DataType) -> bool:
    return isinstance(type_, sql.VariantType)


def _null_of(type_: sql.DataType) -> WrittenNumber | None:
    return _NULL if _is_variant(type_) else None


def _with_nulls(fields: Mapping[str, Any], variants: Iterable[str]) -> Mapping[str, Any]:
    """Write out the nulls that are values of a VARIANT."""
    nulls = {name: _NULL for name in variants if name in fields and fields[name] is None}
    return {**fields, **nulls} if nulls else fields


def timestamp_in(value: Any) -> int:
    """Return a moment of ISO 8601, or a whole number of seconds, in microseconds.

    Raises:
        MisfitError: it is none, or none of the years 1 to 9999.
    """
    if type(value) is not int:
        return _moment(value, zoned=True)
    is_within = FIRST_MOMENT <= value * _MICROS <= LAST_MOMENT
    return value * _MICROS if abs(value) < _MOST_SECONDS and is_within else _refuse("bad_time")


def bytes_in(text: Any) -> bytes:
    """Return the bytes of base64.

    Raises:
        MisfitError: it is not base64.
    """
    try:
        return from_base64(_of(str, text))
    except MisfitError:
        raise
    except ValueError:
        return _refuse("bad_base64")


def variant_text(value: Any) -> str:
    """Write a value as JSON again, numbers as they were.

    Raises:
        NotJsonError: Spark's parser would not take it.
    """
    text = _written(value)
    if len(text) > LONGEST_VARIANT:
        raise NotJsonError("malformed_json", f"a VARIANT of {len(text)} characters")
    return text


def _written(value: Any) -> str:
    """Write a value from the front to the back: it may be as deep as documents may be."""
    written, rest = [], [value]
    while rest:
        each = rest.pop()
        if type(each) is dict:
            rest += reversed(_pieces("{", ((f"{_name(n)}:", v) for n, v in each.items()), "}"))
        elif type(each) is list:
            rest += reversed(_pieces("[", (("", item) for item in each), "]"))
        else:
            written.append(each if type(each) is WrittenNumber else json.dumps(each))
    return "".join(written)


def _pieces(start: str, items: Iterable[tuple[str, Any]], end: str) -> list[Any]:
    """Return what to write of an object or a list; what is no value counts as written."""
    pieces: list[Any] = []
    for name, value in items:
        pieces += [WrittenNumber(("," if pieces else start) + name), value]
    return [*pieces, WrittenNumber(end)] if pieces else [WrittenNumber(start + end)]


def _name(name: str) -> str:
    if len(name.encode("utf-16-le")) > 2 * LONGEST_NAME:
        raise NotJsonError("malformed_json", f"a name of more than {LONGEST_NAME} characters")
    return json.dumps(name)


def _refuse_first(misfits: list[MisfitError]) -> NoReturn:
    """Refuse a record for its values of another type, if there are any: they are the coarsest."""
    wrong = [each for each in misfits if each.reason == "wrong_type"] or misfits[:1]
    raise BadBytesError(wrong[0].reason, ", ".join(map(str, wrong))[:500])


def _leaf(type_: sql.DataType) -> Convert:
    if isinstance(type_, sql.DecimalType):
        return lambda value: _decimal(value, type_)
    if isinstance(type_, sql.VarcharType):
        length = type_.length
        return lambda value: value if len(_of(str, value)) <= length else _refuse("too_long")
    return _LEAVES.get(type(type_)) or _integer(type_)


def _integer(type_: sql.DataType) -> Convert:
    within = exact(Source("integer"), type_)

    def read(value: Any) -> int:
        try:
            return int(within(_of(int, value)))
        except MisfitError:
            return _refuse("wrong_type")

    return read


def _decimal(value: Any, type_: sql.DecimalType) -> Decimal:
    if type(value) not in (int, WrittenNumber):
        _refuse("wrong_type")
    text = str(value)
    before, _, behind = text.removeprefix("-").partition(".")
    digits = max(len((before + behind).lstrip("0")), len(behind))
    if not _PLAIN.fullmatch(text) or digits > MOST_DIGITS:
        _refuse("inexact_number")
    number = Decimal(text)
    try:
        return rescaled(number, type_)
    except MisfitError:
        is_large = abs(number) >= Decimal(1).scaleb(type_.precision - type_.scale)
        return _refuse("out_of_range" if is_large else "inexact_number")


def _double(value: Any) -> float:
    if type(value) is str and value in _NOT_FINITE:
        _refuse("not_finite")
    if type(value) not in (int, WrittenNumber):
        _refuse("wrong_type")
    try:
        number = float(value)
    except OverflowError:
        return _refuse("not_finite")
    return number if math.isfinite(number) else _refuse("not_finite")


def _single(value: Any) -> float:
    """Round once: by way of a double, some numbers would be rounded twice."""
    number = _double(value)
    try:
        near = nearest_single(number, str(value))
    except OverflowError:
        return _refuse("not_finite")
    return near if math.isfinite(near) else _refuse("not_finite")


def _date(value: Any) -> int:
    if type(value) is not str or not _DAY.fullmatch(value):
        _refuse("bad_time")
    return _moment(value, zoned=False) // (86_400 * _MICROS)


def _moment(value: Any, *, zoned: bool) -> int:
    found = _MOMENT.fullmatch(value) if type(value) is str else None
    if found is None or (found[1] and not zoned):
        _refuse("bad_time")
    try:
        return moment(value)
    except ValueError:
        return _refuse("bad_time")


def _of(kind: type, value: Any) -> Any:
    return value if type(value) is kind else _refuse("wrong_type")


def _refuse(reason: str) -> NoReturn:
    raise MisfitError("a misfit", reason)


def _parse(raw: bytes) -> Any:
    return _PARSE(raw) if len(raw) <= LONGEST_NUMBER else _PARSE_LONG(raw)


def _of_sane_length(number: str) -> str:
    if len(number.lstrip("-").replace(".", "", 1)) > LONGEST_NUMBER:
        raise ValueError(f"a number of {len(number)} characters")
    return number


_PARSE: Final = StrictParser(WrittenNumber)
_PARSE_LONG: Final = StrictParser(
    lambda text: WrittenNumber(_of_sane_length(text)), lambda text: int(_of_sane_length(text))
)


_LEAVES: Final[dict[type[sql.DataType], Convert]] = {
    sql.StringType: lambda value: _of(str, value),
    sql.BooleanType: lambda value: _of(bool, value),
    sql.DoubleType: _double,
    sql.FloatType: _single,
    sql.BinaryType: bytes_in,
    sql.DateType: _date,
    sql.TimestampType: timestamp_in,
    sql.TimestampNTZType: lambda value: _moment(value, zoned=False),
    sql.VariantType: variant_text,
}
