"""What ``oncelake init`` proposes, from values alone: no Kafka, no Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest
from confluent_kafka import Message

from oncelake.ingestion.declaration.ddl import parse_type
from oncelake.ingestion.declaration.files.yaml_reader import read_tree
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.sql import quoted
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.kafka.offsets import Range
from oncelake.ingestion.operations.init.decode_sample import SampleRow, validate_sample
from oncelake.ingestion.operations.init.detect_format import detect_format, writer_schemas
from oncelake.ingestion.operations.init.identify import (
    find_crossing_key,
    find_deletes,
    find_key_by_name,
    find_order,
)
from oncelake.ingestion.operations.init.initialize import path_of, write_text
from oncelake.ingestion.operations.init.json_types import (
    DEBEZIUM,
    JSON,
    Dialect,
    guess,
    guess_columns,
    parse,
    without_twins,
)
from oncelake.ingestion.operations.init.propose import propose
from oncelake.ingestion.operations.init.sample import SampledRecord, TopicSample, newest_records
from oncelake.ingestion.settings import Settings
from tests.formats.test_capture import events
from tests.support.registry import framed
from tests.support.small_registry import small_registry

SETTINGS = Settings(kafka="nowhere:1")
Pairs = Sequence[tuple[bytes | None, bytes | None, int]]


def type_of(*texts: str, dialect: Dialect = JSON) -> str | None:
    """Propose a type for values that are written as JSON."""
    found = guess([parse(text.encode()) for text in texts], dialect).type
    return None if found is None else str(found)


def types_of(**ddl: str) -> dict[str, SqlType]:
    """The types of some columns."""
    return {name: parse_type(text) for name, text in ddl.items()}


def sampled(pairs: Pairs, *, partitions: int = 2) -> TopicSample:
    """A sample of a topic ``orders``: keys, values and partitions."""
    offsets = [0] * partitions
    records = []
    for key, value, partition in pairs:
        records.append(SampledRecord(partition, offsets[partition], 10**6, key, value, ()))
        offsets[partition] += 1
    ranges = tuple(
        Range(topic="orders", partition=at, start=0, end=end) for at, end in enumerate(offsets)
    )
    return TopicSample(topic="orders", partitions=partitions, ranges=ranges, records=tuple(records))


def proposed(*pairs: tuple[Any, Any, int], partitions: int = 2) -> StreamSpec:
    """Propose a stream for keys and values that become JSON, as its file declares it."""
    raw = [(as_bytes(key), as_bytes(value), partition) for key, value, partition in pairs]
    sample = sampled(raw, partitions=partitions)
    text = write_text(propose("orders", sample, SETTINGS), sample)
    return StreamSpec.model_validate({**read_tree(text).content, "name": "orders"})


def as_bytes(value: Any) -> bytes | None:
    """Write a value as JSON; bytes and null stay."""
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        pytest.param(["1", "-7"], "BIGINT", id="whole numbers, with room"),
        pytest.param(["9223372036854775808"], "DECIMAL(38, 0)", id="beyond BIGINT"),
        pytest.param([f"1{'0' * 40}"], "VARIANT", id="more digits than a number column has"),
        pytest.param(["1.5", "12.25", "3"], "DECIMAL(18, 2)", id="money"),
        pytest.param(["1.0"], "DECIMAL(18, 2)", id="a point makes a number no whole one"),
        pytest.param(["12345678901.125"], "DECIMAL(38, 3)", id="many digits"),
        pytest.param(["0.30000000000000004"], "DOUBLE", id="a float"),
        pytest.param(["1e3", "1"], "DOUBLE", id="an exponent"),
        pytest.param([f"{'9' * 37}.25"], "DOUBLE", id="too long for a DECIMAL"),
        pytest.param(["true", "null"], "BOOLEAN", id="booleans"),
        pytest.param(['"a"', '""'], "STRING", id="text"),
        pytest.param(['"2024-02-29"'], "DATE", id="dates"),
        pytest.param(['"2024-02-30"'], "STRING", id="a day that does not exist"),
        pytest.param(['"2024-02-29T10:00:00Z"', '"2024-02-29"'], "TIMESTAMP", id="moments"),
        pytest.param(['"2024-02-29T10:00:00.123456789Z"'], "STRING", id="nanoseconds"),
        pytest.param(['"2024-02-29"', '""'], "STRING", id="a date or nothing"),
        pytest.param(["1", '"1"'], "VARIANT", id="several types"),
        pytest.param([*["1"] * 19, '"1"'], "BIGINT", id="one mistake"),
        pytest.param(["null"], None, id="only nulls"),
        pytest.param(["[]"], None, id="only empty lists"),
        pytest.param(["{}"], None, id="only empty objects"),
        pytest.param(["[1, null]", "[]"], "ARRAY<BIGINT>", id="lists"),
        pytest.param(['{"a": 1}', '{"b": "x"}'], "STRUCT<a: BIGINT, b: STRING>", id="objects"),
        pytest.param(
            [f'{{"k{n}": 1, "l{n}": 2}}' for n in range(9)], "MAP<STRING, BIGINT>", id="free names"
        ),
        pytest.param(['{"a b": 1}'], "VARIANT", id="a name that no STRUCT has"),
        pytest.param(['{"a": 1, "A": 2}'], "VARIANT", id="names that differ in case"),
    ],
)
def test_a_type_holds_what_was_seen_with_room(texts: list[str], expected: str | None) -> None:
    """Each kind of value has its type; what no type holds has VARIANT, the unknown none."""
    assert type_of(*texts) == expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        pytest.param(['"2024-02-29T10:00:00Z"'], "TIMESTAMP", id="ZonedTimestamp"),
        pytest.param(['"2024-02-29"'], "STRING", id="text that looks like a date"),
        pytest.param(['{"scale": 2, "value": "ew=="}'], "STRING", id="VariableScaleDecimal"),
        pytest.param(["1.5", '"NaN"'], "DOUBLE", id="a float that is no number"),
        pytest.param(["1", '"1"'], None, id="several types"),
    ],
)
def test_an_event_of_debezium_has_types_that_it_can_fill(
    texts: list[str], expected: str | None
) -> None:
    """Without schemas, text stands for text, and nothing becomes a VARIANT."""
    assert type_of(*texts, dialect=DEBEZIUM) == expected


def test_numbers_in_quotes_among_numbers_make_a_lenient_column() -> None:
    """The file says so, and no record of the sample goes to quarantine for its quotes."""
    totals = [12.5, "7.25", 9, None]
    values = [{"id": number, "total": total} for number, total in enumerate(totals)]
    sample = sampled([(None, as_bytes(value), 0) for value in values], partitions=1)
    proposal = propose("orders", sample, SETTINGS)
    text = write_text(proposal, sample)
    spec = StreamSpec.model_validate({**read_tree(text).content, "name": "orders"})

    records = validate_sample(sample, spec, SETTINGS)

    assert "# total: 1 of 3 numbers is in quotes; a number with more than 2 places" in text
    assert proposal.fields["types"] == {"total": "lenient"}
    assert {each["_disposition"] for each in records} == {"row"}
    assert str(records[1]["total"]) == "7.25"


@pytest.mark.parametrize(
    ("others", "says"),
    [
        pytest.param(
            ["", "n/a\x1b"],
            '98 % of the values are ISO times; the others are not: "", "n/a\\x1b"; as TIMESTAMP',
            id="some",
        ),
        pytest.param(["soon"] * 20, "", id="too many"),
    ],
)
def test_a_text_that_is_nearly_always_a_time_is_said_to_be_one(
    others: list[str], says: str
) -> None:
    """The column stays a text, and a comment names what keeps it from being a time."""
    values = [*(f"2026-11-28T10:00:00.{n:03}Z" for n in range(98)), *others]

    (found,) = guess_columns({"at": value} for value in values).values()

    assert str(found.type) == "STRING"
    assert found.note.startswith(says)
    assert bool(found.note) == bool(says)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([1, "x"], id="a text that is no number"),
        pytest.param([True, "1"], id="no number without quotes"),
        pytest.param([1, "01"], id="a number as JSON does not write it"),
    ],
)
def test_other_texts_make_no_lenient_column(values: list[Any]) -> None:
    """They would go to quarantine all the same."""
    (found,) = guess_columns({"a": value} for value in values).values()

    assert not found.is_lenient


@pytest.mark.parametrize(
    ("name", "value", "json", "debezium"),
    [
        pytest.param("at", 1_732_444_800_123, "timestamp_millis(at)", "{at: millis}", id="ms"),
        pytest.param(
            "n", 1_732_444_800_123_456, "timestamp_micros(n)", "{n: micros}", id="microseconds"
        ),
        pytest.param(
            "n", 1_732_444_800_123_456_789, "timestamp_micros(n DIV 1000)", "{n: nanos}", id="ns"
        ),
        pytest.param("sent_at", 1_732_444_800, "declare TIMESTAMP", "", id="seconds"),
        pytest.param("total", 1_732_444_800, "", "", id="no name of a moment"),
        pytest.param("due_date", 20_051, "", "declare DATE", id="days"),
        pytest.param("total", "12.50", "{total: lenient}", "decimals: string", id="decimals"),
        pytest.param("postcode", "10115", "", "", id="digits that are a name"),
    ],
)
def test_what_values_may_stand_for_is_said(name: str, value: Any, json: str, debezium: str) -> None:
    """The type stays what it is; a comment names what to declare."""
    for dialect, says in ((JSON, json), (DEBEZIUM, debezium)):
        (found,) = guess_columns([{name: value}], dialect).values()

        assert says in found.note
        assert bool(says) == bool(found.note)
        assert str(found.type) == ("BIGINT" if type(value) is int else "STRING")


@pytest.mark.parametrize("repeats", [False, True])
def test_a_key_that_never_comes_twice_may_be_of_events(repeats: bool) -> None:
    """An upsert loses nothing, so it stays; the file names the mode for events."""
    records = [({"id": number}, {"id": number, "a": 1}, 0) for number in range(100)]
    records += records[-1:] if repeats else []
    sample = sampled([(as_bytes(k), as_bytes(v), at) for k, v, at in records], partitions=1)

    proposal = propose("orders", sample, SETTINGS)

    assert proposal.fields["keys"] == ["id"]
    assert ("insert_only" in " ".join(proposal.notes["keys"])) == (not repeats)


def test_a_name_that_no_file_can_have_is_left_out() -> None:
    """Such a name has no type and a note that says why; the others are not touched."""
    objects = [{"id": 1, "_own": 1, "a.b": 1, "x`y": 1, "ID": 1, "n\x1bm": 1, "ok": 1, "": 1}]

    found = without_twins(guess_columns(objects))

    assert [name for name, each in found.items() if each.type] == ["_own", "a.b", "x`y", "ok"]
    assert all(each.note for each in found.values() if not each.type)


@pytest.mark.parametrize("sink", ["delta", "iceberg", "postgres", "kafka"])
def test_a_name_that_no_table_has_is_selected_as_another(sink: str) -> None:
    """Any name that JSON has is read, and its column has one that every sink takes."""
    value = {"_id": 1, "a b": 2, "a_b": 3, "_Offset": 4, "x`y": 5, "@t": 6, "q'\"": 7, "a.b": 8}
    sample = sampled([(None, as_bytes(value), 0)] * 2, partitions=1)

    proposal = propose("orders", sample, SETTINGS, sink=sink)
    text = write_text(proposal, sample)
    spec = StreamSpec.model_validate({**read_tree(text).content, "name": "orders"})

    assert spec.keys == ("_id",)
    assert [column.name for column in spec.value_columns] == [*value]
    assert dict(spec.select) == {
        "a_b_2": "`a b`",
        "Offset": "`_Offset`",
        "x_y": "`x``y`",
        "a_b_3": "`a.b`",
    }
    (found, _) = validate_sample(sample, spec, SETTINGS)
    read = {spec.select.get(name, f"`{name}`"): found[name] for name in spec.types}
    assert read == {quoted(name): number for name, number in value.items()}


@pytest.mark.parametrize(
    ("added", "condition"),
    [
        pytest.param({"__deleted": ["false", "true"]}, "__deleted = 'true'", id="flag"),
        pytest.param({"__deleted": ["false", "false"]}, "__deleted = 'true'", id="none deleted"),
        pytest.param({"__deleted": [False, True]}, "__deleted", id="boolean"),
        pytest.param({"__op": ["c", "d"]}, "__op = 'd'", id="operation"),
        pytest.param({"__deleted": ["no", "yes"]}, None, id="other words"),
        pytest.param({"_deleted": [False, True]}, "_deleted", id="CouchDB"),
    ],
)
def test_the_deletes_of_unwrapped_events_are_proposed(
    added: dict[str, list[Any]], condition: str | None
) -> None:
    """What Debezium adds to an event that it unwraps says that a row is gone, and its order."""
    ((name, values),) = added.items()
    times = {"__source_ts_ms": 1_700_000_000_000}

    spec = proposed(*(({"id": at}, {"id": at, **times, name: v}, 0) for at, v in enumerate(values)))

    assert (spec.keys, spec.apply_as_deletes) == (("id",), condition)
    assert spec.sequence_by == ("__source_ts_ms",)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([{"customer_id": 1, "id": 5}, {"customer_id": 1, "id": 5}], "id", id="id"),
        pytest.param([{"customerId": 1, "orderId": 2}], "orderId", id="the stream's own"),
        pytest.param([{"a": 1, "trip_id": 1}, {"a": 1, "trip_id": 2}], "trip_id", id="unique"),
        pytest.param([{"trip_id": 1}, {"trip_id": 1}], None, id="another's id comes twice"),
        pytest.param([{"id": None}, {"id": 1}], None, id="null once"),
    ],
)
def test_a_key_is_a_column_that_is_named_like_one(
    rows: list[dict[str, Any]], expected: str | None
) -> None:
    """Without a Kafka key the name suggests, and nulls or a second value contradict."""
    types = dict.fromkeys(rows[0], parse_type("BIGINT"))

    assert find_key_by_name("shop_orders", types, rows) == expected


def changes(*values: Any, name: str = "updated_at") -> list[SampleRow]:
    """Records of one key and partition, along which a column has these values."""
    rows = ({"id": 1, name: value} for value in values)
    return [SampleRow(partition=0, row=row) for row in rows]


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        pytest.param("updated_at", [1, 1, 2], ("updated_at", True), id="grows"),
        pytest.param("lsn", [1, 1], ("lsn", False), id="stays"),
        pytest.param("updatedAt", [1, 2], ("updatedAt", True), id="in another spelling"),
        pytest.param("version", [2, 1], None, id="falls"),
        pytest.param("updated_at", [1, None], None, id="null once"),
        pytest.param("created_at", [1, 2], None, id="a birth orders nothing"),
        pytest.param("amount", [1, 2], None, id="no name of an order"),
        pytest.param("due_at", [1], None, id="a moment of which nothing is seen"),
        pytest.param("due_at", [1, 2], ("due_at", True), id="a moment that grows"),
    ],
)
def test_an_order_never_falls_along_a_key(
    name: str, values: list[Any], expected: tuple[str, bool] | None
) -> None:
    """The name suggests, and the records of a key contradict."""
    types = types_of(id="BIGINT", **{name: "BIGINT"})

    assert find_order(["id"], types, changes(*values, name=name)) == expected


def test_updated_at_comes_before_any_other_moment() -> None:
    """Of several columns the best name wins, not the first."""
    row = {"id": 1, "shipped_at": 1, "version": 1, "updated_at": 1}
    types = dict.fromkeys(row, parse_type("BIGINT"))

    found = find_order(["id"], types, [SampleRow(partition=0, row=row)])

    assert found is not None
    assert found.column == "updated_at"


def test_a_column_that_is_the_same_in_two_partitions_orders_nothing() -> None:
    """Else the number of the partition would decide which record of the key wins."""
    spec = proposed(*(({"id": 1}, {"id": 1, "updated_at": 1}, partition) for partition in (0, 1)))

    assert spec.sequence_by == ("_timestamp",)


def test_a_key_in_two_partitions_is_found() -> None:
    """Kafka's order ends where a key has two partitions."""
    keys = [("a", 0), ("b", 1), ("a", 0), ("b", 0)]

    assert find_crossing_key(keys) == "b"
    assert find_crossing_key(keys[:3]) is None


