"""The ledger remembers batches as they were, however often they are written."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from oncelake.ingestion.kafka.offsets import Offsets, Range, TopicPartition
from oncelake.ingestion.lake.erasure import Digest, erasures
from oncelake.ingestion.lake.ledger import (
    SCHEMA,
    Ledger,
    LedgerRow,
    first_offsets,
    next_offsets,
    standing_rows,
)
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_metadata import CountedRange, Identity


def batch(seq: int, start: int, end: int, *, table: str = "one") -> LedgerRow:
    """One balanced batch of one partition."""
    counted = CountedRange(
        range=Range(topic="t", partition=0, start=start, end=end), records=end - start, gaps=0
    )
    return LedgerRow(
        table_id=table,
        seq=seq,
        kind="ingest",
        epoch=1,
        committed_at=dt.datetime(2026, 1, 1, 0, 0, seq, tzinfo=dt.UTC),
        run_id="r",
        delta_version=seq + 1,
        ranges=(counted,),
        counts={"read": end - start, "inserted": end - start},
        balanced=True,
    )


KNOWN = Identity(cluster_id="c", topic_ids={"t": "x"}, keys=("id",), order=())


def rewound(seq: int, *, to: int) -> LedgerRow:
    """The row of a rewind."""
    return replace(batch(seq, 0, 0), kind="rewind", ranges=(), counts={"rewound_to": to})


def test_a_row_is_read_back_as_it_was_put(tmp_path: Path) -> None:
    """Every column survives the table."""
    ledger = Ledger(Location.of(tmp_path / "ledger"))

    ledger.put(batch(1, 0, 5))

    assert ledger.rows() == (batch(1, 0, 5),)


def test_putting_a_row_again_replaces_it(tmp_path: Path) -> None:
    """A batch has one row, and the last word on it counts."""
    ledger = Ledger(Location.of(tmp_path / "ledger"))
    red = replace(batch(2, 5, 6), balanced=False)
    ledger.put(batch(1, 0, 5), red)

    ledger.put(replace(red, accepted="why"))

    assert [(row.seq, row.is_red, row.accepted) for row in ledger.rows()] == [
        (1, False, None),
        (2, False, "why"),
    ]
    assert red.is_red


def test_many_rows_do_not_stay_many_files(tmp_path: Path) -> None:
    """What a run reads grows with the rows alone: they are put together now and then."""
    ledger = Ledger(Location.of(tmp_path / "ledger"))
    put = [batch(seq, seq * 10, seq * 10 + 10) for seq in range(60)]
    for row in put:
        ledger.put(row)

    assert ledger.rows_of("one") == tuple(put)
    assert len(DeltaTable(ledger.path).file_uris()) < 50


def test_rows_of_another_table_are_kept_apart(tmp_path: Path) -> None:
    """The seq of a table that was replaced says nothing about the one that is there."""
    ledger = Ledger(Location.of(tmp_path / "ledger"))
    ledger.put(batch(1, 0, 5), batch(1, 0, 3, table="two"))

    assert [row.counts["read"] for row in ledger.rows_of("two")] == [3]


def test_the_next_offsets_are_the_last_ends() -> None:
    """What the ledger's rows have reached is where the next batch begins."""
    assert next_offsets([batch(1, 0, 5), batch(2, 5, 9)]) == Offsets({TopicPartition("t", 0): 9})


def test_the_offsets_of_an_earlier_epoch_do_not_count() -> None:
    """They mean records of a topic that is no more."""
    adopted = replace(batch(3, 0, 4), epoch=2)

    assert next_offsets([batch(1, 0, 5), batch(2, 5, 9), adopted]) == Offsets(
        {TopicPartition("t", 0): 4}
    )


def test_an_identity_outlives_the_commits(tmp_path: Path) -> None:
    """The ledger keeps what the offsets mean, beside the offsets."""
    ledger = Ledger(Location.of(tmp_path / "ledger"))
    ledger.put(replace(batch(1, 0, 5), identity=KNOWN))

    assert ledger.rows()[0].identity == KNOWN


def test_a_ledger_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """Rows without an identity are read, and new ones are written beside them."""
    ledger = Ledger(Location.of(tmp_path / "ledger"))
    earlier = SCHEMA.remove(SCHEMA.get_field_index("identity"))
    record = batch(1, 0, 5).as_record()
    del record["identity"]
    write_deltalake(ledger.path.path, pa.Table.from_pylist([record], schema=earlier))

    ledger.put(batch(2, 5, 9))

    assert ledger.rows() == (batch(1, 0, 5), batch(2, 5, 9))


def test_a_ledger_that_was_never_written_is_empty(tmp_path: Path) -> None:
    """Before the first batch there is nothing to remember."""
    ledger = Ledger(Location.of(tmp_path / "none"))

    ledger.put()

    assert ledger.rows() == ()


def test_what_a_rewind_has_undone_counts_no_more() -> None:
    """Not for the offsets, and not as red; a rewind may undo another."""
    rows = [batch(1, 0, 5), batch(2, 5, 9), rewound(3, to=1), batch(4, 5, 7), rewound(5, to=3)]

    assert [row.seq for row in standing_rows(rows)] == [1, 3, 5]
    assert [row.seq for row in standing_rows(rows[:4])] == [1, 3, 4]
    assert next_offsets(rows[:4]) == Offsets({TopicPartition("t", 0): 7})
    assert next_offsets(rows) == Offsets({TopicPartition("t", 0): 5})


def test_a_replay_moves_no_offset() -> None:
    """Its ranges had been read before."""
    rows = [batch(1, 0, 5), replace(batch(2, 0, 3), kind="replay")]

    assert next_offsets(rows) == Offsets({TopicPartition("t", 0): 5})


def test_a_stream_began_where_it_first_read() -> None:
    """What an erase or a replay covers says nothing of that."""
    rows = [replace(batch(1, 0, 9), kind="erase"), batch(2, 4, 9)]

    assert first_offsets(rows) == Offsets({TopicPartition("t", 0): 4})


def test_a_topic_that_was_made_again_began_anew() -> None:
    """Its id tells, in every epoch; of a batch whose topics nothing names, the epoch does."""
    rows = [replace(batch(1, 4, 9), identity=KNOWN), replace(batch(2, 0, 5), epoch=2)]
    at = TopicPartition("t", 0)

    assert first_offsets(rows[:1], {"t": "x"}) == Offsets({at: 4})
    assert first_offsets(rows[:1], {"t": "another"}) == Offsets()
    assert first_offsets([batch(1, 4, 9)], {"t": "x"}) == Offsets({at: 4})
    assert first_offsets(rows, {"t": "x"}) == Offsets({at: 4})


def test_what_was_erased_is_remembered(tmp_path: Path) -> None:
    """A digest of the key, and how far the topic was read; the key itself is nowhere."""
    digest = Digest.of({"id": 42})
    reached = Offsets({TopicPartition("t", 0): 9})
    said = {**digest.as_row(), "until": reached.to_json()}
    row = replace(batch(2, 0, 9), kind="erase", erased=said, identity=KNOWN)
    ledger = Ledger(Location.of(tmp_path / "ledger"))
    ledger.put(batch(1, 0, 9), row)

    (erasure,) = erasures(ledger.rows())

    assert (erasure.seq, erasure.digest.is_of([42]), erasure.digest.is_of([43])) == (2, True, False)
    assert erasure.until == reached
