"""The parts that every format of a topic's rows has in common.

A record's value is a row; its key is the row's key columns, in their order, and there is none where
no keys are declared. A delete has a key and no value. A column that a record lacks, since it is
older than the column, is null.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import duckdb
import pyarrow as pa

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.sql import OFFLINE, literal
from oncelake.ingestion.sinks.kafka.notes import TopicSchema
from oncelake.ingestion.sinks.kafka.writer import Record, TopicPlace

RECORDS_AT_ONCE: Final = 5_000


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFormat(ABC):
    """How rows are written as the records of a topic, and read again as they were, to the bit.

    Attributes:
        place: Where the topic is.
        schema: What its rows are made of.
    """

    place: TopicPlace
    schema: TopicSchema

    def registered(self) -> TopicSchema:
        """Return the schema, once others can look up what they need to read rows of it."""
        return self.schema

    @abstractmethod
    def records(self, rows: pa.Table, *, are_gone: bool) -> Iterator[list[Record]]:
        """Write rows as records, in their order, some at once.

        Args:
            rows: Whole rows, or, of rows that are gone, at least their keys.
            are_gone: Whether the records have no value.
        """

    @abstractmethod
    def decode(self, values: pa.Array, columns: Sequence[DeclaredColumn]) -> pa.Table:
        """Read some columns of the values of records.

        Raises:
            ValueError: one is no such row; what it is made of is not quoted.
        """

    def refuse_other_keys(self, rows: pa.Table, keys: pa.Array) -> None:
        """Make sure that rows that were read stand under their own keys, to the byte.

        Raises:
            ValueError: one does not.
        """
        own = self.records(rows.select(self.schema.keys), are_gone=True)
        for record, key in zip(chain.from_iterable(own), keys.to_pylist(), strict=True):
            due = record["key"]
            if key != (due.encode() if isinstance(due, str) else due):
                raise ValueError("a row stands under the key of another")


class NewestPerKey:
    """The newest record of each key; what does not fit into memory goes to a folder."""

    def __init__(self, scratch: str) -> None:
        """Take the folder; it must be there."""
        self._engine = connected()
        self._engine.execute(f"SET temp_directory = {literal(scratch)}")
        self._engine.execute("CREATE TABLE records (key BLOB, value BLOB, place BIGINT)")

    def add(self, more: pa.Table) -> None:
        """Add records by key, value and offset."""
        self._engine.register("more", more)
        self._engine.execute("INSERT INTO records SELECT * FROM more")
        self._engine.unregister("more")

    def records(self) -> Iterator[pa.RecordBatch]:
        """Yield those that are not deleted, by key and value."""
        query = """
            SELECT key, value FROM records
            WHERE value IS NOT NULL AND place IN (SELECT max(place) FROM records GROUP BY key)
        """
        yield from self._engine.sql(query).to_arrow_reader(RECORDS_AT_ONCE)

    def close(self) -> None:
        """Forget them."""
        self._engine.close()


def connected() -> duckdb.DuckDBPyConnection:
    """Open an engine of one's own, in memory."""
    engine = duckdb.connect(config={**OFFLINE, "memory_limit": "1GB"})
    engine.execute("SET TimeZone = 'UTC'")
    return engine