@pytest.mark.parametrize(
    ("type_", "name", "values", "expected"),
    [
        pytest.param("STRING", "op", ["c", "d", None], "op IN ('d')", id="an operation"),
        pytest.param("STRING", "status", ["Deleted"], "status IN ('Deleted')", id="a status"),
        pytest.param("STRING", "op", ["c", "u"], None, id="no delete seen"),
        pytest.param("STRING", "name", ["delete"], None, id="any text"),
        pytest.param("BOOLEAN", "is_deleted", [False, True], "is_deleted", id="a flag"),
        pytest.param("BOOLEAN", "deleted", [False], None, id="a flag that is never set"),
        pytest.param("DATE", "deleted_at", [None, 1], "deleted_at IS NOT NULL", id="a moment"),
    ],
)
def test_a_delete_is_proposed_only_where_one_was_seen(
    type_: str, name: str, values: list[Any], expected: str | None
) -> None:
    """A column that can say a delete is no condition until it does."""
    found = find_deletes({name: parse_type(type_)}, [{name: value} for value in values])

    assert (found and found[0]) == expected


def test_a_bare_kafka_key_names_the_column_that_it_equals() -> None:
    """Of several columns with the same values the one that is named like a key is taken."""
    spec = proposed(
        *((f"c{n}".encode(), {"name": f"c{n}", "c_id": f"c{n}"}, n % 2) for n in range(4))
    )

    assert spec.keys == ("c_id",)


