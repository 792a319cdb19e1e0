"""Tables outside the lake change places with those beside them: whole, and as their sink says."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from psycopg.errors import InsufficientPrivilege
from pydantic import SecretStr
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_columns, system_columns
from oncelake.ingestion.declaration.sinks import SinkSpec
from oncelake.ingestion.errors import (
    ForeignTableError,
    IngestionError,
    MissingRightError,
    RefusedError,
    TableReplacedError,
)
from oncelake.ingestion.kafka.offsets import Offsets, TopicPartition
from oncelake.ingestion.lake import archive
from oncelake.ingestion.lake.archive import Swapped, finish_swap, refuse_half_swapped
from oncelake.ingestion.lake.ledger import Ledger, LedgerRow
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.operations.decisions import reset
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.iceberg.catalog import CatalogEntry
from oncelake.ingestion.sinks.postgres.server import PostgresPlace
from oncelake.ingestion.storage.failpoints import Failpoint
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, Identity
from oncelake.ingestion.tables.table import TableDefinition
from oncelake.testing import commit

DDL = "id BIGINT NOT NULL, name STRING"
COLUMNS: tuple[DeclaredColumn, ...] = (*parse_columns(DDL), *system_columns())
# What renames a table, how that is refused, and as what.
REFUSALS: dict[str, list[tuple[type, str, Exception, type[IngestionError]]]] = {
    "iceberg": [
        (SqlCatalog, "rename_table", NotImplementedError("no such endpoint"), RefusedError),
        (SqlCatalog, "rename_table", ForbiddenError("not yours"), RefusedError),
    ],
    "postgres": [
        (PostgresPlace, "rename", InsufficientPrivilege("must be owner"), MissingRightError)
    ],
}


@pytest.fixture(params=["iceberg", "postgres"])
def sink(request: pytest.FixtureRequest) -> SinkSpec:
    """A sink outside the lake, with a table of the test's own, whose name is as long as may be."""
    name = f"t{uuid.uuid4().hex}".ljust(54, "x")
    return SinkSpec.model_validate({request.param: {"table": f"public.{name}"}})


@pytest.fixture
def paths(sink: SinkSpec, tmp_path: Path, request: pytest.FixtureRequest) -> StreamPaths:
    """The places of a stream that has a table in such a sink."""
    places: dict[str, Any] = {name: tmp_path / name for name in ("lake", "state")}
    if sink.postgres:
        places["postgres"] = SecretStr(request.getfixturevalue("postgres_address"))
    paths = StreamPaths.of("orders", Settings(**places), sink)
    make(paths)
    return paths


def workshop(paths: StreamPaths) -> StreamPaths:
    """Return the places of the same stream where a rebuild makes it anew."""
    settings = paths.settings.model_copy(update={"lake": paths.workshop.path})
    return StreamPaths.of(paths.stream, settings, paths.sink)


def make(paths: StreamPaths) -> str:
    """Make a stream's table with one batch, and its ledger; return the table's id."""
    paths.table.create(TableDefinition(columns=COLUMNS, keys=("id",)))
    for seq in (0, 1):
        note = CommitMetadata(
            kind="ingest",
            seq=seq,
            run_id="r",
            epoch=1,
            identity=Identity(cluster_id="c", topic_ids={"t": "x"}, keys=("id",), order=()),
            columns=DDL,
            declaration={"sink": paths.sink.model_dump(mode="json", exclude_unset=True)},
            next=Offsets({TopicPartition("t", 0): seq}),
        )
        commit = paths.table.commit_note(note)
    table_id = paths.table.log().table_id()
    Ledger(paths.ledger).put(LedgerRow.of(commit, table_id))
    return table_id


def cut_short(
    swap: Callable[[], object],
    owner: object,
    name: str,
    where: Callable[..., bool] = lambda *_: True,
) -> None:
    """Let a swap die where it calls a function, with such arguments."""
    whole = getattr(owner, name)

    def crash(*given: object) -> object:
        if where(*given):
            raise KeyboardInterrupt
        return whole(*given)

    with patch.object(owner, name, crash), pytest.raises(KeyboardInterrupt):
        swap()


