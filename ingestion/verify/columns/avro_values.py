"""Framed Avro decoded into Arrow columns by pyruhvro, and those records that it must not judge.

pyruhvro takes what the rule refuses: bytes behind a datum, an int beyond 32 bits, a varint beyond
64, text that is no UTF-8; and it panics at some types. So it gets a schema of plain types, with
names of our own and no meanings: ints are longs there, bytes are texts, and each datum has a mark
behind it. What values mean is decided here. A schema with any other type, or with a field that is
no plain value of its column, is left to the rule with all of its records.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyruhvro

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.kafka.schema_registry import SchemaId, WriterSchema, fresh_registry
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.columns.parts import PartsReader
from oncelake.ingestion.verify.columns.types import (
    END_SECOND,
    FIRST_DAY,
    FIRST_SECOND,
    ISO,
    LAST_DAY,
    arrow_type,
)
from oncelake.ingestion.verify.decode.avro import (
    CLOCKS,
    LOGICAL,
    branches_of,
    fields_of,
    inside,
    naming,
    parse_schema,
)
from oncelake.ingestion.verify.decode.coerce import BROKEN, TICKS, BadRecordError, undeclared

# The column by which a record says that it has fields that no column names.
UNDECLARED: Final = "_undeclared"
_AS_IT_IS: Final = frozenset({"boolean", "long", "float", "double", "string"})
_UNDER_OTHER_NAME: Final = {"int": "long", "bytes": "string"}
_WHOLE: Final = frozenset({"TINYINT", "SMALLINT", "INT", "BIGINT"})
_FITTING: Final = {
    "boolean": frozenset({"BOOLEAN"}),
    "float": frozenset({"FLOAT", "DOUBLE"}),
    "double": frozenset({"FLOAT", "DOUBLE"}),
    **dict.fromkeys(("string", "enum"), frozenset({"STRING", "VARCHAR"})),
    "bytes": frozenset({"BINARY"}),
}
_MOMENTS: Final = {"TIMESTAMP": "timestamp", "TIMESTAMP_NTZ": "local-timestamp"}
_MICROS: Final = 10**6
# Digits before the point that any long may need, and all that Arrow has.
_LONG, _MOST_DIGITS = 19, 38
# Of a whole number, bytes that are certainly no more digits than Arrow has.
_LONGEST: Final = 15
_MOST_TYPES: Final = 1_000
# Values that are decoded at once, however few bytes stand for them.
_MOST_VALUES: Final = 1 << 25
# A varint of ten bytes may have more than 64 bits.
_OVERLONG: Final = r"[\x80-\xff]{9}[\x02-\x7f]"
# Nobody who writes a topic knows it.
_MARK: Final = secrets.token_hex(8)
_ENCODED_MARK: Final = bytes([2 * len(_MARK)]) + _MARK.encode()


class _LeftToTheRuleError(Exception):
    """A schema, or a field as its column, that is decoded record by record."""


class AvroReader:
    """Reads framed Avro into the declared columns and ``_undeclared``."""

    def __init__(self, spec: StreamSpec, settings: Settings) -> None:
        """Take the columns; the registry is asked once for each schema."""
        self._spec, self._registry = spec, fresh_registry(settings)
        self._in_glue = settings.in_glue
        self._row = SqlType(word="STRUCT", parts=spec.types)
        self._schema = pa.schema([*arrow_type(self._row), (UNDECLARED, pa.bool_())])
        self._readers: dict[bytes, _SchemaReader | None] = {}
        self.record_types: set[str] = set()

    def read(self, values: Sequence[bytes]) -> tuple[pa.Table, pa.Array]:
        """Return the columns of the records that are not doubtful, and where those records are.

        Raises:
            NotInColumnsError: the records are not alike enough to be read together.
            DependencyError: the registry does not answer.
        """
        size = 18 if self._in_glue else 5
        groups: dict[bytes, list[int]] = {}
        for at, value in enumerate(values):
            groups.setdefault(value[:size], []).append(at)
        tables, places = [self._schema.empty_table()], [pa.array([], pa.int64())]
        for frame, members in groups.items():
            if frame not in self._readers:
                self._readers[frame] = self._reader(frame)
            if reader := self._readers[frame]:
                payloads = [values[i][size:] + _ENCODED_MARK for i in members]
                table, taken = reader.read_parts(payloads, pa.array(members, pa.int64()))
                tables.append(table)
                places.append(taken)
                if reader.name and len(taken):
                    self.record_types.add(reader.name)
        return pa.concat_tables(tables), pa.concat_arrays(places)

    def _reader(self, frame: bytes) -> _SchemaReader | None:
        """Return what reads records of a frame; nothing where the rule is to read them."""
        number: SchemaId
        if self._in_glue:
            if len(frame) < 18 or not frame.startswith(b"\x03\x00"):
                return None
            number = UUID(bytes=frame[2:])
        elif len(frame) < 5 or frame[0]:
            return None
        else:
            number = int.from_bytes(frame[1:])
        schema = self._registry.schemas([number]).get(number)
        if schema is None or schema.type != "AVRO" or schema.problem:
            return None
        try:
            return self._reader_of(schema)
        except (_LeftToTheRuleError, BadRecordError, *BROKEN):
            return None

    def _reader_of(self, schema: WriterSchema) -> _SchemaReader:
        spec, name, node = self._spec, naming(schema)(b""), parse_schema(schema)
        if spec.record_types and name not in (None, *spec.record_types):
            raise _LeftToTheRuleError("of another type")
        paths = undeclared(node, self._row, inside)
        is_bad = any(path[1:] and path[0] in spec.whole_columns for path in paths)
        if is_bad or (paths and spec.extra_fields == "reject"):
            raise _LeftToTheRuleError("fields that no column names")
        named = None if spec.record_types else name
        return _SchemaReader(node, self._row, self._schema, bool(paths), named)


class _SchemaReader(PartsReader):
    """Reads payloads of one schema, each with the mark behind it.

    Attributes:
        name: Of its record type, where the declaration names none.
    """

    def __init__(
        self, node: Any, row: SqlType, schema: pa.Schema, has_undeclared: bool, name: str | None
    ) -> None:
        """Take it.

        Raises:
            _LeftToTheRuleError: only the rule decodes it, or some field as its column.
            ValueError: pyruhvro refuses it.
        """
        super().__init__(schema)
        if node.type != "record":
            raise _LeftToTheRuleError(node.type)
        self._node, self._row, self._has_undeclared, self.name = node, row, has_undeclared, name
        numbers = count()
        fields = [("value", _plain(node, numbers, ())), ("end", "string")]
        self._text = json.dumps(_record(fields, numbers))
        self._leaves, self._widest = _leaves(node), _widest(node)
        # What is none for any value shows.
        self._decoded([])

    def _table(self, values: Sequence[bytes]) -> pa.Table | None:
        size = max(len(values) * self._leaves, sum(map(len, values)) * self._widest)
        if size > _MOST_VALUES:
            return None
        try:
            return self._decoded(values)
        # A datum that is none, or a value that its column cannot hold.
        except ValueError:
            return None

    def _decoded(self, values: Sequence[bytes]) -> pa.Table:
        decoded = pyruhvro.deserialize_array(list(values), self._text)
        record, mark = decoded.columns
        _refuse_unless(pc.equal(mark, _MARK))
        _refuse_overlong(decoded, self._text, pa.array(values, pa.binary()))
        _refuse_unreadable(record, self._node)
        taken = _taken(record, self._node, self._row)
        has_undeclared = pa.repeat(self._has_undeclared, len(values))
        return pa.table([*taken.flatten(), has_undeclared], schema=self._schema)


def _plain(node: Any, numbers: Iterator[int], around: tuple[int, ...]) -> Any:
    """Write the encoding of a type alone: without meanings, and with names of our own."""
    word, around = node.type, (*around, id(node))
    if id(node) in around[:-1] or next(numbers) > _MOST_TYPES:
        raise _LeftToTheRuleError("a type in itself, or too many")
    if word in _AS_IT_IS or word in _UNDER_OTHER_NAME:
        return _UNDER_OTHER_NAME.get(word, word)
    if word == "array":
        return {"type": "array", "items": _plain(node.items, numbers, around)}
    if word == "map":
        return {"type": "map", "values": _plain(node.values, numbers, around)}
    if word == "enum":
        return {"type": "enum", "name": f"N{next(numbers)}", "symbols": [*node.symbols]}
    words = [each.type for each in branches_of(node)]
    if len(words) == 2 and "null" in words:
        branch = _plain(_branch(node), numbers, around)
        return ["null" if each == "null" else branch for each in words]
    if word == "record" and fields_of(node):
        types = [_plain(each, numbers, around) for each in fields_of(node).values()]
        return _record([(f"f{n}", type_) for n, type_ in enumerate(types)], numbers)
    raise _LeftToTheRuleError(word)


def _record(fields: Sequence[tuple[str, Any]], numbers: Iterator[int]) -> Any:
    of_names = [{"name": name, "type": type_} for name, type_ in fields]
    return {"type": "record", "name": f"N{next(numbers)}", "fields": of_names}


def _branch(node: Any) -> Any:
    """Return the type of a value that is not null."""
    return next((each for each in branches_of(node) if each.type != "null"), node)


def _repeated(node: Any) -> list[Any]:
    return {"array": lambda: [node.items], "map": lambda: [node.values]}.get(node.type, list)()


def _leaves(node: Any) -> int:
    """Count the values that one null may stand for."""
    node = _branch(node)
    return max(1, sum(map(_leaves, fields_of(node).values())))


def _widest(node: Any) -> int:
    """Return how many values one byte may stand for, within an array or a map."""
    node = _branch(node)
    inner = [*fields_of(node).values(), *_repeated(node)]
    return max([1, *map(_leaves, _repeated(node)), *map(_widest, inner)])


def _refuse_unless(holds: Any) -> None:
    """Refuse values of which not every one is as it should be; null is no doubt."""
    if not pc.all(holds, min_count=0).as_py():
        raise pa.ArrowInvalid("values that are none of their type")


def _refuse_overlong(decoded: pa.RecordBatch, schema: str, raw: pa.Array) -> None:
    """Refuse varints of more than 64 bits: what was read of them is not encoded as it was sent."""
    if pc.any(pc.match_substring_regex(raw, _OVERLONG)).as_py():
        encoded = pyruhvro.serialize_record_batch(decoded, schema, 1)
        _refuse_unless(pc.equal(pa.concat_arrays(encoded), raw))


def _refuse_unreadable(values: pa.Array, node: Any) -> None:
    """Refuse ints of more than 32 bits, and texts that are no UTF-8, declared or not."""
    node = _branch(node)
    if node.type == "int":
        values.cast(pa.int32())
    elif node.type == "string":
        values.validate(full=True)
    elif node.type == "array":
        _refuse_unreadable(values.values, node.items)
    elif node.type == "map":
        values.keys.validate(full=True)
        _refuse_unreadable(values.items, node.values)
    for at, inner in enumerate(fields_of(node).values()):
        _refuse_unreadable(values.field(at), inner)


def _taken(values: pa.Array, node: Any, type_: SqlType) -> pa.Array:
    """Return values as a declared type.

    Raises:
        pa.ArrowInvalid: one of them is none of it.
        _LeftToTheRuleError: the type is not plainly the declared one.
    """
    node, target = _branch(node), arrow_type(type_)
    if node.type == "record" and type_.word == "STRUCT":
        return _struct(values, fields_of(node), type_)
    if node.type == "array" and type_.word == "ARRAY":
        items = _taken(values.values, node.items, type_.parts["element"])
        return pa.ListArray.from_arrays(values.offsets, items, target, mask=values.is_null())
    if node.type in {"int", "long"}:
        return _number(values, node, type_)
    name, logical = _name_of_connect(node), str(node.get_prop(LOGICAL))
    if node.type == "string" and name == "ZonedTimestamp" and type_.word == "TIMESTAMP":
        _refuse_unless(pc.match_substring_regex(values, f"^({ISO[type_.word]})$"))
        return values.cast(target)
    if node.type == "bytes" and logical == "decimal" and int(node.get_prop("precision") or 0) > 0:
        return _decimal(values.cast(pa.binary()), int(node.get_prop("scale") or 0), type_)
    if type_.word not in _FITTING.get(node.type, ()):
        raise _LeftToTheRuleError(f"{node.type} as {type_}")
    taken = values.cast(target)
    if type_.word == "VARCHAR":
        _refuse_unless(pc.less_equal(pc.utf8_length(taken), type_.precision))
    if node.type == "double":
        _refuse_unless(pc.or_(pc.equal(taken.cast(pa.float64()), values), pc.is_nan(values)))
    return taken


def _struct(values: pa.Array, types: Mapping[str, Any], type_: SqlType) -> pa.Array:
    """Return records as a STRUCT, in which a field that they lack is null."""
    at, parts = [*types], []
    for name, part in type_.parts.items():
        if name in types:
            parts.append(_taken(values.field(at.index(name)), types[name], part))
        else:
            parts.append(pa.nulls(len(values), arrow_type(part)))
        if name in type_.required:
            _refuse_unless(parts[-1].is_valid().filter(values.is_valid()))
    fields = [*arrow_type(type_)]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=values.is_null())


def _number(values: pa.Array, node: Any, type_: SqlType) -> pa.Array:
    """Return whole numbers, days or moments."""
    word, target = type_.word, arrow_type(type_)
    name, logical = _name_of_connect(node), str(node.get_prop(LOGICAL))
    if word in _WHOLE:
        return values.cast(target)
    if word == "DATE" and node.type == "int" and "date" in {logical, name.lower()}:
        return _between(values, FIRST_DAY, LAST_DAY + 1).cast(pa.int32()).cast(target)
    kind, _, unit = logical.rpartition("-")
    if node.type == "long" and word in _MOMENTS and name in CLOCKS:
        return _moment(values, CLOCKS[name]).cast(target)
    if node.type == "long" and kind == _MOMENTS.get(word) and unit in TICKS:
        return _moment(values, TICKS[unit]).cast(target)
    if logical != "None" or (word == "DECIMAL" and type_.scale > _MOST_DIGITS - _LONG):
        raise _LeftToTheRuleError(f"{logical} as {type_}")
    if word == "DECIMAL":
        return values.cast(pa.decimal128(_MOST_DIGITS, type_.scale)).cast(target)
    if word in {"FLOAT", "DOUBLE"}:
        return values.cast(target)
    raise _LeftToTheRuleError(f"{node.type} as {type_}")


def _between(values: pa.Array, start: int, end: int) -> pa.Array:
    _refuse_unless(pc.and_(pc.greater_equal(values, start), pc.less(values, end)))
    return values


def _moment(values: pa.Array, ticks: int) -> pa.Array:
    """Return microseconds; so many ticks are a second."""
    # As many nanoseconds as 64 bits hold are moments.
    if ticks > _MICROS:
        micros = pc.divide(values, ticks // _MICROS)
        _refuse_unless(pc.equal(pc.multiply(micros, ticks // _MICROS), values))
        return micros
    within = _between(values, FIRST_SECOND * ticks, END_SECOND * ticks)
    return pc.multiply(within, _MICROS // ticks)


def _decimal(values: pa.Array, scale: int, type_: SqlType) -> pa.Array:
    """Return decimals of their unscaled numbers, which are bytes with the highest first."""
    if type_.word != "DECIMAL" or not 0 <= scale <= type_.scale:
        raise _LeftToTheRuleError(f"a scale of {scale} as {type_}")
    sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy()
    width = max(sizes, default=0)
    if width > _LONGEST:
        raise pa.ArrowInvalid("numbers that may be too large")
    is_valid, offsets, octets = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[1 : len(values) + 1]
    given = np.frombuffer(octets or b"", np.uint8)
    numbers = np.zeros((len(values), 16), np.uint8)
    has_any = sizes > 0
    numbers[has_any] = np.where(given[(ends - sizes)[has_any]] > 127, 255, 0)[:, None]
    for n in range(width):
        has_more = sizes > n
        numbers[has_more, n] = given[ends[has_more] - 1 - n]
    wide = pa.decimal128(_MOST_DIGITS, scale)
    buffers = [is_valid, pa.py_buffer(numbers)]
    return pa.Array.from_buffers(wide, len(values), buffers).cast(arrow_type(type_))


def _name_of_connect(node: Any) -> str:
    return str(node.get_prop("connect.name")).removeprefix("io.debezium.").removeprefix("time.")