@pytest.mark.parametrize(("size", "format"), [(2, "short"), (4, "int"), (8, "long")])
def test_a_kafka_key_that_java_wrote_is_read_as_one(size: int, format: str) -> None:
    """Its bytes are the number of a column, and by no other format."""
    ids = (1, -2, 300)

    spec = proposed(*((id.to_bytes(size, signed=True), {"id": id, "n": 1}, 0) for id in ids))

    assert (spec.keys, spec.key_format.type) == (("id",), format)


def test_digits_are_a_key_of_json_unless_the_values_say_otherwise() -> None:
    """The same four bytes are two numbers; the column tells which is meant."""
    key = b"1234"

    plain = proposed((key, {"id": 1234}, 0))
    javas = proposed((key, {"id": int.from_bytes(key)}, 0))

    assert (plain.keys, plain.key_format.type) == (("id",), "json")
    assert plain.key_format.model_extra == {"numbers": "text"}
    assert (javas.keys, javas.key_format.type) == (("id",), "int")


def test_digits_are_declared_before_a_key_has_as_many_bytes_as_javas() -> None:
    """A sample of short ones would not show it."""
    spec = proposed(*((f"{n}".encode(), {"id": n}, 0) for n in range(3)))

    assert spec.key_format.model_dump() == {"type": "json", "numbers": "text"}


