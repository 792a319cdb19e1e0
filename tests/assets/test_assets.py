"""The factory: what Dagster knows of a stream, and what becomes of a run."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pytest

from oncelake.assets.assets import Engine, ingest_asset
from oncelake.assets.refusals import REFUSED
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.delta.log import DeltaLog
from oncelake.ingestion.errors import (
    DependencyError,
    SetupError,
    TerminalError,
    TopicRecreatedError,
)
from oncelake.ingestion.lake.ledger import Ledger
from oncelake.ingestion.operations.upkeep.retention import Retention
from oncelake.ingestion.pipeline.report import RunReport
from oncelake.ingestion.storage.location import Location
from oncelake.resources.kafka import KafkaResource
from oncelake.resources.lake import LakeResource
from oncelake.resources.spark import SparkResource
from tests.assets.conftest import (
    assert_sentence,
    batch,
    broken,
    declared,
    materializations,
    refusal_of,
    report,
)

# Dagster's own, wherever one resource holds another.
pytestmark = pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run:DeprecationWarning")

CANARY = "hunter2-canary"


@pytest.fixture(autouse=True)
def _no_table_and_no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the ledger stand alone where no engine runs, Kafka keep all, and retries come at once."""
    monkeypatch.setattr("oncelake.ingestion.sinks.delta.table.DeltaLog.table_id", lambda self: "t")
    monkeypatch.setattr(
        "oncelake.ingestion.operations.upkeep.retention.retention_now",
        lambda spec, settings: Retention(spec=spec),
    )
    monkeypatch.setattr("oncelake.assets.assets.RETRY_AFTER_SECONDS", (0,))


def engine(found: RunReport | BaseException) -> Engine:
    """Return what stands in for the engine: it ends as told."""

    def run(*parts: Any) -> RunReport:
        settings, say = parts[1], parts[-1]
        if isinstance(found, BaseException):
            raise found
        Ledger(Location.of(settings.lake / "orders__ledger")).put(*found.batches)
        say(f"{len(found.batches)} batches")
        return found

    return run


def materialize(
    stream: DeclaredStream,
    found: RunReport | BaseException,
    instance: dg.DagsterInstance,
    **kafka: Any,
) -> dg.ExecuteInProcessResult:
    """Materialize a stream with an engine that ends as told."""
    lake = LakeResource()
    return dg.materialize(
        [ingest_asset(stream, engine(found))],
        instance=instance,
        raise_on_error=False,
        resources={
            "oncelake_kafka": KafkaResource(**kafka),
            "oncelake_lake": lake,
            "oncelake_spark": SparkResource(lake=lake),
        },
    )


def test_the_asset_says_what_the_stream_is(tmp_path: Path) -> None:
    """Key, topic, columns, owners and kinds come from the declaration."""
    told = {"description": "Orders", "owners": ["team:shop"], "freshness_minutes": 30}
    told |= {"group": "sales", "tags": {"domain": "shop"}}
    stream = declared(tmp_path, topic="shop.orders-1", **told)

    asset = ingest_asset(stream)

    (spec,) = asset.specs
    assert spec.key == dg.AssetKey("orders")
    assert [dep.asset_key for dep in spec.deps] == [dg.AssetKey(["kafka", "shop.orders-1"])]
    assert spec.kinds == {"kafka", "deltalake", "spark"}
    assert spec.freshness_policy == dg.FreshnessPolicy.time_window(dt.timedelta(minutes=30))
    assert (spec.description, spec.owners) == ("Orders", ["team:shop"])
    assert (spec.group_name, spec.tags["domain"]) == ("sales", "shop")
    columns = spec.metadata["dagster/column_schema"].columns
    assert [column.name for column in columns][:3] == ["id", "name", "_topic"]
    assert asset.op.pool == "orders"


