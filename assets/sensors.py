"""The sensors and schedules of streams: one sensor for all, or a schedule where one is declared.

The sensor asks for a run of each stream of which Kafka holds records that its table has not read,
or whose last run died behind its commit, whose ledger row and checks are still to come, or whose
last batch no materialization reports, since a command has committed it.

It asks tables and Kafka itself, without Spark, and starts nothing that could not go through, but
for one run where a person must decide, so that its refusal is told. So it depends neither on a
cursor nor on run keys, which a failed run uses up. (Only a run that is to tell of a stall has one,
to be told once; the cursor only keeps observations few.) Ticks observe the topics with their lag;
where nothing new comes for long, a run that finds nothing says that the table is fresh.
"""

import json
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from oncelake.assets.doctor.idle import LAG_SENSOR
from oncelake.assets.doctor.runs import UNDER_WAY, Runs
from oncelake.assets.jobs.jobs import INGEST_JOB, STREAM_TAG, joined, run_of
from oncelake.assets.refusals import last_failures, standing_refusal
from oncelake.assets.translation import AS_DECLARED, ASKING, Translation
from oncelake.ingestion.declaration.files.loader import (
    DeclaredStream,
    StreamFolder,
    reload_stream,
    siblings_of,
)
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import DependencyError, IngestionError, InvalidSpecError, counted
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.volumes import translate_disk_errors
from oncelake.resources.part import settings_of

if TYPE_CHECKING:
    from oncelake.ingestion.kafka.transactions import Stall
    from oncelake.ingestion.recovery.position import Position

# A few requests to Kafka must fit into the minute that Dagster gives a tick.
_MOST_SECONDS: Final = 10.0
# So long one tick asks whether runs can be started; whoever is left waits for the next.
_DECIDING_SECONDS: Final = 20.0
# So often a lag is observed that stays as it is.
_REPEAT_SECONDS: Final = 3600.0
# From the second failure in a row on, as `follow` does after a refusal.
_FIRST_PAUSE_SECONDS: Final = 60.0
_LONGEST_PAUSE_SECONDS: Final = 600.0
_SENSOR_SECONDS: Final = 60
_IS_NEW: Final = "is declared, and not loaded. Next: reload the code location"
# Of streams that a tick passes over, each with its reason.
_MOST_NAMED: Final = 20

Tick = dg.SensorResult | dg.SkipReason
Lags = Mapping[str, Mapping[str, int] | None]


