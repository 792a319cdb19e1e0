"""Facts about a Dagster instance that can go wrong, gathered without changing anything in it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

import dagster as dg

from oncelake.assets.doctor.idle import STOPPED, Starters, is_started_by, place_of
from oncelake.assets.doctor.runs import UNDER_WAY, RunFacts, Runs, SlotFacts, location_of
from oncelake.ingestion.declaration.files.loader import DeclaredStream, load_streams
from oncelake.ingestion.lake.ledger import load_ledger
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.settings import Settings, project_root

_NEWEST_BATCHES: Final = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceFacts(Starters):
    """Facts about an instance that can go wrong.

    Attributes:
        locations: The code locations whose runs wrote the newest batches of each stream, in turn.
    """

    runs: tuple[RunFacts, ...] = ()
    slots: tuple[SlotFacts, ...] = ()
    locations: Mapping[str, Sequence[str]] = field(default_factory=dict)


def read_instance(instance: dg.DagsterInstance, home: str, settings: Settings) -> InstanceFacts:
    """Gather what an instance holds that can go wrong."""
    streams = load_streams(settings.streams)
    runs = Runs(instance, settings, [each.name for each in streams])
    heartbeats = instance.get_daemon_heartbeats()
    latest = max((beat.timestamp for beat in heartbeats.values()), default=None)
    switched_on = {
        state.instigator_name
        for state in instance.all_instigator_state()
        if state.status.value != STOPPED
    }
    of_batches = {each.name: _runs_of_batches(instance, each, settings) for each in streams}
    return InstanceFacts(
        **place_of(project_root(), home),
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
            and not any(is_started_by(run.tags, switched_on) for run in of_batches[each.name])
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


def _turns(runs: Iterable[dg.DagsterRun]) -> list[str]:
    """Return the code locations of runs, each turn once.

    A stream that moved to another one has two; one that both run has more turns than locations.
    """
    return [location for location, _ in groupby(filter(None, map(location_of, runs)))]
