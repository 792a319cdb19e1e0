"""What is declared between value and row is applied, accounted for, and proven."""

from __future__ import annotations

import datetime as dt
import json
import time
from dataclasses import replace
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from oncelake.ingestion.declaration.spec import EVALUATED_BY, StreamSpec
from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.pipeline.plan import compile_plan
from oncelake.ingestion.pipeline.statements import translate
from oncelake.ingestion.pipeline.statements.transform import refuse_bad_transformation
from oncelake.ingestion.verify.fold.transform import NOT_INDEPENDENT
from tests.declaration.test_valid_means_valid import BASE, UNDERSTOOD
from tests.support.long import twins
from tests.support.proof import find_problems, prove
from tests.support.world import World, row

pytestmark = pytest.mark.spark

VALUE = "id INT NOT NULL, first STRING, last STRING, cents BIGINT, status STRING"
TABLE = "id INT NOT NULL, name STRING, total DECIMAL(12, 2), tenant STRING, sent_at TIMESTAMP"
SELECT = {
    "name": "concat_ws(' ', first, last)",
    "total": "CAST(cents / 100 AS DECIMAL(12, 2))",
    "tenant": "CAST(try_element_at(filter(_headers, h -> h.key = 'tenant'), -1).value AS STRING)",
    "sent_at": "_timestamp",
}

PURCHASE = "id INT NOT NULL, name VARCHAR(9), price DOUBLE, n INT NOT NULL, at BIGINT"
UNCHECKED = {
    "tags": "map('h', array(NULL, CAST(_headers[0].value AS STRING)))",
    "at": "timestamp_millis(ms)",
}


def test_a_condition_filters_records_and_counts_them(world: World) -> None:
    """What `where` leaves out is in the books; a null value is not asked."""
    world.declare(where="name <> 'test' AND at > 0")
    world.send({"id": 1, "name": "a", "at": 1}, {"id": 2, "name": "test", "at": 1})
    world.send({"id": 3, "name": None, "at": 1}, {"id": 4, "name": "b", "at": 2}, b"{")
    world.send(None, id=1)
    world.run()

    (batch,) = world.ledger
    told = {name: batch.counts[name] for name in ("filtered", "quarantined", "inserted", "read")}
    assert told == {"filtered": 2, "quarantined": 1, "inserted": 1, "read": 6}
    assert [row["id"] for row in world.rows()] == [4]
    assert find_problems(world) == ()


def test_expressions_make_the_columns(world: World) -> None:
    """`select` reads value, headers and time; what only Spark can say is told not to be proven."""
    world.declare(schema=TABLE, value_schema=VALUE, select=SELECT, where="status rlike '^o'")
    # Retention counts from the time that a record says.
    now = time.time_ns() // 1_000_000_000 * 1_000
    for id, status in ((1, "open"), (2, "shut"), (3, "odd")):
        value = {"id": id, "first": "Ann", "last": "B.", "cents": 150, "status": status}
        world.producer.produce(
            world.topic,
            json.dumps(value).encode(),
            partition=0,
            headers=[("tenant", b"t0"), ("tenant", f"t{id}".encode())],
            timestamp=now + id,
        )
    assert world.producer.flush(30) == 0
    world.run()

    columns = ["id", "name", "total", "tenant", "sent_at"]
    found = DeltaTable(world.paths.data.path).to_pyarrow_table(columns=columns).to_pylist()
    assert sorted(
        (row["id"], row["name"], str(row["total"]), row["tenant"], row["sent_at"].microsecond)
        for row in found
    ) == [(1, "Ann B.", "1.50", "t1", 1000), (3, "Ann B.", "1.50", "t3", 3000)]
    verdict = prove(world)
    assert (verdict.holds, verdict.limits) == (True, (NOT_INDEPENDENT,))
    assert world.ledger[0].counts["filtered"] == 1


def test_names_in_another_case_and_rows_of_connect_are_read_as_advised(world: World) -> None:
    """`value_schema` has what the records write, and `select` gives the table its own names."""
    connect = "payload STRUCT<id: BIGINT, name: STRING>"
    world.declare(
        schema="id BIGINT NOT NULL, name STRING, more BIGINT",
        value_schema=f"ID BIGINT, name STRING, {connect}",
        select={
            "id": "coalesce(ID, payload.id)",
            "name": "coalesce(name, payload.name)",
            "more": "payload.id",
        },
        keys=["id"],
        sequence_by=[],
        tombstones="ignore",
    )
    world.send({"ID": 1, "name": "a"}, {"schema": {}, "payload": {"id": 2, "name": "b"}})
    world.run()

    assert [list(row.values()) for row in world.rows()] == [[1, "a", None], [2, "b", 2]]
    assert prove(world).holds


