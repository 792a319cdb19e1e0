"""What a crash kept from Dagster is told by the next run, once, and judged by its checks."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from oncelake.assets.assets import Engine, ingest_asset
from oncelake.assets.metadata import MOST_RUNS
from oncelake.ingestion.errors import DependencyError
from oncelake.ingestion.lake.ledger import Ledger, LedgerRow
from oncelake.ingestion.pipeline.report import RunReport
from oncelake.ingestion.storage.location import Location, StoreError
from oncelake.resources.kafka import KafkaResource
from oncelake.resources.lake import LakeResource
from oncelake.resources.spark import SparkResource
from tests.assets.conftest import assert_sentence, batch, declared, materializations, report

# Dagster's own, wherever one resource holds another.
pytestmark = pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run:DeprecationWarning")


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the ledger stand alone where no engine runs, and retries come at once."""
    monkeypatch.setattr("oncelake.ingestion.sinks.delta.table.DeltaLog.table_id", lambda self: "t")
    monkeypatch.setattr("oncelake.assets.assets.RETRY_AFTER_SECONDS", (0,))


def by(run: str, row: LedgerRow, **changes: Any) -> LedgerRow:
    """Return the batch as one of a run's."""
    return replace(row, run_id=run, **changes)


def commit(folder: Path, *rows: LedgerRow) -> None:
    """Leave batches in the ledger, as a run does that Dagster never hears of again."""
    Ledger(Location.of(folder / "lake" / "orders__ledger")).put(*rows)


def materialize(
    folder: Path, instance: dg.DagsterInstance, *reports: RunReport | DependencyError, **spec: Any
) -> dg.ExecuteInProcessResult:
    """Materialize the stream with an engine whose attempts end as told, one after another."""
    ends = iter(reports)

    def engine(*parts: Any) -> RunReport:
        end = next(ends)
        if isinstance(end, DependencyError):
            raise end
        commit(folder, *end.batches)
        return end

    stand_in: Engine = engine
    lake = LakeResource()
    return dg.materialize(
        [ingest_asset(declared(folder, **spec), stand_in)],
        instance=instance,
        raise_on_error=False,
        resources={
            "oncelake_kafka": KafkaResource(),
            "oncelake_lake": lake,
            "oncelake_spark": SparkResource(lake=lake),
        },
    )


def reports_in(result: dg.ExecuteInProcessResult) -> list[dict[str, Any]]:
    """Return the metadata of a run's materializations, in order."""
    events = materializations(result)
    return [{name: each.value for name, each in event.metadata.items()} for event in events]


def check(result: dg.ExecuteInProcessResult, name: str) -> dg.AssetCheckEvaluation:
    """Return what became of one check."""
    return next(it for it in result.get_asset_check_evaluations() if it.check_name == name)


