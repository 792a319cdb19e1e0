"""What is decoded of Avro in columns is what the rule says, or is called doubtful."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any
from uuid import UUID

import duckdb
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import DependencyError
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.columns import avro_values
from oncelake.ingestion.verify.columns.events import Events, RowColumns
from oncelake.ingestion.verify.columns.records import Records, Run, decoding_of
from oncelake.ingestion.verify.fold.classify import Classifier
from oncelake.ingestion.verify.read.topic import record_of
from tests.corpus.hostile_schemas import AVRO
from tests.formats.test_avro import ALL_TYPES, WHOLE, column, encoded, logical, record
from tests.formats.test_avro_columns import case, damaged, long, made_up
from tests.support.both_readers import Sent
from tests.support.glue import Glue, in_frame
from tests.support.long import IS_LONG
from tests.support.registry import framed
from tests.support.small_registry import SmallRegistry, small_registry
from tests.verify.factories import declared
from tests.verify.test_columns import AT, QUIETLY, Value, events_in, messages_of

PLAIN = record(column("id", "long"), column("name", ["null", "string"]))
DDL = "id BIGINT, name STRING"


@pytest.fixture(scope="module")
def registry() -> Iterator[SmallRegistry]:
    """A registry whose schemas each test puts there."""
    with small_registry() as made:
        yield made


def stream(schema: str, **fields: Any) -> StreamSpec:
    """Declare a stream of Avro that takes every record."""
    base = {"schema": schema, "format": "avro", "mode": "append", "keys": [], "sequence_by": []}
    return declared(**{**base, **fields})


def decided(settings: Settings, spec: StreamSpec, values: Sequence[Value]) -> list[int]:
    """Return the offsets of the records that columns decide about, each as the rule does."""
    messages = messages_of(values)
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        events = Events(database, RowColumns.of(spec, [AT], epoch=1))
        records = Records(spec, decoding_of(spec, settings), events)
        _, doubtful = records.add([Run(7, 0, messages)])
        found = events_in(database)
        left = {each.offset for each in doubtful.get(7, [])}
        assert found.keys() | left == set(range(len(values)))
        assert not found.keys() & left
        taken = [record_of(messages[at]) for at in sorted(found)]
        result = Classifier(spec, settings=settings).classify(taken, seq=7)
        events = Events(database, RowColumns.of(spec, [AT], epoch=1))
        events.judged(result.changes, {AT: 0})
        judged = events_in(database)
    # A row that is gone has no digest.
    width = -1 if spec.deletes == "hard" else None
    known, given = (
        {at: event[:width] if event[-2] else event for at, event in each.items()}
        for each in (judged, found)
    )
    assert {at: (each, known.get(at)) for at, each in given.items() if known.get(at) != each} == {}
    undeclared = [each for each in result.changes if each.has_undeclared and each.row is not None]
    assert records.undeclared[7] == len(undeclared)
    assert records.record_types == {name for _, name in result.types}
    return sorted(found)


def read(registry: SmallRegistry, schema: Any, ddl: str, *payloads: bytes) -> list[int]:
    """Return which payloads of a schema are decided in columns."""
    registry.schemas.clear()
    number = registry.add(schema)
    return decided(registry.settings, stream(ddl), [framed(number, each) for each in payloads])


def without_maps(columns: str, name: str) -> list[str]:
    """Declare a column, unless only the rule reads it."""
    return [] if "MAP<" in columns else [f"{name} {columns}"]


@examples(max_examples=300 if IS_LONG else 15, **QUIETLY)
@given(seed=st.integers(0, 2**32), extra_fields=st.sampled_from(["ignore", "reject"]))
def test_flat_records_are_read_as_the_rule_reads_them(
    registry: SmallRegistry, seed: int, extra_fields: str
) -> None:
    """Whatever they hold, and whatever is done to them."""
    ddl, schema, values = case(random.Random(seed))
    registry.schemas.clear()
    registry.add(schema.text)

    decided(registry.settings, stream(ddl, extra_fields=extra_fields), values)


@examples(max_examples=600 if IS_LONG else 30, **QUIETLY)
@given(seed=st.integers(0, 2**32))
def test_nested_records_are_read_as_the_rule_reads_them(registry: SmallRegistry, seed: int) -> None:
    """Records, arrays, maps and unions, several schemas in a batch."""
    chance, numbers = random.Random(seed), count()
    registry.schemas.clear()
    values: list[Value] = []
    ddl = ["absent INT"]
    for _ in range(3):
        parts = [made_up(chance, numbers) for _ in range(chance.randint(1, 3))]
        fields = [column(f"c{at}", each.type) for at, each in enumerate(parts)]
        number = registry.add({"type": "record", "name": "Row", "fields": fields})
        if len(ddl) == 1:
            ddl += [
                text
                for at, each in enumerate(parts)
                for text in without_maps(each.column, f"c{at}")
            ]
        good = [b"".join(each.written() for each in parts) for _ in range(60)]
        for each in good:
            bad = damaged(each, chance)
            values += [framed(number, each), bad and framed(number, bad[5:])]
    chance.shuffle(values)

    decided(registry.settings, stream(", ".join(ddl)), values)


FLAT = {
    "boolean": ("boolean", [b"\0", b"\1", b"\2"], "BOOLEAN|INT|STRING"),
    "int": (
        "int",
        [long(n) for n in (0, -1, 128, 2**31 - 1, 2**31, -(2**31) - 1, 2**32 + 1, 2**24 + 1)],
        "TINYINT|INT|BIGINT|FLOAT|DOUBLE|DECIMAL(3, 1)|DECIMAL(38, 20)|DATE|STRING",
    ),
    "long": (
        "long",
        [
            *(long(n) for n in (0, 2**31, 2**53, 2**53 + 1, -(2**63), 2**63 - 1, 10**17)),
            *(b"\x82\x80\x80\x00", b"\x82" + b"\x80" * 8 + b"\0", b"\x80" * 9 + b"\2"),
            *(b"\x80" * 9 + b"\1", b"\xff" * 9 + b"\x7f", b"\x82" + b"\x80" * 9 + b"\0"),
        ],
        "INT|BIGINT|FLOAT|DOUBLE|DECIMAL(18, 1)|TIMESTAMP",
    ),
    "float": (
        "float",
        [struct.pack("<f", n) for n in (0.1, -0.0, float("nan"), float("inf"))],
        "FLOAT|DOUBLE|DECIMAL(9, 2)",
    ),
    "double": (
        "double",
        [struct.pack("<d", n) for n in (0.5, 0.1, -0.0, 1e300, float("nan"), float("-inf"))],
        "FLOAT|DOUBLE|INT",
    ),
    "string": (
        "string",
        [b"\0", b"\4\xc3\xa9", b"\4\xff\xfe", b"\6\xed\xa0\x80", b"\6abc", b"\1", b"\2\0"],
        "STRING|VARCHAR(2)|BINARY",
    ),
    "bytes": ("bytes", [b"\0", b"\4\xff\xfe", b"\1a", b"\6ab"], "BINARY|STRING"),
    "decimal": (
        logical("bytes", "decimal", precision=9, scale=2),
        [
            *(b"\0", b"\2\x7f", b"\2\x80", b"\6\xff\xff\x85", b"\x0a\x02\x54\x0b\xe3\xff"),
            *(b"\x0a\x02\x54\x0b\xe4\x00", bytes([40]) + b"\xff" * 20, bytes([30]) + b"\x7f" * 15),
        ],
        "DECIMAL(9, 2)|DECIMAL(12, 4)|DECIMAL(38, 2)|DECIMAL(9, 1)|INT|BINARY|STRING",
    ),
    "no decimal": (logical("bytes", "decimal"), [b"\2\x7f"], "DECIMAL(9, 2)|BINARY"),
    "enum": (
        {"type": "enum", "name": "E", "symbols": ["a", "bc"]},
        [long(n) for n in (0, 1, 2, -1, 2**32)],
        "STRING|VARCHAR(1)|INT",
    ),
    "date": (
        logical("int", "date"),
        [long(n) for n in (0, -719_162, -719_163, 2_932_896, 2_932_897)],
        "DATE|INT|SMALLINT|DOUBLE|TIMESTAMP",
    ),
    "uuid": (logical("string", "uuid"), [b"\2x"], "STRING"),
    "time": (logical("int", "time-millis"), [b"\2"], "INT|DOUBLE|STRING"),
    "zoned": (
        {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"},
        [
            bytes([2 * len(each)]) + each
            for each in (
                *(b"2024-02-29T12:34:56Z", b"2023-02-29T12:34:56Z", b"2024-02-29 12:34:56Z"),
                *(b"2024-02-29T12:34:56.123456+02:00", b"2024-02-29T12:34:56", b"2024-02-29"),
                *(b"2024-02-29T12:34:56.1234567Z", b"1582-01-01T00:00:00Z", b""),
            )
        ],
        "TIMESTAMP|STRING|TIMESTAMP_NTZ",
    ),
    "days of Connect": (
        {"type": "int", "connect.name": "io.debezium.time.Date"},
        [long(n) for n in (0, 2_932_896, 2_932_897)],
        "DATE|INT",
    ),
    **{
        f"{kind} {unit}": (
            type_,
            [
                long(n)
                for n in (
                    *(0, -1, 1001, 1_700_000_000_123, -62_135_596_800 * per, 2**63 - 1, -(2**63)),
                    *(-62_135_596_800 * per - 1, 253_402_300_800 * per - 1, 253_402_300_800 * per),
                )
                if -(2**63) <= n < 2**63
            ],
            "TIMESTAMP|TIMESTAMP_NTZ|BIGINT|DOUBLE",
        )
        for unit, per, name in (
            ("millis", 10**3, "Timestamp"),
            ("micros", 10**6, "MicroTimestamp"),
            ("nanos", 10**9, "NanoTimestamp"),
        )
        for kind, type_ in (
            ("timestamp", logical("long", f"timestamp-{unit}")),
            ("local", logical("long", f"local-timestamp-{unit}")),
            ("connect", {"type": "long", "connect.name": f"io.debezium.time.{name}"}),
        )
    },
}


@pytest.mark.parametrize("kind", FLAT)
def test_every_type_is_read_as_the_rule_reads_it(registry: SmallRegistry, kind: str) -> None:
    """As each column, in each place, at the edges of what it holds; also where nobody asks."""
    type_, payloads, columns = FLAT[kind]
    for each in columns.split("|"):
        read(registry, record(column("c", type_)), f"c {each}", *payloads)
        optional = [b"\0", *(b"\2" + payload for payload in payloads)]
        read(registry, record(column("c", ["null", type_])), f"c {each}", *optional)
        fields = record(column("x", "int"), column("c", type_), name="Inner")
        many = {"type": "array", "items": fields}
        items = [b"\2\2" + payload + b"\0" for payload in payloads]
        ddl = f"c ARRAY<STRUCT<c: {each} NOT NULL, x: BIGINT>>"
        read(registry, record(column("c", many)), ddl, b"\0", *items)
    named = {"type": "map", "values": type_}
    read(
        registry,
        record(column("c", type_), column("id", "int")),
        "id INT",
        *(p + b"\2" for p in payloads),
    )
    read(registry, record(column("c", named)), "id INT", *(b"\2\2k" + p + b"\0" for p in payloads))


@pytest.mark.parametrize(
    ("payload", "is_decided"),
    [
        (b"\4\2\4\0", True),
        (b"\3\4\2\4\0", True),
        (b"\3\x63\2\4\0", True),
        (b"\2\2\2\4\0", True),
        (long(2**40) + b"\2", False),
        (long(-(2**40)) + b"\2\2", False),
        (long(-(2**63)) + b"\2\2", False),
        (b"\4\2", False),
        (b"", False),
        (b"\0\0", False),
    ],
)
def test_blocks_of_any_size_are_read_as_the_rule_reads_them(
    registry: SmallRegistry, payload: bytes, is_decided: bool
) -> None:
    """A block that claims more items than there are bytes takes no memory."""
    schema = record(column("c", {"type": "array", "items": "int"}))

    assert bool(read(registry, schema, "c ARRAY<INT>", payload)) == is_decided


def test_a_record_without_a_field_that_it_needs_is_left_to_the_rule(
    registry: SmallRegistry,
) -> None:
    """A null, or no such field at all."""
    inner = record(column("x", ["null", "int"]), column("y", "int"), name="Inner")
    schema = record(column("c", ["null", inner]))
    payloads = [b"\0", b"\2\2\2\2", b"\2\0\2"]

    assert read(registry, schema, "c STRUCT<x: INT NOT NULL>", *payloads) == [0, 1]
    assert read(registry, schema, "c STRUCT<z: INT NOT NULL>", *payloads) == [0]


def test_names_in_a_map_are_texts(registry: SmallRegistry) -> None:
    """Also where nobody asks for the map."""
    schema = record(column("id", "int"), column("c", {"type": "map", "values": "int"}))
    payloads = [b"\2\2\2" + name + b"\2\0" for name in (b"a", b"\xff")]

    assert read(registry, schema, "id INT", *payloads) == [0]


def test_what_lies_behind_a_datum_is_noticed(registry: SmallRegistry) -> None:
    """However it looks."""
    (good,) = encoded(PLAIN, {"id": 1, "name": "a"})
    mark = avro_values._ENCODED_MARK
    more = [b"\0", good, mark[:1], b"\x20" + b"x" * 16]

    assert read(registry, PLAIN, DDL, good, *(good + each for each in more)) == [0]


def test_texts_of_any_script_are_decided_in_columns(registry: SmallRegistry) -> None:
    """Bytes that look like a number of more than 64 bits are looked at again."""
    names = ["中文字符串很长", "длинный текст", "x"] * 50
    payloads = encoded(PLAIN, *({"id": n, "name": each} for n, each in enumerate(names)))
    overlong = b"\x80" * 9 + b"\2" + b"\0"

    found = read(registry, PLAIN, DDL, *payloads[:70], overlong, *payloads[70:])

    assert found == [n for n in range(151) if n != 70]


# All types but those that are left to the rule, and the columns of most.
LEFT = {"fx", "either"}
SOUND = {**ALL_TYPES, "fields": [f for f in ALL_TYPES["fields"] if f["name"] not in LEFT]}
SOUND_DDL = (
    "id BIGINT NOT NULL, yes BOOLEAN, f FLOAT, d DOUBLE, s STRING, b BINARY, e STRING, "
    "price DECIMAL(12, 3), day DATE, ms TIMESTAMP, us TIMESTAMP, local TIMESTAMP_NTZ, "
    "u STRING, tod INT, tags ARRAY<STRING>, inner STRUCT<x: BIGINT, absent: INT>, "
    "same STRUCT<x: INT>, absent STRING"
)


def test_sound_records_are_decided_in_columns(registry: SmallRegistry) -> None:
    """A proof that doubts everything would be right, and slow."""
    payloads = encoded(SOUND, *({**WHOLE, "id": n} for n in range(1500)))

    assert len(read(registry, SOUND, SOUND_DDL, *payloads)) == 1500
    assert read(registry, SOUND, SOUND_DDL, *payloads[:700], b"", *payloads[:3])[-1] == 703


def test_a_schema_is_one_of_many(registry: SmallRegistry) -> None:
    """Each record keeps its place, whatever it is decoded with."""
    registry.schemas.clear()
    ids = [registry.add(each) for each in (PLAIN, SOUND)]
    plain = encoded(PLAIN, *({"id": n, "name": "a"} for n in range(100)))
    whole = encoded(SOUND, *({**WHOLE, "id": n} for n in range(100)))
    values = [framed(ids[n % 2], (plain, whole)[n % 2][n]) for n in range(100)]

    assert decided(registry.settings, stream(SOUND_DDL), values) == [*range(100)]


def mutated(payload: bytes, other: bytes, chance: random.Random) -> bytes:
    """Change a few bytes of a payload, cut it, lengthen it, or go on with another."""
    made, at = bytearray(payload), chance.randrange(len(payload))
    for _ in range(chance.randint(0, 2)):
        byte = chance.randrange(len(made))
        made[byte] = chance.choice([made[byte] ^ 1 << chance.randrange(8), chance.randrange(256)])
    ends = [b"", other[at:], chance.randbytes(chance.randint(1, 12)), other]
    return bytes(made[: chance.choice([at, len(made), len(made)])]) + chance.choice([b"", *ends])


@examples(max_examples=100 if IS_LONG else 5, **QUIETLY)
@given(seed=st.integers(0, 2**32))
def test_mutated_records_are_read_as_the_rule_reads_them(
    registry: SmallRegistry, seed: int
) -> None:
    """Whatever is done to a record of all types."""
    chance = random.Random(seed)
    small = {**WHOLE, "id": 1, "tags": [], "more": {}, "same": None, "s": "中文字符串"}
    one, other = encoded(SOUND, WHOLE, small)
    values = [mutated(*chance.sample([one, other], 2), chance) for _ in range(300)]

    assert read(registry, SOUND, SOUND_DDL, *values)


@pytest.mark.parametrize(
    "type_",
    [
        {"type": "fixed", "name": "F", "size": 2},
        "null",
        ["null"],
        ["int"],
        ["int", "string"],
        ["null", "int", "string"],
        record(name="Empty"),
        ["null", "Row"],
        {"type": "enum", "name": "E", "symbols": ["a-b"]},
    ],
    ids=str,
)
def test_other_types_are_left_to_the_rule(registry: SmallRegistry, type_: Any) -> None:
    """Pyruhvro never sees them, whether anybody declares the field or not."""
    schema = record(column("id", "int"), column("c", type_))

    assert read(registry, schema, "id INT", b"\2\0", b"\2\0\0", b"\2\2\0", b"\2") == []


def test_hostile_schemas_are_left_to_the_rule(registry: SmallRegistry) -> None:
    """They end nothing."""
    for each in AVRO:
        registry.schemas.clear()
        for name, text in each.schema.references:
            registry.add(text, at=(name, 1))
        references = [(name, name, 1) for name, _ in each.schema.references]
        number = registry.add(each.schema.text, references=references)
        assert decided(registry.settings, stream("id BIGINT"), [framed(number, each.payload)]) == []


def test_names_are_taken_as_the_rule_takes_them(registry: SmallRegistry) -> None:
    """Those of types that were defined before, with aliases, defaults, and odd letters."""
    inner = {**record(column("x", "int"), name="Inner"), "aliases": ["Old"]}
    schema = record(
        column("a-b", inner),
        column("é", ["null", "Inner"], default=None),
        column("c", {"type": "array", "items": "a.b.Inner"}, aliases=["was"]),
        column("N0", {"type": {"type": "enum", "name": "N1", "symbols": ["x"]}, "default": "x"}),
    )
    ddl = "`a-b` STRUCT<x: INT>, `é` STRUCT<x: BIGINT>, c ARRAY<STRUCT<x: INT, y: INT>>, N0 STRING"

    assert read(registry, schema, ddl, b"\2\2\4\2\6\0\0", b"\2\0\0\0") == [0, 1]


def test_fields_that_no_column_names_are_counted(registry: SmallRegistry) -> None:
    """Of each row, and of no delete that leaves none; where they are rejected, the rule decides."""
    inner = record(column("x", "int"), column("y", "int"), name="Inner")
    schema = record(column("id", "int"), column("inner", inner))
    registry.schemas.clear()
    values: list[Value] = [framed(registry.add(schema), b"\2\2\2"), framed(1, b"\4\2\2")]
    ddl = "id INT NOT NULL, inner STRUCT<x: INT>"
    deleting = {"mode": "upsert", "keys": ["id"], "apply_as_deletes": "id = 1"}

    for fields in ({}, deleting, {**deleting, "deletes": "soft"}):
        assert decided(registry.settings, stream(ddl, **fields), values) == [0, 1]
    assert decided(registry.settings, stream(ddl, extra_fields="reject"), values) == []
    following = {"schema_from": {"kind": "registry"}, "on_new_field": "evolve"}
    assert decided(registry.settings, stream(ddl, **following), values) == []
    assert decided(registry.settings, stream("id INT", **following), values) == [0, 1]


def test_records_of_other_types_are_left_to_the_rule(registry: SmallRegistry) -> None:
    """Each type that is read is told, unless the declaration names it."""
    registry.schemas.clear()
    ids = [registry.add({**PLAIN, "name": name}) for name in ("A", "B")]
    (payload,) = encoded(PLAIN, {"id": 1, "name": None})
    values: list[Value] = [framed(each, payload) for each in ids]

    assert decided(registry.settings, stream(DDL), values) == [0, 1]
    assert decided(registry.settings, stream(DDL, record="a.b.B"), values) == [1]


def test_records_that_are_not_framed_in_front_are_left_to_the_rule(registry: SmallRegistry) -> None:
    """An id may be in a header, or unknown, or of another format's schema."""
    registry.schemas.clear()
    number = registry.add(PLAIN)
    other = registry.add('{"type": "object"}', "JSON")
    (payload,) = encoded(PLAIN, {"id": 1, "name": None})
    whole = framed(number, payload)
    headers = [
        *(("__value_schema_id", b"\0" + number.to_bytes(4)), ("apicurio.value.globalId", b"1")),
        *(("value.schema.version.id", b""), ("__key_schema_id", b"\0"), ("other", None)),
    ]
    values = [
        *(framed(n, payload) for n in (number, other, 77, 2**31 + 5)),
        *(Sent(whole, b"1", (each,)) for each in headers),
        *(b"", b"\0\0", b"\1" + whole[1:], None),
    ]

    assert decided(registry.settings, stream(DDL), values) == [0, 7, 8]


