"""Tables of one topic whose columns a registry has, and Dagster keeps: a state-backed component."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from oncelake.assets.state import StateBackedStreams
from oncelake.ingestion.declaration.files.loader import DeclaredStream, load_streams
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.verify.verify import verify
from tests.assets.test_component import Project, project
from tests.assets.test_state import LOCAL, STATE_BACKED
from tests.operations.test_routed_schemas import CLICKED, PAID, PLACED, Events, events
from tests.support.long import only_long

__all__ = ["events", "project"]
pytestmark = [
    pytest.mark.kafka,
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
    pytest.mark.filterwarnings("ignore::dagster.PreviewWarning"),
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run:DeprecationWarning"),
]

TEXT = ["null", "string"]


class Kept:
    """A component of a project whose state is refreshed, and whose streams run, in this process."""

    def __init__(self, events: Events, project: Project, instance: dg.DagsterInstance) -> None:
        self.events, self.project, self.instance = events, project, instance
        events.path = project.at / "streams" / "events.yaml"
        self.at = project.defs / ".local_defs_state" / "shop" / "state"
        self.at.parent.mkdir(parents=True)
        self.defs = dg.Definitions()

    def refresh(self) -> None:
        """Refresh the state."""
        StateBackedStreams(streams=str(self.events.path.parent)).write_state_to_path(self.at)

    def run(self) -> dg.ExecuteInProcessResult:
        """Load the project, and materialize all streams in one run."""
        self.defs = self.project.load(STATE_BACKED, defs_state={**LOCAL, "key": "shop"})
        job = self.defs.resolve_implicit_global_asset_job_def()
        names = [dg.AssetKey(each.name) for each in self.streams.values()]
        return job.execute_in_process(
            instance=self.instance, asset_selection=names, raise_on_error=False
        )

    @property
    def streams(self) -> dict[str, DeclaredStream]:
        """The streams by their tables, as runs read them: in the copies of their files."""
        node = self.defs.resolve_asset_graph().get(dg.AssetKey("events_placed"))
        (reference, *_) = node.metadata["dagster/code_references"].code_references
        found = load_streams(Path(reference.file_path).parent)
        return {each.name.removeprefix("events_"): each for each in found}

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Read the user's columns of a table."""
        spec = self.streams[table].require_spec()
        paths = StreamPaths.of(spec.name, self.events.world.settings, spec.sink)
        names = [column.name for column in spec.columns]
        rows = [row for each in paths.table.scan(names) for row in each.to_pylist()]
        return sorted(rows, key=lambda row: row.get("id", row.get("page")))

    def problems(self) -> list[Any]:
        """Return what the proof finds wrong with any of the streams."""
        settings = self.events.world.settings
        verdicts = [verify(each.require_spec(), settings) for each in self.streams.values()]
        return [each for verdict in verdicts for each in (*verdict.limits, *verdict.differences)]


@pytest.fixture
def kept(
    events: Events,
    project: Project,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Kept]:
    """A topic of three kinds, in a project of its own."""
    events.world.set_environment(monkeypatch)
    with dg.instance_for_test():
        yield Kept(events, project, instance)


def test_a_table_follows_its_schema_at_once_and_the_state_at_its_refresh(kept: Kept) -> None:
    """What a run has met keeps its place in the table, whatever the newest schema begins with."""
    events = kept.events
    events.declare()
    events.send("Placed", PLACED, {"id": 1, "total": 5})
    events.send("Paid", PAID, {"id": 1, "amount": 0.5})
    events.send("Clicked", CLICKED, {"page": "/"})
    kept.refresh()
    assert kept.run().success
    state = kept.at.read_text()

    events.send("Placed", {**PLACED, "x": TEXT}, {"id": 2, "total": 7, "x": "met"})
    assert kept.run().success
    met = kept.at.read_text()
    events.send(
        "Placed", {"y": TEXT, **PLACED, "x": TEXT}, {"id": 3, "total": 9, "x": "x", "y": "y"}
    )
    kept.refresh()
    assert kept.run().success

    assert met == state
    assert "`x` STRING" in kept.at.read_text()
    assert kept.rows("placed") == [
        {"id": 1, "total": 5, "x": None, "y": None},
        {"id": 2, "total": 7, "x": "met", "y": None},
        {"id": 3, "total": 9, "x": "x", "y": "y"},
    ]
    assert (kept.rows("paid"), kept.rows("clicked")) == (
        [{"id": 1, "amount": 0.5}],
        [{"page": "/"}],
    )
    assert kept.problems() == []


@only_long
def test_a_table_that_a_file_gets_is_there_with_the_next_refresh(kept: Kept) -> None:
    """Until then it says so, and keeps none of its siblings back."""
    events = kept.events
    events.declare(otherwise="ignore")
    events.send("Placed", PLACED, {"id": 1, "total": 5})
    events.send("Paid", PAID, {"id": 1, "amount": 0.5})
    events.send("Clicked", CLICKED, {"page": "/"})
    every, when = events.path.read_text(), f"{events.package}.Placed"
    one = {"when": when, "schema": "registry", "keys": ["id"]}
    events.declare(otherwise="ignore", tables={"placed": one})
    kept.refresh()
    assert kept.run().success
    events.path.write_text(every)

    done = kept.run()

    failed = {each.step_key for each in done.all_events if each.is_step_failure}
    assert failed == {"ingest_events_paid", "ingest_events_clicked"}
    kept.refresh()
    assert kept.run().success
    assert (kept.rows("placed"), kept.rows("paid")) == (
        [{"id": 1, "total": 5}],
        [{"id": 1, "amount": 0.5}],
    )
    assert kept.problems() == []
