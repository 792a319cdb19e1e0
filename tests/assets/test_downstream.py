"""What Dagster starts by itself behind a stream, by its own evaluation of conditions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

# Dagster has no public name for what a check was executed on.
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData,
)
from deltalake import write_deltalake

from oncelake.assets.asset_specs import asset_spec
from oncelake.assets.assets import ingest_asset
from oncelake.assets.conditions import when_new_and_green
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.errors import DependencyError
from oncelake.ingestion.lake.ledger import Ledger, LedgerRow
from oncelake.ingestion.settings import load_settings
from oncelake.ingestion.storage.location import Location
from oncelake.resources.kafka import KafkaResource
from oncelake.resources.lake import LakeResource
from oncelake.resources.spark import SparkResource
from tests.assets.conftest import NOW, batch, declared, report
from tests.assets.test_assets import _no_table_and_no_waiting, engine, materialize
from tests.support.quarantine import as_quarantine

__all__ = ["_no_table_and_no_waiting"]
pytestmark = [
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run:DeprecationWarning"),
    # Dagster's own evaluation uses what it calls a beta.
    pytest.mark.filterwarnings("ignore:Parameter `include_sources`"),
]

PAGE = (Path(__file__).parents[2] / "docs" / "dagster.md").read_text()
(ADVICE,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@dg.asset(deps=["orders"], automation_condition=dg.AutomationCondition.eager())
def eager_totals() -> None:
    """Start after every update of the table."""


def advised() -> dg.AssetsDefinition:
    """Return the asset of the page."""
    space: dict[str, Any] = {}
    exec(compile(ADVICE, "dagster.md", "exec"), space)
    asset = space["daily_totals"]
    assert isinstance(asset, dg.AssetsDefinition)
    return asset


def fill_quarantine(rows: int) -> None:
    """Let so many records wait in quarantine."""
    text, number, raw = pa.string(), pa.int64(), pa.binary()
    columns = {
        "_topic": (text, "orders"),
        "_partition": (pa.int32(), 0),
        "_offset": (number, None),
        "_timestamp": (pa.timestamp("us", "UTC"), NOW),
        "_seq": (number, 1),
        "key": (raw, b"1"),
        "value": (raw, b'{"id": "x"}'),
        "headers": (pa.list_(text), None),
        "reason": (text, "wrong_type"),
        "detail": (text, "id: expected INT"),
    }
    record = {name: value for name, (_, value) in columns.items()}
    table = pa.Table.from_pylist(
        [{**record, "_offset": nth} for nth in range(rows)],
        pa.schema({name: type_ for name, (type_, _) in columns.items()}),
    )
    write_deltalake(Path(load_settings().lake) / "orders__quarantine", as_quarantine(table))


@dataclass
class Team:
    """A Dagster with a stream and two assets behind it, which is asked what it would start."""

    stream: DeclaredStream
    instance: dg.DagsterInstance
    cursor: Any = None
    condition: dg.AutomationCondition[Any] | None = None
    looks_meanwhile: bool = False
    seen_meanwhile: list[set[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Let it see that nothing has run yet."""
        self.started()

    def run(self, *batches: LedgerRow) -> dg.ExecuteInProcessResult:
        """Materialize the stream."""
        return materialize(self.stream, report(*batches), self.instance)

    def run_both(self, *batches: LedgerRow) -> dg.ExecuteInProcessResult:
        """Materialize the stream and what is behind it in one run, as a person would start it."""
        stream, behind = ingest_asset(self.stream, engine(report(*batches))), advised()

        @dg.asset(name="zz_another")
        def another() -> None:
            self.seen_meanwhile += [self.started()] if self.looks_meanwhile else []

        job = self._definitions(stream, behind, another).resolve_implicit_global_asset_job_def()
        return job.execute_in_process(
            instance=self.instance,
            asset_selection=[*stream.keys, behind.key, another.key],
            raise_on_error=False,
        )

    def build(self) -> None:
        """Materialize what is behind the stream."""
        assert dg.materialize([advised()], instance=self.instance).success

    def started(self) -> set[str]:
        """Evaluate the conditions once; return what is started."""
        assets = (eager_totals, advised())
        spec = asset_spec(self.stream).replace_attributes(automation_condition=self.condition)
        defs = self._definitions(ingest_asset(self.stream, spec=spec), *assets)
        ticked = dg.evaluate_automation_conditions(defs, self.instance, cursor=self.cursor)
        self.cursor = ticked.cursor
        asked = (asset.key for asset in assets if ticked.get_num_requested(asset.key))
        return {key.to_user_string() for key in asked}

    def _definitions(self, *assets: dg.AssetsDefinition) -> dg.Definitions:
        lake = LakeResource()
        return dg.Definitions(
            assets=assets,
            resources={
                "oncelake_kafka": KafkaResource(),
                "oncelake_lake": lake,
                "oncelake_spark": SparkResource(lake=lake),
            },
        )