@pytest.mark.parametrize("payload", [{"id": 7}, 7], ids=["object", "bare"])
def test_keys_with_their_schema_beside_them_are_declared_so(payload: Any) -> None:
    """As Kafka Connect's converter writes them."""
    key = {"schema": {"type": "int64"}, "payload": payload}

    spec = proposed((key, {"name": "a", "id": 7}, 0))

    assert spec.keys == ("id",)
    assert spec.key_format.model_dump() == {"type": "json", "schemas": True}


def test_documents_of_mongodb_are_json() -> None:
    """An envelope whose row is a text is none that `format: debezium` reads."""
    events = [
        (None, {"op": op, "before": None, "after": after}, 0)
        for op, after in (("c", '{"_id": 1}'), ("d", None))
    ]

    spec = proposed(*events)

    assert (spec.format.type, list(spec.types)) == ("json", ["op", "after"])


def test_a_kafka_key_that_contradicts_the_value_is_no_key() -> None:
    """A key that names another value than the record's is not believed."""
    spec = proposed(*(({"id": 7}, {"id": n, "x": "a"}, 0) for n in range(3)), partitions=1)

    assert (spec.keys, spec.sequence_by) == (("id",), ())


def test_without_any_key_every_record_is_a_row() -> None:
    """``mode: append`` is proposed where nothing identifies a row."""
    spec = proposed((None, {"a": 1}, 0), (None, {"a": 1}, 1))

    assert (spec.mode, spec.keys) == ("append", ())


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        pytest.param([({"id": 1}, 0), (None, 0)], (), id="null values, one partition each"),
        pytest.param([({"id": 1}, 0), (None, 1)], ("_timestamp",), id="a null value elsewhere"),
        pytest.param([({"id": 1}, 0), ({"id": 1}, 1)], ("_timestamp",), id="two partitions"),
        pytest.param(
            [({"id": 1, "updated_at": 1}, 0), ({"id": 1, "updated_at": 2}, 1)],
            ("updated_at",),
            id="two partitions and a column",
        ),
        pytest.param(
            [({"id": 1, "updated_at": 1}, 0), ({"id": 1, "updated_at": 2}, 1), (None, 1)],
            ("_timestamp",),
            id="two partitions, a column, and null values that lack it",
        ),
        pytest.param(
            [({"id": 1, "updated_at": 1}, 0), (None, 0)], (), id="a column that null values lack"
        ),
    ],
)
def test_an_order_has_a_place_for_every_null_value(
    records: list[tuple[Any, int]], expected: tuple[str, ...]
) -> None:
    """Where null values are seen, no order is proposed that sends them to quarantine."""
    spec = proposed(*(({"id": 1}, value, partition) for value, partition in records))

    assert spec.sequence_by == expected
    assert spec.tombstone_policy == "delete" or all(value for value, _ in records)


