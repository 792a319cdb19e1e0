"""Today's declaration on real records: what would come of them, and nothing is written."""

from __future__ import annotations

from typing import NoReturn

import pytest
from pyspark.sql import SparkSession

from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.operations.try_stream import Trial, try_stream
from tests.cli.shell import answer, oncelake
from tests.support.long import twins
from tests.support.world import World, row, transactional


def tried(world: World, records: int = 1000) -> Trial:
    """Try the stream as it is declared."""

    def session(_: int) -> SparkSession:
        return world.spark

    return try_stream(world.spec, world.settings, session, records=records)


def no_session(_: int) -> NoReturn:
    """Start no Spark."""
    raise AssertionError("Spark was asked for")


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("engine", ["local", *twins("spark")])
def test_records_are_tried_and_nothing_is_written(world: World, engine: str) -> None:
    """Rows, deletes, filtered and bad records, by the last of each partition."""
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    world.declare(where="id < 9", extra_fields="ignore")
    world.send(row(1, "a"), row(2, "b") | {"more": 1}, row(9, "c"), b"not JSON")
    world.send(None, id=1)
    world.send(row(3, "d"), partition=1)

    trial = tried(world)

    assert trial.dispositions == {"row": 3, "delete": 1, "filtered": 1, "quarantined": 1}
    assert [(each["reason"], each["records"], each["offset"]) for each in trial.bad] == [
        ("malformed_json", 1, 3)
    ]
    assert {each["name"] for each in trial.rows if each["_disposition"] == "row"} == {*"abd"}
    assert any("more" in name for name in trial.extras)
    assert not world.settings.lake.exists()
    assert sum(tried(world, records=2).dispositions.values()) == 2


@pytest.mark.kafka
@pytest.mark.spark
def test_without_spark_the_trial_is_the_same(world: World) -> None:
    """What needs no Spark is decoded and judged in this process, as it is in Spark."""
    world.send(row(1, "a"), row(2, "b") | {"nane": 1}, b"not JSON", {"name": "no key"})
    world.send(None, id=1)
    world.send(row(3, "d"), partition=1)

    here = try_stream(world.spec, world.settings, no_session, records=1000)
    world.settings = world.settings.model_copy(update={"merge_engine": "spark"})
    in_spark = tried(world)

    assert (here.records, here.ranges) == (in_spark.records, in_spark.ranges)
    assert here.dispositions == in_spark.dispositions == {"row": 3, "delete": 1, "quarantined": 2}
    assert here.extras == in_spark.extras
    assert here.bad == in_spark.bad
    assert here.rows == in_spark.rows


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param({"where": "id < 9"}, id="where"),
        pytest.param({"select": {"name": "upper(name)"}}, id="select"),
        pytest.param({"apply_as_deletes": "id = 1"}, id="apply_as_deletes"),
    ],
)
def test_statements_are_left_to_spark(world: World, statement: dict[str, object]) -> None:
    """Spark has the last word on what a statement means."""
    if "select" in statement:
        statement["value_schema"] = world.spec.ddl
    world.declare(**statement)
    world.send(row(1, "a"))

    with pytest.raises(AssertionError, match="Spark was asked for"):
        try_stream(world.spec, world.settings, no_session, records=1000)


def test_a_missing_setting_is_found_before_spark_starts(world: World) -> None:
    """Spark takes long to start, and could not help."""
    world.declare(format="avro", where="id < 9")
    world.send(row(1, "a"))

    with pytest.raises(InvalidSpecError, match="ONCELAKE_SCHEMA_REGISTRY is not set"):
        try_stream(world.spec, world.settings, no_session, records=1000)


def test_records_are_called_records(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines say what would become of records; programs get the dispositions by their names."""
    world.write_declaration()
    world.set_environment(monkeypatch)
    world.send(row(1, "a"), row(2, "b"), b"not JSON")
    world.send(None, id=1)

    shown = oncelake("try", world.name)
    told = answer(oncelake("try", world.name, "--json"))

    assert f"{world.name}: 4 records of {world.topic}-0 [0, 4)" in shown.stdout
    assert "would be applied: 2" in shown.stdout
    assert "would delete their row: 1" in shown.stdout
    assert shown.exit_code == 1
    assert (told["records"], told["dispositions"]["row"]) == (4, 2)


def test_offsets_without_a_record_are_told(world: World) -> None:
    """The last offsets may all be those of a transaction that was aborted."""
    producer = transactional(world)
    producer.begin_transaction()
    producer.produce(world.topic, b"{}", partition=0)
    producer.abort_transaction(30)

    with pytest.raises(InvalidSpecError, match="hold no committed record"):
        try_stream(world.spec, world.settings, no_session, records=1000)


@pytest.mark.kafka
@pytest.mark.spark
def test_what_would_change_first_is_said(world: World) -> None:
    """A column that the declaration has and the table has not; the table is left alone."""
    world.send(row(1, "a"))
    world.run()
    before = world.log.versions()
    world.declare(schema="id INT NOT NULL, name STRING, at INT, city STRING")

    trial = tried(world)

    assert trial.plan is not None
    assert [each.field for each in trial.plan.changes] == ["city"]
    assert world.log.versions() == before


@pytest.mark.kafka
@pytest.mark.spark
def test_an_empty_topic_has_nothing_to_try(world: World) -> None:
    """It says so, and what to do."""
    with pytest.raises(InvalidSpecError, match="hold no record"):
        tried(world)
