"""Whole columns of Avro are what its records are one by one."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import count
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from oncelake.ingestion.declaration.ddl import parse_columns
from oncelake.ingestion.formats import avro
from oncelake.ingestion.formats.avro import columns
from oncelake.ingestion.formats.decoder import Decode
from oncelake.ingestion.kafka.schema_registry import WriterSchema
from oncelake.ingestion.verify.compare.rows import values_equal
from oncelake.ingestion.verify.decode import avro as proof
from tests.support.decoding import decoded, opened
from tests.support.long import IS_LONG
from tests.support.registry import framed

# Types of Avro, and the columns that take some of their values.
TYPES: list[tuple[Any, str]] = [
    ("boolean", "BOOLEAN"),
    ("int", "TINYINT|SMALLINT|INT|BIGINT|FLOAT|DOUBLE|DECIMAL(9, 2)"),
    ("long", "INT|BIGINT|DOUBLE"),
    ("float", "FLOAT|DOUBLE"),
    ("double", "DOUBLE|FLOAT"),
    ("string", "STRING|VARCHAR(2)"),
    ("bytes", "BINARY"),
    ({"type": "enum", "name": "E%d", "symbols": ["a", "b", "c"]}, "STRING"),
    ({"type": "fixed", "name": "F%d", "size": 16}, "BINARY"),
    ({"type": "int", "logicalType": "date"}, "DATE|INT"),
    ({"type": "long", "logicalType": "timestamp-millis"}, "TIMESTAMP|BIGINT"),
    ({"type": "long", "logicalType": "timestamp-micros"}, "TIMESTAMP|TIMESTAMP_NTZ"),
    ({"type": "long", "logicalType": "timestamp-nanos"}, "TIMESTAMP"),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, "TIMESTAMP_NTZ"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "DECIMAL(9, 2)|INT"),
    ({"type": "fixed", "name": "U%d", "size": 16, "logicalType": "uuid"}, "STRING|BINARY"),
    ({"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}, "TIMESTAMP|STRING"),
    ({"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}, "TIMESTAMP|BIGINT"),
]
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "int": [0, 1, -1, 127, -129, 2**31 - 1, -(2**31), 2_932_896, 2_932_897, -719_163, 19_000],
    "long": [
        *(0, -1, 2**62 - 1, 2**62, -(2**62) - 1, 2**63 - 1, -(2**63), 1_700_000_000_000_000),
        *(-62_135_596_800_000_000, -62_135_596_800_000_001, 253_402_300_799_999_999),
        *(253_402_300_800_000_000, 253_402_300_799_999, 253_402_300_800_000, 1_700_000_000_001),
    ],
    "float": [0.0, -0.0, 1.5, float("nan"), float("inf"), struct.unpack("<f", b"abcd")[0]],
    "double": [0.0, -0.0, 0.1, float("nan"), float("-inf"), 1e300, 16777217.0],
    "string": ["", "a", "é", "\0", "\U0001f600" * 20, "x" * 300, "2024-01-01T00:00:00Z"],
    "bytes": [b"", b"\xff", b"\x01\x00", b"\x00" * 9, b"x" * 300],
    "enum": ["a", "b", "c"],
    "fixed": [b"\0" * 16, bytes(range(16))],
}


def case(chance: random.Random) -> tuple[str, WriterSchema, list[bytes | None]]:
    """Make up columns, a schema, and framed records of it, some of them damaged."""
    fields, kinds, columns = [], [], ["absent INT"]
    for at in range(chance.randint(1, 6)):
        type_, targets = chance.choice(TYPES)
        kinds.append(type_ if isinstance(type_, str) else type_["type"])
        type_ = json.loads(json.dumps(type_).replace("%d", str(at)))
        shape = chance.choice([type_, type_, ["null", type_], [type_, "null"], [type_]])
        fields.append({"name": f"c{at}", "type": shape})
        if chance.random() < 0.9:
            columns.append(f"c{at} {chance.choice(targets.split('|'))}")
    schema = {"type": "record", "name": "Row", "fields": fields}
    parsed = parse_schema(json.loads(json.dumps(schema).replace("logicalType", "wasLogical")))
    records = []
    for _ in range(100):
        row = {
            f["name"]: None
            if "null" in f["type"] and chance.random() < 0.3
            else chance.choice(VALUES[kind])
            for f, kind in zip(fields, kinds, strict=True)
        }
        stream = BytesIO()
        schemaless_writer(stream, parsed, row)
        records.append(damaged(stream.getvalue(), chance))
    return ", ".join(columns), WriterSchema(id=1, type="AVRO", text=json.dumps(schema)), records


class MadeUp(NamedTuple):
    """A type, a column that takes some of its values, and what writes one of them."""

    type: Any
    column: str
    written: Callable[[], bytes]


def long(number: int) -> bytes:
    """Write a whole number."""
    stream = BytesIO()
    schemaless_writer(stream, "long", number)
    return stream.getvalue()


def made_up(chance: random.Random, numbers: Iterator[int], levels: int = 3) -> MadeUp:
    """Make up a type of any kind."""
    kinds = [scalar] if not levels else [scalar, several, struct_of, union, union]
    return chance.choice(kinds)(chance, numbers, levels - 1)


def scalar(chance: random.Random, numbers: Iterator[int], _: int) -> MadeUp:
    """Make up a scalar."""
    type_, targets = chance.choice(TYPES)
    kind = type_ if isinstance(type_, str) else type_["type"]
    type_ = json.loads(json.dumps(type_).replace("%d", str(next(numbers))))
    parsed = parse_schema(json.loads(json.dumps(type_).replace("logicalType", "wasLogical")))

    def written() -> bytes:
        stream = BytesIO()
        schemaless_writer(stream, parsed, chance.choice(VALUES[kind][:usual]))
        return stream.getvalue()

    # Few columns take all values of their type, and few records have an extreme one.
    usual = 2 if chance.random() < 0.8 else None
    return MadeUp(type_, chance.choice(targets.split("|")), written)


def several(chance: random.Random, numbers: Iterator[int], levels: int) -> MadeUp:
    """Make up an array or a map, now and then in two blocks, or in one that says its size."""
    items, is_map = made_up(chance, numbers, levels), chance.random() < 0.5
    shape = chance.choice([1, 1, 1, 5, 40])

    def block(count: int) -> bytes:
        keys = [
            long(1) + chance.randbytes(1) if chance.random() < 0.02 else key(n)
            for n in range(count)
        ]
        content = b"".join(k * is_map + items.written() for k in keys)
        if count and chance.random() < 0.02:
            return long(-count) + long(len(content)) + content
        return long(count) + content if count else b""

    def key(number: int) -> bytes:
        return long(3) + b"%03d" % number

    def written() -> bytes:
        more = block(1) if chance.random() < 0.02 else b""
        return block(chance.randrange(3) * shape) + more + b"\0"

    if is_map:
        return MadeUp(
            {"type": "map", "values": items.type}, f"MAP<STRING, {items.column}>", written
        )
    return MadeUp({"type": "array", "items": items.type}, f"ARRAY<{items.column}>", written)


def struct_of(chance: random.Random, numbers: Iterator[int], levels: int) -> MadeUp:
    """Make up a record."""
    parts = [made_up(chance, numbers, levels) for _ in range(chance.randint(1, 3))]
    fields = [{"name": f"f{n}", "type": each.type} for n, each in enumerate(parts)]
    columns = [
        f"f{n}: {each.column}{' NOT NULL' * (chance.random() < 0.1)}"
        for n, each in enumerate(parts)
        if chance.random() < 0.9
    ]
    name = f"N{next(numbers)}"
    return MadeUp(
        {"type": "record", "name": name, "fields": fields},
        f"STRUCT<{', '.join([*columns, 'absent: INT'])}>",
        lambda: b"".join(each.written() for each in parts),
    )


def union(chance: random.Random, numbers: Iterator[int], levels: int) -> MadeUp:
    """Make up a union of one to three types, often with null."""
    made = [made_up(chance, numbers, max(levels, 0)) for _ in range(chance.choice([1, 1, 1, 2, 3]))]
    parts = list({json.dumps(word(each.type)): each for each in made}.values())
    if any(isinstance(each.type, list) for each in parts):
        return parts[0]
    null = MadeUp(chance.choice(["null", {"type": "null"}]), "", bytes)
    branches = [*parts, null] if chance.random() < 0.7 else parts
    chance.shuffle(branches)

    def written() -> bytes:
        at = chance.randrange(len(branches))
        return long(at) + branches[at].written()

    return MadeUp([each.type for each in branches], chance.choice(parts).column, written)


def word(type_: Any) -> Any:
    """Return what distinguishes the branches of a union: a name, or the word of the type."""
    return type_.get("name", type_["type"]) if isinstance(type_, dict) else type_


def damaged(payload: bytes, chance: random.Random) -> bytes | None:
    """Frame a payload; now and then change, cut or lengthen it, or its frame."""
    at = chance.randrange(len(payload) + 1)
    if chance.random() < 0.7:
        return framed(1, payload)
    return chance.choice(
        [
            framed(1, payload[:at] + chance.randbytes(1) + payload[at + 1 :]),
            framed(1, payload.replace(b"x", b"\xff")),
            framed(1, payload[:at]),
            framed(1, payload + b"\0"),
            framed(1, payload)[: at % 6],
            framed(9, payload),
            b"\1" + payload,
            None,
        ]
    )


@settings(
    max_examples=200 if IS_LONG else 25,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32), extra_fields=st.sampled_from(["ignore", "keep", "reject"]))
def test_many_records_are_read_as_each_alone(seed: int, extra_fields: Any) -> None:
    """Rows, reasons and details are the same, whatever the bytes are."""
    ddl, schema, records = case(random.Random(seed))
    decode = opened("avro", ddl, writer_schemas=[schema], extra_fields=extra_fields)

    together = decoded(decode, records)

    alone = [decoded(decode, [record])[0] for record in records]
    assert [repr(each) for each in together] == [repr(each) for each in alone]


@settings(
    max_examples=400 if IS_LONG else 40,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32))
def test_what_holds_other_types_is_read_as_each_alone_and_as_by_the_proof(seed: int) -> None:
    """Records, arrays, maps and unions give the same rows, reasons and details."""
    chance, numbers = random.Random(seed), count()
    parts = [made_up(chance, numbers) for _ in range(chance.randint(1, 3))]
    fields = [{"name": f"c{at}", "type": each.type} for at, each in enumerate(parts)]
    text = json.dumps({"type": "record", "name": "Row", "fields": fields})
    schema = WriterSchema(id=1, type="AVRO", text=text)
    ddl = ", ".join(f"c{at} {each.column}" for at, each in enumerate(parts))
    good = [b"".join(each.written() for each in parts) for _ in range(80)]
    records = [*(framed(1, each) for each in good), *(damaged(each, chance) for each in good)]
    decode = opened("avro", ddl, writer_schemas=[schema])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_MANY_ITEMS", chance.choice([1, 8, 64]))
        together = decoded(decode, records)

    alone = [decoded(decode, [record])[0] for record in records]
    assert [repr(each) for each in together] == [repr(each) for each in alone]
    wanted = {column.name: column.type for column in parse_columns(ddl)}
    prove = proof.opened(schema, wanted, is_key=False)
    for struct_, payload in zip(together, good, strict=False):
        row = None if struct_["reason"] else list(struct_["row"].values())
        assert values_equal(row, proven(prove, payload))


def proven(prove: Any, payload: bytes) -> list[Any] | None:
    """Read a payload as the proof does; nothing where it refuses it."""
    try:
        return list(prove(payload).values)
    except (ValueError, OverflowError):
        return None


def test_a_part_of_a_larger_array_is_read_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark may hand over a slice; schemas of a batch may be several. None is read one by one."""
    monkeypatch.setattr(avro, "compiled", None)
    schemas = [
        WriterSchema(id=n, type="AVRO", text=f'{{"type": "record", "name": "R", "fields": {each}}}')
        for n, each in enumerate(
            ('[{"name": "a", "type": "int"}]', '[{"name": "b", "type": "string"}]')
        )
    ]
    decode = opened("avro", "a INT, b STRING", writer_schemas=schemas)
    records = [framed(0, b"\2"), framed(1, b"\2x")] * 50

    rows = decode(pa.array([b"before", *records], pa.binary())[1:]).field("row").to_pylist()

    assert rows == [{"a": 1, "b": None}, {"a": None, "b": "x"}] * 50


