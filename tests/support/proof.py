"""What must hold of a stream that was read to its end, and evidence where it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from deltalake import DeltaTable

from oncelake.ingestion.delta.files import is_delta
from oncelake.ingestion.errors import counted
from oncelake.ingestion.operations.proof.apply_transformation import spark_transformation
from oncelake.ingestion.tables.commit_metadata import CommitMetadata
from oncelake.ingestion.verify.verdict import Verdict
from oncelake.ingestion.verify.verify import verify
from tests.support.world import World


def prove(world: World) -> Verdict:
    """Prove a stream, with Spark where only Spark can evaluate what is declared."""
    return verify(world.spec, world.settings, apply_transformation=spark_transformation)


def find_problems(world: World) -> tuple[str, ...]:
    """Return what is wrong, in words; nothing when each record was applied exactly once."""
    return tuple(_problems(world))


def rows_of_no_commit(world: World) -> tuple[str, ...]:
    """Return what any reader of the tables meets of a batch that was not committed.

    It reads by delta-rs alone, at any time, and believes nothing but the notes in the table's log.
    """
    log = world.paths.table.log()
    commits = log.newest_first() if log.exists else ()
    notes = {each.metadata.seq: each.metadata for each in commits if each.metadata}
    return tuple(_of_no_commit(world, notes))


def _of_no_commit(world: World, notes: Mapping[int, CommitMetadata]) -> Iterator[str]:
    for name, side in world.paths.sides.items():
        if not is_delta(side):
            continue
        rows = DeltaTable(str(side)).to_pyarrow_table()
        for seq, count in Counter(rows["_seq"].to_pylist()).items():
            file = notes[seq].side.get(name) if seq in notes else None
            if file is None or file.rows < count:
                yield f"{side.name} has {counted(count, 'row')} of batch {seq}, its commit {file}"
        marks = rows["redriven_seq"].to_pylist() if name == "quarantine" else []
        for seq, count in Counter(filter(None, marks)).items():
            file = notes[seq].side.get("redriven") if seq in notes else None
            if file is None or file.rows < count:
                yield f"{counted(count, 'row')} marked by batch {seq}, its commit says {file}"
    for row in world.ledger:
        if row.seq not in notes:
            yield f"the ledger has batch {row.seq}, which no commit names"


def _problems(world: World) -> Iterator[str]:
    idle = world.run()
    if idle.batches:
        yield f"an idle run wrote batches {[each.seq for each in idle.batches]}"
    if idle.lag:
        yield f"{idle.lag} offsets are unread"
    verdict = prove(world)
    if not verdict.holds or verdict.limits:
        yield f"{verdict.headline}; {'; '.join(verdict.limits)}"
    yield from map(str, verdict.differences)
