"""A table that another tool fills: its columns, and its rows of one moment; nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from oncelake.ingestion.declaration.sinks import IcebergSink, PostgresSink
from oncelake.ingestion.declaration.sql import identifier
from oncelake.ingestion.delta.files import storage_options
from oncelake.ingestion.errors import InvalidSpecError, RefusedError, first_line
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.arrow_types import arrow_schema

# Stands where messages of sinks name a stream.
NAME: Final = "audit"
# A number without digits comes from PostgreSQL as text; as a DOUBLE it would be rounded.
_NUMERIC: Final = "DECIMAL(38, 18)"
# Types of PostgreSQL whose text is the value as a record has it.
_TEXTS: Final = ("UUID", "CITEXT")


@dataclass(frozen=True, kw_only=True)
class ForeignTable:
    """A table of another tool.

    Attributes:
        where: What it is called, for people.
        schema: The columns that can be compared.
        read: Returns the rows of some of them.
        casts: Types of DuckDB, by column, where rows do not come as what they are.
        incomparable: Columns whose types records cannot be compared with.
    """

    where: str
    schema: pa.Schema
    read: Callable[[Sequence[str]], pa.RecordBatchReader]
    casts: Mapping[str, str] = field(default_factory=dict)
    incomparable: Sequence[str] = ()


def open_table(text: str, settings: Settings) -> ForeignTable:
    """Open ``iceberg:namespace.table``, ``postgres:schema.table``, or a Delta table's path or URL.

    Raises:
        InvalidSpecError: there is no such table, or no setting leads to it.
        DependencyError: what keeps it does not answer.
        RefusedError: it cannot be read.
    """
    kind, _, name = text.partition(":")
    if kind == "iceberg":
        return _open_iceberg(text, name, Location.of(settings.lake))
    if kind == "postgres":
        return _open_postgres(text, name, settings)
    return _open_delta(Location.of(text))


def _open_delta(location: Location) -> ForeignTable:
    """Let delta-rs's own engine read: it knows deletion vectors, mapped columns and partitions."""
    try:
        table = DeltaTable(str(location), storage_options=storage_options(location))
        schema = pa.schema(table.schema().to_arrow())
    except TableNotFoundError:
        raise _absent(str(location), "there is no Delta table at this path or URL") from None
    except (DeltaError, OSError) as error:
        raise unreadable(str(location), error) from error

    def read(names: Sequence[str]) -> pa.RecordBatchReader:
        query = f"SELECT {', '.join(map(identifier, names))} FROM audited"
        try:
            rows = QueryBuilder().register("audited", table).execute(query)
            return pa.RecordBatchReader.from_stream(rows)
        except (DeltaError, OSError) as error:
            raise unreadable(str(location), error) from error

    where = f"{location} (Delta, version {table.version()})"
    return ForeignTable(where=where, schema=schema, read=read)


def _open_iceberg(text: str, name: str, lake: Location) -> ForeignTable:
    """Let pyiceberg's scan read: it knows position deletes, and refuses what it does not."""
    from oncelake.ingestion.sinks.iceberg.catalog import CatalogEntry
    from oncelake.ingestion.sinks.iceberg.files import arrow_schema as schema_of

    catalog, _, name = name.rpartition("/")
    sink = IcebergSink.model_construct(table=name, catalog=catalog or None)
    entry = CatalogEntry.of(NAME, sink, lake)
    table = entry.load()
    if table is None:
        raise _absent(text, f"{entry.where} is not there")

    def read(names: Sequence[str]) -> pa.RecordBatchReader:
        try:
            return table.scan(selected_fields=tuple(names)).to_arrow_batch_reader()
        except (ValueError, NotImplementedError) as error:
            raise unreadable(entry.where, error) from error

    return ForeignTable(where=entry.where, schema=schema_of(table.schema()), read=read)


def _open_postgres(text: str, name: str, settings: Settings) -> ForeignTable:
    from oncelake.ingestion.sinks.postgres.copy import is_readable
    from oncelake.ingestion.sinks.postgres.table import open_table as open_sink

    sink = PostgresSink.model_construct(table=name)
    table = open_sink(NAME, sink, settings, Location.of(settings.lake))
    columns = table.columns()
    if not columns:
        raise _absent(text, f"{table.where} is not there, or its schema may not be used")
    numbers = [column for column in columns if column.type.word == "NUMERIC"]
    known = [c for c in columns if is_readable(c) or c.type.word in _TEXTS]
    fields = [*arrow_schema([c for c in known if is_readable(c)])]
    fields += [pa.field(c.name, pa.string()) for c in (*numbers, *known) if not is_readable(c)]

    def read(names: Sequence[str]) -> pa.RecordBatchReader:
        batches = table.scan(names)
        first = next(batches)
        return pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))

    names = {each.name for each in fields}
    return ForeignTable(
        where=table.where,
        schema=pa.schema(fields),
        read=read,
        casts={column.name: _NUMERIC for column in numbers},
        incomparable=[column.name for column in columns if column.name not in names],
    )


def _absent(text: str, problem: str) -> InvalidSpecError:
    return InvalidSpecError(
        f"--table {text}: {problem}. Next: name a table that is there, as iceberg:namespace.table, "
        "postgres:schema.table, or the path or URL of a Delta table"
    )


def unreadable(where: str, error: Exception) -> RefusedError:
    """Return the error of a table that is damaged, or has what its reader does not know."""
    return RefusedError(
        NAME,
        f"{where} cannot be read: {first_line(error)}.",
        remedy="let its owner mend it, or write its rows anew without what is named (compaction "
        "does so); then run the same command again",
    )
