"""What the engine remembers of deletes: not proof of them, but what they must have left behind.

A row may be missing because of a delete that Kafka no longer holds. Then the engine must remember
that delete; where it does not, nothing explains why the row is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ingestion.declaration.spec import StreamSpec
from ingestion.verify.coverage import Coverage
from ingestion.verify.read.record import RowChange, text_of
from ingestion.verify.read.snapshot import rows_of


def remembered_deletes(path: Path, spec: StreamSpec) -> Iterator[list[RowChange]]:
    """Read the companion table of deletes in chunks; nothing when there is none."""
    keys, line = len(spec.keys), len(spec.line)
    element = () if spec.explode else (0,)
    columns = [*spec.keys, *spec.line, "_epoch", "_seq"]
    for rows in rows_of(path, None, list(dict.fromkeys(columns))):
        by_name = (dict(zip(dict.fromkeys(columns), row, strict=True)) for row in rows)
        wide = ([row[name] for name in columns] for row in by_name)
        yield [
            RowChange(
                key=text_of(row[:keys]),
                place=(row[-2], *row[keys : keys + line], *element),
                row=None,
                seq=row[-1],
            )
            for row in wide
        ]


def deletes_that_explain(
    tombstones: Iterable[Sequence[RowChange]], horizon: Coverage, living: dict[str, RowChange]
) -> set[str]:
    """Return the keys that a delete beyond the horizon, as the engine remembers it, has beaten.

    Args:
        tombstones: What the engine remembers of deletes, in chunks.
        horizon: What can be seen; a delete that can be seen explains nothing.
        living: What the topic says, by key.
    """
    explained = set()
    for chunk in tombstones:
        for delete in chunk:
            change = living.get(delete.key)
            is_beaten = change is not None and delete.place > change.place
            if is_beaten and not horizon.sees_record(delete.place, delete.seq):
                explained.add(delete.key)
    return explained
