"""What must be true when the harm is over: nothing lost, nothing doubled, all accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Protocol

from oncelake.ingestion.errors import counted
from tests.support.proof import find_problems
from tests.support.world import World
from tests.trials.oracle import Row, expected_rows

# Batches that a run has gone on from, by seq, each with the run that made it.
Acknowledged = dict[int, str]
_MOST_ROWS = 5


class CommittedBatch(Protocol):
    """What tells of a batch: a note of the log, or a row of the ledger."""

    @property
    def seq(self) -> int:
        """Its number."""

    @property
    def run_id(self) -> str:
        """Which run committed it."""


def judge(world: World) -> tuple[str, ...]:
    """Return what is wrong with a stream that was read to its end, by proof and by oracle."""
    return (*find_problems(world), *differing_rows(world))


def differing_rows(world: World) -> Iterator[str]:
    """Yield how the table differs from what its topic says."""
    names = [column.name for column in world.spec.columns]
    rows = (tuple(row[name] for name in names) for row in world.rows())
    return differences(rows, expected_rows(world))


def differences(table: Iterable[Row], due: Iterable[Row]) -> Iterator[str]:
    """Yield which rows a table has too many, and which too few."""
    present, wanted = Counter(table), Counter(due)
    for what, rows in (("surplus", present - wanted), ("missing", wanted - present)):
        if rows:
            yield f"{what}: {counted(rows.total(), 'row')}, as {list(islice(rows, _MOST_ROWS))}"


def committed_in(batches: Iterable[CommittedBatch]) -> Acknowledged:
    """Return the batches that a log or a ledger tells of."""
    return {batch.seq: batch.run_id for batch in batches}


def lost_batches(acknowledged: Acknowledged, there: Mapping[int, str], place: str) -> Iterator[str]:
    """Yield each batch that was acknowledged, and is not there by that run."""
    for seq, run_id in acknowledged.items():
        if there.get(seq, "none") != run_id:
            yield f"batch {seq} was acknowledged as {run_id}; the {place} has {there.get(seq)}"
