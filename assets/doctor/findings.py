"""Diagnoses of a Dagster instance, decided from facts; pure.

A run whose process was killed stays STARTED where nobody watches it, keeps its pool's slot, and
the next run of its stream waits for that slot for ever. The commands here are those that work in
the Dagster that this project pins: its own command line has none for either.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from typing import Final

from packaging.requirements import Requirement

from oncelake.assets.doctor.idle import diagnose_starters, since
from oncelake.assets.doctor.instance import InstanceFacts
from oncelake.assets.doctor.runs import RunFacts, SlotFacts
from oncelake.ingestion.operations.doctor import findings
from oncelake.ingestion.operations.doctor.findings import Finding

_ABOUT: Final = "dagster"
_QUEUE_PATIENCE_SECONDS: Final = 600.0
# The daemon frees the slots of ended runs itself, half a minute later.
_SLOT_PATIENCE_SECONDS: Final = 120.0


def diagnose_dagster(facts: InstanceFacts) -> Iterator[Finding]:
    """Say everything that is wrong with an instance."""
    for run in facts.runs:
        yield from _of_run(run, facts)
    for slot in facts.slots:
        yield from _of_slot(slot, facts)
    yield from diagnose_starters(
        facts, [run.run_id for run in facts.runs if run.status == "QUEUED"]
    )
    for stream, locations in facts.locations.items():
        if len(locations) > len({*locations}):
            evidence = f"its newest runs are of {', then '.join(locations)}"
            yield findings.TWO_LOCATIONS.of(stream, evidence)


def diagnose_version(found: str, requirements: Iterable[str]) -> Iterator[Finding]:
    """Note a version of Dagster that the package's own requirements do not have."""
    for stated in map(Requirement, requirements):
        if stated.name == _ABOUT and not stated.specifier.contains(found, prereleases=True):
            evidence = f"{found}; the package allows {stated.specifier}"
            yield findings.UNTRIED_DAGSTER.of(_ABOUT, evidence)


def _of_run(run: RunFacts, facts: InstanceFacts) -> Iterator[Finding]:
    if run.is_dead(facts.now):
        kind = findings.RUN_NOT_BEGUN if run.pid is None else findings.DEAD_RUN
        call = (
            f'terminateRun(runId: "{run.run_id}", '
            "terminatePolicy: MARK_AS_CANCELED_IMMEDIATELY) { __typename }"
        )
        yield kind.of(
            run.about,
            _evidence(run, facts.now),
            run=run.run_id[:8],
            status=run.status,
            terminate=_mutation(facts, call),
        )
    elif run.status == "QUEUED" and facts.now - run.since > _QUEUE_PATIENCE_SECONDS:
        yield from _of_queued(run, facts)


def _of_queued(run: RunFacts, facts: InstanceFacts) -> Iterator[Finding]:
    """Say why a run does not get its turn; a dead run before it has a finding of its own."""
    busy = [other for other in facts.runs if other.status != "QUEUED"]
    if not facts.has_daemon or any(other.is_dead(facts.now) for other in busy):
        return
    evidence = f"{_evidence(run, facts.now)}; runs before it: {len(busy)}"
    same = next((other for other in busy if other.about == run.about != _ABOUT), None)
    kind = findings.QUEUED_BEHIND_OTHERS if same is None else findings.QUEUED_BEHIND_ITS_STREAM
    yield kind.of(run.about, evidence, run=run.run_id[:8], other=same and same.run_id[:8])


def _of_slot(slot: SlotFacts, facts: InstanceFacts) -> Iterator[Finding]:
    run, age = slot.run, facts.now - slot.run.since
    is_leaked = run.is_over and (age > _SLOT_PATIENCE_SECONDS or not facts.has_daemon)
    if not (is_leaked or run.is_dead(facts.now)):
        return
    waiting = f"; steps that wait for it: {slot.waiting}" if slot.waiting else ""
    yield findings.LEAKED_SLOT.of(
        slot.pool,
        _evidence(run, facts.now) + waiting,
        run=run.run_id[:8],
        status=run.status if run.is_over else "dead",
        free=_mutation(facts, f'freeConcurrencySlotsForRun(runId: "{run.run_id}")'),
    )


def _evidence(run: RunFacts, now: float) -> str:
    process = "no process" if run.pid is None else f"pid {run.pid}"
    return f"run {run.run_id}, {process}, since {since(run.since, now)}"


def _mutation(facts: InstanceFacts, call: str) -> str:
    text = shlex.quote(f"mutation {{ {call} }}")
    return f"{facts.prefix}dagster-graphql --empty-workspace -t {text}"