def test_a_topic_written_by_no_key_is_ordered_across_its_partitions() -> None:
    """Where the Kafka key does not say the partition, a key may come from any."""
    assert proposed((None, {"id": 1}, 0), (None, {"id": 2}, 1)).sequence_by == ("_timestamp",)


@pytest.mark.parametrize(
    ("values", "says", "remedy"),
    [
        pytest.param([b"\xff\xfe", b"\x80"], "bytes that are no text", "format: raw", id="bytes"),
        pytest.param([b"a line", b"b"], "text that is no JSON", "format: string", id="text"),
        pytest.param(
            [b"a;1", b"b;2"],
            "text that is no JSON",
            'format: {type: csv, delimiter: ";"}, schema: "c1 STRING, c2 STRING"',
            id="lines of CSV",
        ),
        pytest.param([b"1", b"[]"], "JSON that is no object", "format: string", id="scalars"),
        pytest.param(
            [b'{"a": 1}', b"x"],
            "JSON objects (1), text that is no JSON (1)",
            "format: raw",
            id="mixed",
        ),
        pytest.param([None, None], "every value is null", "--sample", id="nulls"),
        pytest.param([None, b""], "text that is no JSON", "format: string", id="empty values"),
        pytest.param([b"\0\0\0\0\7x"], "(7)", "ONCELAKE_SCHEMA_REGISTRY", id="framed"),
    ],
)
def test_what_no_format_fits_gets_one_sentence(
    values: list[bytes | None], says: str, remedy: str
) -> None:
    """The sentence says what was found, and the remedy follows."""
    with pytest.raises(InvalidSpecError) as refused:
        detect_format(sampled([(None, value, 0) for value in values]), SETTINGS)

    problem, _, then = str(refused.value).partition("Next: ")
    for file in re.findall(r"(\{topic: .+?\})(?:; or|$)", then):
        StreamSpec.model_validate({**read_tree(file).content, "name": "orders"})
    assert says in problem
    assert remedy in then
    assert "\n" not in str(refused.value)


