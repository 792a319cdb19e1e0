"""What an audit cannot tell, and says: records on their way, records that are gone, no order."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import write_deltalake

from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.settings import Settings
from tests.audit.pipelines import Rows, Source, delta_merge, row, sound, source
from tests.audit.test_audit import compare, counts
from tests.support.long import IS_LONG

pytestmark = pytest.mark.kafka

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def saved(rows: list[dict[str, Any]], settings: Settings, schema: pa.Schema) -> dict[str, Any]:
    """Write a Delta table, as any tool would."""
    path = Path(settings.lake) / "table"
    write_deltalake(path, pa.Table.from_pylist(rows, schema), mode="overwrite")
    return {"table": str(path), "keys": ["id"]}


def send(made: Source, values: list[tuple[str, Any]], *, spread: int = 1) -> None:
    """Send values as JSON, all in the same minute."""
    for at, (key, value) in enumerate(values):
        data = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        made.producer.produce(
            made.topic,
            value=data,
            key=key.encode(),
            partition=at % spread,
            timestamp=int(NOW.timestamp() * 1000) + at,
        )
    made.flush()


def test_records_that_still_come_are_no_faults(orders: Source, settings: Settings) -> None:
    """What was sent after the table was loaded is unproven: news, updates and deletes."""
    rows = sound(orders, is_append=False)
    late = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=1)
    for number in range(100, 130):
        orders.send(f"Order-{number}", row(number, 0, late), number % 3, late)
    orders.send("Order-3", row(3, 9, late), 0, late)
    orders.send("Order-5", None, 2, late)
    orders.flush()

    report = compare(delta_merge(rows, settings), orders.topic, settings)

    assert counts(report) == {"unproven": 32}
    assert report.exit_code == 0


def test_a_fault_is_found_while_records_come(orders: Source, settings: Settings) -> None:
    """What lies before the newest records is judged all the same."""
    rows = sound(orders, is_append=False)
    lost = rows.pop(30)
    late = dt.datetime.now(dt.UTC)
    orders.send("Order-6", row(6, 9, late), 0, late)
    orders.flush()

    report = compare(delta_merge(rows, settings), orders.topic, settings)

    assert counts(report) == {"missing": 1, "unproven": 1}
    assert report.samples["missing"][0].offset == lost["kafka_offset"]


def test_records_before_a_moment_are_due(orders: Source, settings: Settings) -> None:
    """With `until`, nothing before it is taken for being on its way."""
    rows = sound(orders, is_append=False)
    last = orders.events[-1].sent
    for number in range(9):
        sent = last + dt.timedelta(minutes=number + 1)
        orders.send(f"Order-{100 + number}", row(100 + number, 0, sent), number % 3, sent)
    orders.flush()
    asked = delta_merge(rows, settings)

    until = compare(asked, orders.topic, settings, until=dt.datetime.now(dt.UTC))
    earlier = compare(asked, orders.topic, settings, until=last + dt.timedelta(minutes=5))

    assert counts(compare(asked, orders.topic, settings)) == {"unproven": 9}
    assert counts(until) == {"missing": 9}
    assert counts(earlier) == {"missing": 4, "unproven": 5}


def test_the_last_deletes_are_proven(orders: Source, settings: Settings) -> None:
    """A delete behind all rows shows in that its row is gone."""
    late = dt.datetime.now(dt.UTC)
    for number in (1, 2, 3):
        orders.send(f"Order-{number}", None, number % 3, late)
    orders.flush()

    report = compare(delta_merge(sound(orders, is_append=False), settings), orders.topic, settings)

    assert counts(report) == {}


def test_rows_whose_records_are_gone_are_unproven(orders: Source, settings: Settings) -> None:
    """Retention has taken records away: their rows may be right, and a row of none may be, too."""
    rows = sound(orders, is_append=False)
    late = rows[0]["changed_at"]
    rows.append({**rows[0], "id": "Order-9999", "changed_at": late})
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers()})
    for answer in admin.delete_records([TopicPartition(orders.topic, 0, 40)]).values():
        answer.result()

    report = compare(delta_merge(rows, settings), orders.topic, settings)

    assert counts(report) == {"unproven": 1}
    assert report.samples["unproven"][0].key == {"id": "Order-9999"}
    assert report.exit_code == 0


def test_equal_records_of_two_partitions_do_not_say_where_a_stream_would_begin(
    empty: Source, settings: Settings
) -> None:
    """Rows without a place may be of either; it would read records that are in the table."""
    schema = pa.schema({"id": pa.int64(), "p": pa.int64(), "o": pa.int64()})
    send(empty, [(str(at), {"id": at // 2}) for at in range(8)], spread=2)
    rows = [{"id": at // 2, "p": at % 2, "o": at // 2} for at in range(8)]
    asked = {**saved(rows, settings, schema), "keys": [], "mode": "append"}

    blind = compare(asked, empty.topic, settings)
    shown = compare(asked, empty.topic, settings, place=("p", "o"))

    assert (blind.exit_code, blind.starting) == (0, {})
    assert (shown.exit_code, shown.starting) == (0, {0: 4, 1: 4, 2: 0})


def test_without_an_order_keys_of_several_partitions_are_not_judged(
    empty: Source, settings: Settings
) -> None:
    """Neither of two records is taken for the newer one, until a column says which."""
    schema = pa.schema({"id": pa.int64(), "version": pa.int64()})
    values = [(str(id), {"id": id, "version": version}) for id in range(9) for version in (2, 1)]
    send(empty, values, spread=2)
    asked = saved([{"id": id, "version": 2} for id in range(9)], settings, schema)

    blind = compare(asked, empty.topic, settings)
    ordered = compare(asked, empty.topic, settings, order=["version"])

    assert (counts(blind), blind.exit_code) == ({"unproven": 9}, 3)
    assert "--order" in blind.obstacles[0]
    assert (counts(ordered), ordered.exit_code) == ({}, 0)


def test_a_null_value_is_as_new_as_the_record_before_it(empty: Source, settings: Settings) -> None:
    """With an order, a delete that has none beats what came before it in its partition."""
    schema = pa.schema({"id": pa.int64(), "version": pa.int64()})
    values = [(str(id), {"id": id, "version": 5}) for id in range(6)]
    send(empty, [*values, ("1", None), ("2", None), ("2", {"id": 2, "version": 7})])
    rows = [{"id": id, "version": 7 if id == 2 else 5} for id in (0, 2, 3, 4, 5)]

    report = compare(saved(rows, settings, schema), empty.topic, settings, order=["version"])

    assert counts(report) == {}


def test_rows_that_are_marked_as_deleted_are_none(empty: Source, settings: Settings) -> None:
    """`deleted_column` names the mark of soft deletes."""
    schema = pa.schema({"id": pa.int64(), "name": pa.string(), "__deleted": pa.string()})
    values = [(str(id), {"id": id, "name": f"n{id}"}) for id in range(6)]
    send(empty, [*values[:5], ("2", None), values[5]])
    rows = [
        {"id": id, "name": f"n{id}", "__deleted": "true" if id == 2 else "false"} for id in range(6)
    ]
    asked = saved(rows, settings, schema)

    assert counts(compare(asked, empty.topic, settings)) == {"extra": 1}
    assert counts(compare(asked, empty.topic, settings, deleted_column="__deleted")) == {}


def test_rows_without_keys_are_compared_whole(empty: Source, settings: Settings) -> None:
    """Equal records are as many rows."""
    schema = pa.schema({"sensor": pa.string(), "celsius": pa.float64()})
    values = [{"sensor": f"s{at % 3}", "celsius": at % 2 + 0.5} for at in range(12)]
    send(empty, [("", each) for each in values])
    asked = saved([*values[1:], values[2], {"sensor": "s9", "celsius": 1.0}], settings, schema)

    report = compare({**asked, "keys": [], "mode": "append"}, empty.topic, settings)

    assert counts(report) == {"missing": 1, "doubled": 1, "extra": 1}


def test_columns_are_found_in_another_case_and_named_where_absent(
    empty: Source, settings: Settings
) -> None:
    """A catalog that lowers names is no fault; a column that one side lacks is named."""
    schema = pa.schema({"id": pa.int64(), "customername": pa.string(), "loaded": pa.bool_()})
    send(empty, [(str(id), {"ID": id, "customerName": f"c{id}", "more": 1}) for id in range(5)])
    rows = [{"id": id, "customername": f"c{id}", "loaded": True} for id in range(5)]
    rows[3]["customername"] = "C3"

    report = compare(saved(rows, settings, schema), empty.topic, settings)

    assert counts(report) == {"different": 1}
    assert report.columns == ["id", "customername"]
    assert report.limits == [
        "the table has no column for more",
        "records have no value for loaded",
    ]


def test_a_field_that_only_older_records_have_is_compared(
    empty: Source, settings: Settings
) -> None:
    """The last thousand records show it as null, or not at all; the table has a column for it."""
    schema = pa.schema({"id": pa.int64(), "oldname": pa.string(), "price": pa.float64()})
    values = [{"id": 0, "oldName": "a", "price": 1.5}, {"id": 1, "oldName": "b", "price": 2}]
    more = ({"id": id, "oldName": None} for id in range(2, 1_100))
    send(empty, [(str(each["id"]), each) for each in (*values, *more)])
    rows = [{"id": id, "oldname": None, "price": None} for id in range(1_100)]
    rows[0] |= {"oldname": "a", "price": 1.5}
    rows[1] |= {"oldname": None, "price": 3.0}

    report = compare(saved(rows, settings, schema), empty.topic, settings)

    assert counts(report) == {"different": 1}
    [sample] = report.samples["different"]
    assert sample.values["oldname"] == {"expected": "b", "found": None}
    assert sample.values["price"] == {"expected": "2.0", "found": "3.0"}


def _types() -> dict[str, tuple[Any, Any, pa.DataType, Any]]:
    """Return a record's value, the row's, its type, and one that is wrong."""
    moment = "2026-03-01T12:00:00.250Z"
    at = dt.datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=dt.UTC)
    millis = int(at.timestamp() * 1000)
    later = at + dt.timedelta(hours=1)
    return {
        "text of a number": (17, "17", pa.string(), "17.0"),
        "text of a time": (moment, moment, pa.string(), "2026-03-01T12:00:00Z"),
        "milliseconds": (millis, at, pa.timestamp("us", "UTC"), later),
        "local time": (
            moment,
            at.replace(tzinfo=None),
            pa.timestamp("us"),
            later.replace(tzinfo=None),
        ),
        "exact": (12.34, Decimal("12.34"), pa.decimal128(10, 2), Decimal("12.35")),
        "double": (12.34, 12.34, pa.float64(), 12.3),
        "small": (17, 17, pa.int16(), 18),
        "number in quotes": ("17", 17, pa.int64(), 18),
        "long": (2**53 + 1, 2**53 + 1, pa.int64(), 2**53),
        "list": ([1, 2], [1, 2], pa.list_(pa.int64()), [2, 1]),
        "struct": (
            {"a": 1, "b": "x"},
            {"a": 1, "b": "x"},
            pa.struct({"a": pa.int64(), "b": pa.string()}),
            {"a": 2, "b": "x"},
        ),
        "day": ("2026-03-01", dt.date(2026, 3, 1), pa.date32(), dt.date(2026, 2, 28)),
    }


@pytest.mark.parametrize("name", _types())
def test_values_are_compared_as_the_tables_types(
    empty: Source, settings: Settings, name: str
) -> None:
    """What a tool had to convert is equal, and what it has changed is not."""
    sent, kept, type_, wrong = _types()[name]
    send(empty, [(str(id), {"id": id, "value": sent}) for id in range(4)])
    rows = [{"id": id, "value": kept} for id in range(4)]
    schema = pa.schema({"id": pa.int64(), "value": type_})

    assert counts(compare(saved(rows, settings, schema), empty.topic, settings)) == {}
    rows[2]["value"] = wrong
    assert counts(compare(saved(rows, settings, schema), empty.topic, settings)) == {"different": 1}


def test_a_value_that_the_table_cannot_have_is_different(empty: Source, settings: Settings) -> None:
    """A null in its place does not pass for it."""
    send(empty, [("1", {"id": 1, "value": 5}), ("2", {"id": 2, "value": 70_000})])
    schema = pa.schema({"id": pa.int64(), "value": pa.int16()})
    rows = [{"id": 1, "value": 5}, {"id": 2, "value": None}]

    report = compare(saved(rows, settings, schema), empty.topic, settings)

    assert counts(report) == {"different": 1}
    assert "value is no value of the table's type" in report.samples["different"][0].what


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        pytest.param([], "has no row", id="empty"),
        pytest.param([{"id": 1000, "name": "x"}], "no row of the table is of any", id="another"),
    ],
)
def test_a_table_that_shows_no_record_cannot_be_judged(
    empty: Source, settings: Settings, rows: Rows, why: str
) -> None:
    """Nothing is called sound, nor lost, without a row that shows how far it was filled."""
    send(empty, [(str(id), {"id": id, "name": "n"}) for id in range(5)])
    schema = pa.schema({"id": pa.int64(), "name": pa.string()})

    report = compare(saved(rows, settings, schema), empty.topic, settings)

    assert why in report.obstacles[0]
    assert report.exit_code == 3


def test_a_record_that_cannot_be_read_is_named(empty: Source, settings: Settings) -> None:
    """Whether it is in the table, nobody can say."""
    send(empty, [*((str(id), {"id": id, "name": "n"}) for id in range(5)), ("9", b"no JSON")])
    schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    rows = [{"id": id, "name": "n"} for id in range(5)]

    report = compare(saved(rows, settings, schema), empty.topic, settings)

    assert (counts(report), report.exit_code) == ({"unproven": 1}, 3)
    assert f"{empty.topic}-0 offset 5" in " ".join(report.limits)


def test_so_many_unreadable_records_as_a_person_accepts_keep_nothing_from_being_judged(
    empty: Source, settings: Settings
) -> None:
    """With one more, or a fault beside them, the table is not called sound."""
    send(
        empty, [*((str(id), {"id": id, "name": "n"}) for id in range(5)), ("8", b"<"), ("9", b"-")]
    )
    schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    rows = [{"id": id, "name": "n"} for id in range(5)]
    asked = {**saved(rows, settings, schema), "schema": "id BIGINT, name STRING"}

    few = compare(asked, empty.topic, settings, ignore_unreadable=1)
    enough = compare(asked, empty.topic, settings, ignore_unreadable=2)
    saved(rows[1:], settings, schema)
    faulty = compare(asked, empty.topic, settings, ignore_unreadable=2)

    assert (few.exit_code, few.unreadable) == (3, 2)
    assert "--ignore-unreadable 2" in few.obstacles[0]
    assert (enough.exit_code, enough.unreadable, counts(enough)) == (0, 2, {"unproven": 2})
    assert (faulty.exit_code, counts(faulty)) == (1, {"missing": 1, "unproven": 2})


def test_rows_that_are_all_shifted_differ(orders: Source, settings: Settings) -> None:
    """Keys show what was loaded where no row is as it should be."""
    rows = [
        {**each, "changed_at": each["changed_at"] + dt.timedelta(hours=1)}
        for each in sound(orders, is_append=False)
    ]

    report = compare(delta_merge(rows, settings), orders.topic, settings)

    assert counts(report).get("different") == len(rows)


Remedy = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param({"keys": ["nr"]}, "--keys nr: the records have no such field", id="keys"),
        pytest.param({"schema": "id BIGNT"}, "--schema", id="schema"),
        pytest.param({"format": "avro"}, "--schema", id="format alone"),
        pytest.param({"schema": "id INT", "key_format": "{"}, "'{' is no format", id="no format"),
        pytest.param({"table": "iceberg:"}, "--table iceberg:", id="no name"),
        pytest.param({"table": "/nowhere/table"}, "--table /nowhere/table", id="no table"),
        pytest.param({"deletes": "nothing = 1"}, "--deletes nothing = 1", id="condition"),
        pytest.param({"deletes": "id = ("}, "--deletes id = (", id="no SQL"),
        pytest.param({"deleted_column": "gone"}, "--deleted-column gone", id="mark"),
    ],
)
def test_a_wrong_option_is_named_with_the_remedy(
    orders: Source, settings: Settings, change: dict[str, Any], says: str
) -> None:
    """Each error says which option is wrong, and what to do next."""
    asked = delta_merge(sound(orders, is_append=False), settings)

    with pytest.raises(InvalidSpecError) as raised:
        compare({**asked, **change}, orders.topic, settings)

    assert says in str(raised.value)
    assert "Next:" in str(raised.value)


@pytest.mark.parametrize("seed", range(12 if IS_LONG else 4))
def test_whatever_was_loaded_in_order_is_sound(
    kafka_address: str, settings: Settings, seed: int
) -> None:
    """Any prefix of each partition, folded as a tool does, is called sound; a wrong row is not."""
    chance = random.Random(seed)
    partitions, keys, records = (
        chance.choice(each) for each in ((1, 2, 3), (3, 10, 40), (20, 200))
    )
    has_order, share = chance.random() < 0.3, chance.choice((0, 0.1, 0.3))
    # With few values, many records say what an earlier one of their key said.
    values = chance.choice((2, 1_000))
    sent = list[tuple[int, int, dict[str, Any] | None]]()
    with source(kafka_address, partitions=partitions) as made:
        for at in range(records):
            key = chance.randrange(keys)
            value = {"id": key, "value": chance.randrange(values), "step": at}
            value["step"] = max(0, at - chance.choice((0, 0, 0, 15))) if has_order else 0
            record = None if at > 3 and chance.random() < share else value
            made.producer.produce(
                made.topic,
                value=record and json.dumps(record).encode(),
                key=str(key).encode(),
                partition=key % partitions,
                timestamp=int(NOW.timestamp() * 1000) + at,
            )
            sent.append((key, key % partitions, record))
        made.flush()
        loaded = {each: chance.choice((1.0, 0.8)) for each in range(partitions)}
        rows = _loaded(sent, loaded) or [{"id": -1, "value": 0, "step": 0}]
        schema = pa.schema({"id": pa.int64(), "value": pa.int64(), "step": pa.int64()})
        asked = {
            "schema": "id BIGINT, value BIGINT, step BIGINT",
            "key_format": "{type: json, numbers: text}",
            "order": ["step"] * has_order,
        }

        report = compare(saved(rows, settings, schema) | asked, made.topic, settings)
        rows[0]["value"] = -5
        wrong = compare(saved(rows, settings, schema) | asked, made.topic, settings)

    assert counts(report).keys() <= {"unproven"}, report
    assert wrong.different == 1, wrong


def _loaded(
    sent: list[tuple[int, int, dict[str, Any] | None]], loaded: dict[int, float]
) -> list[dict[str, Any]]:
    """Fold a share of each partition's records: the newest of each key by its step, then offset."""
    state, steps = dict[int, dict[str, Any] | None](), dict[int, int]()
    for partition, share in loaded.items():
        records = [(key, record) for key, at, record in sent if at == partition]
        for key, record in records[: max(1, int(len(records) * share))]:
            step = steps.get(key, 0) if record is None else record["step"]
            if step >= steps.get(key, 0):
                state[key], steps[key] = record, step
    return [record for record in state.values() if record is not None]
