"""What a Dagster instance holds that can go wrong, gathered without changing anything in it."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from typing import Final

import dagster as dg
from dagster._core.scheduler.instigation import InstigatorStatus

from assets.doctor.runs import UNDER_WAY, RunFacts, Runs, SlotFacts
from assets.jobs import sensor_name
from ingestion.declaration.loader import DeclaredStream, load_streams
from ingestion.settings import Settings, project_root

_HEARTBEAT_PATIENCE_SECONDS: Final = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceFacts:
    """What an instance holds that can go wrong.

    Attributes:
        prefix: What goes before a command so that it means this instance.
        now: When this was looked up, in seconds since 1970.
        heartbeat: The daemon's latest sign of life, in seconds since 1970.
        switched_on: Sensors and schedules that only the daemon can evaluate.
        sensors: The sensor of each declared stream that no schedule starts, by stream.
    """

    prefix: str
    now: float
    runs: tuple[RunFacts, ...] = ()
    slots: tuple[SlotFacts, ...] = ()
    heartbeat: float | None = None
    switched_on: tuple[str, ...] = ()
    sensors: tuple[tuple[str, str], ...] = ()

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
    place = shlex.quote(str(project_root()))
    return InstanceFacts(
        prefix=f"cd {place} && DAGSTER_HOME={shlex.quote(home)} ",
        now=time.time(),
        runs=tuple(map(runs.facts, instance.get_run_records(dg.RunsFilter(statuses=UNDER_WAY)))),
        slots=tuple(runs.slots()),
        heartbeat=latest,
        switched_on=tuple(
            sorted(
                state.instigator_name
                for state in instance.all_instigator_state()
                if state.status is not InstigatorStatus.STOPPED
            )
        ),
        sensors=tuple((each.name, sensor_name(each.name)) for each in streams if _needs(each)),
    )


def _needs(declared: DeclaredStream) -> bool:
    """Tell whether only its sensor can start a stream's runs."""
    return declared.spec is not None and declared.spec.schedule is None