INNER = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]}
NESTED = [
    {
        "name": "inner",
        "type": {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]},
    },
    {"name": "same", "type": [{"type": "null"}, "I"]},
    {"name": "many", "type": {"type": "array", "items": "I"}},
    {"name": "words", "type": {"type": "map", "values": "string"}},
    {"name": "either", "type": ["null", "long", "string", "I"]},
]
NESTED_DDL = (
    "inner STRUCT<x: INT, absent: INT>, same STRUCT<x: INT NOT NULL>, many ARRAY<STRUCT<x: INT>>, "
    "words MAP<STRING, STRING>, either STRING"
)
NESTED_ROW = {
    "inner": {"x": 1, "absent": None},
    "same": {"x": 2},
    "many": [{"x": 3}, {"x": 4}],
    "words": {"a": "b", "c": ""},
    "either": "d",
}
NESTED_PARTS = [b"\2", b"\2\4", b"\4\6\x08\0", b"\4\2a\2b\2c\0\0", b"\4\2d"]
SHORT_ROW = {**NESTED_ROW, "same": None, "many": [], "words": {}, "either": None}
SHORT = b"\2" + b"\0" * 4


def nested_decode() -> Decode:
    """Open the decoding of records that hold every kind of type."""
    text = json.dumps({"type": "record", "name": "R", "fields": NESTED})
    schema = WriterSchema(id=1, type="AVRO", text=text)
    return opened("avro", NESTED_DDL, writer_schemas=[schema])