def test_a_moment_without_a_zone_is_utc(world: World) -> None:
    """Whatever zone the machine is in, and whatever Spark would take for its own."""
    moment = "CAST('2026-07-01 12:00:00' AS TIMESTAMP)"
    world.declare(
        schema="id INT NOT NULL, at TIMESTAMP", value_schema="id INT", select={"at": moment}
    )
    world.send({"id": 1})
    world.run()

    assert world.rows() == [{"id": 1, "at": dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)}]


def test_a_function_makes_the_rows(world: World) -> None:
    """What it leaves out is filtered; what it is not asked about is what it was."""
    world.declare(schema=TABLE, value_schema=VALUE, transform="tests.support.transforms.clean")
    base = {"first": "Ann", "last": "B.", "cents": 150}
    world.send({**base, "id": 1, "status": "open"}, {**base, "id": 2, "status": "test"}, b"{")
    world.send({**base, "id": 3, "status": "shut"})
    world.send(None, id=3)
    world.run()

    (batch,) = world.ledger
    told = {name: batch.counts[name] for name in ("filtered", "quarantined", "inserted", "read")}
    assert told == {"filtered": 1, "quarantined": 1, "inserted": 1, "read": 5}
    assert [(row["id"], row["name"], str(row["total"])) for row in world.rows()] == [
        (1, "Ann B.", "1.50")
    ]
    verdict = prove(world)
    assert (verdict.holds, verdict.limits) == (True, (NOT_INDEPENDENT,))


def test_what_the_value_must_have_is_asked_for(world: World) -> None:
    """Also where it is no column of the table; what `where` leaves out is not asked for more."""
    value = "id INT NOT NULL, cents BIGINT NOT NULL, text STRING"
    world.declare(schema="id INT NOT NULL, total BIGINT", value_schema=value)
    world.declare(select={"total": "coalesce(cents, 0) + CAST(text AS INT)"}, where="text <> 'x'")
    world.send({"id": 1, "cents": 1, "text": "2"}, {"id": 2, "text": "2"})
    world.send({"id": 3, "cents": 1, "text": "x"}, {"id": 4, "text": "x"})
    world.run()

    (bad,) = world.quarantined()
    assert world.rows() == [{"id": 1, "total": 3}]
    assert (bad["reason"], bad["detail"], bad["_offset"]) == ("missing_required", "null: cents", 1)
    assert world.ledger[-1].counts["filtered"] == 2
    verdict = prove(world)
    assert (verdict.holds, verdict.limits) == (True, (NOT_INDEPENDENT,))


@pytest.mark.parametrize("engine", ["local", *twins("spark")])
@pytest.mark.parametrize("by", ["select", *twins("transform")])
def test_what_no_table_could_hold_is_quarantined(world: World, engine: str, by: str) -> None:
    """A text of other bytes, a far year and a long text are found at whatever depth they lie."""
    world.settings = world.settings.model_copy(
        update={"merge_engine": "spark" if engine == "spark" else "auto"}
    )
    table = "id INT NOT NULL, tags MAP<STRING, ARRAY<STRING>>, at TIMESTAMP, code VARCHAR(3)"
    world.declare(schema=table, value_schema="id INT NOT NULL, ms BIGINT, code VARCHAR(5)")
    world.declare(**{by: UNCHECKED if by == "select" else "tests.support.transforms.unchecked"})
    values = {
        b"fine": {"ms": 0, "code": "abc"},
        b"\xff": {"ms": 0, "code": "abc"},
        b"far": {"ms": 1_700_000_000_000_000, "code": "abc"},
        b"long": {"ms": 0, "code": "abcd"},
    }
    for id, (header, value) in enumerate(values.items()):
        raw = json.dumps({"id": id, **value}).encode()
        world.producer.produce(world.topic, raw, partition=0, headers=[("h", header)])
    assert world.producer.flush(30) == 0
    world.run()

    assert [row["id"] for row in world.rows()] == [0]
    found = {row["_offset"]: (row["reason"], row["detail"]) for row in world.quarantined()}
    assert found == {1: ("invalid_utf8", "tags"), 2: ("bad_time", "at"), 3: ("too_long", "code")}
    assert prove(world).holds