def turn_green(instance: dg.DagsterInstance, check: str) -> None:
    """Leave what **Execute** on the page of a check leaves."""
    key = dg.AssetKey("orders")
    (last,) = instance.fetch_materializations(key, limit=1).records
    target = AssetCheckEvaluationTargetMaterializationData(
        storage_id=last.storage_id, run_id=last.run_id, timestamp=last.timestamp
    )
    executed = dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=check,
        passed=True,
        blocking=True,
        target_materialization_data=target,
    )
    instance.report_runless_asset_event(executed)


def accept(bad: LedgerRow) -> None:
    """Let a person accept red books."""
    Ledger(Location.of(load_settings().lake / "orders__ledger")).put(replace(bad, accepted="ok"))


TOLERANT = {"warn_above": 1, "fail_above": 1}
BAD = {
    "quarantine_rate": batch(1, 0, 10, inserted=5, quarantined=5),
    "books_balance": batch(1, 0, 10, balanced=False),
}


@pytest.mark.parametrize(("check", "bad"), BAD.items(), ids=BAD.keys())
def test_a_failed_check_holds_back_what_asks_for_it_and_nothing_else(
    tmp_path: Path, instance: dg.DagsterInstance, check: str, bad: LedgerRow
) -> None:
    """An eager asset is started after the failed run; the page's, after the next good one."""
    team = Team(declared(tmp_path), instance)
    fill_quarantine(bad.counts.get("quarantined", 0))
    failed = team.run(bad)
    after_failure = team.started()
    accept(bad)
    passed = team.run(batch(2, 10, 100))
    after_success = team.started()

    (result,) = (r for r in failed.get_asset_check_evaluations() if r.check_name == check)
    assert (failed.success, result.passed, passed.success) == (False, False, True)
    assert after_failure == {"eager_totals"}
    assert "daily_totals" in after_success


@pytest.mark.parametrize(
    ("limits", "waits"),
    [({}, True), ({"warn_above": 0.1}, False)],
    ids=["as by default", "as the page says"],
)
def test_a_warning_holds_it_back_until_it_is_none(
    tmp_path: Path, instance: dg.DagsterInstance, limits: dict[str, float], waits: bool
) -> None:
    """Dagster takes a warning for not passed, and the declaration says what is one."""
    team = Team(declared(tmp_path, quarantine_rate=limits), instance)
    fill_quarantine(1)
    run = team.run(batch(1, 0, 10, inserted=9, quarantined=1))

    assert run.success
    assert ("daily_totals" not in team.started()) == waits


