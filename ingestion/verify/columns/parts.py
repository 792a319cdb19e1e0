"""Values read together, and less and less of them at once where a reader refuses any of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from oncelake.ingestion.verify.columns import NotInColumnsError

_FIRST_LOOK: Final = 1_000
# Where more of the records than this are refused, a stream is not one to be read in columns.
_MOST_REFUSED: Final = 0.2


class PartsReader(ABC):
    """Reads values of one kind.

    Attributes:
        record_types: The names of record types that were read, where the declaration names none.
    """

    def __init__(self, schema: pa.Schema) -> None:
        """Take the columns that it makes."""
        self._schema = schema
        self.record_types: set[str] = set()
        self._has_been_seen = False
        self._read = self._refused = 0

    @abstractmethod
    def _table(self, values: Sequence[bytes]) -> pa.Table | None:
        """Read values; none if any of them is doubtful."""

    def read_parts(self, values: Sequence[bytes], at: pa.Array) -> tuple[pa.Table, pa.Array]:
        """Return the columns of values, and where those are, given where all of them are."""
        parts = list(self._parts(values, 0, len(values)))
        tables = [table for _, _, table in parts]
        if not tables:
            return self._schema.empty_table(), at.slice(0, 0)
        places = [at.slice(start, end - start) for start, end, _ in parts]
        return pa.concat_tables(tables), pa.concat_arrays(places)

    def _parts(
        self, values: Sequence[bytes], start: int, end: int
    ) -> Iterator[tuple[int, int, pa.Table]]:
        """Yield tables of the records from ``start`` to ``end``, less and less at once."""
        if start == end:
            return
        if not self._has_been_seen and end - start > _FIRST_LOOK:
            yield from self._parts(values, start, start + _FIRST_LOOK)
            start += _FIRST_LOOK
        table = self._table(values[start:end])
        self._has_been_seen = True
        if table is None and end - start > 1:
            middle = (start + end) // 2
            yield from self._parts(values, start, middle)
            yield from self._parts(values, middle, end)
            return
        self._read += end - start
        if table is not None:
            yield start, end, table
            return
        self._refused += 1
        if self._refused > _FIRST_LOOK and self._refused > _MOST_REFUSED * self._read:
            raise NotInColumnsError("its values are not alike enough")
