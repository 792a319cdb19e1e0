"""What starts the runs of a stream: a sensor, or a schedule where one is declared.

The sensor starts a run when Kafka holds records that the table has not read, or when a run died
behind its last commit, whose ledger row and checks are still to come.

It asks table and Kafka itself, on every tick and without Spark, and starts nothing that could not
go through, but for one run where a person must decide, so that its refusal is told. So it depends
neither on a cursor nor on run keys, which a failed run uses up. (Only a run that is to tell of a
stall has one, to be told once; the cursor only keeps observations few.) Ticks observe the topics
with their lag; where nothing new comes for long, a run that finds nothing says that the table is
fresh.
"""

import json
import time
from itertools import takewhile
from typing import Any, Final

import dagster as dg
from dagster._utils.schedules import is_valid_cron_schedule

from assets.asset_specs import topic_key
from assets.doctor.runs import UNDER_WAY, Runs
from assets.jobs import job_name, sensor_name
from assets.refusals import standing_refusal
from ingestion.declaration.loader import DeclaredStream, reload_stream
from ingestion.declaration.spec import StreamSpec
from ingestion.errors import IngestionError, InvalidSpecError, TerminalError
from ingestion.kafka.transactions import Stall, find_stalls
from ingestion.lake.lock import holder_of
from ingestion.lake.paths import StreamPaths
from ingestion.lake.stream import Stream
from ingestion.operations.lag import awaits_run, lag_of
from ingestion.recovery.snapshot import TableSnapshot, read_snapshot
from ingestion.recovery.topics import resolve_topics
from ingestion.settings import Settings
from resources.kafka import KafkaResource
from resources.lake import LakeResource
from resources.part import settings_of

# Four questions a tick must fit into the minute that Dagster gives it.
_MOST_SECONDS: Final = 10.0
# So often a lag is observed that stays as it is.
_REPEAT_SECONDS: Final = 3600.0
# From the second failure in a row on, as `follow` does after a refusal.
_FIRST_PAUSE_SECONDS: Final = 60.0
_LONGEST_PAUSE_SECONDS: Final = 600.0

Tick = dg.SensorResult | dg.SkipReason


def lag_sensor(declared: DeclaredStream) -> dg.SensorDefinition:
    """Return the sensor of a declared stream; a person switches it on."""
    spec = declared.require_spec()

    @dg.sensor(
        name=sensor_name(spec.name),
        job_name=job_name(spec.name),
        minimum_interval_seconds=spec.sensor_seconds,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Starts a run of {spec.name} when Kafka holds records it has not read",
    )
    def sense(
        context: dg.SensorEvaluationContext, kafka: KafkaResource, lake: LakeResource
    ) -> Tick:
        try:
            settings = settings_of(kafka, lake, most_seconds=_MOST_SECONDS)
        except InvalidSpecError as error:
            return dg.SkipReason(f"a run would not go through: {error}")
        # As a run does, which another process may have loaded since.
        current = reload_stream(declared)
        return _tick(context, current, settings) if current else _skip_gone(declared)

    return sense


def _skip_gone(declared: DeclaredStream) -> dg.SkipReason:
    """Skip: the process of a run would find no such job."""
    gone = f"{declared.path.name} declares no {declared.name} any more"
    return dg.SkipReason(f"{gone}. Next: reload the code location")


