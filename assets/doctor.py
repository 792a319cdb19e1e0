"""Dagster's part of ``oncelake doctor``: one JSON document about the instance, on stdout.

    python -m assets.doctor [STREAM…]

Reads the instance that ``DAGSTER_HOME`` names, and changes nothing in it.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Collection, Iterator, Sequence

import dagster as dg
from dagster._core.scheduler.instigation import InstigatorStatus
from dagster._core.storage.event_log import SqliteEventLogStorage

from assets.ailments import InstanceFacts, RunFacts, SlotFacts, ailments
from assets.jobs import job_name, sensor_name
from ingestion.declarations import Declared, load_streams
from ingestion.doctor.processes import is_running
from ingestion.lake import StreamPaths
from ingestion.lock import holder_of
from ingestion.settings import Settings, load_settings, project_root

_GOING_ON = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def look_at(instance: dg.DagsterInstance, home: str, settings: Settings) -> InstanceFacts:
    """Gather what an instance holds that can go wrong."""
    streams = load_streams(settings.streams)
    surveyor = _Runs(instance, settings, [each.name for each in streams])
    heartbeats = instance.get_daemon_heartbeats()
    latest = max((each.timestamp for each in heartbeats.values()), default=None)
    place = shlex.quote(str(project_root()))
    return InstanceFacts(
        prefix=f"cd {place} && DAGSTER_HOME={shlex.quote(home)} ",
        now=time.time(),
        runs=tuple(
            map(surveyor.facts, instance.get_run_records(dg.RunsFilter(statuses=_GOING_ON)))
        ),
        slots=tuple(surveyor.slots()),
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


class _Runs:
    """Finds out what became of runs."""

    def __init__(
        self, instance: dg.DagsterInstance, settings: Settings, streams: Collection[str]
    ) -> None:
        self._instance = instance
        self._settings = settings
        self._by_job = {job_name(name): name for name in streams}
        self._streams = set(streams)
        # Elsewhere the pids of this machine mean nothing.
        self._is_local = isinstance(instance.event_log_storage, SqliteEventLogStorage)

    def facts(self, record: dg.RunRecord) -> RunFacts:
        """Find out about a run."""
        run = record.dagster_run
        about = self._stream(run)
        pid, seen = self._process(run.run_id)
        return RunFacts(
            run_id=run.run_id,
            about=about or "dagster",
            status=run.status.value,
            since=record.end_time or record.start_time or record.create_timestamp.timestamp(),
            pid=pid,
            is_alive=self._is_alive(run.run_id, about, pid, seen),
        )

    def slots(self) -> Iterator[SlotFacts]:
        """Find out about every slot that is claimed."""
        log = self._instance.event_log_storage
        for pool in sorted(log.get_concurrency_keys()):
            found = log.get_concurrency_info(pool)
            for run_id in sorted({slot.run_id for slot in found.claimed_slots}):
                waiting = sum(step.run_id != run_id for step in found.pending_steps)
                yield SlotFacts(pool=pool, run=self._of_id(run_id), waiting=waiting)

    def _of_id(self, run_id: str) -> RunFacts:
        record = self._instance.get_run_record_by_id(run_id)
        if record is None:
            return RunFacts(run_id=run_id, about="dagster", status="GONE", since=0.0)
        return self.facts(record)

    def _stream(self, run: dg.DagsterRun) -> str | None:
        """Return the stream that a run is of, however it was started."""
        chosen = {key.to_user_string() for key in run.asset_selection or ()} & self._streams
        return self._by_job.get(run.job_name) or (chosen.pop() if len(chosen) == 1 else None)

    def _process(self, run_id: str) -> tuple[int | None, float]:
        """Return the process that said last that it works on a run, and when it said so."""
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
        holder = holder_of(StreamPaths.of(stream, self._settings)) if stream else None
        if holder is not None and holder.run_id == run_id:
            return True
        if pid is None or not self._is_local:
            return None
        return is_running(pid, since=seen)


def _needs(declared: Declared) -> bool:
    """Tell whether only its sensor can start a stream's runs."""
    return declared.spec is not None and declared.spec.schedule is None


def main(streams: Sequence[str]) -> None:
    """Print what is wrong with the instance, of these streams or of all."""
    with dg.DagsterInstance.get() as instance:
        facts = look_at(instance, os.environ.get("DAGSTER_HOME", ""), load_settings())
    wanted = {*streams, "dagster"}
    found = [each for each in ailments(facts) if not streams or each.about in wanted]
    sys.stdout.write(json.dumps({"findings": [each.document() for each in found]}))


if __name__ == "__main__":
    main(sys.argv[1:])