def test_a_run_is_recorded_with_its_ranges_and_every_count(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """Ranges of the batches are joined a partition; of a 0 there are only the main counts."""
    done = report(batch(1, 0, 5), batch(2, 5, 9), batch(3, 0, 2, partition=1), lag=7, seconds=0.5)

    result = materialize(declared(tmp_path), done, instance)

    assert result.success
    (event,) = materializations(result)
    found = {name: value.value for name, value in event.metadata.items()}
    assert [row.data for row in found["offsets"].records] == [  # type: ignore[union-attr]
        {"topic": "orders", "partition": 0, "start": 0, "end": 9, "records": 9, "gaps": 0},
        {"topic": "orders", "partition": 1, "start": 0, "end": 2, "records": 2, "gaps": 0},
    ]
    names = ("read", "inserted", "quarantined", "seq", "lag", "dagster/row_count")
    assert [found[name] for name in names] == [11, 11, 0, 3, 7, 5]
    assert not {"overlap", "stale", "filtered"} & set(found)
    assert found["records_per_second"] == 22
    assert found["duration_seconds"] >= 0.5
    assert found["waiting_in_quarantine"] == 0
    assert len(result.get_asset_check_evaluations()) == 5


def test_rows_that_are_not_counted_are_not_plotted(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """A table whose rows only reading all of it would count has no number of them."""
    result = materialize(declared(tmp_path), report(batch(1, 0, 5), row_count=None), instance)

    (event,) = materializations(result)
    assert "dagster/row_count" not in event.metadata


def test_the_age_of_the_oldest_unread_record_is_plotted(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where something is unread, and only there."""
    hour_ago = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
    monkeypatch.setattr(
        "oncelake.assets.checks.evidence._retention",
        lambda spec, settings, report: (
            Retention(spec=spec, oldest_unread=hour_ago) if report.lag else None
        ),
    )

    ages = []
    for lag in (7, 0):
        result = materialize(declared(tmp_path), report(lag=lag), instance)
        (event,) = materializations(result)
        ages.append(event.metadata.get("oldest_unread_seconds"))

    assert ages[0] is not None
    assert 3600 <= ages[0].value < 3700  # type: ignore[operator]
    assert ages[1] is None


def test_a_run_that_found_nothing_is_recorded_all_the_same(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """Without new records there is a materialization, and its counts are 0."""
    result = materialize(declared(tmp_path), report(), instance)

    (event,) = materializations(result)
    assert result.success
    assert (event.metadata["read"].value, event.metadata["batches"].value) == (0, 0)


def test_red_books_fail_the_run(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """A batch that does not balance is recorded, and the run fails."""
    red = report(batch(1, 0, 2, balanced=False))

    result = materialize(declared(tmp_path), red, instance)

    assert not result.success
    assert len(materializations(result)) == 1


def test_a_refusal_is_not_retried_and_remembered(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """A refused run ends at once, and says to the daemon and the sensor that it need not rerun."""
    stream = declared(tmp_path)
    refused = TopicRecreatedError("orders", "the topic is another.", remedy="oncelake adopt-topic")

    result = materialize(stream, refused, instance)

    tags = instance.get_run_by_id(result.run_id).tags  # type: ignore[union-attr]
    (failed,) = result.get_step_failure_events()
    assert tags["dagster/retry_on_asset_or_op_failure"] == "false"
    assert tags[REFUSED] == "TopicRecreatedError"
    assert "Next: oncelake adopt-topic" in str(failed.step_failure_data)
    standing = refusal_of(stream, instance)
    assert standing is not None
    assert standing.endswith("the topic is another. Next: oncelake adopt-topic")
    stream.path.write_text("topic: another")
    assert not refusal_of(stream, instance)


def test_a_refusal_is_remembered_where_the_table_cannot_be_listed(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a person must change is then what keeps the state of things from being read."""

    def denied(log: DeltaLog) -> list[int]:
        raise PermissionError(13, "Permission denied", "lake/orders/_delta_log")

    monkeypatch.setattr(DeltaLog, "versions", denied)
    stream = declared(tmp_path)

    materialize(stream, SetupError("orders: no permission"), instance)

    assert refusal_of(stream, instance) is not None


def test_what_passes_by_itself_is_retried(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """A dependency that does not answer is asked again, and the run is marked in no way."""
    result = materialize(declared(tmp_path), DependencyError("Kafka is away"), instance)

    assert not result.success
    assert len([e for e in result.all_events if e.event_type_value == "STEP_UP_FOR_RETRY"]) == 1
    assert REFUSED not in instance.get_run_by_id(result.run_id).tags  # type: ignore[union-attr]


def test_a_terminated_run_is_not_taken_up_again(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """An interrupt ends the step: nothing asks for a retry that would go on ingesting."""
    interrupt = dg.DagsterExecutionInterruptedError()

    result = materialize(declared(tmp_path), interrupt, instance)

    assert not result.success
    assert "STEP_UP_FOR_RETRY" not in [event.event_type_value for event in result.all_events]


@pytest.mark.parametrize(
    ("end", "says"),
    [
        pytest.param(TerminalError("the reason"), "the reason", id="refused"),
        pytest.param(DependencyError("Kafka is away"), "Kafka is away", id="retried"),
        pytest.param(dg.DagsterExecutionInterruptedError(), "orders: interrupted;", id="stopped"),
    ],
)
def test_an_end_that_has_a_reason_is_a_sentence_without_a_stack(
    tmp_path: Path, instance: dg.DagsterInstance, end: BaseException, says: str
) -> None:
    """Whatever the engine has put into words, Dagster shows in these words alone."""
    result = materialize(declared(tmp_path), end, instance)

    assert_sentence(result, says)


def test_a_broken_declaration_fails_with_its_error(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """The asset of a broken file is there, and fails with what is wrong in the file."""
    result = materialize(broken(tmp_path), TerminalError("never reached"), instance)

    (failed,) = result.get_step_failure_events()
    assert "did you mean `topic`?" in str(failed.step_failure_data)


def test_a_secret_stays_where_it_is(
    tmp_path: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The Kafka password is in no event, no log, no tag and no repr."""
    monkeypatch.setenv("ONCELAKE_KAFKA_SASL_PASSWORD", CANARY)
    secret = {"sasl_password": dg.EnvVar("ONCELAKE_KAFKA_SASL_PASSWORD")}

    result = materialize(declared(tmp_path), report(batch(1, 0, 5)), instance, **secret)

    stored = instance.get_records_for_run(result.run_id).records
    run = instance.get_run_by_id(result.run_id)
    said = "".join(capfd.readouterr())
    seen = [str(stored), str(run), said, repr(KafkaResource(sasl_password=CANARY))]
    assert result.success
    assert CANARY not in "".join(seen)


def test_a_run_that_finds_nothing_turns_no_expectation_green(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that could not be evaluated are evaluated by the next run, and then no more."""
    stream = declared(tmp_path, expectations=[{"type": "expect_column_to_exist", "column": "id"}])
    since = []

    def read(*parts: Any, since_seq: int, **more: Any) -> pd.DataFrame:
        since.append(since_seq)
        if len(since) < 3:
            raise OSError("the table is away")
        return pd.DataFrame({"_seq": [1, 2, 3]})

    monkeypatch.setattr("oncelake.ingestion.pipeline.spark.stores.read_rows", read)
    monkeypatch.setattr(
        "oncelake.assets.checks.evidence.evaluate", lambda *parts, declared_in, table: ()
    )
    monkeypatch.setattr(SparkResource, "spark_session", None)

    before = replace(batch(1, 0, 5), run_id="before")
    found = [report(before, batch(2, 5, 7), batch(3, 7, 9)), *[report(seq=3)] * 3]
    told = [materialize(stream, each, instance) for each in found]

    passed = [
        each.passed
        for result in told
        for each in result.get_asset_check_evaluations()
        if each.check_name == "expectations"
    ]
    assert passed == [False, False, True, True]
    assert since == [1, 2, 2]
