"""What may be wrong with a Dagster instance, told from facts; pure.

A run whose process was killed stays STARTED where nobody watches it, keeps its pool's slot, and
the next run of its stream waits for that slot for ever. The commands here are those that work in
the Dagster that this project pins: its own command line has none for either.
"""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ingestion.doctor.finding import Finding

_ABOUT: Final = "dagster"
_START_TIMEOUT_SECONDS: Final = 180.0
_QUEUE_PATIENCE_SECONDS: Final = 600.0
# The daemon frees the slots of ended runs itself, half a minute later.
_SLOT_PATIENCE_SECONDS: Final = 120.0
_HEARTBEAT_PATIENCE_SECONDS: Final = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """A run that has not ended, or that has a slot.

    Attributes:
        run_id: Its id.
        about: The stream it is of, or ``dagster``.
        status: Its status in the instance, such as ``STARTED``; ``GONE`` when it is not there.
        since: When it came to this, in seconds since 1970.
        pid: Its process; ``None`` when it has none yet.
        is_alive: Whether that process runs; ``None`` when nobody here can tell.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceFacts:
    """What an instance holds that can go wrong.

    Attributes:
        prefix: What goes before a command so that it means this instance.
        now: When this was looked up, in seconds since 1970.
        runs: Every run that has not ended.
        slots: Every slot that is claimed.
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


def ailments(facts: InstanceFacts) -> Iterator[Finding]:
    """Say everything that is wrong with an instance."""
    for run in facts.runs:
        yield from _of_run(run, facts)
    for slot in facts.slots:
        yield from _of_slot(slot, facts)
    yield from _of_daemon(facts)
    for stream, sensor in facts.sensors:
        if sensor not in facts.switched_on:
            yield Finding(
                about=stream,
                what="nothing starts its runs: its sensor is off and no schedule is declared",
                evidence=f"sensor {sensor}",
                command=f"{facts.prefix}dagster sensor start {sensor} -w workspace.yaml",
                exit_code=0,
            )


def is_dead(run: RunFacts, now: float) -> bool:
    """Tell whether a run will never end by itself: its process is gone, or never came."""
    if run.is_over or run.status == "QUEUED":
        return False
    if run.pid is None:
        return now - run.since > _START_TIMEOUT_SECONDS
    return run.is_alive is False


def _of_run(run: RunFacts, facts: InstanceFacts) -> Iterator[Finding]:
    if is_dead(run, facts.now):
        yield Finding(
            about=run.about,
            what=f"run {run.run_id[:8]} is {run.status}, and its process "
            + ("never began" if run.pid is None else "is gone"),
            evidence=_evidence(run, facts.now),
            command=_mutation(
                facts,
                f'terminateRun(runId: "{run.run_id}", '
                "terminatePolicy: MARK_AS_CANCELED_IMMEDIATELY) { __typename }",
            ),
        )
    elif run.status == "QUEUED" and facts.now - run.since > _QUEUE_PATIENCE_SECONDS:
        yield from _of_queued(run, facts)


def _of_queued(run: RunFacts, facts: InstanceFacts) -> Iterator[Finding]:
    """Say why a run does not get its turn; a dead run before it has a finding of its own."""
    busy = [each for each in facts.runs if each.status != "QUEUED"]
    if not facts.has_daemon or any(is_dead(each, facts.now) for each in busy):
        return
    same = next((each for each in busy if each.about == run.about != _ABOUT), None)
    what = f"run {run.run_id[:8]} has been waiting in the queue"
    evidence = f"{_evidence(run, facts.now)}; runs before it: {len(busy)}"
    if same is not None:
        what += f" for run {same.run_id[:8]} of the same stream"
        yield Finding(
            about=run.about, what=what, evidence=evidence, command="wait for it", exit_code=0
        )
    else:
        remedy = "raise concurrency.runs.max_concurrent_runs in dagster.yaml"
        yield Finding(about=run.about, what=what, evidence=evidence, command=remedy)


def _of_slot(slot: SlotFacts, facts: InstanceFacts) -> Iterator[Finding]:
    run, age = slot.run, facts.now - slot.run.since
    is_leaked = run.is_over and (age > _SLOT_PATIENCE_SECONDS or not facts.has_daemon)
    if not (is_leaked or is_dead(run, facts.now)):
        return
    waits = f"; steps that wait for it: {slot.waiting}" if slot.waiting else ""
    yield Finding(
        about=slot.pool,
        what=f"the slot of pool {slot.pool} is claimed by run {run.run_id[:8]}, which "
        + (f"is {run.status}" if run.is_over else "is dead"),
        evidence=_evidence(run, facts.now) + waits,
        command=_mutation(facts, f'freeConcurrencySlotsForRun(runId: "{run.run_id}")'),
    )


def _of_daemon(facts: InstanceFacts) -> Iterator[Finding]:
    queued = [run for run in facts.runs if run.status == "QUEUED"]
    if facts.has_daemon or not (facts.switched_on or queued):
        return
    waiting = [*facts.switched_on, *(f"queued run {run.run_id[:8]}" for run in queued)]
    last = "never" if facts.heartbeat is None else _since(facts.heartbeat, facts.now)
    yield Finding(
        about=_ABOUT,
        what="no daemon is running, and something waits for one",
        evidence=f"last sign of life: {last}; waiting: {', '.join(waiting)}",
        command=f"{facts.prefix}dagster-daemon run -w workspace.yaml",
    )


def _evidence(run: RunFacts, now: float) -> str:
    process = "no process" if run.pid is None else f"pid {run.pid}"
    return f"run {run.run_id}, {process}, since {_since(run.since, now)}"


def _since(moment: float, now: float) -> str:
    at = dt.datetime.fromtimestamp(moment, dt.UTC).isoformat(timespec="seconds")
    return f"{at} ({dt.timedelta(seconds=int(now - moment))} ago)"


def _mutation(facts: InstanceFacts, call: str) -> str:
    text = shlex.quote(f"mutation {{ {call} }}")
    return f"{facts.prefix}dagster-graphql --empty-workspace -t {text}"