def test_what_holds_other_types_is_read_in_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of such records is read one by one, where there are many."""
    monkeypatch.setattr(avro, "compiled", None)
    records = [framed(1, b"".join(NESTED_PARTS)), framed(1, SHORT)] * 100

    structs = decoded(nested_decode(), records)

    assert [each["row"] for each in structs] == [NESTED_ROW, SHORT_ROW] * 100


@pytest.mark.parametrize(
    ("at", "part", "value"),
    [
        (2, b"\2\6\2\x08\0", NESTED_ROW["many"]),
        (2, b"\3\x04\6\x08\0", NESTED_ROW["many"]),
        (2, b"\x80\0", []),
        (3, b"\4\2a\2x\2a\2b\0", {"a": "b"}),
        (3, b"\4\2a\2b\2\xff\2b\0", None),
        (2, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\6\0", None),
        (4, b"\2\2", None),
        (4, b"\x08", None),
    ],
    ids=[
        *("blocks", "a block of a known size", "a long zero", "a repeated key", "no text"),
        *("endless", "a branch that does not fit", "no branch"),
    ],
)
def test_a_doubtful_part_is_read_by_another_reader(at: int, part: bytes, value: Any) -> None:
    """Its record is what it is alone, and the others of the batch are good."""
    parts = [part if n == at else each for n, each in enumerate(NESTED_PARTS)]
    decode, records = nested_decode(), [framed(1, b"".join(parts)), framed(1, SHORT)] * 100

    structs = decoded(decode, records)

    assert structs[::2] == decoded(decode, records[:1]) * 100
    name = NESTED[at]["name"]
    assert structs[0]["row"] == (None if value is None else {**NESTED_ROW, name: value})
    assert [each["row"] for each in structs[1::2]] == [SHORT_ROW] * 100


@pytest.mark.parametrize(
    ("payload", "row"),
    [
        (b"\1\x0c\2\4\0\4ab", {"many": [{"x": 2}], "text": "ab"}),
        (b"\2\0\0\4ab", None),
    ],
    ids=["a block of a wrong size", "null in what is NOT NULL"],
)
def test_what_can_pass_for_another_record_is_read_right(payload: bytes, row: Any) -> None:
    """A size that ends elsewhere does not divide the bytes; a null is not taken below a column."""
    inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": ["null", "int"]}]}
    items = {"name": "many", "type": {"type": "array", "items": inner}}
    fields = [items, {"name": "text", "type": "string"}]
    text = json.dumps({"type": "record", "name": "R", "fields": fields})
    schema = WriterSchema(id=1, type="AVRO", text=text)
    ddl = "many ARRAY<STRUCT<x: INT NOT NULL>>, text STRING"

    structs = decoded(opened("avro", ddl, writer_schemas=[schema]), [framed(1, payload)] * 100)

    assert [each["row"] for each in structs] == [row] * 100
    assert {each["reason"] for each in structs} == {None if row else "type_mismatch"}


def test_a_deep_type_is_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow would follow it on the stack; fastavro reads it."""
    node: Any = "int"
    for level in range(100):
        node = {"type": "record", "name": f"N{level}", "fields": [{"name": "n", "type": node}]}
    fields = [{"name": "a", "type": "int"}, {"name": "deep", "type": node}]
    text = json.dumps({"type": "record", "name": "R", "fields": fields})
    schema, records = WriterSchema(id=1, type="AVRO", text=text), [framed(1, b"\2\4")] * 100

    structs = decoded(opened("avro", "a INT", writer_schemas=[schema]), records)
    monkeypatch.setattr(avro, "compiled", None)
    without = decoded(opened("avro", "a INT", writer_schemas=[schema]), records)

    assert [each["row"] for each in structs] == [{"a": 1}] * 100
    assert [each["reason"] for each in without] == ["undecodable"] * 100