def test_the_check_shows_what_was_refused(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """Reason, column and the first record, after a run that found nothing, too."""
    team = Team(declared(tmp_path), instance)
    fill_quarantine(3)
    bad = batch(1, 0, 30, inserted=27, quarantined=3)
    for batches in ([bad], []):
        run = team.run(*batches)
        Ledger(Location.of(load_settings().lake / "orders__ledger")).put(bad)

        (rate,) = (
            r for r in run.get_asset_check_evaluations() if r.check_name == "quarantine_rate"
        )
        (shown,) = rate.metadata["reasons"].value.records  # type: ignore[union-attr]
        assert shown.data == {
            "reason": "wrong_type",
            "records": 3,
            "details": "id: expected INT (3)",
            "first": "orders-0 offset 0",
            "value": '{"id": "x"}',
        }


def test_a_run_that_found_nothing_starts_only_what_does_not_ask_for_data(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """The page's asset is started by new rows, and not by what says that there are none."""
    team = Team(declared(tmp_path), instance)

    started = []
    for found in ([batch(1, 0, 10)], [], [batch(2, 10, 20)], []):
        assert team.run(*found).success
        # Of two ticks: the one behind a request passes over what comes with it.
        first, second = team.started(), team.started()
        started.append(first | second)

    assert [each & {"daily_totals"} for each in started] == [{"daily_totals"}, set()] * 2
    assert all("eager_totals" in each for each in started)


@pytest.mark.parametrize(
    ("becomes", "starts"),
    [
        ("routed_elsewhere", False),
        ("unrouted", False),
        ("filtered", False),
        ("stale", False),
        ("deleted", True),
        ("updated", True),
    ],
)
def test_records_that_change_no_row_start_nothing(
    tmp_path: Path, instance: dg.DagsterInstance, becomes: str, starts: bool
) -> None:
    """Of a topic that fills ten tables, each batch is one of all ten."""
    team = Team(declared(tmp_path), instance)
    team.run(batch(1, 0, 10))
    first = ["daily_totals" in team.started() for _ in range(2)]

    assert team.run(batch(2, 10, 20, inserted=0, **{becomes: 10})).success

    assert first == [True, False]
    assert ["daily_totals" in team.started() for _ in range(2)] == [starts, False]


def test_what_reads_the_quarantine_is_started_by_records_that_wait_there(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """Its version is not that of the rows: such a batch may change none."""
    team, seen = Team(declared(tmp_path, quarantine_rate=TOLERANT), instance), []
    for found in ([batch(1, 0, 10)], [batch(2, 10, 20, inserted=0, quarantined=10)], []):
        assert team.run(*found).success
        seen.append([version_of(team, each) for each in ("orders", "orders__quarantine")])

    assert seen == [["t 1", "t 0"], ["t 1", "t 2"], ["t 1", "t 2"]]


def version_of(team: Team, asset: str) -> str | None:
    """Return the data version of an asset."""
    entry = team.instance.get_latest_materialization_event(dg.AssetKey(asset))
    assert entry is not None
    assert entry.asset_materialization is not None
    return entry.asset_materialization.tags.get("dagster/data_version")


def test_a_stream_that_is_requested_starts_nothing_before_it_has_rows(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """A stream with a condition of its own is run by each tick, and what reads it by new rows."""
    always = ~dg.AutomationCondition.in_progress()
    team = Team(declared(tmp_path), instance, condition=always)

    started = []
    for found in ([batch(1, 0, 10)], [], [batch(2, 10, 20)], []):
        assert team.run(*found).success
        started.append(["daily_totals" in team.started() for _ in range(3)])

    assert started == [[True, False, False], [False, False, False]] * 2


def test_rows_behind_a_red_check_wait_for_the_next_green_run(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """A run that reads nothing new, and is green, starts what the red one held back; once."""
    team, bad = Team(declared(tmp_path), instance), batch(1, 0, 10, balanced=False)
    assert not team.run(bad).success
    while_red = team.started()
    accept(bad)

    assert team.run().success
    started = ["daily_totals" in team.started() for _ in range(2)]

    assert while_red == {"eager_totals"}
    assert started == [True, False]


def test_rows_that_come_while_it_is_built_start_it_again(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """Between a request and the next tick, and until its run ends: it may not have read them."""
    team = Team(declared(tmp_path), instance)
    team.run(batch(1, 0, 10))
    started = ["daily_totals" in team.started()]

    team.run(batch(2, 10, 20))
    team.build()
    started += ["daily_totals" in team.started() for _ in range(3)]
    team.run(batch(3, 20, 30))
    started += ["daily_totals" in team.started()]
    team.started()
    team.build()
    team.run(batch(4, 30, 40))
    started += ["daily_totals" in team.started() for _ in range(3)]

    assert started == [True, True, False, False, True, True, False, False]


def after_a_run_of_both(team: Team) -> list[bool]:
    """Materialize both in one run; return which of two ticks behind it start the model."""
    assert team.run_both(batch(1, 0, 10)).success
    return ["daily_totals" in team.started() for _ in range(2)]


def test_a_run_of_both_counts_where_it_has_built_both(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """What a red check has held back in it is started once the check is green."""
    team, bad = Team(declared(tmp_path), instance), batch(2, 10, 20, balanced=False)
    started = after_a_run_of_both(team)
    assert not team.run_both(bad).success
    started += ["daily_totals" in team.started()]
    accept(bad)

    assert team.run().success

    started += ["daily_totals" in team.started() for _ in range(2)]
    assert started == [False, False, False, True, False]


def test_what_a_red_check_holds_back_waits_also_if_its_run_is_still_under_way(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """Other streams of a run of both go on for long; only ticks meanwhile see the new rows."""
    team, bad = Team(declared(tmp_path), instance), batch(2, 10, 20, balanced=False)
    started = after_a_run_of_both(team)
    team.looks_meanwhile = True
    assert not team.run_both(bad).success
    accept(bad)

    assert team.run().success

    started += ["daily_totals" in team.started() for _ in range(2)]
    assert (started, team.seen_meanwhile) == ([False, False, True, False], [{"eager_totals"}])


def test_a_check_that_turns_green_before_anybody_has_looked_starts_what_it_held_back(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """Of a run of both, too: the daemon was down until the check was executed alone."""
    team, bad = Team(declared(tmp_path), instance), batch(2, 10, 20, balanced=False)
    started = after_a_run_of_both(team)
    assert not team.run_both(bad).success
    turn_green(instance, "books_balance")

    started += ["daily_totals" in team.started() for _ in range(2)]

    assert started == [False, False, True, False]


def test_a_run_that_failed_behind_new_rows_holds_them_back_until_one_succeeds(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """Kafka was away: of the checks of that run nothing is known."""
    team = Team(declared(tmp_path), instance)
    team.run(batch(1, 0, 10))
    assert not materialize(team.stream, DependencyError("orders: away"), instance).success
    started = ["daily_totals" in team.started()]

    team.run()

    started += ["daily_totals" in team.started() for _ in range(2)]
    assert started == [False, True, False]


def test_the_condition_needs_no_code_server_of_its_own() -> None:
    """Dagster's own sensor evaluates only what it can read without our code."""
    assert when_new_and_green().is_serializable