def test_no_column_at_all_gets_a_sentence() -> None:
    """Objects without a usable field are refused, with what is wrong with each."""
    with pytest.raises(InvalidSpecError, match=r"a file cannot have this name.*; b: only nulls"):
        proposed((None, {"a\n": 1, "b": None}, 0))


def test_events_of_debezium_without_a_common_order_are_ordered_by_the_log() -> None:
    """Where a row's events are in two partitions, the position comes from the envelope."""
    events = [
        ({"id": 1}, {"op": op, "before": None, "after": {"id": 1}, "source": {"lsn": lsn}}, at)
        for op, lsn, at in (("c", 5, 0), ("u", 6, 1))
    ]

    spec = proposed(*events)

    assert (spec.format.type, spec.sequence_by) == ("debezium", ("lsn",))
    assert spec.format.options.model_dump()["columns"] == {"lsn": "source.lsn"}


def test_a_column_of_the_log_s_name_is_no_position() -> None:
    """Spark ignores case: a row that has an ``LSN`` of its own is ordered by something else."""
    row = {"id": 1, "LSN": 1}
    events = [
        ({"id": 1}, {"op": op, "before": None, "after": row, "source": {"lsn": lsn}}, at)
        for op, lsn, at in (("c", 5, 0), ("u", 6, 1))
    ]

    assert proposed(*events).sequence_by == ("_timestamp",)


def test_two_spellings_of_a_name_in_two_schemas_are_left_out() -> None:
    """A column was renamed between two events, and Spark ignores case."""
    events = []
    for name in ("customerId", "customerID"):
        fields = [{"field": "id", "type": "int64"}, {"field": name, "type": "int64"}]
        after = {"field": "after", "type": "struct", "fields": fields, "optional": True}
        operation = {"field": "op", "type": "string"}
        schema = {"type": "struct", "fields": [after, operation]}
        payload = {"op": "c", "after": {"id": 1, name: 2}}
        events.append(({"id": 1}, {"schema": schema, "payload": payload}, 0))

    assert [column.name for column in proposed(*events).columns] == ["id"]


def test_a_sample_of_large_values_is_the_newest_of_them() -> None:
    """What exceeds the bytes is left out at the beginning, and the range says so."""
    messages = [
        Message("orders", 0, offset, b"k", b"v" * 9, timestamp=(1, 5)) for offset in range(5)
    ]
    asked = Range(topic="orders", partition=0, start=0, end=5)

    covered, records = newest_records(messages, asked, 25)

    assert [each.offset for each in records] == [3, 4]
    assert covered == replace(asked, start=3)


