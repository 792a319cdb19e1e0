"""What is decoded in columns is what the rule says, record by record, or is called doubtful."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import duckdb
import pytest
from confluent_kafka import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.columns import NotInColumnsError
from oncelake.ingestion.verify.columns.events import Events, RowColumns
from oncelake.ingestion.verify.columns.records import Records, Run, decoding_of
from oncelake.ingestion.verify.fold.classify import Classifier
from oncelake.ingestion.verify.read.record import RowChange
from oncelake.ingestion.verify.read.topic import record_of
from tests.corpus.json_messages import MESSAGES, SCHEMA
from tests.formats.test_capture import EVERYTHING, PARTIAL, TIMESTAMPS, events
from tests.formats.test_json import EVERYWHERE, mutated
from tests.support.both_readers import Sent
from tests.support.debezium import MISSING, unscaled
from tests.support.long import IS_LONG
from tests.verify.factories import declared

AT = TopicPartition("t", 0)
# A map is read record by record.
PLAIN = SCHEMA.replace("counts MAP<STRING, INT>, ", "")
QUIETLY: dict[str, Any] = {"deadline": None, "database": None, "derandomize": True}
Event = tuple[Any, ...]
Value = bytes | Sent | None


@pytest.fixture
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


def messages_of(values: Sequence[Value]) -> list[Message]:
    """Return messages of some values, a second apart."""
    sent = [each if isinstance(each, Sent) else Sent(each, b"1") for each in values]
    return [
        Message(
            AT.topic, AT.partition, offset, key, value, [*headers], timestamp=(1, 1000 * offset)
        )
        for offset, (value, key, headers) in enumerate(sent)
    ]


def events_in(database: duckdb.DuckDBPyConnection) -> dict[int, Event]:
    """Return the events by offset, and forget them."""
    rows = database.execute("SELECT * EXCLUDE (off), off FROM events").fetchall()
    database.execute("DROP TABLE events")
    return {row[-1]: row[:-1] for row in rows}


def in_columns(
    database: duckdb.DuckDBPyConnection, spec: StreamSpec, values: Sequence[Value]
) -> tuple[dict[int, Event], set[int]]:
    """Return the events of records that columns decide about, and the offsets of the others."""
    events = Events(database, RowColumns.of(spec, [AT], epoch=1))
    messages = messages_of(values)
    _, doubtful = Records(spec, decoding_of(spec, Settings()), events).add([Run(7, 0, messages)])
    return events_in(database), {record.offset for record in doubtful.get(7, [])}


def has_more(change: RowChange) -> bool:
    """Tell whether a change is more than a row or a delete, so that only the rule may take it."""
    is_more = change.moves or change.left_out or change.moved_from or change.is_left
    return bool(is_more or change.has_undeclared)


def one_by_one(
    database: duckdb.DuckDBPyConnection, spec: StreamSpec, values: Sequence[Value]
) -> dict[int, Event]:
    """Return the events of the records that the rule takes."""
    events = Events(database, RowColumns.of(spec, [AT], epoch=1))
    result = Classifier(spec).classify(map(record_of, messages_of(values)), seq=7)
    events.judged([each for each in result.changes if not has_more(each)], {AT: 0})
    return events_in(database)


def disagreements(
    database: duckdb.DuckDBPyConnection, spec: StreamSpec, values: Sequence[Value]
) -> list[Value]:
    """Return the values that columns take, and the rule takes for another row or none."""
    decided, doubtful = in_columns(database, spec, values)
    judged = one_by_one(database, spec, values)
    assert decided.keys() | doubtful == set(range(len(values)))
    assert not decided.keys() & doubtful
    # A row that is gone has no digest.
    width = -1 if spec.deletes == "hard" else None
    known = {at: event[:width] if event[-2] else event for at, event in judged.items()}
    given = {at: event[:width] if event[-2] else event for at, event in decided.items()}
    return [values[at] for at, event in given.items() if known.get(at) != event]


SPECS = {
    "plain": declared(schema=PLAIN, sequence_by=[]),
    "ordered by time": declared(schema=PLAIN, sequence_by=["at", "ratio"]),
    "rejecting": declared(schema=PLAIN, sequence_by=[], extra_fields="reject"),
    "with deletes": declared(
        schema=PLAIN, sequence_by=[], apply_as_deletes="lower(name) = 'x' OR ok"
    ),
    "marking deletes": declared(
        schema=PLAIN, sequence_by=["big"], apply_as_deletes="ok", deletes="soft"
    ),
    "needing a text": declared(
        schema=PLAIN.replace("name STRING, amount", "name STRING NOT NULL, amount"), sequence_by=[]
    ),
    "keyed by text": declared(schema=PLAIN, keys=["name", "day"], sequence_by=["_timestamp"]),
}


@pytest.mark.parametrize("name", SPECS)
def test_hostile_messages_are_read_as_the_rule_reads_them(
    database: duckdb.DuckDBPyConnection, name: str
) -> None:
    """Whatever stands in whatever column; where time is short, of each stream every third value."""
    spec, step = SPECS[name], 1 if IS_LONG else 3
    values = [*(each.value for each in MESSAGES), *EVERYWHERE[[*SPECS].index(name) % step :: step]]

    for start in range(0, len(values), 500):
        assert disagreements(database, spec, values[start : start + 500]) == []


@settings(max_examples=40 if IS_LONG else 4, **QUIETLY)
@given(seed=st.integers(0, 2**32), spec=st.sampled_from([*SPECS.values()]))
def test_mutated_messages_are_read_as_the_rule_reads_them(seed: int, spec: StreamSpec) -> None:
    """Whatever is done to a message."""
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        assert disagreements(database, spec, mutated(random.Random(seed), count=600)) == []


def test_most_sound_messages_are_decided_in_columns(database: duckdb.DuckDBPyConnection) -> None:
    """A proof that doubts everything would be right, and slow."""
    values = [each.value for each in MESSAGES if each.reason is None]

    decided, doubtful = in_columns(database, SPECS["plain"], values)

    assert len(doubtful) < len(decided)


def test_a_name_in_another_case_is_doubtful(database: duckdb.DuckDBPyConnection) -> None:
    """However deep: it may stand for the field that is not there."""
    values = [
        b'{"id": 1, "Name": "x"}',
        b'{"id": 2, "lines": [{"n": 1, "Price": 5}]}',
        b'{"id": 3, "who": {"name": "x", "AGE": 5}}',
        b'{"id": 4, "other": {"NAME": "x"}}',
    ]

    decided, doubtful = in_columns(database, SPECS["plain"], values)

    assert (decided.keys(), doubtful) == ({3}, {0, 1, 2})


def test_letters_of_two_cases_are_doubtful(database: duckdb.DuckDBPyConnection) -> None:
    """An engine may have another lower case for them."""
    values = [b'{"id": 1, "name": "x"}', '{"id": 2, "name": "\u1e9e"}'.encode()]

    decided, doubtful = in_columns(database, SPECS["with deletes"], values)

    assert (decided.keys(), doubtful) == ({0}, {1})


def test_a_zero_has_no_sign_in_an_order(database: duckdb.DuckDBPyConnection) -> None:
    """Of two records at zero, the later is the newer."""
    spec = declared(schema=PLAIN, sequence_by=["ratio"])
    values = [b'{"id": 1, "ratio": 0.0}', b'{"id": 1, "ratio": -0.0}']

    decided, _ = in_columns(database, spec, values)

    assert str(decided[0][1]) == str(decided[1][1]) == "0.0"


def test_a_quoted_decimal_in_a_list_is_no_number(database: duckdb.DuckDBPyConnection) -> None:
    """Arrow would take it."""
    spec = declared(schema="id INT, at INT, sums ARRAY<ARRAY<DECIMAL(9, 2)>>", sequence_by=[])
    lists = ('[["1.5"]]', '[[1.5, null], [2 , "3" ]]', '[[1.5], [2]], "at": 1', '[], "at": 1')
    values = [f'{{"id": 1, "sums": {each}}}'.encode() for each in lists]

    decided, _ = in_columns(database, spec, values)

    assert [*decided] == [2, 3]
    assert disagreements(database, spec, values) == []


ROW = {
    "id": 1,
    "name": "é",
    "small": 7,
    "total": unscaled("-1234.50", 2),
    "born": 19_782,
    "millis": 1_709_210_096_789,
    "micros": 1_709_210_096_789_012,
    "nanos": 1_709_210_096_789_012_000,
    "zoned": "2024-02-29T12:34:56.789012Z",
    "local": "2024-02-29T12:34:56.789012",
    "ratio": 0.1,
    "near": 0.1,
    "blob": "AP8=",
    "ok": True,
    "code": "abc",
    "tags": ["a", None],
    "part": {"n": 1, "t": "x"},
}
DDL = (
    "id BIGINT NOT NULL, name STRING, small SMALLINT, total DECIMAL(12, 2), born DATE, "
    "millis TIMESTAMP_NTZ, micros TIMESTAMP, nanos TIMESTAMP, zoned TIMESTAMP, "
    "local TIMESTAMP_NTZ, ratio DOUBLE, near FLOAT, blob BINARY, ok BOOLEAN, code VARCHAR(3), "
    "tags ARRAY<STRING>, part STRUCT<n: INT, t: STRING NOT NULL>, lsn BIGINT NOT NULL, "
    "seen TIMESTAMP, price DECIMAL(9, 3), op STRING"
)
COLUMNS = {"lsn": "source.lsn", "seen": "ts_ms", "op": "op", "price": "source.price"}
UNITS = {"millis": "millis", "micros": "micros", "nanos": "nanos"}
UNITED = {"columns": COLUMNS, "timestamps": UNITS}


def envelopes(**fields: Any) -> StreamSpec:
    """Declare a stream of envelopes."""
    options = {**UNITED, **fields.pop("options", {})}
    base = {"schema": DDL, "format": {"type": "debezium", **options}, "sequence_by": ["lsn"]}
    return declared(**{**base, **fields})


ENVELOPES = {
    "plain": envelopes(),
    "unordered": envelopes(sequence_by=[]),
    "with plain decimals": envelopes(options={"decimals": "string"}),
    "with decimals of base64": envelopes(options={"decimals": "base64"}),
    "rejecting": envelopes(extra_fields="reject"),
    "marking deletes": envelopes(deletes="soft"),
    "with deletes": envelopes(apply_as_deletes="small > 6", keys=["id", "name"]),
    "insert only": envelopes(mode="insert_only", sequence_by=[]),
    "append": envelopes(mode="append", keys=[], sequence_by=[]),
    "keyed by a moment": envelopes(keys=["id", "zoned", "total"]),
}
# Schemas say of a number without a zone, and of no other, that it is a moment.
WITH_SCHEMAS = envelopes(
    schema=re.sub(
        "nanos TIMESTAMP,|local TIMESTAMP_NTZ,",
        "",
        DDL.replace("micros TIMESTAMP", "micros TIMESTAMP_NTZ"),
    ),
    format={"type": "debezium", "columns": COLUMNS, "schemas": True},
)
# What may stand in any field, as it is written.
ANYTHING = (
    *("null", "true", "0", "-1", "7", "1.0", "1e2", "1E400", "19782.0", "9223372036854775807"),
    *("9223372036854775808", "-719163", "2932896", "2932897", "-62135596800001", "NaN", "-0.0"),
    *("253402300799999", "253402300800000", "1709210096789012001", "12345678901234567890.5"),
    *('""', '"abcd"', '"2024-02-29"', '"2024-02-30"', '"2024-02-29T12:34:56+02:00"', '"12.50"'),
    *('"2024-02-29T12:34"', '"2024-02-29 12:34:56Z"', '"2024-02-29T12:34:56.1234567Z"', '"1234"'),
    *(
        '"0001-01-01T00:00:00Z"',
        '"AN6t"',
        '"AA=="',
        '"AAAB"',
        '"/38="',
        '"AIA="',
        '"//8="',
        '"AB="',
    ),
    *('"-12.505"', '"+7"', '"E123"', '"1e2e3e4e"', '"gAAAAAAAAAAAAAAAAAAA"', '"AQAAAAAAAAAAAAAA"'),
    *('"NaN"', '"Infinity"', f'"{MISSING}"', '"\\u005f_debezium_unavailable_value"', '"\\ud800"'),
    *('"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="', '["a", 1]', '["a"]', "[]", "[null]", "{}"),
    *(f'["{MISSING}"]', f'{{"{MISSING}": "{MISSING}"}}', '{"scale": 3, "value": "AQ=="}'),
    *('{"n": 1}', '{"n": null, "t": "x"}', '{"n": 1, "t": "x", "u": 2}', '{"t": "x", "t": "y"}'),
)


def written(op: Any, before: Any, after: Any, **more: Any) -> bytes:
    """Write an envelope."""
    source = {"version": "3", "lsn": 24_023_128, "sequence": "[null]", "price": 1.5, "xmin": None}
    around = {"source": {**source, **more}, "op": op, "ts_ms": 1_709_210_000_123}
    return json.dumps({"before": before, "after": after, **around}).encode()


def in_every_place() -> Iterator[bytes]:
    """Yield envelopes with anything in any field of either side, and around them."""
    for op, before, after in (("c", None, "X"), ("u", ROW, "X"), ("u", "X", ROW), ("d", "X", None)):
        for name in ROW:
            made = written(op, *({**ROW, name: "@"} if s == "X" else s for s in (before, after)))
            yield from (made.replace(b'"@"', each.encode()) for each in ANYTHING)
    for name in ("op", "before", "after", "source", "ts_ms"):
        made = json.dumps({**json.loads(written("u", ROW, ROW)), name: "@"}).encode()
        yield from (made.replace(b'"@"', each.encode()) for each in ANYTHING)
    for name in ("lsn", "price"):
        made = written("u", ROW, ROW, **{name: "@"})
        yield from (made.replace(b'"@"', each.encode()) for each in ANYTHING)


def odd_envelopes() -> Iterator[Value]:
    """Yield envelopes that say more, or less, than that a row is there or gone."""
    key = json.dumps({**ROW, "id": 5, "code": "k"}).encode()
    few = {name: ROW[name] for name in ("id", "name", "zoned", "total")}
    for op in ("c", "r", "u", "d", "t", "m", "x", "", None, 1):
        for before in (None, ROW, few, {"id": 2}, {**ROW, "id": 2}, {}):
            for after in (None, ROW, few, {**few, "added": None}, {**ROW, "lsn": 1}, {}):
                yield Sent(written(op, before, after), key)
    for name in ("__debezium.oldkey", "__debezium.newkey", "other"):
        for op in ("c", "u", "d"):
            yield Sent(written(op, ROW, ROW), key, ((name, b'{"id": 2}'), (name, None)))
    yield from (b"", b"{}", b"[]", b"null", b'{"op": "c", "op": "d"}')
    yield written("c", None, ROW).replace(b'"after"', b'"After"')
    yield written("c", None, {**ROW, "ID": 2})
    yield written("c", None, ROW) + b'{"op": "c"}'


@pytest.mark.parametrize("spec", ENVELOPES.values(), ids=ENVELOPES)
def test_hostile_envelopes_are_read_as_the_rule_reads_them(
    database: duckdb.DuckDBPyConnection, spec: StreamSpec
) -> None:
    """Whatever stands in whatever field."""
    values = [*odd_envelopes(), *in_every_place()]
    if not IS_LONG:
        values = random.Random(str(spec.format)).sample(values, 600)

    for start in range(0, len(values), 1000):
        assert disagreements(database, spec, values[start : start + 1000]) == []


@settings(max_examples=40 if IS_LONG else 4, **QUIETLY)
@given(seed=st.integers(0, 2**32), spec=st.sampled_from([*ENVELOPES.values()]))
def test_mutated_envelopes_are_read_as_the_rule_reads_them(seed: int, spec: StreamSpec) -> None:
    """Whatever is done to an envelope."""
    chance = random.Random(seed)
    whole = [
        *(written(op, None, ROW) for op in "cru"),
        *(written("u", {**ROW, "id": id}, ROW) for id in (1, 2)),
        written("d", ROW, None),
    ]
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        values = mutated(chance, count=500, of=whole)
        assert disagreements(database, spec, [*whole, *values]) == []


SEMANTICS = {
    "total": {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal",
              "parameters": {"scale": "2"}},
    "born": {"type": "int32", "name": "io.debezium.time.Date"},
    "millis": {"type": "int64", "name": "io.debezium.time.Timestamp"},
    "micros": {"type": "int64", "name": "io.debezium.time.MicroTimestamp"},
}  # fmt: skip


def with_schema(payload: bytes, *, after: dict[str, Any] | None = None) -> bytes:
    """Put a schema beside an envelope, that of the row after it perhaps another one."""
    sides = {"before": SEMANTICS, "after": SEMANTICS if after is None else after}
    fields = [
        {"field": side, "fields": [{"field": n, **says} for n, says in columns.items()]}
        for side, columns in sides.items()
    ]
    schema = json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))
    return b'{"schema":%b,"payload":%b}' % (schema.encode(), payload)


def other_schemas() -> Iterator[dict[str, Any]]:
    """Yield what else a schema may say of a row."""
    named = ("io.debezium.time.NanoTimestamp", "io.debezium.time.Timestamp", "io.x")
    for name, says in SEMANTICS.items():
        yield {n: each for n, each in SEMANTICS.items() if n != name}
        yield from ({**SEMANTICS, name: {**says, "name": each}} for each in named)
    for scale in ("3", "x", None, 2):
        yield {**SEMANTICS, "total": {**SEMANTICS["total"], "parameters": {"scale": scale}}}
    yield {**SEMANTICS, "micros": SEMANTICS["millis"], "millis": SEMANTICS["micros"]}


def test_hostile_envelopes_with_schemas_are_read_as_the_rule_reads_them(
    database: duckdb.DuckDBPyConnection,
) -> None:
    """Whatever stands in whatever field, and whatever the schema says of it."""
    chance = random.Random(1)
    row = {name: value for name, value in ROW.items() if name not in {"nanos", "local"}}
    sound = [written("c", None, row), written("u", row, row), written("d", row, None)]
    odd = [*odd_envelopes(), *in_every_place()]
    payloads = [each.value if isinstance(each, Sent) else each for each in odd]
    values: list[Value] = [
        *map(with_schema, sound),
        *(
            with_schema(each or b"")
            for each in (payloads if IS_LONG else chance.sample(payloads, 700))
        ),
        *(with_schema(each, after=says) for each in sound for says in other_schemas()),
        *mutated(chance, count=5000 if IS_LONG else 400, of=[*map(with_schema, sound)]),
        *(with_schema(each) + more for each in sound for more in (b" ", b"}", b"{}", b',"a":1}')),
        *(with_schema(each + b',"a":1') for each in sound),
        json.dumps({"payload": json.loads(sound[0]), "schema": {}}).encode(),
        *sound,
    ]

    # A stream of more schemas than a few hundred is not read in columns.
    for start in range(0, len(values), 300):
        assert disagreements(database, WITH_SCHEMAS, values[start : start + 300]) == []
    decided, _ = in_columns(database, WITH_SCHEMAS, values[:3])
    assert [*decided] == [0, 1, 2]


def recording(table: str, schema: str, *, schemas: bool) -> list[Sent]:
    """Read what was recorded of a table, with the columns of a schema alone; no null values."""
    names = declared(schema=schema, keys=[], mode="append", sequence_by=[]).types
    sent = []
    for each in events(table, schemas=schemas):
        if each["value"] is None:
            continue
        document = json.loads(each["value"])
        envelope = document["payload"] if schemas else document
        for side in ("before", "after"):
            row = envelope.get(side)
            envelope[side] = row and {n: value for n, value in row.items() if n in names}
        value = json.dumps(document, separators=(",", ":")).encode()
        sent.append(Sent(value, (each["key"] or "").encode()))
    return sent


# Lists of moments and decimals are read record by record.
RECORDED = {
    "partial": (PARTIAL, {"columns": {"lsn": "source.lsn"}}, ["shelf", "place"]),
    "emptied": ("id INT NOT NULL, label STRING", {}, ["id"]),
    "everything": (
        re.sub(r"(days|amounts|moments|zoned) ARRAY<[^>]*>, ", "", " ".join(EVERYTHING.split())),
        {"timestamps": {name: TIMESTAMPS[name] for name in ("at", "at_millis")}},
        ["id"],
    ),
}


@pytest.mark.parametrize("schemas", [False, True], ids=["without", "with schemas"])
@pytest.mark.parametrize("table", RECORDED)
def test_what_a_database_sent_is_decided_in_columns(
    database: duckdb.DuckDBPyConnection, table: str, schemas: bool
) -> None:
    """All but moves, truncates, what is left out, and numbers that have their own scale."""
    schema, options, keys = RECORDED[table]
    if schemas:
        options = {name: value for name, value in options.items() if name != "timestamps"}
        schema = schema.replace("loose DECIMAL(38, 6), ", "")
    format_ = {"type": "debezium", "schemas": schemas, **options}
    spec = declared(schema=schema, keys=keys, format=format_, sequence_by=[])
    values = recording(table, schema, schemas=schemas)

    decided, doubtful = in_columns(database, spec, [*values])

    assert len(decided) > len(doubtful)
    assert disagreements(database, spec, [*values]) == []


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"options": {"encoding": "avro", "timestamps": None}}, "format"),
        ({"schema": DDL + ", sums ARRAY<DECIMAL(9, 2)>"}, "values of ARRAY<DECIMAL(9, 2)>"),
        ({"options": {"columns": {**COLUMNS, "name": "source.lsn"}}}, "two columns"),
    ],
)
def test_what_columns_do_not_state_is_refused(fields: dict[str, Any], why: str) -> None:
    """Before anything is read."""
    options = fields.pop("options", {})
    options = {name: value for name, value in {**UNITED, **options}.items() if value is not None}
    spec = declared(
        **{"schema": DDL, "format": {"type": "debezium", **options}, **fields, "sequence_by": []}
    )

    with pytest.raises(NotInColumnsError, match=re.escape(why)):
        decoding_of(spec, Settings())
