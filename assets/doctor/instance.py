"""What a Dagster instance holds that can go wrong, gathered without changing anything in it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Final

import dagster as dg

from oncelake.assets.doctor.runs import UNDER_WAY, RunFacts, Runs, SlotFacts, location_of
from oncelake.ingestion.declaration.loader import DeclaredStream, load_streams
from oncelake.ingestion.lake.ledger import load_ledger
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.settings import Settings, project_root

# The state of a schedule or sensor that nobody has switched on; its enum is Dagster's own.
_STOPPED: Final = "STOPPED"
_HEARTBEAT_PATIENCE_SECONDS: Final = 120.0
_WORKSPACE: Final = "workspace.yaml"
_NEWEST_BATCHES: Final = 50
# Of runs that nobody started by hand: what did. Automation conditions are a sensor's, too.
_STARTED_BY: Final = ("dagster/sensor_name", "dagster/schedule_name")


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceFacts:
    """What an instance holds that can go wrong.

    Attributes:
        prefix: What goes before a command so that it means this instance.
        workspace: The option that names the file of its code locations.
        now: When this was looked up, in seconds since 1970.
        heartbeat: The daemon's latest sign of life, in seconds since 1970.
        switched_on: Sensors and schedules that only the daemon can evaluate.
        sensed: The streams whose runs the sensor is to start, and nothing else has started.
        locations: The code locations whose runs wrote the newest batches of each stream, in turn.
    """

    prefix: str
    workspace: str
    now: float
    runs: tuple[RunFacts, ...] = ()
    slots: tuple[SlotFacts, ...] = ()
    heartbeat: float | None = None
    switched_on: tuple[str, ...] = ()
    sensed: tuple[str, ...] = ()
    locations: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def has_daemon(self) -> bool:
        """Tell whether a daemon gave a sign of life of late."""
        return self.heartbeat is not None and (
            self.now - self.heartbeat <= _HEARTBEAT_PATIENCE_SECONDS
        )


def read_instance(instance: dg.DagsterInstance, home: str, settings: Settings) -> InstanceFacts:
    """Gather what an instance holds that can go wrong."""
    streams = load_streams(settings.streams)
    runs = Runs(instance, settings, [each.name for each in streams])
    heartbeats = instance.get_daemon_heartbeats()
    latest = max((beat.timestamp for beat in heartbeats.values()), default=None)
    switched_on = {
        state.instigator_name
        for state in instance.all_instigator_state()
        if state.status.value != _STOPPED
    }
    of_batches = {each.name: _runs_of_batches(instance, each, settings) for each in streams}
    place = shlex.quote(str(project_root()))
    return InstanceFacts(
        prefix=f"cd {place} && DAGSTER_HOME={shlex.quote(home)} ",
        workspace=_workspace(project_root(), Path(home)),
        now=time.time(),
        runs=tuple(map(runs.facts, instance.get_run_records(dg.RunsFilter(statuses=UNDER_WAY)))),
        slots=tuple(runs.slots()),
        heartbeat=latest,
        switched_on=tuple(sorted(switched_on)),
        sensed=tuple(
            each.name
            for each in streams
            if each.spec
            and each.spec.is_sensed
            and not any(is_started_by(run, switched_on) for run in of_batches[each.name])
        ),
        locations={name: _turns(runs) for name, runs in of_batches.items()},
    )


def _runs_of_batches(
    instance: dg.DagsterInstance, declared: DeclaredStream, settings: Settings
) -> list[dg.DagsterRun]:
    """Return the runs that wrote a stream's newest batches, in their order."""
    ledger = load_ledger(StreamPaths.of(declared.name, settings, declared.sink))
    ids = dict.fromkeys(row.run_id for row in ledger.rows[-_NEWEST_BATCHES:])
    if not ids:
        return []
    runs = {run.run_id: run for run in instance.get_runs(dg.RunsFilter(run_ids=[*ids]))}
    return [runs[run_id] for run_id in ids if run_id in runs]


def is_started_by(run: dg.DagsterRun, switched_on: Collection[str]) -> bool:
    """Tell whether something started a run that is still on: a condition, a schedule, a sensor."""
    return any(run.tags.get(tag) in switched_on for tag in _STARTED_BY)


def _turns(runs: Iterable[dg.DagsterRun]) -> list[str]:
    """Return the code locations of runs, each turn once.

    A stream that moved to another one has two; one that both run has more turns than locations.
    """
    return [location for location, _ in groupby(filter(None, map(location_of, runs)))]


def _workspace(project: Path, home: Path) -> str:
    """Name the workspace's file of the project, or of Dagster's home; another is the user's own."""
    if (project / _WORKSPACE).exists():
        return f"-w {_WORKSPACE}"
    if (home / _WORKSPACE).exists():
        return f"-w {shlex.quote(str(home.absolute() / _WORKSPACE))}"
    return "-w FILE, where FILE is the workspace file that this Dagster is started with"
