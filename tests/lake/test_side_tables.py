"""Quarantine and tombstones are projections of commits: what none names is in no table."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from oncelake.ingestion.delta.vacuum import remove_unreferenced
from oncelake.ingestion.errors import TableBusyError
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.lake import side_tables
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.quarantine import count_waiting, scan_quarantine
from oncelake.ingestion.lake.side_tables import project, read_back
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_metadata import REWOUND_TO, UNKNOWN, CommitMetadata, SideFile
from tests.support.quarantine import as_quarantine

_TABLE = "the table's id"


@pytest.fixture
def paths(tmp_path: Path) -> StreamPaths:
    """The places of a stream without a table."""
    return StreamPaths.of("s", Settings(lake=tmp_path / "lake", state=tmp_path / "state"))


def note(seq: int, **given: Any) -> CommitMetadata:
    """What the commit of a batch says."""
    kind = given.pop("kind", "ingest")
    return CommitMetadata(
        kind=kind, seq=seq, run_id="r", epoch=1, identity=UNKNOWN, columns="", next=Offsets(),
        **given,
    )  # fmt: skip


def place(seq: int, offset: int) -> dict[str, Any]:
    """Return where a record is, and the batch that has read it."""
    return {"_topic": "t", "_partition": 0, "_offset": offset, "_seq": seq}


_PLACE = pa.schema(
    [
        *(("_topic", pa.string()), ("_partition", pa.int32())),
        *(("_offset", pa.int64()), ("_seq", pa.int64())),
    ]
)


def written(folder: Location, rows: pa.Table, name: str = "a") -> SideFile:
    """Write a file as an engine does."""
    content = io.BytesIO()
    pq.write_table(rows, content)
    (folder / f"{name}.parquet").put(content.getvalue())
    return read_back(folder / f"{name}.parquet")


def quarantined(paths: StreamPaths, seq: int, *offsets: int) -> CommitMetadata:
    """Write bad records beside the table, and return the note of their batch."""
    rows = pa.Table.from_pylist([place(seq, offset) for offset in offsets], _PLACE)
    file = written(paths.quarantine, as_quarantine(rows), f"q{seq}")
    return note(seq, side={"quarantine": file})


def redriven(paths: StreamPaths, seq: int, *sent: dict[str, Any]) -> CommitMetadata:
    """Write down what a redrive sends in, and return its note."""
    file = written(paths.quarantine, pa.Table.from_pylist([*sent], _PLACE), f"r{seq}")
    return note(seq, kind="redrive", side={"redriven": file})


def marks(paths: StreamPaths) -> list[tuple[int, int, int | None]]:
    """Read, as any reader of Delta does, of each record batch, offset and mark."""
    rows = DeltaTable(str(paths.quarantine)).to_pyarrow_table().to_pylist()
    return sorted((row["_seq"], row["_offset"], row["redriven_seq"]) for row in rows)


def version(side: Location) -> int:
    """Return the newest version of a table."""
    return DeltaTable(str(side)).version()


def test_a_file_is_in_the_table_once_it_is_projected(paths: StreamPaths) -> None:
    """The table is made with the first; a second time changes nothing."""
    first, second = quarantined(paths, 1, 5, 6), quarantined(paths, 2, 7)
    assert not DeltaTable.is_deltatable(str(paths.quarantine))

    for each in (first, first, second, first):
        project(paths, each, _TABLE)

    assert marks(paths) == [(1, 5, None), (1, 6, None), (2, 7, None)]
    assert version(paths.quarantine) == 1
    added = pa.table(DeltaTable(str(paths.quarantine)).get_add_actions(flatten=True)).to_pylist()
    assert [(each["min._seq"], each["max._offset"]) for each in added] == [(2, 7), (1, 6)]


def test_another_table_has_seqs_of_its_own(paths: StreamPaths) -> None:
    """Beside a table that was made again, the first batch is not taken for one that is there."""
    project(paths, quarantined(paths, 3, 5), _TABLE)

    project(paths, quarantined(paths, 1, 8), "another table's id")

    assert marks(paths) == [(1, 8, None), (3, 5, None)]


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(lambda file: file.unlink(), id="gone"),
        pytest.param(lambda file: file.write_bytes(file.read_bytes()[:-1]), id="cut"),
        pytest.param(
            lambda file: file.write_bytes(file.read_bytes().replace(b"PAR1", b"PAR2", 1)),
            id="altered",
        ),
    ],
)
def test_a_file_that_is_not_as_the_note_says_is_left_out(
    paths: StreamPaths, harm: Callable[[Path], object]
) -> None:
    """The table is as it was: what it lacks, the books say."""
    project(paths, quarantined(paths, 1, 5), _TABLE)
    second = quarantined(paths, 2, 7)
    harm(paths.quarantine.path / second.side["quarantine"].path)

    project(paths, second, _TABLE)

    assert marks(paths) == [(1, 5, None)]


def test_columns_that_came_later_and_wider_types_are_taken(paths: StreamPaths) -> None:
    """Of the keys of tombstones, as the schema evolves; rows of before have nothing there."""
    batches: list[dict[str, pa.Array]] = [
        {"_seq": pa.array([1], pa.int64()), "id": pa.array([1], pa.int32())},
        {
            "_seq": pa.array([2], pa.int64()),
            "id": pa.array([2], pa.int32()),
            "at": pa.array([0], pa.timestamp("us")),
        },
        {"_seq": pa.array([3], pa.int64()), "id": pa.array([2**40], pa.int64())},
    ]

    for seq, columns in enumerate(batches, 1):
        file = written(paths.tombstones, pa.table(columns), f"t{seq}")
        project(paths, note(seq, side={"tombstones": file}), _TABLE)

    table = DeltaTable(str(paths.tombstones))
    rows = sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: row["_seq"])
    assert [(row["_seq"], row["id"]) for row in rows] == [(1, 1), (2, 2), (3, 2**40)]
    assert [row["at"] is None for row in rows] == [True, False, True]
    assert "timestampNtz" in (table.protocol().writer_features or ())


def test_a_redrive_marks_the_rows_that_it_names(paths: StreamPaths) -> None:
    """By place and batch, so that what another topic had at the same offset waits on."""
    for each in (quarantined(paths, 1, 5, 6), quarantined(paths, 2, 5)):
        project(paths, each, _TABLE)

    for each in [redriven(paths, 3, place(2, 5))] * 2:
        project(paths, each, _TABLE)

    assert marks(paths) == [(1, 5, None), (1, 6, None), (2, 5, 3)]


def test_a_rewind_takes_rows_and_marks_back(paths: StreamPaths) -> None:
    """Those of the batches that it has undone, also when it is projected late, or again."""
    done = [quarantined(paths, 1, 5, 6), redriven(paths, 2, place(1, 5)), quarantined(paths, 3, 7)]
    rewind = note(4, kind="rewind", counts={REWOUND_TO: 1})
    after = [quarantined(paths, 5, 7), redriven(paths, 6, place(1, 6))]

    for each in (*done, rewind, *after, rewind, *done, rewind):
        project(paths, each, _TABLE)

    assert marks(paths) == [(1, 5, None), (1, 6, 6), (5, 7, None)]


@pytest.mark.parametrize("kind", ["ingest", "redrive"])
def test_two_that_project_a_commit_at_once_do_so_once(
    paths: StreamPaths, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """One of them finds that its version is taken, looks again, and leaves it."""
    project(paths, quarantined(paths, 1, 5), _TABLE)
    batch = quarantined(paths, 2, 7) if kind == "ingest" else redriven(paths, 2, place(1, 5))
    honest, tried = side_tables.is_projected, []

    def overtaken(*given: Any) -> bool:
        is_known = honest(*given)
        tried.append(is_known)
        if len(tried) == 1:
            project(paths, batch, _TABLE)
        return is_known

    monkeypatch.setattr(side_tables, "is_projected", overtaken)

    project(paths, batch, _TABLE)

    assert tried == [False, False, True]
    expected = [(1, 5, None), (2, 7, None)] if kind == "ingest" else [(1, 5, 2)]
    assert marks(paths) == expected


def test_what_no_commit_names_goes_with_what_is_unreferenced(paths: StreamPaths) -> None:
    """Files of a run that died before its commit, also those that Spark has not finished."""
    project(paths, quarantined(paths, 1, 5), _TABLE)
    quarantined(paths, 2, 6)
    left = paths.quarantine.path / "0a" / "_temporary" / "0" / "part-0.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"a key")

    removed = remove_unreferenced(paths.quarantine, paths.quarantine.files(), is_fenced=False)

    assert (removed, left.exists()) == (2, False)
    assert marks(paths) == [(1, 5, None)]


def test_a_file_that_an_erase_of_another_run_has_removed_is_told(paths: StreamPaths) -> None:
    """Its batch has not been committed, and cannot be any more."""
    with pytest.raises(TableBusyError, match=r"has removed gone\.parquet meanwhile"):
        read_back(paths.quarantine / "gone.parquet")


_NAMES = ("_topic", "_partition", "_offset", "_seq", "redriven_seq", "removed")


@pytest.mark.parametrize("is_projected", [False, True], ids=["to come", "projected"])
@pytest.mark.parametrize(
    ("newest", "waiting"),
    [
        pytest.param(lambda paths: quarantined(paths, 4, 9), [(1, 5), (3, 7), (4, 9)], id="batch"),
        pytest.param(lambda paths: redriven(paths, 4, place(1, 5)), [(3, 7)], id="redrive"),
        pytest.param(
            lambda _: note(4, kind="rewind", counts={REWOUND_TO: 1}), [(1, 5), (1, 6)], id="rewind"
        ),
        pytest.param(lambda _: note(4, kind="accept"), [(1, 5), (3, 7)], id="decision"),
    ],
)
def test_a_reader_without_the_lock_counts_what_is_committed(
    paths: StreamPaths,
    newest: Callable[[StreamPaths], CommitMetadata],
    waiting: list[tuple[int, int]],
    is_projected: bool,
) -> None:
    """Also where a run died between its commit and the projection, and never twice."""
    for each in (
        quarantined(paths, 1, 5, 6), redriven(paths, 2, place(1, 6)), quarantined(paths, 3, 7)
    ):  # fmt: skip
        project(paths, each, _TABLE)
    last = newest(paths)
    if is_projected:
        project(paths, last, _TABLE)

    rows = list(scan_quarantine(paths, _NAMES, last, _TABLE))

    found = sorted((r["_seq"], r["_offset"]) for r in rows if r["redriven_seq"] is None)
    assert found == waiting
    if is_projected:
        assert count_waiting(paths.quarantine) == len(waiting)


def test_the_first_batch_is_read_before_there_is_a_quarantine(paths: StreamPaths) -> None:
    """Nothing but its note tells of it."""
    first = quarantined(paths, 1, 5)

    (row,) = scan_quarantine(paths, _NAMES, first, _TABLE)

    assert (row["_offset"], row["redriven_seq"]) == (5, None)
    assert list(scan_quarantine(paths, _NAMES)) == []


def test_a_note_says_what_is_beside_the_table(paths: StreamPaths) -> None:
    """It is read as it was written, and says nothing where there is nothing."""
    made = quarantined(paths, 1, 5)

    assert CommitMetadata.from_json(made.to_json(), "t", "t") == made
    assert '"side"' not in replace(made, side={}).to_json()
