"""What executes the queries of a batch, over its one copy.

``spark`` runs it where Spark runs, a cluster included. ``delta_rs`` runs it in this process: DuckDB
over Arrow; what it decides, the sink's table commits. The text is the same for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from ingestion.declaration.modes import COORDINATES
from ingestion.kafka.offsets import Range
from ingestion.lake.attempts import Attempt
from ingestion.modes.engines.rows import Rows
from ingestion.modes.sql import FAILED, equal
from ingestion.storage.location import Location


@dataclass(frozen=True, kw_only=True, slots=True)
class Clause:
    """What a merge does with the rows for which ``when`` holds.

    Attributes:
        when: Condition in SQL; ``s`` is the source's row and ``t`` the table's.
        assign: New value of each column, in SQL; ``None`` deletes the row.
    """

    when: str
    assign: Mapping[str, str] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Merge:
    """One merge of a source into the table.

    Attributes:
        source: SQL of the source's rows; no key is there twice.
        on: Which rows of ``s`` and ``t`` are partners, in SQL.
        insert: What becomes of a source's row without a partner.
        matched: What becomes of a row that has one: the first clause that holds.
        size_bytes: About how large the source is.
        key_ranges: Lowest and highest value of key columns by which files can be skipped.
    """

    source: str
    on: str
    insert: Clause
    matched: tuple[Clause, ...] = ()
    size_bytes: int = 0
    key_ranges: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


class Engine(Protocol):
    """Holds one batch, and executes what the write modes and the books ask of it."""

    def materialize(self, validated: Rows) -> None:
        """Compute a batch once; it is the table ``batch`` from here on."""

    def parts(self, planned: Sequence[Range]) -> Iterator[Sequence[Range]]:
        """Yield the ranges of a batch; of one that is too large those of a part after the other.

        Meanwhile ``batch`` holds the rows of that part.

        Raises:
            BatchTooLargeError: it cannot be cut any further.
        """

    def define(self, name: str, sql: str, *, keep: bool = False) -> None:
        """Give the rows of a query a name.

        Args:
            name: The name; one that is taken is given anew.
            sql: The query.
            keep: Whether they will be asked for more than once.
        """

    def open_table(self, name: str, path: Location, version: int | None = None) -> None:
        """Give a Delta table a name: its newest version, unless one is given."""

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query: few, since they come to the driver."""

    def columns(self, name: str) -> list[str]:
        """Return a named table's columns."""

    def replace_attempt(
        self, sql: str, path: Location, attempt: Attempt, *, stats_on: tuple[str, ...]
    ) -> None:
        """Replace an attempt's rows in a side table, which is made if need be."""

    def mark_redriven(
        self, sql: str, quarantine: Location, attempt: Attempt, *, within: str
    ) -> None:
        """Mark records in quarantine as sent in, by the attempt of a redrive.

        Args:
            sql: Coordinates of the records.
            quarantine: The table's folder.
            attempt: The redrive.
            within: Which rows of the quarantine, ``t``, may be meant.
        """

    def close(self) -> None:
        """Let go of the batch."""


class IncomparableError(Exception):
    """A statement met two records that cannot be ordered."""


@contextmanager
def translate_failure(*errors: type[Exception]) -> Iterator[None]:
    """Translate the failure that a statement itself has asked for."""
    try:
        yield
    except errors as error:
        if FAILED in str(error):
            raise IncomparableError from error
        raise


def marks(within: str) -> str:
    """Tell which row ``t`` of the quarantine a redrive marks for a record ``s``."""
    return f'{equal(COORDINATES, "t", "s")} AND t."redriven_seq" IS NULL AND {within}'
