"""Rows of an Iceberg table are marked as gone, by us and by others, and read so by everybody."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import StaticTable
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import RemoveSnapshotsUpdate
from pyiceberg.types import LongType

from oncelake.ingestion.declaration.partitions import parse_partition
from oncelake.ingestion.errors import (
    CommitConflictError,
    DamagedTableError,
    RefusedError,
    TableBusyError,
)
from oncelake.ingestion.sinks.iceberg.files import StagedSnapshot
from oncelake.ingestion.sinks.iceberg.log import IcebergLog
from oncelake.ingestion.sinks.iceberg.table import IcebergTable
from oncelake.ingestion.tables.table import Layout, TableDefinition
from tests.lake.test_iceberg_table import LONG, data_in, no_configuration, opened, others
from tests.support.long import IS_LONG
from tests.support.orders import (
    COLUMNS,
    KEYS,
    NOTE,
    STREAM,
    change,
    commit,
    ids,
    names_in,
)

__all__ = ["no_configuration"]

LETTERS = "abcdefghij"
TEN: Mapping[int, str | None] = dict(enumerate(LETTERS))
BY_VALUES = DataFileContent.EQUALITY_DELETES


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    """A table whose rows are marked, with ten of them in one file."""
    return created(tmp_path)


def created(lake: Path, *partitions: str) -> IcebergTable:
    """Make a table whose rows are marked."""
    table, by = opened(lake), tuple(map(parse_partition, partitions))
    wanted = TableDefinition(columns=COLUMNS, keys=KEYS, deletion_vectors=True, partitions=by)
    table.create(wanted)
    table.commit_note(NOTE)
    commit(table, 1, change(1, inserted=dict(TEN)))
    return table


def live(lake: Path) -> tuple[int, int]:
    """Count the data files and the delete files of the table, as others see them."""
    seen = others(lake).inspect
    return len(seen.data_files()), len(seen.delete_files())


def seen_by_others(lake: Path) -> dict[int, str | None]:
    """Read ids and names by pyiceberg's own scan."""
    static = StaticTable.from_metadata(others(lake).metadata_location)
    rows = static.scan().to_arrow().select(["id", "name"]).to_pydict()
    assert len(rows["id"]) == len({*rows["id"]})
    return dict(zip(*rows.values(), strict=True))


def assert_holds(lake: Path, table: IcebergTable, expected: Mapping[int, str | None]) -> None:
    """See that we, others, and the count agree."""
    assert names_in(table) == seen_by_others(lake) == {**expected}
    assert table.log().row_count() == len(expected)
    paths = others(lake).inspect.files().to_pydict()["file_path"]
    assert len(paths) == len({*paths}), "a file is in the table twice"


def test_rows_are_marked_and_no_file_is_written_anew(tmp_path: Path, table: IcebergTable) -> None:
    """A batch writes what is new, and marks; the next takes the place of the marks."""
    before = data_in(tmp_path)
    commit(table, 2, change(2, updated={1: "B"}, deleted=[2]))

    assert before <= data_in(tmp_path)
    assert live(tmp_path) == (2, 1)
    expected = {n: name for n, name in {**TEN, 1: "B"}.items() if n != 2}
    assert_holds(tmp_path, table, expected)
    commit(table, 3, change(3, updated={3: "D"}, inserted={2: "again"}))
    assert live(tmp_path) == (3, 1)
    assert_holds(tmp_path, table, {**expected, 3: "D", 2: "again"})
    assert table.rewritten(table.log()) == (0, 0)
    summary = others(tmp_path).current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert (summary["total-position-deletes"], summary["total-delete-files"]) == ("3", "1")


def test_a_file_of_which_most_is_gone_is_written_anew(tmp_path: Path, table: IcebergTable) -> None:
    """Its marks go with it."""
    commit(table, 2, change(2, deleted=[0, 1, 2]))
    assert live(tmp_path) == (1, 1)

    commit(table, 3, change(3, deleted=[3, 4, 5]))

    assert live(tmp_path) == (1, 0)
    assert_holds(tmp_path, table, {n: LETTERS[n] for n in range(6, 10)})