@pytest.mark.kafka
@pytest.mark.parametrize("where", ["lower(code) <> 'x'", *twins(None)])
def test_a_text_may_be_too_long_for_a_shorter_column(world: World, where: str | None) -> None:
    """Where nothing else is done to values, and whatever letters a condition is asked about."""
    world.declare(schema="id INT NOT NULL, code VARCHAR(3)", value_schema="id INT, code STRING")
    world.declare(where=where)
    world.send({"id": 1, "code": "Абв"}, {"id": 2, "code": "abcd"}, {"id": 3, "code": "1 €"})
    world.run()

    assert [row["id"] for row in world.rows()] == [1, 3]
    assert [bad["reason"] for bad in world.quarantined()] == ["too_long"]
    verdict = prove(world)
    assert (verdict.holds, verdict.limits) == (True, (NOT_INDEPENDENT,))


@pytest.mark.kafka
def test_spark_is_asked_where_duckdb_might_answer_otherwise(world: World) -> None:
    """Only then, and then for all that comes after."""
    world.declare(where="lower(name) <> 'x'")
    world.send(row(1, "X"), row(2, "10 €"))
    world.run()
    assert (prove(world).holds, prove(world).limits) == (True, ())
    world.send(row(3, "straße"), row(4, "x"))
    world.run()

    assert [each["id"] for each in world.rows()] == [2, 3]
    verdict = prove(world)
    assert (verdict.holds, verdict.limits) == (True, (NOT_INDEPENDENT,))


@pytest.mark.parametrize("sequence_by", [["_timestamp"], *twins([])])
def test_a_delete_behind_a_function_is_as_good_as_a_row(
    world: World, sequence_by: list[str]
) -> None:
    """What it says goes into the table where deletes are soft, and has to fit."""
    world.declare(
        format="debezium",
        schema="id INT NOT NULL, code VARCHAR(3)",
        value_schema="id INT NOT NULL, code STRING",
        transform="tests.support.transforms.same",
        deletes="soft",
        sequence_by=sequence_by,
    )
    for op, side in (("c", "after"), ("d", "before")):
        for id, code in ((1, "abc"), (2, "abcd" if op == "d" else "ab")):
            world.send({"op": op, side: {"id": id, "code": code}})
    world.run()

    (bad,) = world.quarantined()
    assert (bad["reason"], bad["_offset"]) == ("too_long", 3)
    assert prove(world).holds


def test_a_row_that_was_changed_is_found_behind_a_transformation(world: World) -> None:
    """A proof that asks Spark again still holds the table against what it answers."""
    world.declare(schema=TABLE, value_schema=VALUE, select=SELECT)
    world.send({"id": 1, "first": "Ann", "last": "B.", "cents": 150, "status": "open"})
    world.run()
    DeltaTable(world.paths.data.path).update({"total": "cast(9.99 as decimal(12,2))"})

    verdict = prove(world)

    assert [each.what for each in verdict.differences] == ["column total differs"]


def test_what_is_taken_without_spark_spark_takes_too(spark: SparkSession) -> None:
    """Each condition whose names were found by a parser of ours is one to Spark."""
    for sql in UNDERSTOOD:
        spec = StreamSpec.model_validate({**BASE, "where": sql})
        refuse_bad_transformation(spark, compile_plan(spec).rows)


