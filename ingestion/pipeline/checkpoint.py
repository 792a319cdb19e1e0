"""Spark's checkpoint: a cache, and not even trusted as one.

Spark wants a checkpoint, and any of its files can be missing, cut short, older than the table or
another stream's. So each run begins a new generation at the table's offsets, and none is ever
read to decide where to go on: no state of these files can make a run lose or double a record, nor
keep it from starting. What the last generation says is compared with the table only to tell a
person that somebody, or a crash, has been there.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from oncelake.ingestion.kafka.offsets import Offsets, Range
from oncelake.ingestion.storage.checksums import matches_checksum
from oncelake.ingestion.storage.location import Location


class UnreadableCheckpointError(ValueError):
    """A checkpoint's files are not what Spark writes."""


class Checkpoint:
    """One generation of a stream's Spark checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def planned(self, batch_id: int) -> tuple[Range, ...]:
        """Return the ranges that the query planned for a batch, one a partition.

        The file of the batch that is running is there already: Spark plans before it reads.
        """
        ends = self._ends(batch_id)
        starts = self._ends(batch_id - 1) if batch_id else self._first_offsets()
        return starts.ranges_to(ends)

    def reached(self) -> Offsets:
        """Return the offsets at which its query ended.

        Raises:
            UnreadableCheckpointError: a file is missing, cut short or garbage, or a batch was
                planned and not finished.
        """
        self._refuse_unsealed()
        planned, finished = self._batches("offsets"), self._batches("commits")
        if not finished:
            raise UnreadableCheckpointError("no batch of it was finished")
        if planned[-1:] != finished[-1:]:
            last = f"batch {planned[-1]}" if planned else "no batch"
            raise UnreadableCheckpointError(f"{last} was planned, {finished[-1]} finished")
        if planned[0] == 0:
            self._first_offsets()
        return self._ends(planned[-1])

    def _refuse_unsealed(self) -> None:
        """Make sure that every file is there, and as Spark wrote it."""
        if not (self.path / "metadata").is_file():
            raise UnreadableCheckpointError("metadata is missing")
        for file in sorted(each for each in self.path.rglob("[!.]*") if each.is_file()):
            name = file.relative_to(self.path)
            try:
                intact = matches_checksum(Location.of(file))
            except OSError as error:
                raise UnreadableCheckpointError(f"{name} cannot be read: {error}") from error
            if not file.stat().st_size:
                raise UnreadableCheckpointError(f"{name} is empty")
            if not intact:
                raise UnreadableCheckpointError(f"{name} is not as it was written")

    def _batches(self, folder: str) -> list[int]:
        at = self.path / folder
        names = [each.name for each in at.iterdir()] if at.is_dir() else []
        return sorted(int(name) for name in names if name.isdigit())

    def _ends(self, batch_id: int) -> Offsets:
        lines = self._text(self.path / "offsets" / str(batch_id)).splitlines()
        return self._offsets(lines[-1])

    def _first_offsets(self) -> Offsets:
        return self._offsets(self._text(self.path / "sources" / "0" / "0").splitlines()[-1])

    def _text(self, path: Path) -> str:
        try:
            text = path.read_bytes().lstrip(b"\0").decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UnreadableCheckpointError(f"{path.name} cannot be read: {error}") from error
        if not text.startswith("v1\n") or len(text.splitlines()) < 2:
            raise UnreadableCheckpointError(
                f"{path.parent.name}/{path.name} is cut short or garbage"
            )
        return text

    @staticmethod
    def _offsets(line: str) -> Offsets:
        try:
            return Offsets.from_json(line)
        except ValueError as error:
            raise UnreadableCheckpointError(str(error)) from error


def open_generation(
    folder: Path, table_at: Offsets, *, had_one: bool = False
) -> tuple[Checkpoint, str | None]:
    """Begin a generation, and drop the earlier ones.

    Args:
        folder: Where the stream's generations lie.
        table_at: The table's next offset of every partition that will be read.
        had_one: Whether an earlier run has left one, so that none would be worth a word.

    Returns:
        The new checkpoint, and what the last one said otherwise than the table, or ``None``.
    """
    generations = sorted(
        int(at.name) for at in (folder.iterdir() if folder.is_dir() else ()) if at.name.isdigit()
    )
    last = generations[-1] if generations else 0
    none = "there was none" if had_one else None
    found = _disagreement(Checkpoint(folder / str(last)), table_at) if generations else none
    for generation in generations:
        shutil.rmtree(folder / str(generation), ignore_errors=True)
    fresh = Checkpoint(folder / str(last + 1))
    # Hadoop, whose task it could be, keeps to itself why it could not.
    fresh.path.mkdir(parents=True)
    return fresh, found


def _disagreement(last: Checkpoint, table_at: Offsets) -> str | None:
    try:
        reached = last.reached()
    except UnreadableCheckpointError as error:
        return str(error)
    return None if reached == table_at else f"it stood at {reached}, the table at {table_at}"
