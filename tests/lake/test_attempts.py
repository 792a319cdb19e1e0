"""What lies beside the table is believed by the attempt that it names, and removed by it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from ingestion.lake.attempts import MARKS, ROWS, Attempt, Attempts, find_leftovers
from ingestion.lake.ledger import LedgerRow
from ingestion.lake.side_tables import remove_failed
from ingestion.sinks.commit_metadata import REWOUND_TO
from ingestion.sinks.delta.files import open_delta, open_rows, read_delta
from ingestion.storage.location import Location

STATISTICS = {"delta.dataSkippingStatsColumns": ",".join((*ROWS, *MARKS))}
DEAD, LIVING = Attempt(2, 20), Attempt(3, 30)


def row(seq: int, attempt: int | None, kind: str = "ingest", **counts: int) -> LedgerRow:
    """A batch that was committed."""
    return LedgerRow(
        table_id="id", seq=seq, kind=kind, epoch=1, committed_at=dt.datetime.now(dt.UTC),
        run_id="r", delta_version=seq, ranges=(), counts=counts, balanced=True, attempt=attempt,
    )  # fmt: skip


COMMITTED = Attempts.of([row(1, 10), row(2, 21)], last=2)


def rows(*attempts: Attempt) -> pa.Table:
    """One row of each attempt."""
    seqs = pa.array([each.seq for each in attempts], pa.int64())
    named = pa.array([each.name for each in attempts], pa.int64())
    return pa.table({"_seq": seqs, "_attempt": named})


def table(path: Path, *writes: pa.Table, settings: dict[str, str] = STATISTICS) -> Location:
    """A table that each write has added a file to."""
    for written in writes:
        write_deltalake(path, written, mode="append", configuration=settings, schema_mode="merge")
    return Location.of(path)


def left_in(found: Location) -> Iterable[tuple[int, int | None]]:
    """The attempts that a table has rows of."""
    read = open_rows(found).to_table(columns=list(ROWS)).to_pylist()
    return sorted({(each["_seq"], each["_attempt"]) for each in read})


def test_an_attempt_is_believed_where_the_commit_of_its_seq_names_it() -> None:
    """Of one seq one attempt has committed, and of a seq to come none has."""
    believed = [Attempt(1, 10), Attempt(2, 21)]
    others = [Attempt(1, 11), DEAD, LIVING]

    assert [each for each in (*believed, *others) if COMMITTED.has_committed(each)] == believed


def test_what_a_batch_wrote_of_which_nothing_tells_any_more_is_believed() -> None:
    """Ledger and log may be lost; what lies there may then be all that is left."""
    committed = Attempts.of([row(2, 21)], last=2)

    assert committed.has_committed(Attempt(1, 99))


def test_what_a_rewind_has_undone_is_not_believed_again() -> None:
    """The batches in between stand no more, whatever has been committed since."""
    undone = COMMITTED.after(row(3, 30, "rewind", **{REWOUND_TO: 1}), row(4, 40))

    kept = [Attempt(1, 10), Attempt(3, 30), Attempt(4, 40)]
    gone = Attempt(2, 21)
    assert [each for each in (*kept, gone) if undone.has_committed(each)] == kept


@pytest.mark.parametrize("settings", [STATISTICS, {}, {"delta.dataSkippingStatsColumns": "_seq"}])
@pytest.mark.parametrize("is_mixed", [False, True], ids=["a file each", "one file"])
def test_leftovers_are_found_in_files_of_one_attempt_and_of_many(
    tmp_path: Path, settings: dict[str, str], is_mixed: bool
) -> None:
    """Whatever statistics the files have, and however they were put together since."""
    of = [Attempt(1, 10), DEAD, Attempt(2, 21), LIVING]
    writes = [rows(*of)] if is_mixed else [rows(each) for each in of]
    found = table(tmp_path / "t", *writes, settings=settings)
    if is_mixed:
        # What delta-rs has copied Arrow reads as other types.
        open_delta(found).update(updates={"_seq": "_seq"})

    left_over = find_leftovers(found, COMMITTED)

    assert left_over.attempts == {DEAD, LIVING}
    assert left_over.of_failed(COMMITTED).attempts == {DEAD}
    assert open_rows(found).count_rows(filter=left_over.as_filter()) == 2
    open_delta(found).delete(left_over.as_sql())
    assert left_in(found) == [(1, 10), (2, 21)]


def test_marks_are_found_as_rows_are(tmp_path: Path) -> None:
    """A row without a mark names no redrive."""
    of = [Attempt(2, 20), Attempt(2, 21)]
    marked = pa.table(
        {
            **{name: rows(*of)[name] for name in ROWS},
            MARKS[0]: pa.array([None, 2], pa.int64()),
            MARKS[1]: pa.array([None, 22], pa.int64()),
        }
    )
    unmarked = marked.slice(0, 1)
    found = table(tmp_path / "t", marked, unmarked)

    assert find_leftovers(found, COMMITTED, MARKS).attempts == {Attempt(2, 22)}


def test_a_table_without_leftovers_costs_no_look_into_its_files(tmp_path: Path) -> None:
    """The statistics of files that one attempt has written say it all."""
    found = table(tmp_path / "t", rows(Attempt(1, 10)), rows(Attempt(2, 21)))
    for file in (tmp_path / "t").glob("*.parquet"):
        file.unlink()

    assert not find_leftovers(found, COMMITTED)


def test_only_what_can_commit_no_more_is_removed(tmp_path: Path) -> None:
    """An attempt at a seq to come may live: without its rows its commit would lie."""
    found = table(tmp_path / "t", rows(Attempt(1, 10)), rows(DEAD), rows(LIVING))

    for _ in range(2):
        remove_failed(found, read_delta(found), COMMITTED)

    assert left_in(found) == [(1, 10), LIVING]