def test_no_schema_stops_a_batch() -> None:
    """One that fastavro takes and whole columns cannot is read one by one."""
    field = {"name": "a", "type": ["null", {"type": "enum", "name": "E", "symbols": []}]}
    text = json.dumps({"type": "record", "name": "R", "fields": [field]})
    decode = opened("avro", "a STRING", writer_schemas=[WriterSchema(id=1, type="AVRO", text=text)])

    structs = decoded(decode, [framed(1, payload) for payload in [b"\0", b"\2\0"] * 40])

    assert [each["reason"] for each in structs] == [None, "malformed_avro"] * 40


@pytest.mark.parametrize("space", ["", "shop"], ids=["anywhere", "in a namespace"])
@pytest.mark.parametrize("number", [1, 200], ids=["alone", "in columns"])
@pytest.mark.parametrize(
    ("plain", "other", "type_"),
    [
        ("int", {"type": "long", "logicalType": "timestamp-millis"}, "TIMESTAMP"),
        ("int", {"type": "long", "connect.name": "io.debezium.time.Timestamp"}, "TIMESTAMP_NTZ"),
        ("long", {"type": "int", "logicalType": "date"}, "DATE"),
    ],
    ids=str,
)
def test_a_value_is_what_its_branch_says(
    plain: str, other: dict[str, str], type_: str, number: int, space: str
) -> None:
    """Also where the branches are of one type in Python, and in a schema that is referred to."""
    union = [plain, other]
    inner = {"type": "record", "name": "In", "fields": [{"name": "x", "type": union}]}
    fields = [{"name": "a", "type": ["null", *union]}, {"name": "b", "type": "In"}]
    root = {"type": "record", "name": "R", "namespace": space, "fields": fields}
    references = (("In", json.dumps({**inner, "namespace": space})),)
    schema = WriterSchema(id=1, type="AVRO", text=json.dumps(root), references=references)
    ddl = f"a BIGINT, b STRUCT<x: {type_}>"
    decode = opened("avro", ddl, writer_schemas=[schema])
    wanted = {column.name: column.type for column in parse_columns(ddl)}
    prove = proof.opened(schema, wanted, is_key=False)

    for a, b in ((1, 0), (1, 1), (2, 0), (2, 1)):
        payload = long(a) + long(7) + long(b) + long(7)
        rows = decoded(decode, [framed(1, payload)] * number)

        expected = proven(prove, payload)
        assert (expected is None) == (b == 0)
        for row in rows:
            found = None if row["reason"] else list(row["row"].values())
            assert values_equal(found, expected)
