"""Spark's checkpoint: a cache, believed only as far as the table agrees with it.

A generation is one life of the checkpoint. Whenever one is missing, unreadable, or says anything
else than the table, it is thrown away and a new one begins at the table's offsets: no state of
these files can make a run lose or double a record.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from ingestion.offsets import Offsets, Range


class UnreadableCheckpointError(ValueError):
    """A checkpoint's files are not what Spark writes; the caller discards them."""


class Checkpoint:
    """One generation of a stream's Spark checkpoint."""

    def __init__(self, path: Path) -> None:
        """Take the generation's folder, which Spark makes."""
        self.path = path

    def planned(self, batch_id: int) -> tuple[Range, ...]:
        """Return the ranges that the query planned for a batch, one a partition.

        The file of the batch that is running is there already: Spark plans before it reads.
        """
        ends = self._ends(batch_id)
        starts = self._ends(batch_id - 1) if batch_id else self._first_offsets()
        return starts.ranges_to(ends)

    def reached(self) -> Offsets:
        """Return the offsets at which the query would go on.

        Raises:
            UnreadableCheckpointError: a file is missing, cut short or garbage, or a batch was
                planned and not finished, so that Spark would plan it again.
        """
        planned, finished = self._batches("offsets"), self._batches("commits")
        if not (self.path / "metadata").is_file():
            raise UnreadableCheckpointError("it has no metadata")
        if not finished:
            raise UnreadableCheckpointError("no batch of it was finished")
        if planned[-1:] != finished[-1:]:
            raise UnreadableCheckpointError(
                f"batch {planned[-1:]} was planned, {finished[-1]} finished"
            )
        for batch_id in finished:
            self._text(self.path / "commits" / str(batch_id))
        return self._ends(planned[-1])

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


def open_generation(folder: Path, table_at: Offsets) -> tuple[Checkpoint, str | None]:
    """Return the generation to run with: the last one if it agrees with the table, else a new one.

    Args:
        folder: Where the stream's generations lie.
        table_at: The table's next offset of every partition that will be read.

    Returns:
        The checkpoint, and why the last one was discarded, or ``None``.
    """
    generations = sorted(
        int(each.name)
        for each in (folder.iterdir() if folder.is_dir() else ())
        if each.name.isdigit()
    )
    if not generations:
        return Checkpoint(folder / "1"), None
    last = Checkpoint(folder / str(generations[-1]))
    try:
        reached = last.reached()
    except UnreadableCheckpointError as error:
        found = str(error)
    else:
        if reached == table_at:
            return last, None
        found = f"it stands at {reached}, the table at {table_at}"
    for generation in generations:
        shutil.rmtree(folder / str(generation), ignore_errors=True)
    return Checkpoint(folder / str(generations[-1] + 1)), found
