"""JSON read one record after the other, in pure Python: it decides every doubtful record.

A value that its column cannot hold has a reason, a code of the format; the record's reason is that
of its first such value, or ``wrong_type`` if any value is of another type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NoReturn

from msgspec import Raw
from pyspark.sql import types as sql

from oncelake.ingestion.declaration.formats import JsonKeyOptions
from oncelake.ingestion.formats.coerce import (
    BITS,
    FIRST_MOMENT,
    LAST_MOMENT,
    MORE_DIGITS,
    Convert,
    MisfitError,
    array_of,
    from_base64,
    holding,
    map_of,
    moment,
    named,
    nearest_single,
    rescaled,
    struct_of,
)
from oncelake.ingestion.formats.decoder import BadBytesError, Decoded, Encoded, text_of
from oncelake.ingestion.formats.spelling import Undeclared, spelt
from oncelake.ingestion.formats.strict_json import (
    LONGEST_NUMBER,
    LongNumberError,
    StrictParser,
    of_sane_length,
)
from oncelake.ingestion.formats.variant import refuse_unheld, variant_text

# Forms of what a column takes, as Python and Arrow both read them.
NUMBER: Final = r"-?\d+(?:\.\d+)?"
DATE: Final = r"\d{4}-\d{2}-\d{2}"
TIME: Final = r"[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?"
ZONE: Final = r"(?:Z|[+-](?:(?:0\d|1[0-7]):[0-5]\d|18:00))"
# A number as RFC 8259 has it; with a point or an exponent it is no whole one.
_JSON_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)((?:\.\d+)?(?:[eE][+-]?\d+)?)", re.ASCII)
DAY: Final = re.compile(DATE, re.ASCII)
MOMENT: Final = re.compile(f"{DATE}(?:{TIME}({ZONE})?)?", re.ASCII)
_NOT_FINITE: Final = frozenset(
    {"NaN", *(sign + word for sign in ("", "+", "-") for word in ("INF", "Infinity"))}
)
_MICROS: Final = 1_000_000
_MOST_SECONDS: Final = 10**12


# What holds in JSON what has no column type of its own, or none that its value tells.
_HOLDING: Final = {"ARRAY": "VARIANT", "STRUCT": "VARIANT", MORE_DIGITS: "DOUBLE"}
# By how many bytes they have: key formats, and the columns that hold each number of one.
_OF_JAVA: Final[Mapping[int, tuple[str, tuple[type[sql.DataType], ...]]]] = {
    2: ("short", (sql.ShortType, sql.IntegerType, sql.LongType)),
    4: ("int", (sql.IntegerType, sql.LongType)),
    8: ("long", (sql.LongType,)),
}
# To VARIANT, null is a value.
_NULL: Final = Raw("null")


class StrictReader:
    """Reads a record as one object with the declared fields.

    A field that is absent is null. A key that is a single column may be a bare value.
    """

    def __init__(self, encoded: Encoded) -> None:
        self._encoded, self._names = encoded, frozenset(encoded.schema.names)
        self._undeclared: dict[Undeclared, None] = {}
        self._misspelt: list[str] = []
        self._coerced: list[str] = []
        self._columns = [(each.name, self._column_reader(each)) for each in encoded.schema]
        self._variants = [each.name for each in encoded.schema if _is_variant(each.dataType)]

    def __call__(self, raw: bytes) -> Decoded:
        """Read one record; raise ``BadBytesError`` if it belongs in quarantine."""
        return self.read(raw)[0]

    def read(self, raw: bytes) -> tuple[Decoded, Iterable[Undeclared]]:
        """Read one record, and return what it has that is not declared, too."""
        try:
            return self._decoded(self._key(raw) if self._encoded.is_key else _parse(raw))
        except RecursionError:
            raise BadBytesError("malformed_json", "nested too deeply") from None

    def _key(self, raw: bytes) -> Any:
        """Read a Kafka key: an object, or for a single column a bare value, JSON or plain text."""
        columns = self._encoded.schema
        if len(columns) != 1 or raw.lstrip().startswith(b"{"):
            return _parse(raw)
        if isinstance(columns[0].dataType, sql.StringType) and not raw.startswith(b'"'):
            return {columns[0].name: text_of(raw)}
        javas = self._java_format(raw, columns[0].dataType)
        try:
            bare = _parse(raw)
        except BadBytesError as error:
            if javas is None:
                raise
            raise BadBytesError(error.reason, f"{error}; declare `key_format: {javas}`") from None
        if javas is not None:
            number = int.from_bytes(raw, signed=True)
            raise BadBytesError(
                "ambiguous_key",
                f"{raw!r} may be text, or the {javas} {number} of Java's: declare `key_format: "
                f"{javas}`, or `key_format: {{type: json, numbers: text}}`",
            )
        return {columns[0].name: bare}

    def _java_format(self, raw: bytes, type_: sql.DataType) -> str | None:
        """Return the format of keys by which the bytes are a number, too, that the column has."""
        options = self._encoded.options
        if not isinstance(options, JsonKeyOptions) or options.numbers:
            return None
        name, types = _OF_JAVA.get(len(raw), ("", ()))
        return name if isinstance(type_, types) else None

    def _decoded(self, fields: Any) -> tuple[Decoded, Iterable[Undeclared]]:
        if type(fields) is not dict:
            raise BadBytesError("not_an_object", "an array, a scalar or null")
        self._undeclared, self._misspelt, self._coerced = {}, [], []
        row = self._row(fields)
        extra = [each.path for each in self._undeclared]
        # A name that occurs only in another case would leave its column null silently.
        if self._misspelt:
            raise BadBytesError("wrong_case", ", ".join(self._misspelt)[:500])
        if refused := self._encoded.refused(extra):
            raise BadBytesError("unknown_field", ", ".join(refused)[:500])
        decoded = Decoded(row, extra, kept=self._kept(fields), coerced=self._coerced)
        return decoded, self._undeclared

    def _row(self, fields: Mapping[str, Any]) -> list[Any]:
        row: list[Any] = []
        misfits: list[MisfitError] = []
        self._note(fields, self._names, "")
        given = _with_nulls(fields, self._variants)
        for name, read in self._columns:
            value = given.get(name)
            try:
                row.append(None if value is None else read(value))
            except MisfitError as error:
                misfits.append(error.within(name))
        if misfits:
            # Values of another type are the coarsest.
            first = [each for each in misfits if each.reason == "wrong_type"] or misfits[:1]
            raise BadBytesError(first[0].reason, ", ".join(map(str, first))[:500])
        return row

    def _note(self, fields: Mapping[str, Any], declared: Collection[str], prefix: str) -> None:
        """Note names that are not declared, an object's own before those that are deeper."""
        others = [name for name in fields if name not in declared]
        if not others:
            return
        self._undeclared.update(dict.fromkeys(Undeclared(prefix, name) for name in others))
        absent = {name.lower() for name in declared if name not in fields}
        misspelt = (name for name in others if name.lower() in absent)
        self._misspelt.extend(Undeclared(prefix, name).path for name in misspelt)

    def _kept(self, fields: Mapping[str, Any]) -> str | None:
        if self._encoded.extra_fields != "keep":
            return None
        others = {n: v for n, v in fields.items() if n not in self._names}
        return self._variant_text(others) if others else None

    def _variant_text(self, value: Any) -> str:
        """Write a value as JSON, if a VARIANT holds it; what stays a text holds any number."""
        if not self._encoded.are_variants_text:
            refuse_unheld(value)
        return variant_text(value)

    def _column_reader(self, column: sql.StructField) -> Convert:
        """Return the conversion of a column's values; a lenient one takes another type's, too."""
        read = self._reader(spelt(column.name), column.dataType)
        if column.name not in self._encoded.lenient:
            return read
        is_text = isinstance(column.dataType, sql.StringType | sql.VarcharType)
        coerce = _text_of_scalar if is_text else _number_in_text

        def read_leniently(value: Any) -> Any:
            coerced = coerce(value)
            if coerced is None:
                return read(value)
            converted = read(coerced)
            self._coerced.append(column.name)
            return converted

        return read_leniently

    def _reader(self, path: str, type_: sql.DataType) -> Convert:
        """Return the conversion of the values at a path that are not null.

        It raises ``MisfitError`` with a reason, or for a VARIANT ``BadBytesError``.
        """
        if isinstance(type_, sql.StructType):
            return self._struct_reader(path, type_)
        if isinstance(type_, sql.ArrayType):
            to_list = array_of(f"{path}[]", type_, self._reader)
            null = _null_of(type_.elementType)
            return lambda value: to_list(
                [null if each is None else each for each in _nested(list, value, type_)]
            )
        if isinstance(type_, sql.MapType):
            to_map, null = map_of(f"{path}{{}}", type_, self._reader), _null_of(type_.valueType)
            return lambda value: to_map(
                {n: null if v is None else v for n, v in _nested(dict, value, type_).items()}
            )
        convert = self._variant_text if _is_variant(type_) else _leaf(type_)

        def read(value: Any) -> Any:
            try:
                return convert(value)
            except MisfitError as error:
                raise _misfit(value, type_, error.reason) from None

        return read

    def _struct_reader(self, path: str, type_: sql.StructType) -> Convert:
        prefix = f"{path}."
        paths = {name: prefix + spelt(name) for name in type_.names}
        to_struct = struct_of(paths, type_, self._reader, missing="missing_required")
        variants = [each.name for each in type_ if each.nullable and _is_variant(each.dataType)]

        def read(value: Any) -> Any:
            self._note(_nested(dict, value, type_), paths, prefix)
            return to_struct(_with_nulls(value, variants))

        return read