def test_frames_of_glue_are_decided_in_columns(
    store_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are compressed are left to the rule, and what is no frame."""
    (payload,) = encoded(PLAIN, {"id": 1, "name": None})
    with Glue.at(store_address, monkeypatch) as glue:
        number = glue.add(json.dumps(PLAIN))
        plain, packed = (in_frame(number, payload, is_packed=each) for each in (False, True))
        unknown = in_frame(UUID(int=7), payload)
        values = [packed, plain, unknown, plain[:10], framed(1, payload), plain]

        assert decided(glue.settings, stream(DDL), values) == [1, 5]


def test_a_registry_that_does_not_answer_stops_the_proof() -> None:
    """Nothing is said of records whose schema is not known."""
    (payload,) = encoded(PLAIN, {"id": 1, "name": None})
    decoding = decoding_of(stream(DDL), Settings(schema_registry="http://127.0.0.1:9"))

    with pytest.raises(DependencyError, match="schema registry"):
        decoding.reader.read([framed(1, payload)])


def test_few_bytes_that_stand_for_many_values_are_left_to_the_rule(
    registry: SmallRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A null for a record of many fields takes the memory of all of them."""
    monkeypatch.setattr(avro_values, "_MOST_VALUES", 1000)
    wide = record(*(column(f"f{n}", "long") for n in range(20)), name="Wide")
    schema = record(column("id", "int"), column("c", {"type": "array", "items": ["null", wide]}))
    payloads = [b"\2" + long(n) + b"\0" * (n + 1) for n in (1, 20, 60)]

    assert read(registry, schema, "id INT", *payloads, *payloads) == [0, 1, 3, 4]