def test_bytes_that_only_look_framed_ask_the_registry_for_few_schemas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each id is a request, and random bytes have one in every record."""
    asked: list[int] = []
    registry = SimpleNamespace(schemas=lambda ids: asked.extend(ids) or {})
    monkeypatch.setattr(
        "oncelake.ingestion.operations.init.detect_format.registry_of", lambda _: registry
    )
    raws = [b"\0" + number.to_bytes(4) + b"x" for number in range(1_000)]

    writer_schemas(raws, Settings(schema_registry="http://nowhere"))

    assert len(asked) == 100


@pytest.mark.parametrize("table", ["everything", "partial"])
@pytest.mark.parametrize("schemas", [True, False], ids=["with schemas", "without"])
def test_no_event_of_a_real_connector_would_be_quarantined(table: str, schemas: bool) -> None:
    """What Debezium sent for a real database fits the columns that are proposed for it."""
    recorded = [
        (as_text(each["key"]), as_text(each["value"]), crc32((each["key"] or "").encode()) % 2)
        for each in events(table, schemas=schemas)
    ]
    sample = sampled(recorded)
    text = write_text(propose("orders", sample, SETTINGS), sample)
    spec = StreamSpec.model_validate({**read_tree(text).content, "name": "orders"})

    found = validate_sample(sample, spec, SETTINGS)

    assert {each["_disposition"] for each in found} == {"row", "delete", "ignored"}
    assert spec.keys == (("id",) if table == "everything" else ("shelf", "place"))


def as_text(text: str | None) -> bytes | None:
    """Return a text's bytes; null stays."""
    return None if text is None else text.encode()


def test_the_sample_is_judged_as_a_run_would() -> None:
    """Decoding and validation are the product's own: each bad record has its reason."""
    pairs: Pairs = [
        *((b'{"id": %d}' % n, b'{"id": %d, "op": "d"}' % n, 0) for n in range(8)),
        (b'{"id": 1}', b'{"id": "x"}', 0),
        (b'{"id": 1}', b'{"op": "c"}', 0),
        (b"{}", None, 0),
    ]
    sample = sampled(pairs)
    fields = {"topic": "orders", "schema": "id BIGINT NOT NULL, op STRING", "keys": ["id"]}
    spec = StreamSpec.model_validate({"name": "o", "apply_as_deletes": "op = 'd'", **fields})

    found = validate_sample(sample, spec, SETTINGS)

    assert [each["_reason"] for each in found] == [
        *[None] * 8,
        *("wrong_type", "missing_key", "tombstone_without_key"),
    ]


def test_names_of_other_alphabets_and_words_of_yaml_survive_the_file() -> None:
    """Whatever a column is called, the file declares the column of that name."""
    row = {"größe": 1, "on": "x", "null": 2, "1st": 3, "a-b": 4, "select": 5, "id": 1}

    spec = proposed((None, row, 0))

    assert [column.name for column in spec.columns] == list(row)


def test_a_comment_cannot_break_out_of_its_line() -> None:
    """A name with line breaks, which nobody trusts, stays inside the comment."""
    spec = proposed((None, {"id": 1, "x\ntopic: other\u2028": 2}, 0))

    assert spec.topic == "orders"


def test_a_name_that_no_stream_can_have_is_refused_with_one_that_it_can() -> None:
    """The file's name is the stream's, and leads to no other folder."""
    with pytest.raises(InvalidSpecError, match="Next: --stream etc_passwd"):
        path_of("../etc/passwd", SETTINGS)
    assert path_of("orders", SETTINGS).parent == Path(SETTINGS.streams)


@pytest.mark.parametrize("header", ["__value_schema_id", "apicurio.value.globalId"])
def test_values_whose_ids_are_in_headers_are_not_taken_for_framed(header: str) -> None:
    """Bytes behind such a header are called what they are; JSON behind it is JSON."""
    bare, text = bytes.fromhex("000000000206616263"), b'{"id": 1}'
    headers = ((header, b"\1" * 17),)

    def sample(value: bytes) -> TopicSample:
        records = (SampledRecord(0, 0, 1000, None, value, headers),)
        return TopicSample(topic="t", partitions=1, ranges=(), records=records)

    with pytest.raises(InvalidSpecError, match="schema id is in a header") as refused:
        detect_format(sample(bare), SETTINGS)

    assert "declare the format by hand (docs/formats.md, Ids in headers)" in str(refused.value)
    assert detect_format(sample(text), SETTINGS).type == "json"