def _nested(kind: type, value: Any, type_: sql.DataType) -> Any:
    if type(value) is not kind:
        raise _misfit(value, type_, "wrong_type")
    return value


def _misfit(value: Any, type_: sql.DataType, reason: str) -> MisfitError:
    """Name what was expected, and the type of a column that would hold the value."""
    found = holding(_decimal_in(value) if type(value) is Raw else value)
    return MisfitError(f"expected {named(type_)}, found {_HOLDING.get(found, found)}", reason)


def _is_variant(type_: sql.DataType) -> bool:
    return isinstance(type_, sql.VariantType)


def _null_of(type_: sql.DataType) -> Raw | None:
    return _NULL if _is_variant(type_) else None


def _with_nulls(fields: Mapping[str, Any], variants: Iterable[str]) -> Mapping[str, Any]:
    """Write out the nulls that are values of a VARIANT."""
    nulls = {name: _NULL for name in variants if name in fields and fields[name] is None}
    return {**fields, **nulls} if nulls else fields


def timestamp_in(value: Any) -> int:
    """Return a moment of ISO 8601, or a whole number of seconds, in microseconds."""
    if type(value) is not int:
        return _moment(value, zoned=True)
    is_within = FIRST_MOMENT <= value * _MICROS <= LAST_MOMENT
    return value * _MICROS if abs(value) < _MOST_SECONDS and is_within else _refuse("bad_time")