def ingest_schedule(declared: DeclaredStream) -> dg.ScheduleDefinition | None:
    """Return the declared schedule, in UTC; declaring it is what starts it.

    A refused stream is not run again until something has changed.

    Raises:
        InvalidSpecError: the line is not one that cron understands.
    """
    spec = declared.require_spec()
    if spec.schedule is None:
        return None
    if not is_valid_cron_schedule(spec.schedule):
        raise InvalidSpecError(f"{spec.name}: schedule {spec.schedule!r} is no line of cron")

    @dg.schedule(
        name=f"ingest_{spec.name}_schedule",
        job_name=job_name(spec.name),
        cron_schedule=spec.schedule,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
    def due(
        context: dg.ScheduleEvaluationContext, kafka: KafkaResource, lake: LakeResource
    ) -> dg.RunRequest | dg.SkipReason:
        if reload_stream(declared) is None:
            return _skip_gone(declared)
        settings = settings_of(kafka, lake, most_seconds=_MOST_SECONDS)
        refused = standing_refusal(context.instance, declared, settings)
        return dg.SkipReason(refused) if refused else dg.RunRequest()

    return due


def _tick(
    context: dg.SensorEvaluationContext, declared: DeclaredStream, settings: Settings
) -> Tick:
    """Decide, and observe the topics whatever is decided; a table that is refused has no lag."""
    reason = _why_not_now(context.instance, declared, settings)
    try:
        spec = declared.require_spec()
        snapshot = read_snapshot(StreamPaths.of(spec.name, settings))
        lag = lag_of(spec, settings, snapshot)
    except IngestionError as error:
        if reason is None and isinstance(error, TerminalError):
            # The run is refused in the same words, which is told, and remembered: there is one.
            return dg.SensorResult(run_requests=[dg.RunRequest()])
        return dg.SkipReason(reason or f"a run would not go through: {error}")
    decided = reason or _choose_run(
        context.instance, spec, settings, snapshot, unread=sum(lag.values())
    )
    return dg.SensorResult(
        run_requests=[] if isinstance(decided, str) else [decided],
        skip_reason=decided if isinstance(decided, str) else None,
        **_observations(spec.name, lag, context.cursor),
    )


def _choose_run(
    instance: dg.DagsterInstance,
    spec: StreamSpec,
    settings: Settings,
    snapshot: TableSnapshot,
    *,
    unread: int,
) -> dg.RunRequest | str:
    """Return the run that is due, or in words why none is."""
    if unread:
        return dg.RunRequest(tags={"oncelake/lag": str(unread)})
    if awaits_run(snapshot) or _must_be_confirmed(instance, spec):
        return dg.RunRequest()
    return _request_report(instance, spec, stalls_of(spec, settings)) or (
        "nothing new: the table has reached the last stable offsets of Kafka"
    )


def _observations(stream: str, lag: dict[str, int], cursor: str | None) -> dict[str, Any]:
    """Observe the topics whose lag has changed, and all of them every hour: Dagster keeps each."""
    told: dict[str, tuple[int, float]] = json.loads(cursor or "{}")
    now = time.time()
    news = {
        topic: (behind, now)
        for topic, behind in lag.items()
        if topic not in told or told[topic][0] != behind or now - told[topic][1] > _REPEAT_SECONDS
    }
    return {
        "asset_events": [
            dg.AssetObservation(topic_key(topic), metadata={"lag": behind, "stream": stream})
            for topic, (behind, _) in news.items()
        ],
        "cursor": json.dumps({**told, **news}),
    }


def _must_be_confirmed(instance: dg.DagsterInstance, spec: StreamSpec) -> bool:
    """Tell whether Dagster would soon call a table stale only because nothing new has come.

    Its freshness policy knows materializations alone, so a run that finds nothing makes one.
    """
    if spec.freshness_minutes is None:
        return False
    records = instance.get_asset_records([dg.AssetKey(spec.name)])
    last = records[0].asset_entry.last_materialization if records else None
    return last is not None and time.time() - last.timestamp > spec.freshness_minutes * 30


def stalls_of(spec: StreamSpec, settings: Settings) -> tuple[Stall, ...]:
    """Find what open transactions have held back for long: there is no lag, and yet no progress."""
    stream = resolve_topics(Stream(spec=spec, settings=settings))
    spec, client = stream.spec, stream.kafka
    return find_stalls(client.topics(spec.name, spec.subscribed).partitions, client, settings)


def _request_report(
    instance: dg.DagsterInstance, spec: StreamSpec, stalls: tuple[Stall, ...]
) -> dg.RunRequest | None:
    """Ask for one run of each stall, which reads nothing, and whose check tells of it."""
    if not stalls:
        return None
    where = ", ".join(f"{stall.at} at {stall.offset}" for stall in stalls)
    failed = dg.RunsFilter(job_name=job_name(spec.name), statuses=[dg.DagsterRunStatus.FAILURE])
    # A run that failed has told nothing, and has used up its key.
    after = "".join(f" after {run.run_id}" for run in instance.get_runs(failed, limit=1))
    return dg.RunRequest(run_key=f"held back: {where}{after}")


def _why_not_now(
    instance: dg.DagsterInstance, declared: DeclaredStream, settings: Settings
) -> str | None:
    """Return in words what keeps a run from being started now."""
    under_way = _under_way(instance, declared.name)
    if under_way:
        runs = Runs(instance, settings, [declared.name])
        return report_under_way(
            instance, runs, under_way, of="this stream", doctor=f"oncelake doctor {declared.name}"
        )
    holder = holder_of(StreamPaths.of(declared.name, settings))
    if holder:
        return f"run {holder.run_id} (pid {holder.pid} on {holder.host}) holds this stream"
    return standing_refusal(instance, declared, settings) or _pause(instance, declared.name)


def _pause(instance: dg.DagsterInstance, stream: str) -> str | None:
    """Say that runs fail one after another: the next is tried later each time."""
    ended = instance.get_run_records(dg.RunsFilter(job_name=job_name(stream)), limit=6)
    failed = list(
        takewhile(lambda each: each.dagster_run.status is dg.DagsterRunStatus.FAILURE, ended)
    )
    if len(failed) < 2:
        return None
    pause = min(_FIRST_PAUSE_SECONDS * 2 ** (len(failed) - 2), _LONGEST_PAUSE_SECONDS)
    left = (failed[0].end_time or 0) + pause - time.time()
    return f"the last runs failed; the next is tried in {left:.0f} s" if left > 0 else None


def report_under_way(
    instance: dg.DagsterInstance, runs: Runs, record: dg.RunRecord, *, of: str, doctor: str
) -> str:
    """Say which run is waited for; one that died unseen is reported as failed.

    A run that is killed together with the code server that watched it stays STARTED for good, and
    keeps its pool's slot. Its table is as sound as ever: the next run heals what there is to heal.
    """
    run = runs.facts(record)
    says = f"run {run.run_id[:8]} of {of} is {run.status.lower()}"
    if not run.is_dead(time.time()):
        return says
    if run.is_alive is not False:
        return f"{says}, and never began. Next: {doctor}"
    current = instance.get_run_by_id(run.run_id)
    if current is None or current.is_finished:
        # It ended while this was looked up.
        return says
    why = f"its process (pid {run.pid}) is gone, and nothing was watching it"
    instance.report_run_failed(current, why)
    instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    return f"{says}, and {why}: it is reported as failed now"


def _under_way(instance: dg.DagsterInstance, stream: str) -> dg.RunRecord | None:
    """Return a queued or running run of the stream's asset, however it was started."""
    key, job = dg.AssetKey(stream), job_name(stream)
    records = instance.get_run_records(dg.RunsFilter(statuses=UNDER_WAY))
    return next(
        (
            record
            for record in records
            if (run := record.dagster_run).job_name == job or key in (run.asset_selection or ())
        ),
        None,
    )
