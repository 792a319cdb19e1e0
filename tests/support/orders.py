"""Rows, changes and notes of a small table of a sink, and short words for what tests do to one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

import pyarrow as pa

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_type, system_columns
from oncelake.ingestion.kafka.offsets import Offsets, TopicPartition
from oncelake.ingestion.tables.arrow_types import arrow_schema
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, Identity
from oncelake.ingestion.tables.table import Change, SinkTable

STREAM: Final = "orders"
KEYS: Final = ("id",)
NOTE = CommitMetadata(
    kind="ingest",
    seq=0,
    run_id="r",
    epoch=1,
    identity=Identity(cluster_id="c", topic_ids={"t": "x"}, keys=KEYS, order=()),
    columns="id BIGINT NOT NULL, name STRING",
    next=Offsets({TopicPartition("t", 0): 12}),
    counts={"read": 9},
    reason="say 'why' \"é\n",
)


def column(ddl: str) -> DeclaredColumn:
    """Read one column of DDL, one of ours included."""
    name, type_ = ddl.removesuffix(" NOT NULL").split(" ", 1)
    nullable = not ddl.endswith(" NOT NULL")
    return DeclaredColumn(name=name, type=parse_type(type_), nullable=nullable, comment="")


COLUMNS: Final = (*map(column, ("id BIGINT NOT NULL", "name STRING")), *system_columns())
SCHEMA: Final = arrow_schema(COLUMNS)


def rows(names: dict[int, str | None], *, seq: int) -> pa.Table:
    """Make rows of the table by their ids and names."""
    count, at = len(names), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    columns = [[*names], [*names.values()], ["t"] * count, [0] * count, [*range(count)]]
    columns += [[at] * count, [1] * count, [seq] * count]
    return pa.table(dict(zip(SCHEMA.names, columns, strict=True)), schema=SCHEMA)


def ids(*values: int) -> pa.Table:
    """Make keys."""
    return pa.table({"id": pa.array(values, pa.int64())})


def change(
    seq: int,
    *,
    inserted: dict[int, str | None] | None = None,
    updated: dict[int, str | None] | None = None,
    deleted: Sequence[int] = (),
) -> Change:
    """Make a change of a few rows."""
    return Change(
        inserted=rows(inserted or {}, seq=seq),
        updated=rows(updated or {}, seq=seq),
        deleted=ids(*deleted),
    )


def commit(table: SinkTable, seq: int, what: Change | None) -> None:
    """Commit rows and note."""
    with closing(table.begin(seq)) as transaction:
        transaction.commit(what, replace(NOTE, seq=seq))


def names_in(table: SinkTable, version: int | None = None) -> dict[int, str | None]:
    """Read ids and names."""
    found = [row for batch in table.scan(["id", "name"], version) for row in batch.to_pylist()]
    names = {row["id"]: row["name"] for row in found}
    assert len(names) == len(found), "a key is there twice"
    return names


def last_seq(table: SinkTable) -> int | None:
    """Ask a log that is opened anew."""
    return table.log().last_seq(STREAM)
