"""A sensor a stream: it starts a run when Kafka holds records that the table has not read.

Or when a run died behind its last commit, whose ledger row and checks are still to come.

It asks table and Kafka itself, on every tick and without Spark, and starts nothing that could not
go through: so it depends neither on a cursor nor on run keys, which a failed run uses up. (Only
a run that is to tell of a stall has one, to be told once.) Every tick observes the topics, with
their lag; where nothing new comes for long, a run that finds nothing says that the table is fresh.
"""

import time

import dagster as dg

from assets.asset_specs import topic_key
from assets.doctor.runs import UNDER_WAY, Runs
from assets.jobs import job_name, sensor_name
from assets.refusals import standing_refusal, state_of
from ingestion.declaration.loader import DeclaredStream
from ingestion.declaration.spec import StreamSpec
from ingestion.errors import IngestionError
from ingestion.kafka.offsets import Offsets
from ingestion.kafka.transactions import Stall, find_stalls
from ingestion.lake.lock import holder_of
from ingestion.lake.paths import StreamPaths
from ingestion.lake.stream import Stream
from ingestion.recovery.position import is_ledger_behind, position_of
from ingestion.recovery.snapshot import TableSnapshot, read_snapshot
from ingestion.recovery.topics import resolve_topics
from ingestion.settings import Settings
from resources.kafka import KafkaResource
from resources.lake import LakeResource
from resources.part import settings_of

# Four questions a tick must fit into the minute that Dagster gives it.
_MOST_SECONDS = 10.0

Tick = dg.SensorResult | dg.SkipReason


def lag_sensor(declared: DeclaredStream) -> dg.SensorDefinition:
    """Return the sensor of a declared stream; a person switches it on."""
    spec = declared.spec
    assert spec is not None

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
            settings = _with_short_timeout(settings_of(kafka, lake))
            return _tick(context.instance, declared, spec, settings)
        except IngestionError as error:
            return dg.SkipReason(f"a run would not go through: {error}")

    return sense


def lag_of(
    spec: StreamSpec, settings: Settings, snapshot: TableSnapshot | None = None
) -> dict[str, int]:
    """Count the offsets of each topic that the table has not reached, up to the last stable one.

    Before the first run that is everything Kafka holds, also for a stream that starts at the
    latest: its first run must write down where that is. The table is read, unless its snapshot is
    given.

    Raises:
        RefusedError: the table is not one that a run would go on with, or a topic is missing.
        DependencyError: Kafka does not answer.
    """
    stream = Stream(spec=spec, settings=settings)
    position = position_of(snapshot or read_snapshot(stream.paths))
    stream = resolve_topics(stream)
    spec, client = stream.spec, stream.kafka
    partitions = client.topics(spec.name, spec.subscribed).partitions
    reached = position.next if position else client.earliest(partitions)
    ends = client.stable_end(partitions)
    return {
        topic: reached.lag_to(Offsets({at: ends[at] for at in partitions if at.topic == topic}))
        for topic in spec.subscribed
    }


def _tick(
    instance: dg.DagsterInstance, declared: DeclaredStream, spec: StreamSpec, settings: Settings
) -> Tick:
    """Decide, and observe the topics whatever is decided; a table that is refused has no lag."""
    reason = _why_not_now(instance, declared, settings)
    try:
        snapshot = read_snapshot(StreamPaths.of(spec.name, settings))
        lag = lag_of(spec, settings, snapshot)
    except IngestionError:
        if reason is None:
            raise
        return dg.SkipReason(reason)
    if reason is None:
        decided = _choose_run(instance, spec, settings, snapshot, unread=sum(lag.values()))
    return dg.SensorResult(
        run_requests=[] if reason or isinstance(decided, str) else [decided],
        skip_reason=reason or (decided if isinstance(decided, str) else None),
        asset_events=[
            dg.AssetObservation(topic_key(topic), metadata={"lag": behind, "stream": spec.name})
            for topic, behind in lag.items()
        ],
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
    if is_ledger_behind(snapshot) or _must_be_confirmed(instance, spec):
        return dg.RunRequest()
    return _request_report(stalls_of(spec, settings)) or (
        "nothing new: the table has reached the last stable offsets of Kafka"
    )


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


def _request_report(stalls: tuple[Stall, ...]) -> dg.RunRequest | None:
    """Ask for one run of each stall, which reads nothing, and whose check tells of it."""
    if not stalls:
        return None
    where = ", ".join(f"{stall.at} at {stall.offset}" for stall in stalls)
    return dg.RunRequest(run_key=f"held back: {where}")


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
    last = _last_run(instance, declared.name)
    return standing_refusal(instance, last, state=state_of(declared, settings))


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
    why = f"its process (pid {run.pid}) is gone, and nothing was watching it"
    instance.report_run_failed(record.dagster_run, why)
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


def _last_run(instance: dg.DagsterInstance, stream: str) -> str | None:
    """Return the id of the last run that was to make the stream's asset, whatever became of it."""
    records = instance.get_asset_records([dg.AssetKey(stream)])
    return records[0].asset_entry.last_run_id if records else None


def _with_short_timeout(settings: Settings) -> Settings:
    seconds = min(settings.kafka_timeout_seconds, _MOST_SECONDS)
    return settings.model_copy(update={"kafka_timeout_seconds": seconds})