def test_a_swap_that_was_cut_short_is_finished(paths: StreamPaths) -> None:
    """Killed at each of its steps in turn, it goes on, whatever sink the file names by then."""
    old, new = paths.table.log().table_id(), make(workshop(paths))
    swap = partial(archive.swap_tables, paths, paths.workshop, why="rebuild")
    go_on = partial(finish_swap, paths.at(SinkSpec()))
    cut_short(swap, archive, "hit", lambda place: place == Failpoint.SWAP_BEGUN)
    if paths.sink.iceberg:
        cut_short(go_on, CatalogEntry, "commit")
        assert paths.table.log().table_id() == old
    cut_short(go_on, archive, "_move")
    cut_short(go_on, archive, "hit", lambda place: place == Failpoint.SWAP_CLEARED)
    with pytest.raises(TableReplacedError, match="`rebuild` was cut short"):
        refuse_half_swapped(paths)

    go_on()

    refuse_half_swapped(paths)
    (entry,) = paths.archive.folders()
    ending = (
        f"__{entry.lower()}" if paths.sink.postgres else f".tag_oncelake_archive_{entry.lower()}"
    )
    aside = paths.at(_named(paths, ending))
    assert (paths.table.log().table_id(), aside.table.log().table_id()) == (new, old)
    assert [row.table_id for row in Ledger(paths.ledger).rows()] == [new]
    assert not workshop(paths).table.log().exists
    assert not paths.workshop.exists()


def test_a_reset_gives_the_table_another_name_once(paths: StreamPaths) -> None:
    """Without a file that can be read, the ledger says where it is; cut short, the rest follows."""
    old = paths.table.log().table_id()
    again = partial(reset, "orders", paths.settings, run_id="r")
    cut_short(again, archive, "_move")

    done = again()

    (entry,) = paths.archive.folders()
    assert [path.name for path in done.archived] == ["orders__ledger"]
    aside = _named(paths, f"__{entry.lower()}")
    assert done.renamed == getattr(aside, aside.name).table
    assert paths.at(aside).table.log().table_id() == old
    assert not paths.table.log().exists


def test_a_table_that_is_not_the_streams_keeps_its_name(paths: StreamPaths) -> None:
    """With rows in it a reset is refused before anything moves; an empty one is the next run's."""
    old = paths.table.log().table_id()
    again = partial(reset, "others", paths.settings, run_id="r", sink=paths.sink)

    assert again() == Swapped()
    commit(paths.table, 2, inserted={1: "a"})
    with pytest.raises(ForeignTableError, match="holds rows, and is not of this stream"):
        again()

    refuse_half_swapped(StreamPaths.of("others", paths.settings, paths.sink))
    assert paths.table.log().table_id() == old


def test_a_swap_that_is_refused_is_given_up(paths: StreamPaths) -> None:
    """Where a table cannot be renamed, all stays as it is, and no later run is refused for it."""
    old, again = paths.table.log().table_id(), partial(reset, "orders", paths.settings, run_id="r")

    for owner, name, refusal, expected in REFUSALS[paths.sink.name]:
        with patch.object(owner, name, side_effect=refusal), pytest.raises(expected, match="Next:"):
            again()

        assert finish_swap(paths) == Swapped()
        assert paths.table.log().table_id() == old
        assert [row.table_id for row in Ledger(paths.ledger).rows()] == [old]
    assert again().renamed


def test_a_table_beside_is_dropped_alone(paths: StreamPaths, sink: SinkSpec) -> None:
    """The one in use stays with its notes, and so does what another stream has."""
    old, beside = paths.table.log().table_id(), workshop(paths)
    make(beside)
    other = StreamPaths.of(
        "others",
        beside.settings.model_copy(update={"lake": paths.lake.path / ".rebuild" / "others"}),
        sink,
    )

    other.table.drop()
    kept = beside.table.log().exists
    beside.table.drop()
    beside.table.drop()

    assert (kept, beside.table.log().exists) == (True, False)
    assert paths.table.log().table_id() == old
    assert [seq for _, seq, _ in paths.table.notes(2)] == [0, 1]


def _named(paths: StreamPaths, ending: str) -> SinkSpec:
    """Return the sink of the table whose name is a stream's with an ending, in 63 bytes."""
    name, part = paths.sink.name, paths.sink.declared
    table = paths.sink.table_of(paths.stream)
    if name == "postgres":
        table = table[: len("public.") + 63 - len(ending)]
    return SinkSpec(**{name: part.model_copy(update={"table": f"{table}{ending}"})})