def lag_sensor(
    streams: Sequence[DeclaredStream],
    translation: Translation = AS_DECLARED,
    status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Return the sensor of all streams that do not opt out."""
    sensed = [each for each in streams if each.spec is not None and each.spec.is_sensed]
    pauses = [each.spec.sensor_seconds for each in sensed if each.spec is not None]
    watches: dict[Settings, _Watch] = {}

    @dg.sensor(
        name=translation.name(LAG_SENSOR),
        job_name=translation.name(INGEST_JOB),
        minimum_interval_seconds=min(pauses, default=_SENSOR_SECONDS),
        default_status=status,
        description="Starts a run of each stream of which Kafka holds records it has not read",
        required_resource_keys={*translation.resource_keys(ASKING)},
    )
    def sense(context: dg.SensorEvaluationContext, **_: object) -> Tick:
        try:
            asked = translation.resources(context, ASKING)
            settings = settings_of(*asked, most_seconds=_MOST_SECONDS)
            watch = watches.setdefault(settings, _Watch(streams, settings, translation))
            return watch.tick(context.instance, context.cursor)
        except IngestionError as error:
            return dg.SkipReason(f"a run would not go through: {error}")

    return sense


def ingest_schedule(
    declared: DeclaredStream, translation: Translation = AS_DECLARED
) -> dg.ScheduleDefinition | None:
    """Return the declared schedule, in UTC; declaring it is what starts it.

    A refused stream is not run again until something has changed.

    Raises:
        InvalidSpecError: the line is not one that cron understands.
    """
    spec = declared.require_spec()
    if spec.schedule is None:
        return None

    def due(context: dg.ScheduleEvaluationContext, **_: object) -> dg.RunRequest | dg.SkipReason:
        if reload_stream(declared) is None:
            return dg.SkipReason(_is_gone(declared))
        asked = translation.resources(context, ASKING)
        settings = settings_of(*asked, most_seconds=_MOST_SECONDS)
        failed = last_failures(context.instance, [spec.name], translation).get(spec.name)
        refused = standing_refusal(context.instance, declared, settings, failed)
        return dg.SkipReason(refused) if refused else run_of(spec.name, translation)

    try:
        return dg.schedule(
            name=translation.name(f"ingest_{spec.name}_schedule"),
            job_name=translation.name(INGEST_JOB),
            cron_schedule=spec.schedule,
            execution_timezone="UTC",
            default_status=dg.DefaultScheduleStatus.RUNNING,
            description=f"Starts the runs of {spec.name}",
            required_resource_keys={*translation.resource_keys(ASKING)},
        )(due)
    except dg.DagsterInvalidDefinitionError as error:
        problem = f"{spec.name}: schedule {spec.schedule!r} is no line of cron"
        raise InvalidSpecError(problem) from error


class _Watch:
    """Looks at each stream as often as it declares, for as long as its process lives."""

    def __init__(
        self, streams: Sequence[DeclaredStream], settings: Settings, translation: Translation
    ) -> None:
        from oncelake.ingestion.operations.discover import NewTopics
        from oncelake.ingestion.operations.status.lag import LagReader

        self._declared = streams
        self._loaded = [each for each in streams if each.spec is not None and each.spec.is_sensed]
        self._topics = NewTopics(settings)
        self._translation = translation
        self._settings = settings
        self._folder = StreamFolder(settings.streams)
        self._lags = LagReader(settings)
        self._looked: dict[str, float] = {}
        # Where a table stood when Dagster showed its last batch, and until when that is young.
        self._shown: dict[str, tuple[Position | None, float]] = {}

    def tick(self, instance: dg.DagsterInstance, cursor: str | None) -> Tick:
        """Request a run of each stream that is due and can be started; observe their topics."""
        waiting = self._topics.look(self._folder.read())
        current = {each.name: each for each in self._folder.read()}
        due = [current[each.name] for each in self._loaded if self._is_due(current.get(each.name))]
        lags = self._lags.read([each.spec for each in due if each.spec is not None])
        requests, passed = self._decide(instance, due, lags)
        # In the process of a run there would be no such asset.
        gone = {each.name: _is_gone(each) for each in self._loaded if each.name not in current}
        loaded = {each.name for each in self._declared}
        new = {n: _IS_NEW for n, each in current.items() if each.spec and n not in loaded}
        reason = _summary({**gone, **new, **passed}, len(due), waiting)
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else reason,
            **_observations(lags, cursor, self._translation),
        )

    def _is_due(self, declared: DeclaredStream | None) -> bool:
        if declared is None or (declared.spec and not declared.spec.is_sensed):
            return False
        pause = declared.spec.sensor_seconds if declared.spec else _SENSOR_SECONDS
        # A tick comes a moment early, or late.
        return time.time() - self._looked.get(declared.name, 0) >= 0.9 * pause

    def _decide(
        self, instance: dg.DagsterInstance, due: Sequence[DeclaredStream], lags: Lags
    ) -> tuple[list[dg.RunRequest], dict[str, str]]:
        """Return the runs to start, and why others that are wished for are not."""
        by_name, now = {each.name: each for each in due}, time.time()
        passed = self._under_way(instance, [*by_name])
        self._looked |= dict.fromkeys(by_name, now)
        wishes = {each.tags[STREAM_TAG]: each for each in self._wishes(instance, due, lags)}
        failed = last_failures(instance, wishes, self._translation)
        requests, until = dict[str, dg.RunRequest](), time.monotonic() + _DECIDING_SECONDS
        for name, wish in wishes.items():
            if time.monotonic() > until:
                del self._looked[name]
            elif name not in passed:
                reason = self._why_not_now(instance, by_name[name], failed.get(name))
                requests |= {} if reason else {name: wish}
                passed |= {name: reason} if reason else {}
        return [*self._join(requests, failed)], passed

    def _under_way(self, instance: dg.DagsterInstance, streams: Sequence[str]) -> dict[str, str]:
        """Say of which streams a run is queued or runs, however it was started."""
        runs, found = Runs(instance, self._settings, streams, self._translation), dict[str, str]()
        for record in instance.get_run_records(dg.RunsFilter(statuses=UNDER_WAY)):
            if of := runs.streams_of(record.dagster_run):
                doctor = f"oncelake doctor {of[0]}"
                says = report_under_way(instance, runs, record, of="this stream", doctor=doctor)
                # The newest comes first.
                found = dict.fromkeys(of, says) | found
        return found

    def _join(
        self, requests: Mapping[str, dg.RunRequest], failed: Collection[str]
    ) -> Iterator[dg.RunRequest]:
        """Yield one run of the streams that read Kafka together; whose last run failed is alone.

        Else one that fails would let the next run of the others wait, too.
        """
        for group in siblings_of(each for each in self._declared if each.name in requests):
            names = [each.name for each in group]
            calm = [name for name in names if len(names) > 1 and name not in failed]
            together = [requests[name] for name in calm if not requests[name].run_key]
            yield from (requests[name] for name in names if requests[name] not in together)
            yield from [joined(together)] if len(together) > 1 else together

    def _why_not_now(
        self, instance: dg.DagsterInstance, declared: DeclaredStream, failed: dg.DagsterRun | None
    ) -> str | None:
        """Return in words what keeps a run from being started now, but for one under way."""
        from oncelake.ingestion.lake.lock import holder_of
        from oncelake.ingestion.lake.paths import StreamPaths

        try:
            with translate_disk_errors(declared.name):
                holder = holder_of(StreamPaths.of(declared.name, self._settings))
        except IngestionError as error:
            return str(error)
        if holder:
            return f"run {holder.run_id} (pid {holder.pid} on {holder.host}) holds this stream"
        if failed is None:
            return None
        job = self._translation.name(INGEST_JOB)
        of_stream = dg.RunsFilter(job_name=job, tags={STREAM_TAG: declared.name})
        refused = standing_refusal(instance, declared, self._settings, failed)
        return refused or pause_after_failures(instance.get_run_records(of_stream, limit=6))

    def _wishes(
        self, instance: dg.DagsterInstance, due: Sequence[DeclaredStream], lags: Lags
    ) -> Iterator[dg.RunRequest]:
        """Yield a run of each stream that has something to read, or to tell."""
        quiet = []
        for each in due:
            lag = lags.get(each.name)
            if lag is None or any(lag.values()):
                yield run_of(each.name, self._translation, unread=sum((lag or {}).values()))
            elif each.spec is not None:
                quiet.append(each.spec)
        untold = set(self._untold(instance, quiet))
        yield from (run_of(name, self._translation) for name in untold)
        with suppress(DependencyError):
            # A later tick finds what this one could not ask for.
            left = {spec.name: lags[spec.name] for spec in quiet if spec.name not in untold}
            for name, stalls in self._lags.stalls(left).items():
                yield _report_of(instance, name, stalls, self._translation)

    def _untold(self, instance: dg.DagsterInstance, specs: Iterable[StreamSpec]) -> Iterator[str]:
        """Yield the streams whose last materialization is of an earlier batch, or soon stale.

        A redrive, a rewind or an erase commits without a new record. And Dagster's freshness policy
        sees only materializations, so a run that finds nothing makes one.
        """
        asked = {self._translation.key(it.name): it for it in specs if not self._is_shown(it)}
        entries = [it.asset_entry for it in instance.get_asset_records([*asked])] if asked else []
        found = {each.asset_key: each.last_materialization for each in entries}
        for key, spec in asked.items():
            at = self._lags.position(spec)
            self._shown[spec.name] = at, _shown_until(found.get(key), spec, at)
            if not self._is_shown(spec):
                yield spec.name

    def _is_shown(self, spec: StreamSpec) -> bool:
        at, until = self._shown.get(spec.name, (None, 0.0))
        return at == self._lags.position(spec) and time.time() <= until


def _is_gone(declared: DeclaredStream) -> str:
    gone = f"{declared.path.name} declares no {declared.name} any more"
    return f"{gone}. Next: reload the code location"


def _summary(passed: Mapping[str, str], due: int, waiting: Sequence[str] = ()) -> str:
    """Return why nothing is started: a line for each stream, and for files with new topics."""
    lines = [f"{name}: {reason}" for name, reason in sorted(passed.items())]
    more = [f"and {len(lines) - _MOST_NAMED} more"] if len(lines) > _MOST_NAMED else []
    more += waiting
    if (quiet := due - len(lines)) > 0:
        more.append(f"nothing new in {counted(quiet, 'stream')}")
    return "\n".join([*lines[:_MOST_NAMED], *more]) or "no stream is due to be looked at"


def _observations(lags: Lags, cursor: str | None, translation: Translation) -> dict[str, Any]:
    """Observe the topics whose lag has changed, and all of them every hour: Dagster keeps each."""
    seen: dict[str, tuple[int, float]] = json.loads(cursor or "{}")
    now, events = time.time(), []
    for stream, lag in lags.items():
        for topic, behind in (lag or {}).items():
            last, when = seen.get(f"{stream} {topic}", (None, now))
            if last != behind or now - when > _REPEAT_SECONDS:
                seen[f"{stream} {topic}"] = behind, now
                shown: dict[str, Any] = {"lag": behind, "stream": stream}
                events.append(dg.AssetObservation(translation.topic_key(topic), metadata=shown))
    return {"asset_events": events, "cursor": json.dumps(seen)}


def _shown_until(last: dg.EventLogEntry | None, spec: StreamSpec, at: "Position | None") -> float:
    """Return until when the last materialization tells of where a table stands; 0 if of another."""
    told = last.asset_materialization.metadata if last and last.asset_materialization else {}
    newest = {"seq": at.seq, "table_id": at.table_id} if at else {}
    if newest != {name: told[name].value for name in newest if name in told}:
        return 0.0
    return last.timestamp + (spec.freshness_minutes or math.inf) * 30 if last else math.inf


def _report_of(
    instance: dg.DagsterInstance, stream: str, stalls: "Iterable[Stall]", translation: Translation
) -> dg.RunRequest:
    """Request one run of stalls, which reads nothing, and whose check tells of them."""
    where = ", ".join(f"{stall.at} at {stall.offset}" for stall in stalls)
    failed = dg.RunsFilter(
        job_name=translation.name(INGEST_JOB),
        tags={STREAM_TAG: stream},
        statuses=[dg.DagsterRunStatus.FAILURE],
    )
    # A run that failed has told nothing, and has used up its key.
    after = "".join(f" after {run.run_id}" for run in instance.get_runs(failed, limit=1))
    return run_of(stream, translation, run_key=f"{stream} held back: {where}{after}")


def pause_after_failures(ended: Sequence[dg.RunRecord]) -> str | None:
    """Say that runs, newest first, fail one after another: the next is tried later each time."""
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
    found = record.dagster_run
    says = f"run {found.run_id[:8]} of {of} is {found.status.value.lower()}"
    if found.status is dg.DagsterRunStatus.QUEUED:
        return says
    run = runs.facts(record)
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
