"""The engine that runs the queries of a batch, over its one copy.

``spark`` runs it where Spark runs, a cluster included. ``local`` runs it in this process: DuckDB
over Arrow; what it decides, the sink's table commits. The text is the same for both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from oncelake.ingestion.kafka.offsets import Range
from oncelake.ingestion.modes.engines.rows import Rows
from oncelake.ingestion.modes.sql import FAILED
from oncelake.ingestion.storage.location import Location


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The decision about a batch: the engine's table ``decided``, a whole row for each winner.

    Its columns are the table's, and ``_what``, the disposition of the row's record. A row of which
    the commit does nothing, such as a stale one, has the disposition alone.

    Attributes:
        inserted: Dispositions of the rows that are new.
        updated: Of those that take the place of the row with the same keys.
        deleted: Of those whose keys say which row goes.
        counts: Rows by disposition; one that is absent has none.
        keys: Columns that identify a row; none where rows are only added.
        size_bytes: About how large the rows are.
        key_ranges: Lowest and highest value of key columns by which files can be skipped.
    """

    inserted: tuple[str, ...] = ("inserted",)
    updated: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    counts: Mapping[str, int]
    keys: tuple[str, ...] = ()
    size_bytes: int = 0
    key_ranges: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    def count(self, dispositions: Iterable[str]) -> int:
        """Count the rows of some dispositions."""
        return sum(self.counts.get(name, 0) for name in dispositions)

    @property
    def changes(self) -> tuple[str, ...]:
        """The dispositions of the rows that change the table."""
        return (*self.inserted, *self.updated, *self.deleted)


# How DuckDB and Spark say so.
_OVERFLOW: Final = re.compile(r"Overflow in |is out of range|_OVERFLOW|OUT_OF_RANGE")


class Engine(Protocol):
    """Holds one batch, and executes what the write modes and the books ask of it."""

    def materialize(self, validated: Rows) -> bool:
        """Compute a batch once; it is the table ``batch`` from here on.

        Returns:
            Whether workers have evaluated the declared statements, and Spark none of them.
        """

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

    def write_parquet(self, sql: str, file: Location) -> None:
        """Write the rows of a query into a file of the lake, with the types of a Delta table."""

    def close(self) -> None:
        """Let go of the batch."""


class IncomparableError(Exception):
    """A statement met two records that cannot be ordered."""


class OverflowedError(Exception):
    """A statement has made a number that its type cannot hold."""


@contextmanager
def translate_failure(*errors: type[Exception]) -> Iterator[None]:
    """Translate the failure that a statement itself has asked for."""
    try:
        yield
    except errors as error:
        if FAILED in str(error):
            raise IncomparableError from error
        if _OVERFLOW.search(str(error)):
            raise OverflowedError(str(error)) from error
        raise
