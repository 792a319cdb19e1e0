"""A batch that waits at the gate, beside where its table stands."""

from __future__ import annotations

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import NOTHING_WRITTEN, BatchWithheldError, RefusedError
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.withheld import WithheldBatch, read_withheld
from oncelake.ingestion.recovery.position import Position, read_position


def waiting_batch(spec: StreamSpec, paths: StreamPaths) -> WithheldBatch | None:
    """Return the batch that waits at a stream's gate, if one does; asks the lake alone."""
    if not spec.publish.is_checked:
        return None
    return waiting_at(read_position(paths, RefusedError), paths)


def waiting_at(position: Position | None, paths: StreamPaths) -> WithheldBatch | None:
    """Return the batch that waits, if the table stands where it was judged."""
    batch = read_withheld(paths)
    if position is None or batch is None:
        return None
    place = (position.table_id, position.seq + 1, position.epoch)
    return batch if batch.place == place else None


def withheld_error(
    spec: StreamSpec, batch: WithheldBatch, *, is_other: bool = False
) -> BatchWithheldError:
    """Return the error of a batch that waits.

    Args:
        is_other: Whether a person has accepted another.
    """
    name = spec.name
    problem = f"a batch of {batch.read} is not published (since {batch.since}): {_what(batch)}."
    if is_other:
        problem = f"what is there now is not the batch that was accepted: {problem}"
    return BatchWithheldError(
        name,
        f"{problem} {NOTHING_WRITTEN}",
        remedy=f"oncelake batch {name} shows it; then correct {spec.file} or the producer, or let "
        "`where` or `on_miss: quarantine` take the records out, and run again; or oncelake accept "
        f"{name} --batch {batch.id} --reason … publishes it as it is",
    )


def unaccepted_error(spec: StreamSpec, batch: WithheldBatch, *, what: str) -> BatchWithheldError:
    """Return the error of a batch that nobody can accept.

    Args:
        what: Why it is written: it is ``rebuilt``, or ``redone`` by a redrive or a replay.
    """
    remedy = f"correct {spec.file}, and run the same command again"
    if what == "rebuilt":
        remedy += f"; or publish it first, by oncelake run {spec.name} and oncelake accept"
    return BatchWithheldError(
        spec.name, f"what is {what} is not published: {_what(batch)}.", remedy=remedy
    )


def _what(batch: WithheldBatch) -> str:
    return "; ".join(map(str, batch.misses))