def bytes_in(text: Any) -> bytes:
    """Return the bytes of base64."""
    try:
        return from_base64(_of(str, text))
    except MisfitError:
        raise
    except ValueError:
        return _refuse("bad_base64")


def _leaf(type_: sql.DataType) -> Convert:
    if isinstance(type_, sql.DecimalType):
        return lambda value: _decimal(value, type_)
    if isinstance(type_, sql.VarcharType):
        length = type_.length
        return lambda value: value if len(_of(str, value)) <= length else _refuse("too_long")
    return _LEAVES.get(type(type_)) or _integer(type_)


def _integer(type_: sql.DataType) -> Convert:
    most = 1 << (BITS[type(type_)] - 1)
    return lambda value: value if -most <= _of(int, value) < most else _refuse("wrong_type")


def _decimal(value: Any, type_: sql.DecimalType) -> Decimal:
    """Take a number that needs no rounding, with or without an exponent."""
    number = _decimal_in(value)
    try:
        return rescaled(number, type_)
    except MisfitError:
        is_large = number.copy_abs() >= Decimal(1).scaleb(type_.precision - type_.scale)
        return _refuse("out_of_range" if is_large else "inexact_number")


def _decimal_in(value: Any) -> Decimal:
    """Return a number of any size; one with an exponent of 19 digits counts as infinite."""
    try:
        return Decimal(_number(value))
    except InvalidOperation:
        return Decimal("inf")


def _double(value: Any) -> float:
    if type(value) is str and value in _NOT_FINITE:
        _refuse("not_finite")
    number = float(_number(value))
    return number if math.isfinite(number) else _refuse("not_finite")


def _single(value: Any) -> float:
    """Round once: by way of a double, some numbers would be rounded twice."""
    near = nearest_single(_double(value), _number(value))
    return near if math.isfinite(near) else _refuse("not_finite")


def _date(value: Any) -> int:
    if type(value) is not str or not DAY.fullmatch(value):
        _refuse("bad_time")
    return _moment(value, zoned=False) // (86_400 * _MICROS)


def _moment(value: Any, *, zoned: bool) -> int:
    found = MOMENT.fullmatch(value) if type(value) is str else None
    if found is None or (found[1] and not zoned):
        _refuse("bad_time")
    try:
        return moment(value)
    except ValueError:
        return _refuse("bad_time")


def _number_in_text(value: Any) -> Any:
    """Return the number that a text writes as JSON does; nothing of any other value."""
    found = _JSON_NUMBER.fullmatch(value) if type(value) is str else None
    if found is None:
        return None
    try:
        of_sane_length(value)
    except LongNumberError:
        return None
    return Raw(value.encode()) if found[1] else int(value)


def _text_of_scalar(value: Any) -> str | None:
    """Write a number or a boolean as JSON does; nothing of any other value."""
    if type(value) is bool:
        return "true" if value else "false"
    return _number(value) if type(value) in (int, Raw) else None


def _number(value: Any) -> str:
    """Return a number as it was written."""
    if type(value) is Raw:
        return bytes(value).decode()
    return str(_of(int, value))


def _of(kind: type, value: Any) -> Any:
    return value if type(value) is kind else _refuse("wrong_type")


def _refuse(reason: str) -> NoReturn:
    raise MisfitError("a misfit", reason)


def _parse(raw: bytes) -> Any:
    return _PARSE(raw) if len(raw) <= LONGEST_NUMBER else _PARSE_LONG(raw)


_PARSE: Final = StrictParser(Raw)
_PARSE_LONG: Final = StrictParser(
    lambda text: Raw(of_sane_length(text)), lambda text: int(of_sane_length(text))
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
}
