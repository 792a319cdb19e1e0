"""Debezium's envelopes in JSON, decoded into Arrow columns: the row after a change, or before it.

Only what is plain is taken. An envelope that names another key of its row, leaves a column out,
has a field that no column names, or says anything else than that a row is there or gone, is
doubtful.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.formats import DebeziumOptions
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.sql import identifier
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.verify.columns import NotInColumnsError
from oncelake.ingestion.verify.columns.json_values import JsonReader
from oncelake.ingestion.verify.columns.types import (
    END_SECOND,
    FIRST_DAY,
    FIRST_SECOND,
    LAST_DAY,
    from_iso,
    from_json,
    from_text,
    json_type,
    taken_if,
)
from oncelake.ingestion.verify.decode.coerce import TICKS, BadRecordError
from oncelake.ingestion.verify.decode.debezium import Meaning, meanings_of
from oncelake.ingestion.verify.decode.json import parse

# The column by which a record says that it is a delete.
DELETES: Final = "_deletes"
_OF_ROWS: Final = pa.array(["c", "r", "u"])
# What may stand for a value that is left out: the texts, escaped or not, and bytes as numbers.
_MAY_LEAVE_OUT: Final = (
    r"__debezium_unavailable_value|X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="
    r"|b68a35a7-17ad-35b3-af2a-ae46edb4545a|\\u00[2-7]|\[\s*95\s*,\s*95\s*,"
)
# How many ticks of a unit are a microsecond; a millisecond is 1000 of those.
_MICROS: Final = {"millis": "{} * 1000", "micros": "{}", "nanos": "{} // 1000"}
_CLOCKS: Final = {"ts_ms": "millis", "ts_us": "micros", "ts_ns": "nanos"}
_MAKES: Final = {"TIMESTAMP": "make_timestamptz", "TIMESTAMP_NTZ": "make_timestamp"}
# What is between a schema and its payload.
_PAYLOAD: Final = b',"payload":'
_MOST_SCHEMAS: Final = 1_000
# Milliseconds beyond which there is no moment, and microseconds that are none.
_SAFE: Final = 1 << 53
_NO_MOMENT: Final = 1 << 62
# The bytes of a whole number that DuckDB holds, in base64.
_BASE64: Final = "([A-Za-z0-9+/]{4}){0,4}([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})"
# Of text and bytes: a number as text, perhaps, and bytes that no connector puts before others.
_AMBIGUOUS: Final = (
    "regexp_full_match({text}, '[0-9+eE]*') OR regexp_matches({raw}, '^(00[0-7]|FF[89A-F])')"
)


class Taken(NamedTuple):
    """How a column is taken from an envelope.

    Attributes:
        type: The type by which its value is read.
        value: What it is, in DuckDB's SQL over a column of its name.
        doubt: When that is doubtful.
    """

    type: pa.DataType
    value: str
    doubt: str


class _Said(NamedTuple):
    """The columns that a schema has in milliseconds, and those that it lacks.

    Attributes:
        millis: Their moments are milliseconds, and not microseconds.
        absent: It says nothing of them, or that their values have another meaning.
    """

    millis: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()


class EnvelopeReader(JsonReader):
    """Reads envelopes into the declared columns and ``_deletes``."""

    def __init__(self, spec: StreamSpec, types: Mapping[str, pa.DataType]) -> None:
        """Take the columns, with the types by which their values are read.

        Raises:
            NotInColumnsError: two columns take one field as values of two types.
        """
        options = spec.format.options
        assert isinstance(options, DebeziumOptions), "options are of the format's model"
        self._names, self._paths = [*types], options.columns
        self._schemas: _Schemas | None = None
        if options.schemas:
            own = {n: type_ for n, type_ in spec.types.items() if n not in options.columns}
            self._schemas = _Schemas(own)
        self._moved_by = [name for name in spec.moved_by if name not in options.columns]
        row = pa.struct([(name, type_) for name, type_ in types.items() if name not in self._paths])
        fields: dict[str, Any] = {"before": row, "after": row, "op": pa.string()}
        for name, path in self._paths.items():
            if name in types:
                _put(fields, path.split("."), types[name])
        schema = pa.schema([(name, _struct(type_)) for name, type_ in fields.items()])
        super().__init__(schema, whole=["after"], doubtful=[_MAY_LEAVE_OUT])

    def read(self, values: Sequence[bytes]) -> tuple[pa.Table, pa.Array]:
        """Return the columns of the records that are not doubtful, and where those records are.

        Raises:
            NotInColumnsError: the envelopes are not alike enough to be read together.
        """
        if self._schemas is None:
            return self._taken(values, _Said())
        groups = self._schemas.grouped(values) or [(_Said(), [], [])]
        parts = [self._taken(payloads, said) for said, payloads, _ in groups]
        places = [
            pa.array(at, pa.int64()).take(taken)
            for (_, taken), (_, _, at) in zip(parts, groups, strict=True)
        ]
        return pa.concat_tables([table for table, _ in parts]), pa.concat_arrays(places)

    def _taken(self, envelopes: Sequence[bytes], said: _Said) -> tuple[pa.Table, pa.Array]:
        table, places = super().read(envelopes)
        op, before, after = (table.column(name) for name in ("op", "before", "after"))
        is_delete = pc.equal(op, "d")
        is_row = pc.and_kleene(pc.is_in(op, value_set=_OF_ROWS), pc.is_valid(after))
        is_gone = pc.and_kleene(is_delete, pc.is_valid(before))
        keys = [
            [pc.struct_field(side, name) for side in (before, after)] for name in self._moved_by
        ]
        # A null of the row before it tells nothing.
        moves = [pc.fill_null(pc.not_equal(old, new), pc.is_valid(old)) for old, new in keys]
        updates = [pc.and_kleene(pc.equal(op, "u"), each) for each in moves]
        is_sound = functools.reduce(pc.and_not_kleene, updates, pc.or_kleene(is_row, is_gone))
        has_deletes = pc.any(is_delete).as_py()
        columns = {}
        for name in self._names:
            if path := self._paths.get(name):
                top, *rest = path.split(".")
                column = pc.struct_field(table.column(top), rest) if rest else table.column(top)
            else:
                column = pc.struct_field(after, name)
                if has_deletes:
                    column = pc.if_else(is_delete, pc.struct_field(before, name), column)
                if name in said.absent:
                    is_sound = pc.and_kleene(is_sound, pc.is_null(column))
                if name in said.millis:
                    is_safe = pc.and_(pc.greater(column, -_SAFE), pc.less(column, _SAFE))
                    column = pc.if_else(is_safe, pc.multiply(column, 1000), _NO_MOMENT)
            columns[name] = column
        sound = pc.fill_null(is_sound, False)
        taken = pa.table({**columns, DELETES: is_delete}).filter(sound)
        return taken, places.filter(sound.combine_chunks())


class _Schemas:
    """Takes payloads out of documents whose schemas give values the meanings that are read."""

    def __init__(self, types: Mapping[str, SqlType]) -> None:
        self._types = types
        # What stands before a payload, and what it says; nothing where that is not what is read.
        self._known: dict[bytes, _Said | None] = {}

    def grouped(self, values: Sequence[bytes]) -> list[tuple[_Said, list[bytes], list[int]]]:
        """Return the payloads that can be read, and where they are, by what is said of them.

        Raises:
            NotInColumnsError: there are too many schemas.
        """
        groups: dict[bytes, tuple[_Said, list[bytes], list[int]]] = {}
        before = b"-"
        for number, value in enumerate(values):
            if not value.startswith(before):
                schema, mark, _ = value.partition(_PAYLOAD)
                before = schema + mark if mark else b"-"
            said = self._said(before)
            if said is not None and value.endswith(b"}"):
                _, payloads, at = groups.setdefault(before, (said, [], []))
                payloads.append(value[len(before) : -1])
                at.append(number)
        return [*groups.values()]

    def _said(self, before: bytes) -> _Said | None:
        if before not in self._known:
            if len(self._known) > _MOST_SCHEMAS:
                raise NotInColumnsError("its schemas are too many")
            try:
                self._known[before] = self._meaning(parse(before + b"null}"))
            except BadRecordError:
                self._known[before] = None
        return self._known[before]

    def _meaning(self, document: Any) -> _Said | None:
        if not isinstance(document, dict) or sorted(document) != ["payload", "schema"]:
            return None
        sides = [meanings_of(document["schema"], side) for side in ("before", "after")]
        if sides[0] != sides[1]:
            return None
        millis, absent = set(), set()
        for name, type_ in self._types.items():
            said = sides[0].get(name, Meaning())
            is_read = {
                "DATE": said.is_days,
                "DECIMAL": said.scale == type_.scale,
                "TIMESTAMP_NTZ": said.ticks in {10**3, 10**6},
            }
            if not is_read.get(type_.word, True):
                absent.add(name)
            elif type_.word == "TIMESTAMP_NTZ" and said.ticks == 10**3:
                millis.add(name)
        return _Said(frozenset(millis), frozenset(absent))


def from_envelope(spec: StreamSpec, column: DeclaredColumn) -> Taken:
    """Return how a column is taken.

    Raises:
        NotInColumnsError: its values are read one by one.
    """
    options = spec.format.options
    assert isinstance(options, DebeziumOptions), "options are of the format's model"
    name, type_, path = column.name, column.type, options.columns.get(column.name)
    unit: Any = options.timestamps
    unit = unit.get(name) if isinstance(unit, dict) else unit
    if options.schemas:
        # What schemas must say of it, see _Schemas.
        unit = "micros" if type_.word == "TIMESTAMP_NTZ" else None
    unit = _CLOCKS.get(path.rpartition(".")[2]) if path else unit
    if type_.parts and type_.contains("DECIMAL"):
        raise NotInColumnsError(f"values of {type_} are read one by one")
    if type_.word == "DATE" and not path:
        return Taken(pa.int64(), *_from_days(name))
    if type_.word in _MAKES:
        if unit is None:
            return Taken(pa.string(), *from_iso(name, type_))
        return Taken(pa.int64(), *_from_ticks(name, type_, unit))
    if type_.word == "DECIMAL" and not path:
        return Taken(
            pa.string(),
            *_from_decimal(name, type_, "base64" if options.schemas else options.decimals),
        )
    return Taken(json_type(type_), *from_json(name, type_))


def _from_days(name: str) -> tuple[str, str]:
    days = identifier(name)
    is_day = f"{days} BETWEEN {FIRST_DAY} AND {LAST_DAY}"
    return taken_if(name, is_day, f"DATE '1970-01-01' + {days}::INTEGER")


def _from_ticks(name: str, type_: SqlType, unit: str) -> tuple[str, str]:
    ticks, second = identifier(name), TICKS[unit]
    is_moment = f"{ticks} >= {FIRST_SECOND * second} AND {ticks} < {END_SECOND * second}"
    if unit == "nanos":
        # As many as 64 bits hold.
        is_moment = f"{ticks} % 1000 = 0"
    return taken_if(name, is_moment, f"{_MAKES[type_.word]}({_MICROS[unit].format(ticks)})")


def _from_decimal(name: str, type_: SqlType, how: str) -> tuple[str, str]:
    """Write a decimal that is text: plain digits, or the base64 of its unscaled number."""
    scale, sql = type_.scale, f"DECIMAL({type_.precision}, {type_.scale})"
    if how == "string":
        fraction = rf"(\.[0-9]{{1,{scale}}})?" if scale else ""
        return from_text(name, sql, f"-?[0-9]{{1,{type_.precision}}}{fraction}")
    text = identifier(name)
    raw = f"hex(from_base64({text}))"
    sign = f"CASE WHEN {raw} >= '8' THEN 1::HUGEINT << (4 * length({raw})) ELSE 0 END"
    number = f"(('0x' || {raw})::HUGEINT - {sign})"
    digits = f"abs({number})::VARCHAR"
    digits = f"lpad({digits}, greatest(length({digits}), {scale + 1})::INTEGER, '0')"
    parts = f"left({digits}, length({digits}) - {scale}), '.', right({digits}, {scale})"
    value = f"TRY_CAST(concat(CASE WHEN {number} < 0 THEN '-' END, {parts}) AS {sql})"
    is_base64 = f"regexp_full_match({text}, '{_BASE64}')"
    value, doubt = taken_if(name, is_base64, value)
    again = f"CASE WHEN {is_base64} THEN to_base64(from_base64({text})) END"
    doubt = f"{doubt} OR {again} IS DISTINCT FROM {text}"
    if how == "precise":
        ambiguous = _AMBIGUOUS.format(text=text, raw=raw)
        doubt += f" OR CASE WHEN {is_base64} THEN {ambiguous} END"
    return value, doubt


def _put(fields: dict[str, Any], path: Sequence[str], type_: pa.DataType) -> None:
    """Select a field of an envelope."""
    *around, name = path
    fields = functools.reduce(lambda inner, each: inner.setdefault(each, {}), around, fields)
    if fields.setdefault(name, type_) != type_:
        raise NotInColumnsError(f"two columns take {'.'.join(path)}")


def _struct(type_: Any) -> pa.DataType:
    if not isinstance(type_, dict):
        return type_
    return pa.struct([(name, _struct(each)) for name, each in type_.items()])
