"""A sink that loses or doubles what it should write, for the books to find out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unittest.mock import patch

from oncelake.ingestion.modes.upsert import UpsertMode
from oncelake.ingestion.tables.commit_metadata import CommitMetadata

WITHOUT_ID_2: Final = "SELECT * FROM decided WHERE id <> 2"
ID_1_TWICE: Final = "SELECT * FROM decided UNION ALL SELECT * FROM decided WHERE id = 1"


@contextmanager
def merging(rows: str) -> Iterator[None]:
    """Let upserts commit the rows of another query than was decided while the block runs."""
    honest = UpsertMode.commit

    def commit(mode: UpsertMode, metadata: CommitMetadata) -> None:
        mode._engine.define("decided", rows, keep=True)
        honest(mode, metadata)

    with patch.object(UpsertMode, "commit", commit):
        yield