def test_unreported_runs_are_reported_in_order_before_the_run_itself(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """Each dead run has a materialization of its own, marked, with its ranges and counts."""
    commit(tmp_path, by("dead", batch(1, 0, 5)), by("dead", batch(2, 5, 9)))
    commit(tmp_path, by("dead too", batch(3, 0, 2, partition=1)))

    result = materialize(tmp_path, instance, report(batch(4, 9, 10)))

    first, second, own = reports_in(result)
    assert [(each["recovered"], each["seq"]) for each in (first, second, own)] == [
        (True, 2),
        (True, 3),
        (False, 4),
    ]
    assert (first["run_id"], second["run_id"]) == ("dead", "dead too")
    assert (first["recovered_by"], first["first_seq"]) == (result.run_id, 1)
    assert (first["read"], first["inserted"], first["updated"], first["batches"]) == (9, 9, 0, 2)
    assert [row.data for row in first["offsets"].records] == [
        {"topic": "orders", "partition": 0, "start": 0, "end": 9, "records": 9, "gaps": 0}
    ]
    assert (own["read"], own["batches"]) == (1, 1)


def test_an_idle_run_reports_what_was_unreported(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """A run that found nothing new tells of the dead one all the same."""
    commit(tmp_path, by("dead", batch(1, 0, 5)))

    result = materialize(tmp_path, instance, report(seq=1))

    assert [(each["recovered"], each["read"]) for each in reports_in(result)] == [
        (True, 5),
        (False, 0),
    ]


def test_nothing_is_reported_twice(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """What one run recovered, and what a run told itself, the next one leaves alone."""
    commit(tmp_path, by("dead", batch(1, 0, 5)))
    materialize(tmp_path, instance, report(batch(2, 5, 9)))

    again = materialize(tmp_path, instance, report(recovered=(batch(1, 0, 5),), seq=2))

    assert [each["recovered"] for each in reports_in(again)] == [False]


def test_what_was_recovered_and_not_judged_is_judged_by_the_next(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """A run that dies between what it recovered and its own report vouches for none of it."""
    commit(tmp_path, by("dead", batch(1, 0, 5)))
    first, _ = materializations(materialize(tmp_path, instance, report(seq=1)))
    commit(tmp_path, by("dead too", batch(2, 5, 9)))
    instance.report_runless_asset_event(first.with_metadata({**first.metadata, "seq": 2}))

    found = materialize(tmp_path, instance, report(seq=2))

    assert [(each["recovered"], each["seq"]) for each in reports_in(found)] == [
        (True, 2),
        (False, 2),
    ]
    assert check(found, "books_balance").metadata["batches"].value == 1


def test_a_store_that_fails_behind_the_commit_is_asked_again(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are there: the next attempt, or run, tells of them; what failed is a sentence."""

    def failing(ledger: Ledger, table_id: str) -> None:
        raise StoreError(errno.EREMOTEIO, "Generic S3 error: 503", "s3://b/lake")

    with monkeypatch.context() as away:
        away.setattr(Ledger, "rows_of", failing)
        failed = materialize(tmp_path, instance, report(batch(1, 0, 5)), report(seq=1))
    found = materialize(tmp_path, instance, report(seq=1))

    assert len([each for each in failed.all_events if each.is_step_up_for_retry]) == 1
    assert_sentence(failed, "orders: the store of the lake failed: Generic S3 error: 503")
    assert [each["recovered"] for each in reports_in(found)] == [True, False]


def test_an_attempt_that_failed_halfway_is_reported_by_the_next(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """A retry within one run reports its own batches only; those of the attempt before are told."""
    commit(tmp_path, by("same run", batch(1, 0, 5)))

    result = materialize(
        tmp_path, instance, DependencyError("Kafka went away"), report(batch(2, 5, 9))
    )

    assert [(each["recovered"], each["seq"]) for each in reports_in(result)] == [
        (True, 1),
        (False, 2),
    ]


def test_a_wiped_event_log_is_not_filled_with_thousands_of_events(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """The last runs are told one by one; one event stands for all before, with sums and ranges."""
    runs = MOST_RUNS + 30
    commit(tmp_path, *(by(f"run {n}", batch(n, n - 1, n)) for n in range(1, runs + 1)))

    result = materialize(tmp_path, instance, report(seq=runs))

    summary, *others = reports_in(result)
    assert len(others) == MOST_RUNS + 1
    assert (summary["run_id"], summary["first_seq"], summary["seq"]) == ("30 runs", 1, 30)
    assert (summary["read"], summary["batches"], summary["recovered"]) == (30, 30, True)
    assert [(row.data["start"], row.data["end"]) for row in summary["offsets"].records] == [(0, 30)]
    assert [each["seq"] for each in others[:-1]] == list(range(31, runs + 1))


def test_offsets_of_another_epoch_stay_apart(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """A topic that began again from 0 makes two ranges, not one that covers both."""
    commit(tmp_path, by("a", batch(1, 5, 9)), by("a", batch(2, 0, 3), epoch=2))

    (event, _) = reports_in(materialize(tmp_path, instance, report(seq=2)))

    assert [(row.data["start"], row.data["end"]) for row in event["offsets"].records] == [
        (5, 9),
        (0, 3),
    ]


def test_what_dagster_knows_of_another_table_does_not_count(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reset the seqs begin again, and the history of the old table vouches for none."""
    materialize(tmp_path, instance, report(batch(1, 0, 5), batch(2, 5, 9)))
    monkeypatch.setattr(
        "oncelake.ingestion.sinks.delta.table.DeltaLog.table_id", lambda self: "new"
    )
    commit(tmp_path, by("dead", batch(1, 0, 5), table_id="new"))

    result = materialize(tmp_path, instance, report(seq=1))

    assert [each["run_id"] for each in reports_in(result) if each["recovered"]] == ["dead"]


def test_a_materialization_that_a_person_reported_vouches_for_nothing(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """An event without our metadata, as the UI lets anybody report, is passed over."""
    materialize(tmp_path, instance, report(batch(1, 0, 5)))
    instance.report_runless_asset_event(dg.AssetMaterialization("orders"))
    commit(tmp_path, by("dead", batch(2, 5, 9)))

    result = materialize(tmp_path, instance, report(seq=2))

    assert [each["seq"] for each in reports_in(result) if each["recovered"]] == [2]


def test_a_batch_that_another_run_committed_since_is_not_reported(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """What lies beyond the seq at which a run ended is left to whoever committed it."""
    commit(tmp_path, by("alive", batch(2, 5, 9)))

    result = materialize(tmp_path, instance, report(batch(1, 0, 5)))

    assert [each["seq"] for each in reports_in(result)] == [1]


def test_the_checks_cover_what_was_unreported(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bad records and red books of a dead run turn the checks of the run that tells of it."""
    monkeypatch.setattr(
        "oncelake.ingestion.operations.status.status.known_waiting", lambda quarantine: 8
    )
    bad = by("dead", batch(1, 0, 10, balanced=False, quarantined=8))
    commit(tmp_path, bad)

    result = materialize(tmp_path, instance, report(seq=1))

    rate, books = check(result, "quarantine_rate"), check(result, "books_balance")
    assert (rate.passed, rate.metadata["rate"].value) == (False, 0.8)
    assert (books.passed, books.metadata["red_batches"].value) == (False, 1)
    assert not result.success


def test_an_unreadable_history_is_reported_and_fails_nothing(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes through, says that it does not know, and the next tells what is missing."""
    commit(tmp_path, by("dead", batch(1, 0, 5)))

    def broken(*given: Any, **named: Any) -> None:
        raise OSError("database is locked")

    with monkeypatch.context() as patched:
        patched.setattr(dg.DagsterInstance, "fetch_materializations", broken)
        blind = materialize(tmp_path, instance, report(batch(2, 5, 9)))
    seeing = materialize(tmp_path, instance, report(batch(3, 9, 10)))

    (own,) = reports_in(blind)
    assert blind.success
    assert own["history"] == "unknown: OSError: database is locked"
    rate = check(blind, "quarantine_rate")
    assert (rate.passed, rate.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "nothing is known, since OSError" in str(rate.description)
    assert check(blind, "books_balance").passed
    assert [(each["recovered"], each["seq"]) for each in reports_in(seeing)] == [
        (True, 1),
        (False, 3),
    ]
    assert check(seeing, "quarantine_rate").passed