@pytest.mark.kafka
@pytest.mark.parametrize("engine", ["local", *twins("spark")])
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"select": {"tenant": SELECT["tenant"].replace("try_", "")}},
            "select.tenant: fails on a record of {0}-0 [0, 2): The index -1 is out of bounds",
        ),
        (
            {"transform": "tests.support.transforms.failing"},
            "transform: fails on a record of {0}-0 [0, 2): ZeroDivisionError",
        ),
        *twins(
            (
                {"where": "1 / cents > 0"},
                "where: fails on a record of {0}-0 [0, 2): Division by zero",
            ),
            (
                {"where": "size(sequence(1, 2, cents)) > 0"},
                "where: it, or select.tenant, fails on a record of {0}-0 [0, 2): ",
            ),
        ),
    ],
)
def test_a_failing_expression_names_its_line_and_the_offsets(
    world: World, fields: dict[str, Any], says: str, engine: str
) -> None:
    """Nothing of the batch is written, and the stream goes on once the file is corrected."""
    settings = world.settings.model_copy(update={"merge_engine": engine})
    schema = "id INT NOT NULL, cents BIGINT, tenant STRING"
    select = {"tenant": "CAST(_topic AS STRING)"}
    base = {"schema": schema, "value_schema": "id INT NOT NULL, cents BIGINT"}
    world.declare(**base, **({} if "transform" in fields else {"select": select}) | fields)
    for value in ({"id": 1, "cents": 1}, {"id": 2, "cents": 0}):
        raw, headers = json.dumps(value).encode(), [("other", b"x")]
        world.producer.produce(world.topic, raw, partition=0, headers=headers)
    assert world.producer.flush(30) == 0
    world.write_declaration()

    with pytest.raises(InvalidSpecError) as raised:
        world.run(settings=settings)

    said = str(raised.value)
    assert said.partition(".yaml:1: ")[2].startswith(says.format(world.topic)), said
    assert said.endswith("then the same command again")
    assert "ansi" not in said
    assert DeltaTable(world.paths.data.path).count() == 0
    world.declared.pop("transform", None)
    world.declare(select=select, where="cents > 0")
    assert world.run(settings=settings).row_count == 1


def test_where_is_asked_before_what_must_not_be_null(world: World) -> None:
    """A record that `where` leaves out is filtered, whatever it lacks; one that is bad is not."""
    world.declare(schema="id INT NOT NULL, name STRING NOT NULL, at INT", where="at > 0")
    world.send({"id": 1, "at": 0}, {"at": 0}, {"id": 3, "at": 1}, {"id": 4, "name": 4, "at": 0})
    world.send({"id": 5, "name": "e", "at": 1}, {"id": 6, "name": "f"})
    world.run()

    told = {name: world.ledger[0].counts[name] for name in ("filtered", "quarantined", "inserted")}
    reasons = [(bad["_offset"], bad["reason"]) for bad in world.quarantined()]
    assert told == {"filtered": 3, "quarantined": 2, "inserted": 1}
    assert reasons == [(2, "missing_required"), (3, "wrong_type")]
    assert find_problems(world) == ()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"where": "nosuch(first)"}, "where: Spark cannot apply it"),
        ({"select": {**SELECT, "total": "cents / 100"}}, "select.total: total becomes DOUBLE"),
        ({"select": {**SELECT, "name": "explode(split(first, ','))"}}, "select.name: it is a Gen"),
        ({"select": {**SELECT, "name": "max(first)"}}, "select.name: it is a Aggregate"),
        ({"transform": "tests.support.transforms.nosuch"}, "transform: cannot be imported"),
        (
            {"transform": "tests.support.transforms.without_place"},
            "transform: Spark cannot apply it",
        ),
        ({"transform": "tests.support.transforms.doubling"}, "transform: it is a Union"),
        (
            {"transform": "tests.support.transforms.by_chance"},
            "transform: its result differs each time",
        ),
    ],
    ids=[
        *("unknown function", "another type", "several rows", "one row of many"),
        *("no function", "no place", "twice", "chance"),
    ],
)
def test_a_statement_that_cannot_be_trusted_is_refused(
    spark: SparkSession, fields: dict[str, Any], says: str
) -> None:
    """Before anything is read, with the field and what to write instead."""
    base = {"name": "s", "topic": "t", "schema": TABLE, "value_schema": VALUE, "keys": ["id"]}
    select = {} if "transform" in fields else {"select": SELECT}
    spec = StreamSpec.model_validate({**base, **select, **fields})

    with pytest.raises(InvalidSpecError, match=says):
        refuse_bad_transformation(spark, compile_plan(spec).rows)


