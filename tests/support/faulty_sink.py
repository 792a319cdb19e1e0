"""A sink that loses or doubles what it should write, for the books to find out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final
from unittest.mock import patch

from ingestion.modes.engines.engine import Merge
from ingestion.modes.upsert import UpsertMode

WITHOUT_ID_2: Final = "SELECT * FROM winners WHERE id <> 2"
ID_1_TWICE: Final = "SELECT * FROM winners UNION ALL SELECT * FROM winners WHERE id = 1"


@contextmanager
def merging(source: str) -> Iterator[None]:
    """Let upserts merge the rows of another query than their winners while the block runs."""
    honest = UpsertMode._merge

    def merge(sink: UpsertMode) -> Merge:
        return replace(honest(sink), source=source)

    with patch.object(UpsertMode, "_merge", merge):
        yield