def test_the_declaration_says_whether_rows_are_marked(tmp_path: Path, table: IcebergTable) -> None:
    """Where they are not any more, what was marked stays so, until the file is written anew."""
    commit(table, 2, change(2, deleted=[2]))
    table.configure(deletion_vectors=False)
    table.configure(deletion_vectors=False)
    assert others(tmp_path).properties["write.merge.mode"] == "copy-on-write"
    commit(table, 3, change(3, inserted={20: "t"}))
    assert live(tmp_path) == (2, 1)
    assert_holds(tmp_path, table, {k: v for k, v in TEN.items() if k != 2} | {20: "t"})

    commit(table, 4, change(4, updated={3: "D"}))

    assert live(tmp_path) == (2, 0)
    assert table.rewritten(table.log()) == (8, 2)
    table.configure(deletion_vectors=True)
    commit(table, 5, change(5, updated={4: "E"}))
    assert live(tmp_path) == (3, 1)
    assert_holds(
        tmp_path, table, {k: v for k, v in TEN.items() if k != 2} | {20: "t", 3: "D", 4: "E"}
    )


def test_upkeep_writes_files_anew_by_their_share_of_marks(
    tmp_path: Path, table: IcebergTable
) -> None:
    """A tenth may be marked; what is not small otherwise stays as it is."""
    commit(table, 2, change(2, deleted=[0]))
    commit(table, 3, change(3, inserted=dict.fromkeys(range(20, 40), "x")))
    assert table.maintain(LONG, target_bytes=1)["compacted"] == 0
    commit(table, 4, change(4, deleted=[1, 20]))

    assert table.maintain(LONG, target_bytes=1)["compacted"] == 1

    assert live(tmp_path) == (2, 1)
    assert table.maintain(LONG)["compacted"] == 2
    assert live(tmp_path) == (1, 0)
    expected = {n: TEN[n] for n in range(2, 10)} | dict.fromkeys(range(21, 40), "x")
    assert_holds(tmp_path, table, expected)


def test_an_earlier_version_comes_back_with_its_marks(tmp_path: Path, table: IcebergTable) -> None:
    """Also where files were put together since."""
    commit(table, 2, change(2, deleted=[2]))
    then, expected = table.log().versions()[0], {k: v for k, v in TEN.items() if k != 2}
    commit(table, 3, change(3, updated={3: "D"}, inserted={11: "l"}))
    table.restore(then, replace(NOTE, kind="rewind", seq=4))
    assert_holds(tmp_path, table, expected)
    commit(table, 5, change(5, deleted=[4], inserted={12: "m"}))
    table.maintain(LONG)
    table.restore(then, replace(NOTE, kind="rewind", seq=6))

    assert_holds(tmp_path, table, expected)
    commit(table, 7, change(7, updated={5: "F"}))
    assert_holds(tmp_path, table, {**expected, 5: "F"})


def test_what_is_erased_is_in_no_file_though_it_was_marked(
    tmp_path: Path, table: IcebergTable
) -> None:
    """A mark leaves the row where it is."""
    commit(table, 2, change(2, deleted=[2], updated={3: "person"}))
    commit(table, 3, change(3, updated={3: "other"}))
    written = table.written_files()
    table.erase(ids(2, 3), replace(NOTE, kind="erase", seq=4))
    table.remove_older_versions(written)

    assert_holds(tmp_path, table, {k: v for k, v in TEN.items() if k not in (2, 3)})
    texts = [pq.read_table(each, columns=["id"])["id"].to_pylist() for each in data_in(tmp_path)]
    assert not {2, 3} & {id for each in texts for id in each}


