"""Tables outside the lake change places with those beside them: whole, and as their sink says."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from ingestion.declaration.ddl import DeclaredColumn, parse_columns, system_columns
from ingestion.declaration.sinks import SinkSpec
from ingestion.errors import TableReplacedError
from ingestion.kafka.offsets import Offsets, TopicPartition
from ingestion.lake.archive import finish_swap, refuse_half_swapped, swap_tables
from ingestion.lake.commit_metadata import CommitMetadata, Identity
from ingestion.lake.failpoints import Failpoint
from ingestion.lake.ledger import Ledger, LedgerRow
from ingestion.lake.paths import StreamPaths
from ingestion.operations.decisions import reset
from ingestion.settings import Settings

DDL = "id BIGINT NOT NULL, name STRING"
COLUMNS: tuple[DeclaredColumn, ...] = (*parse_columns(DDL), *system_columns())


@pytest.fixture(params=["iceberg", "postgres"])
def sink(request: pytest.FixtureRequest) -> SinkSpec:
    """A sink outside the lake, with a table of the test's own."""
    return SinkSpec.model_validate({request.param: {"table": f"public.t{uuid.uuid4().hex[:12]}"}})


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
    paths.table.create(COLUMNS, keys=["id"], description="")
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
    Ledger(paths.ledger).put(LedgerRow.of(note, commit, table_id, counts={}))
    return table_id


def crash_at(place: str) -> Callable[..., None]:
    """Return what ends the process where it gets to a place."""

    def crash(reached: object, *_: object) -> None:
        if place in ("_move", reached):
            raise KeyboardInterrupt

    return crash


def test_a_swap_that_was_cut_short_is_finished(
    paths: StreamPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at each of its steps in turn, it goes on, whatever sink the file names by then."""
    old, new = paths.table.log().table_id(), make(workshop(paths))

    def swap(*, place: str) -> None:
        name, is_begun = "_move" if place == "_move" else "hit", (paths.archive / "SWAP").exists()
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(f"ingestion.lake.archive.{name}", crash_at(place))
            if is_begun:
                finish_swap(paths.at(SinkSpec()))
            swap_tables(paths, paths.workshop, why="rebuild")
        with pytest.raises(TableReplacedError, match="`rebuild` was cut short"):
            refuse_half_swapped(paths)

    for place in (Failpoint.SWAP_BEGUN, "_move", Failpoint.SWAP_CLEARED):
        swap(place=place)
    finish_swap(paths.at(SinkSpec()))

    refuse_half_swapped(paths)
    (entry,) = paths.archive.folders()
    aside = paths.at(_named(paths, f"__{entry.lower()}"))
    assert (paths.table.log().table_id(), aside.table.log().table_id()) == (new, old)
    assert [row.table_id for row in Ledger(paths.ledger).rows()] == [new]
    assert not workshop(paths).table.log().exists
    assert not paths.workshop.exists()


def test_a_reset_gives_the_table_another_name_once(
    paths: StreamPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a file that can be read, the ledger says where it is; cut short, the rest follows."""
    old = paths.table.log().table_id()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("ingestion.lake.archive._move", crash_at("_move"))
        reset("orders", paths.settings, run_id="r")

    done = reset("orders", paths.settings, run_id="r")

    (entry,) = paths.archive.folders()
    assert [path.name for path in done.archived] == ["orders__ledger"]
    aside = _named(paths, f"__{entry.lower()}")
    assert done.renamed == getattr(aside, aside.name).table
    assert paths.at(aside).table.log().table_id() == old
    assert not paths.table.log().exists


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
    """Return the sink of the table whose name is a stream's with an ending."""
    name = paths.sink.name
    table = getattr(paths.sink, name).table
    return SinkSpec.model_validate({name: {"table": f"{table}{ending}"}})
