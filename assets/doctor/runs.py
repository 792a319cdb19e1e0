"""The state of Dagster's runs, as far as this machine can see it: Dagster itself does not check.

A run whose process was killed stays STARTED where no code server watches it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import dagster as dg

# Dagster has no public name for what keeps its events.
from dagster._core.storage.event_log import InMemoryEventLogStorage, SqliteEventLogStorage

from oncelake.assets.jobs.jobs import INGEST_JOB
from oncelake.assets.translation import AS_DECLARED, Translation
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.processes import is_running

_START_TIMEOUT_SECONDS: Final = 180.0

UNDER_WAY = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def location_of(run: dg.DagsterRun) -> str | None:
    """Return the code location of a run; one that was started in a shell has none."""
    origin = run.remote_job_origin
    return origin.repository_origin.code_location_origin.location_name if origin else None


def location_here(context: dg.SensorEvaluationContext) -> str | None:
    """Return the code location of a sensor."""
    return context.code_location_origin.location_name if context.code_location_origin else None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """A run that has not ended, or that has a slot.

    Attributes:
        about: The stream it is of, or ``dagster``.
        status: Its status in the instance, such as ``STARTED``; ``GONE`` when it is not there.
        since: When it came to this, in seconds since 1970.
        pid: Its process; ``None`` when it has none yet.
        is_alive: Whether that process runs; ``None`` when that cannot be seen from here.
    """

    run_id: str
    about: str
    status: str
    since: float
    pid: int | None = None
    is_alive: bool | None = None

    @property
    def is_over(self) -> bool:
        """Tell whether the instance takes the run for ended."""
        return self.status in {"SUCCESS", "FAILURE", "CANCELED", "GONE"}

    def is_dead(self, now: float) -> bool:
        """Tell whether it will never end by itself: its process is gone, or never came."""
        if self.is_over or self.status == "QUEUED":
            return False
        if self.pid is None:
            return now - self.since > _START_TIMEOUT_SECONDS
        return self.is_alive is False


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotFacts:
    """A slot of a pool that a run has claimed.

    Attributes:
        pool: The pool, named after its stream.
        run: Who has it.
        waiting: Steps of other runs that wait for one.
    """

    pool: str
    run: RunFacts
    waiting: int


class Runs:
    """Finds out what became of runs."""

    def __init__(
        self,
        instance: dg.DagsterInstance,
        settings: Settings,
        streams: Collection[str],
        translation: Translation = AS_DECLARED,
    ) -> None:
        self._instance = instance
        self._settings = settings
        self._streams = streams
        self._translation = translation
        # Elsewhere the pids of this machine mean nothing.
        self._is_local = isinstance(
            instance.event_log_storage, (SqliteEventLogStorage, InMemoryEventLogStorage)
        )

    def facts(self, record: dg.RunRecord) -> RunFacts:
        """Find out about a run."""
        run = record.dagster_run
        streams = self.streams_of(run)
        about = streams[0] if len(streams) == 1 else None
        pid, seen = self._process(run.run_id)
        return RunFacts(
            run_id=run.run_id,
            about=about or "dagster",
            status=run.status.value,
            # Until it starts, since its status last changed: it may have been queued for long.
            since=record.end_time or record.start_time or record.update_timestamp.timestamp(),
            pid=pid,
            is_alive=self._is_alive(run.run_id, about, pid, seen),
        )

    def streams_of(self, run: dg.DagsterRun) -> list[str]:
        """Return the streams that a run materializes, however it was started.

        Who knows no translation, as a shell, takes the last part of a key for the stream's name.
        """
        chosen = {self._translation.stream_of(key) for key in run.asset_selection or ()}
        is_all = run.asset_selection is None and run.job_name.endswith(INGEST_JOB)
        return [name for name in self._streams if is_all or name in chosen]

    def slots(self) -> Iterator[SlotFacts]:
        """Find out about every slot that is claimed."""
        log = self._instance.event_log_storage
        for pool in sorted(log.get_concurrency_keys()):
            found = log.get_concurrency_info(pool)
            for run_id in sorted({slot.run_id for slot in found.claimed_slots}):
                waiting = sum(step.run_id != run_id for step in found.pending_steps)
                record = self._instance.get_run_record_by_id(run_id)
                gone = RunFacts(run_id=run_id, about="dagster", status="GONE", since=0.0)
                run = self.facts(record) if record else gone
                yield SlotFacts(pool=pool, run=run, waiting=waiting)

    def _process(self, run_id: str) -> tuple[int | None, float]:
        """Return the process that last reported that it works on a run, and when."""
        records = self._instance.get_records_for_run(
            run_id, of_type=dg.DagsterEventType.ENGINE_EVENT, ascending=False
        ).records
        for record in records:
            event = record.event_log_entry.get_dagster_event()
            found = event.engine_event_data.metadata.get("pid")
            if found is not None:
                return int(str(found.value)), record.timestamp
        return None, 0.0

    def _is_alive(
        self, run_id: str, stream: str | None, pid: int | None, seen: float
    ) -> bool | None:
        from oncelake.ingestion.lake.lock import holder_of
        from oncelake.ingestion.lake.paths import StreamPaths

        holder = holder_of(StreamPaths.of(stream, self._settings)) if stream else None
        if holder is not None and holder.run_id == run_id:
            return True
        if pid is None or not self._is_local:
            return None
        return is_running(pid, since=seen)