def marks_of_others(
    lake: Path,
    positions: Sequence[tuple[str, int]],
    *,
    content: DataFileContent = DataFileContent.POSITION_DELETES,
    ending: str = "theirs",
) -> None:
    """Delete rows as Spark does by one file for all: it says neither whose, nor between which."""
    foreign = others(lake)
    [(spec_id, partition)] = {
        (each.file.spec_id, each.file.partition)
        for each in foreign.scan().plan_files()
        if each.file.file_path in {path for path, _ in positions}
    }
    path = f"{foreign.location()}/data/{ending}-deletes.parquet"
    fields = [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
    ]
    names, rows = zip(*sorted(positions), strict=True)
    pq.write_table(pa.table([names, rows], schema=pa.schema(fields)), path)
    file = DataFile.from_args(
        content=content,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=len(rows),
        file_size_in_bytes=Path(path).stat().st_size,
        equality_ids=[1] if content == BY_VALUES else None,
    )
    file.spec_id = spec_id
    staged = StagedSnapshot(foreign, added=[file])
    with closing(foreign.catalog) as catalog:
        catalog.commit_table(foreign, (), staged.write(Operation.OVERWRITE))


def places(lake: Path, wanted: Iterable[int]) -> list[tuple[str, int]]:
    """Return where rows are."""
    found = []
    for file in others(lake).inspect.data_files().to_pydict()["file_path"]:
        rows = pq.read_table(file, columns=["id"])["id"].to_pylist()
        found += [(file, at) for at, id in enumerate(rows) if id in wanted]
    return found


@pytest.fixture
def marked_by_others(tmp_path: Path, table: IcebergTable) -> dict[int, str | None]:
    """Let others mark rows of two files by one; return what is left."""
    commit(table, 2, change(2, inserted={20: "t", 21: "u"}))
    marks_of_others(tmp_path, places(tmp_path, {2, 20}))
    return {k: v for k, v in TEN.items() if k != 2} | {21: "u"}


def test_marks_of_others_are_read_and_kept(
    tmp_path: Path, table: IcebergTable, marked_by_others: dict[int, str | None]
) -> None:
    """As long as a file that they are of is there; and a merge marks beside them."""
    left = marked_by_others
    assert_holds(tmp_path, table, left)
    commit(table, 3, change(3, updated={3: "D"}, inserted={2: "again"}))
    assert live(tmp_path) == (3, 2)
    assert_holds(tmp_path, table, left := {**left, 3: "D", 2: "again"})
    table.configure(deletion_vectors=False)
    commit(table, 4, change(4, deleted=[4]))
    left.pop(4)
    assert live(tmp_path)[1] == 1
    assert_holds(tmp_path, table, left)

    table.maintain(LONG)

    assert live(tmp_path) == (1, 0)
    assert_holds(tmp_path, table, left)


def test_a_file_comes_back_with_marks_of_others_that_never_went(
    tmp_path: Path, table: IcebergTable, marked_by_others: dict[int, str | None]
) -> None:
    """It is newer than they are then, so that they are not of it any more."""
    then = table.log().versions()[0]
    table.configure(deletion_vectors=False)
    commit(table, 3, change(3, updated={3: "D"}))

    table.restore(then, replace(NOTE, kind="rewind", seq=4))

    assert_holds(tmp_path, table, marked_by_others)


def test_marks_that_are_of_no_file_any_more_go_with_upkeep(
    tmp_path: Path, table: IcebergTable, marked_by_others: dict[int, str | None]
) -> None:
    """Of such as are of several files, none may be there any more."""
    table.configure(deletion_vectors=False)
    commit(table, 3, change(3, updated={3: "D", 21: "U"}))
    table.maintain(LONG)
    assert live(tmp_path) == (1, 0)
    assert_holds(tmp_path, table, {**marked_by_others, 3: "D", 21: "U"})