@pytest.mark.parametrize("format_", ["avro", "json_schema", "protobuf"])
def test_the_record_type_of_most_values_is_proposed(format_: str) -> None:
    """The file names it, has its columns alone, and takes its records; a note names the others."""
    with small_registry() as registry:
        if format_ == "avro":
            user = registry.add(record_of("User", "name"))
            order = registry.add(record_of("Order", "total"))
            body = {user: b"\x02\x02a", order: b"\x04\x02b"}
        elif format_ == "protobuf":
            # A payload begins with the index of its message: User is the second one.
            user = registry.add(MESSAGES, "PROTOBUF")
            order = registry.add(MESSAGES + "message More {}", "PROTOBUF")
            body = {user: b"\x02\x02\x08\x01\x12\x01a", order: b"\x00\x08\x02\x12\x01b"}
        else:
            user, order = (registry.add({"title": name}, "JSON") for name in ("User", "Order"))
            body = {user: b'{"id": 1, "name": "a"}', order: b'{"id": 2, "total": "b"}'}
        values = [(None, framed(number, body[number]), 0) for number in (user, user, order)]
        sample = sampled(values)
        proposal = propose("users", sample, registry.settings)
        text = write_text(proposal, sample)
        spec = StreamSpec.model_validate({**read_tree(text).content, "name": "users"})
        judged = validate_sample(sample, spec, registry.settings)

    assert (proposal.fields["format"], proposal.fields["record"]) == (format_, "User")
    assert [column.name for column in spec.columns] == ["id", "name"]
    assert [row["_disposition"] for row in judged] == ["row", "row", "filtered"]
    assert "2 are records of type User, and others are filtered: Order (1)" in " ".join(
        proposal.notes["format"]
    )


def test_messages_of_protobuf_are_proposed_with_their_keys() -> None:
    """The columns are those of the message that was sent, and the key's message names the keys."""
    with small_registry() as registry:
        number = registry.add(MESSAGES, "PROTOBUF")
        of_key = registry.add('syntax = "proto3"; message Key { int64 id = 1; }', "PROTOBUF")
        values = [b"\x08%c\x12\x01a" % at for at in range(1, 4)]
        sample = sampled(
            [(framed(of_key, b"\0" + v[:2]), framed(number, b"\x02\x02" + v), 0) for v in values]
        )
        proposal = propose("users", sample, registry.settings)
        text = write_text(proposal, sample)
        spec = StreamSpec.model_validate({**read_tree(text).content, "name": "users"})
        judged = validate_sample(sample, spec, registry.settings)

    assert spec.ddl == "id BIGINT NOT NULL,\nname STRING"
    assert (spec.format.type, spec.key_format.type, spec.keys) == ("protobuf", "protobuf", ("id",))
    assert "record" not in proposal.fields
    assert [(row["id"], row["name"]) for row in judged] == [(1, "a"), (2, "a"), (3, "a")]


@pytest.mark.parametrize(
    ("schema", "type_"),
    [
        pytest.param('"long"', "AVRO", id="no record"),
        pytest.param("message {", "PROTOBUF", id="does not compile"),
    ],
)
def test_a_schema_that_describes_no_columns_is_named(schema: str, type_: str) -> None:
    """The sentence names the schema, and a declaration that keeps the bytes."""
    with small_registry() as registry:
        value = framed(registry.add(schema, type_), b"\0\2")

        with pytest.raises(InvalidSpecError, match=r"schema 1 is no record .* Next: .*raw"):
            detect_format(sampled([(None, value, 0)]), registry.settings)


def test_events_of_debezium_in_avro_have_the_columns_of_their_row() -> None:
    """The envelope's schema is known by its fields; whole numbers become BIGINT."""
    row = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "int"}]}
    fields = [
        {"name": "before", "type": ["null", row]},
        {"name": "after", "type": ["null", "Value"]},
        {"name": "op", "type": "string"},
    ]
    with small_registry() as registry:
        number = registry.add({"type": "record", "name": "Envelope", "fields": fields})
        value = framed(number, b"\x00\x02\x0e\x02c")

        found = detect_format(sampled([(None, value, 0)]), registry.settings)

    assert found.declared() == {"type": "debezium", "encoding": "avro"}
    assert {name: str(each.type) for name, each in found.columns.items()} == {"id": "BIGINT"}


def test_ids_of_no_registry_or_of_several_formats_are_named() -> None:
    """No format fits four of five values: the sentence says how many ids are known, and of what."""
    with small_registry() as registry:
        numbers = registry.add(record_of("User", "name")), registry.add({"title": "User"}, "JSON")
        for ids, says in (
            (numbers, "several types: AVRO, JSON"),
            ((1, 7, 8), "only 1 of 3 values"),
        ):
            sample = sampled([(None, framed(number, b"\2\2a"), 0) for number in ids])
            with pytest.raises(InvalidSpecError, match=says):
                detect_format(sample, registry.settings)


MESSAGES = """
syntax = "proto3";
message Order { int64 id = 1; string total = 2; }
message User { int32 id = 1; string name = 2; }
"""


def record_of(name: str, field: str) -> dict[str, Any]:
    """A type of Avro with an id and a text."""
    fields = [{"name": "id", "type": "long"}, {"name": field, "type": "string"}]
    return {"type": "record", "name": name, "fields": fields}