@pytest.mark.kafka
@pytest.mark.parametrize("key", ["id", *twins("code")])
def test_both_engines_make_the_same_rows(world: World, key: str) -> None:
    """Rows, quarantine and counts, of good and bad values, deletes and tombstones."""
    world.declare(
        schema="id INT NOT NULL, code STRING NOT NULL, short VARCHAR(3), total DOUBLE, day DATE, "
        "at BIGINT, raw BINARY, nth INT",
        value_schema=PURCHASE,
        where="n <> 0 AND (price > 0.5 OR name IS NULL)",
        select={
            "code": "upper(name || '!')",
            "short": "coalesce(name, '?')",
            "total": "price * n / (id - 99)",
            "day": "CAST(_timestamp AS DATE)",
            "raw": "_key",
            "nth": "_index + _partition",
        },
        keys=[key],
        tombstones="ignore" if key == "code" else "delete",
    )
    good = {"id": 1, "name": "abc", "price": 2.5, "n": 3, "at": 1}
    world.send(good, {**good, "id": 2, "name": None}, {**good, "id": 3, "n": 0}, b"{", None)
    world.send({**good, "id": 4, "name": "long"}, {**good, "n": None}, {**good, "name": "ä" * 10})
    world.send({**good, "id": 5, "price": 0.25}, {**good, "id": 6}, {"id": 7, "name": "x", "n": 2})
    world.send({**good, "id": None}, {**good, "id": 1, "name": "zzz"})
    world.send(None, id=6)
    world.run()
    by_spark = world.settings.model_copy(update={"merge_engine": "spark"})
    named = {**world.declared, "name": f"{world.topic}_spark"}
    other = replace(world, settings=by_spark, declared=named)
    other.run()

    assert world.ledger[-1].declaration.get(EVALUATED_BY) == "local"
    assert EVALUATED_BY not in other.ledger[-1].declaration
    assert _row_counts(world) == _row_counts(other)
    assert sorted(map(repr, world.rows())) == sorted(map(repr, other.rows()))
    of_run = {"_seq", "_ingested_at", "run_id"}
    waiting, of_spark = (
        [{n: v for n, v in row.items() if n not in of_run} for row in each.quarantined()]
        for each in (world, other)
    )
    assert waiting == of_spark
    assert len({row["reason"] for row in waiting}) >= 4
    assert find_problems(world) == ()
    assert prove(other).holds


@pytest.mark.kafka
def test_a_value_that_only_spark_understands_is_left_to_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For its whole batch, whose commit says so; the proof then says that it asked Spark again."""
    world.declare(
        schema="id INT NOT NULL, name STRING",
        value_schema="id INT NOT NULL, title STRING",
        select={"name": "upper(title)"},
        max_offsets_per_trigger=1,
    )
    titles = ("abc", "Straße", "abc")
    world.send(*({"id": id, "title": title} for id, title in enumerate(titles)))
    world.run()

    assert [row["name"] for row in world.rows()] == ["ABC", "STRASSE", "ABC"]
    assert [(row.declaration or {}).get(EVALUATED_BY) for row in world.ledger] == [
        "local",
        None,
        "local",
    ]
    world.declare(max_offsets_per_trigger=100)
    world.send({"id": 3, "title": "abc"}, partition=0)
    world.send({"id": 4, "title": "groß"}, partition=1)
    # A worker for each partition, and one of the two understands all that it gets.
    monkeypatch.setattr("oncelake.ingestion.source.spark.ONE_TASK_RECORDS", 0)
    world.run()
    assert [row["name"] for row in world.rows()][3:] == ["ABC", "GROSS"]
    verdict = prove(world)
    assert (verdict.holds, verdict.limits) == (True, (NOT_INDEPENDENT,))


def test_the_proof_asks_the_engine_that_did_not_make_the_rows(world: World) -> None:
    """So that what one of them reads otherwise is found."""
    world.declare(
        schema="id INT NOT NULL, n BIGINT",
        value_schema="id INT NOT NULL, s STRING",
        select={"n": "CAST(length(s) AS BIGINT)"},
    )
    world.send({"id": 1, "s": "abc"}, {"id": 2, "s": "日本"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(translate._TRANSLATORS, "Length", _length_in_bytes)
        world.run()

    (difference,) = prove(world).differences
    assert "id=2" in str(difference) or "[2]" in str(difference), str(difference)


def _length_in_bytes(node: Any) -> Any:
    (text,) = translate._operands(node, "string")
    return translate._cast(f"strlen({text.sql})", "integer")


def _row_counts(world: World) -> dict[str, int]:
    return dict(world.ledger[-1].counts)


def test_a_delete_is_not_asked_what_only_rows_are(world: World) -> None:
    """Left out by `where`, it would leave its row in the table."""
    world.declare(format="debezium", where="name <> 'gone'", sequence_by=[])
    world.send({"op": "c", "after": row(1, "a", 1)}, {"op": "c", "after": row(2, "gone", 1)})
    world.send({"op": "d", "before": row(1, "gone", 1), "after": None})
    world.run()

    assert (world.rows(), world.ledger[-1].counts["filtered"]) == ([], 1)
    assert world.ledger[-1].declaration.get(EVALUATED_BY) == "local"
    assert find_problems(world) == ()