def test_what_others_delete_by_values_is_refused(tmp_path: Path, table: IcebergTable) -> None:
    """Nothing says where those rows are; a remedy is named, and nothing is written."""
    marks_of_others(tmp_path, places(tmp_path, {2}), content=BY_VALUES)
    with closing(table.begin(2)) as transaction:
        for attempt in (
            lambda: names_in(table),
            lambda: table.maintain(LONG),
            lambda: table.log().row_count(),
            lambda: transaction.rows_of(ids(1)),
            lambda: transaction.commit(change(2, updated={1: "A"}), replace(NOTE, seq=2)),
        ):
            with pytest.raises(RefusedError, match="oncelake rebuild"):
                attempt()


def test_marks_that_cannot_be_are_damage(tmp_path: Path, table: IcebergTable) -> None:
    """A row that a file does not have is named, and a byte that was changed is, too."""
    [(path, _)] = places(tmp_path, {2})
    marks_of_others(tmp_path, [(path, 10)])
    match = "marks rows that"
    with pytest.raises(DamagedTableError, match=match), table.translate_read_errors():
        names_in(table)


def test_a_mark_that_was_altered_is_damage(tmp_path: Path, table: IcebergTable) -> None:
    """The page of the file has a checksum."""
    commit(table, 2, change(2, deleted=[2]))
    [path] = [each for each in data_in(tmp_path) if "-deletes" in each.name]
    content = bytearray(path.read_bytes())
    content[content.index(b"PAR1", 0) + 40] ^= 1
    path.write_bytes(content)

    with pytest.raises(DamagedTableError, match="CRC"), table.translate_read_errors():
        names_in(table)


@contextmanager
def overtaken(
    transaction: Any, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch, *, times: int = 1
) -> Iterator[None]:
    """Let somebody else commit right before a transaction does, some times."""
    entry, left = transaction._entry, [act] * times
    commit_it = entry.commit

    def commit_later(*given: Any) -> None:
        if left:
            left.pop()()
        commit_it(*given)

    monkeypatch.setattr("oncelake.ingestion.sinks.iceberg.table._WAITED", (0, 0))
    monkeypatch.setattr(entry, "commit", commit_later)
    yield
    monkeypatch.setattr(entry, "commit", commit_it)


@pytest.mark.parametrize("is_marking", [True, False], ids=["marked", "rewritten"])
def test_files_that_others_have_put_together_are_searched_again(
    tmp_path: Path, table: IcebergTable, monkeypatch: pytest.MonkeyPatch, *, is_marking: bool
) -> None:
    """Rows only move by that, so that the batch is made again on what is left."""
    commit(table, 2, change(2, inserted={20: "t"}, deleted=[2]))
    table.configure(deletion_vectors=is_marking)
    elsewhere = opened(tmp_path)
    what = change(3, updated={1: "B", 20: "T"}, inserted={30: "x"}, deleted=[4])
    with closing(table.begin(3)) as transaction:
        assert len(transaction.rows_of(ids(1, 4, 20, 30))) == 3
        with overtaken(transaction, lambda: elsewhere.maintain(LONG), monkeypatch):
            transaction.commit(what, replace(NOTE, seq=3))

    left = {n: name for n, name in TEN.items() if n not in (2, 4)}
    assert_holds(tmp_path, table, {**left, 1: "B", 20: "T", 30: "x"})
    assert [each.operation for each in table.log().newest_first()][:2] == ["MERGE", "replace"]


@pytest.mark.parametrize("what", ["row", "columns", "always"])
def test_others_that_change_more_end_the_commit(
    tmp_path: Path, table: IcebergTable, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A row, or what the table is; and whoever is always first is not waited for without end."""
    acts: dict[str, Callable[[], object]] = {
        "row": lambda: marks_of_others(tmp_path, places(tmp_path, {3})),
        "columns": lambda: others(tmp_path).update_schema().add_column("n", LongType()).commit(),
        "always": lambda: replaced(tmp_path),
    }
    with (
        closing(table.begin(2)) as transaction,
        overtaken(transaction, acts[what], monkeypatch, times=9 if what == "always" else 1),
        pytest.raises(TableBusyError, match="somebody else changed the table meanwhile"),
    ):
        transaction.commit(change(2, updated={3: "D"}), replace(NOTE, seq=2))

    gone = {3} if what == "row" else set()
    assert_holds(tmp_path, table, {n: name for n, name in TEN.items() if n not in gone})
    assert table.log().last_seq(STREAM) == 1


@pytest.mark.parametrize("what", ["ours", "theirs"])
def test_what_is_committed_while_it_is_looked_at_again_is_seen(
    tmp_path: Path, table: IcebergTable, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A second run that wakes up, or a person: the table is judged as it is loaded, once."""
    elsewhere = opened(tmp_path)
    acts: dict[str, Callable[[], object]] = {
        "ours": lambda: commit(elsewhere, 2, change(2, inserted={30: "x"})),
        "theirs": lambda: marks_of_others(tmp_path, places(tmp_path, {3})),
    }
    with closing(table.begin(2)) as transaction:
        left, since = [acts[what]], IcebergLog.since

        def since_then(log: IcebergLog, snapshot_id: int | None) -> Any:
            found = since(log, snapshot_id)
            if left:
                left.pop()()
            return found

        monkeypatch.setattr(IcebergLog, "since", since_then)
        with (
            overtaken(transaction, lambda: replaced(tmp_path), monkeypatch),
            pytest.raises((CommitConflictError, TableBusyError)),
        ):
            transaction.commit(change(2, inserted={30: "x"}), replace(NOTE, seq=2))
        assert not left

    gone, new = ({3}, {}) if what == "theirs" else (set[int](), {30: "x"})
    assert_holds(tmp_path, table, {n: v for n, v in TEN.items() if n not in gone} | new)


@pytest.mark.parametrize("way", ["rolled back", "expired"])
def test_a_history_that_does_not_lead_to_what_was_read_ends_the_commit(
    tmp_path: Path, table: IcebergTable, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Somebody has rolled a commit of ours back, or expired what came in between."""
    commit(table, 2, change(2, inserted={20: "t"}))
    elsewhere = opened(tmp_path)

    def roll_back() -> None:
        foreign = others(tmp_path)
        parent = foreign.current_snapshot().parent_snapshot_id  # type: ignore[union-attr]
        foreign.manage_snapshots().rollback_to_snapshot(parent).commit()

    def expire() -> None:
        commit(elsewhere, 3, change(3, inserted={30: "x"}))
        foreign = others(tmp_path)
        middle = foreign.current_snapshot()
        assert middle is not None
        replaced(tmp_path)
        with closing((foreign := others(tmp_path)).catalog) as catalog:
            catalog.commit_table(
                foreign, (), (RemoveSnapshotsUpdate(snapshot_ids=[middle.snapshot_id]),)
            )

    act = roll_back if way == "rolled back" else expire
    with (
        closing(table.begin(3)) as transaction,
        overtaken(transaction, act, monkeypatch),
        pytest.raises((CommitConflictError, TableBusyError)),
    ):
        transaction.commit(change(3, inserted={30: "x"}), replace(NOTE, seq=3))

    assert seen_by_others(tmp_path) == dict(TEN) | ({20: "t", 30: "x"} if way == "expired" else {})


def replaced(lake: Path) -> None:
    """Commit a snapshot that moves no row."""
    foreign = others(lake)
    with closing(foreign.catalog) as catalog:
        catalog.commit_table(foreign, (), StagedSnapshot(foreign).write(Operation.REPLACE))


class Course:
    """A random history of a table, beside a dict that has what it must hold."""

    def __init__(self, lake: Path, table: IcebergTable, seed: int) -> None:
        self.lake, self.table, self.chance = lake, table, random.Random(seed)
        self.rows, self.seq = dict(TEN), 1
        self.past = {table.log().versions()[0]: dict(TEN)}

    def merge(self) -> None:
        """Insert, update and delete some rows."""
        self.seq += 1
        there = self.chance.sample(sorted(self.rows), min(len(self.rows), self.chance.randrange(6)))
        half = self.chance.randint(0, len(there))
        new = [n for n in self.chance.sample(range(60), 5) if n not in self.rows]
        updated: dict[int, str | None] = dict.fromkeys(there[:half], f"u{self.seq}")
        inserted: dict[int, str | None] = dict.fromkeys(new, f"i{self.seq}")
        commit(
            self.table,
            self.seq,
            change(self.seq, inserted=inserted, updated=updated, deleted=there[half:]),
        )
        self.rows = {n: v for n, v in self.rows.items() if n not in there[half:]}
        self.rows |= updated | inserted
        self.past[self.table.log().versions()[0]] = dict(self.rows)

    def restore(self) -> None:
        """Go back to a version that is still there."""
        there = {*self.table.log().versions()}
        version = self.chance.choice([each for each in self.past if each in there])
        self.seq += 1
        self.table.restore(version, replace(NOTE, kind="rewind", seq=self.seq))
        self.rows = dict(self.past[version])
        self.past[self.table.log().versions()[0]] = dict(self.rows)

    def maintain(self) -> None:
        """Put files together, all or some."""
        self.table.maintain(LONG, target_bytes=self.chance.choice([1, 3_000, 1 << 20]))

    def turn(self) -> None:
        """Mark from now on, or not any more."""
        self.table.configure(deletion_vectors=self.chance.random() < 0.7)

    def others(self) -> None:
        """Mark some rows as others do."""
        gone = self.chance.sample(sorted(self.rows), min(len(self.rows), 3))
        marked = {*dead_places(self.table)}
        found = [each for each in places(self.lake, gone) if each not in marked]
        # One file for all, where there never were partitions, each of which needs one of its own.
        is_divided = len(others(self.lake).specs()) > 1 or self.table.partitions()
        parts = [[each] for each in found] if is_divided else [found] * bool(found)
        for part in parts:
            marks_of_others(self.lake, part, ending=str(self.chance.random()))
        if found:
            self.rows = {n: v for n, v in self.rows.items() if n not in gone}
            self.past[self.table.log().versions()[0]] = dict(self.rows)

    def divide(self) -> None:
        """Divide what comes from now on otherwise."""
        self.seq += 1
        found, by = self.table.columns(), self.chance.choice(LAYOUTS)
        layout = Layout(columns=found, found=found, partitions=tuple(map(parse_partition, by)))
        self.table.reshape(layout, replace(NOTE, seq=self.seq))
        self.past[self.table.log().versions()[0]] = dict(self.rows)


def dead_places(table: IcebergTable) -> list[tuple[str, int]]:
    """Return where rows are marked already."""
    with closing(table.begin((table.log().last_seq(STREAM) or 0) + 1)) as begun:
        return [
            (file.data.file_path, at)
            for file in begun.files
            if (is_gone := begun.gone(file)) is not None
            for at in is_gone.nonzero()[0].tolist()
        ]


LAYOUTS = [[], ["bucket(3, id)"], ["truncate(1, name)"], ["name", "truncate(20, id)"]]


@pytest.mark.parametrize("is_divided", [False, True], ids=["whole", "partitioned"])
@pytest.mark.parametrize("seed", range(40 if IS_LONG else 2))
def test_any_history_holds_what_it_should(tmp_path: Path, seed: int, *, is_divided: bool) -> None:
    """Merges, rewinds, upkeep, other partitions, and marks of others, in any order."""
    by = random.Random(seed).choice(LAYOUTS[1:]) if is_divided else []
    table = created(tmp_path, *by)
    course = Course(tmp_path, table, seed)
    acts: list[Any] = [*[course.merge] * 5, course.restore, course.maintain, course.turn]
    acts += [course.divide] * is_divided
    for _ in range(25):
        course.chance.choice([*acts, course.others])()
        assert_holds(tmp_path, table, course.rows)
