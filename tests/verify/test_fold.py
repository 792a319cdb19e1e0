"""The second opinion is itself judged here: a wrong oracle proves wrong things."""

from __future__ import annotations

from itertools import permutations

import pytest

from oncelake.ingestion.verify.fold.fold import Fold
from oncelake.ingestion.verify.read.record import Record
from tests.verify.factories import (
    DDL,
    P0,
    Folded,
    batch,
    declared,
    folding,
    full_coverage,
    record,
    remembering,
    stretch,
)


def names_of(folded: Folded) -> list[object]:
    """Return the column ``name`` of the rows, by key."""
    return [row[1] for row in folded.rows]


def test_the_highest_order_wins_whenever_it_comes() -> None:
    """An older update that comes later, even from another partition, changes nothing."""
    newest = record(0, {"id": 1, "name": "new", "at": 9})
    older = record(5, {"id": 1, "name": "old", "at": 3}, partition=1)

    together, apart = Folded([newest, older]), Folded([newest], [older])

    assert names_of(together) == names_of(apart) == ["new"]
    assert (together.recounts[0].counts["superseded"], together.dispositions()) == (
        1,
        {"inserted": 1},
    )
    assert apart.dispositions(2) == {"stale": 1}


def test_not_a_number_ranks_above_every_number_and_equals_itself() -> None:
    """It wins whenever it comes, as in Spark; among equals the offset decides."""
    spec = declared(schema="id BIGINT NOT NULL, name STRING, at DOUBLE", format="csv")
    first = [record(0, b"1,a,3.0"), record(1, b"1,b,NaN"), record(2, b"2,z,NaN")]
    later = [record(3, b"1,c,Infinity"), record(4, b"2,y,NaN")]

    told = Folded(first, later, spec=spec)

    assert [row[1] for row in told.rows] == ["b", "y"]
    assert (told.dispositions(1), told.dispositions(2)) == (
        {"inserted": 2},
        {"stale": 1, "updated": 1},
    )


def test_a_row_names_its_record_its_epoch_and_its_batch() -> None:
    """The system's columns are part of what a table must hold."""
    (row,) = Folded([record(4, {"id": 1, "at": 9})], coverage=full_coverage(epoch=2)).rows

    assert (*row[3:6], row[6].timestamp(), *row[7:]) == ("t", 0, 4, 4.0, 2, 1)


def test_equal_order_is_decided_by_partition_and_offset() -> None:
    """Of two records of one order, the one further on in the topic wins."""
    folded = Folded([record(4, {"id": 1, "at": 9}), record(5, {"id": 1, "at": 9})])

    assert [row[5] for row in folded.rows] == [5]


def test_a_deleted_key_stays_deleted_in_every_order_of_arrival() -> None:
    """A delete beats older updates, and a newer one raises the key, however they arrive."""
    spec = declared(apply_as_deletes="name = 'gone'")
    old, gone, new = ({"id": 1, "name": n, "at": at} for at, n in enumerate(("old", "gone", "new")))

    for order in permutations((old, gone)):
        told = Folded(*([record(i, value)] for i, value in enumerate(order)), spec=spec)
        assert (told.rows, told.deleted) == ([], 1)
    for order in permutations((old, gone, new)):
        told = Folded(*([record(i, value)] for i, value in enumerate(order)), spec=spec)
        assert names_of(told) == ["new"]


def test_each_winner_has_the_disposition_that_the_table_before_gave_it() -> None:
    """Inserted, updated, deleted, deleted though absent, and stale are told apart."""
    spec = declared(apply_as_deletes="name = 'gone'")
    values = [
        (1, "a", 5),
        (1, "b", 6),
        (1, "old", 2),
        (1, "gone", 7),
        (1, "late", 3),
        (2, "gone", 1),
    ]
    folded = Folded(
        *(
            [record(i, dict(zip(("id", "name", "at"), v, strict=True)))]
            for i, v in enumerate(values)
        ),
        spec=spec,
    )

    told = [next(iter(folded.dispositions(seq))) for seq in range(1, 7)]
    assert told == ["inserted", "updated", "stale", "deleted", "stale", "deleted_absent"]


def test_a_delete_needs_no_more_than_key_and_order() -> None:
    """Columns that a living row must have may be null in a delete."""
    spec = declared(schema=f"{DDL}, must INT NOT NULL", apply_as_deletes="name = 'gone'")
    living, dying = ({"id": 1, "name": name, "at": 1} for name in ("here", "gone"))

    told = Folded([record(0, living), record(1, dying)], spec=spec)

    assert (told.deleted, told.bad) == (1, {(0, 0): "a NOT NULL column is null"})


def test_without_an_order_the_offset_decides_within_a_partition() -> None:
    """The last record wins; the same key from another partition cannot be ordered."""
    spec = declared(sequence_by=[])
    one, two = record(0, {"id": 1, "at": 9}), record(1, {"id": 1, "at": 3})

    assert [row[2] for row in Folded([one, two], spec=spec).rows] == [3]
    for batches in ([[one, two._replace(partition=1)]], [[one], [two._replace(partition=1)]]):
        (clash,) = Folded(*batches, spec=spec).recounts[-1].clashes
        assert "key [1] came from t-0 offset 0 too" in str(clash)


@pytest.mark.parametrize(
    ("key", "is_read"),
    [
        pytest.param(b'{"id": 1}', True, id="object"),
        pytest.param(b"1", True, id="bare scalar"),
        pytest.param(b'"1"', False, id="text for a number"),
        pytest.param(b'{"no": 1}', False, id="another name"),
        pytest.param(None, False, id="no key"),
    ],
)
def test_a_tombstone_takes_its_key_from_kafka(key: bytes | None, is_read: bool) -> None:
    """A tombstone deletes the row of its key, or is bad when it has none."""
    told = Folded(
        [record(0, {"id": 1, "at": 1}), record(1, None, key=key)],
        spec=declared(sequence_by="_timestamp"),
    )

    assert (told.deleted, len(told.bad)) == ((1, 0) if is_read else (0, 1))


@pytest.mark.parametrize(
    "key", [b"a-1", b'"a-1"', b'{"name": "a-1"}'], ids=["plain", "JSON string", "object"]
)
def test_a_text_key_may_be_bare(key: bytes) -> None:
    """A key column of text is read from plain text, a JSON string or an object."""
    spec = declared(keys="name", sequence_by=[])
    told = Folded([record(0, {"id": 1, "name": "a-1"}), record(1, None, key=key)], spec=spec)

    assert told.deleted == 1


@pytest.mark.parametrize(
    ("policy", "bad", "ignored"),
    [(None, 1, 0), ("quarantine", 1, 0), ("ignore", 0, 1)],
    ids=["default", "quarantine", "ignore"],
)
def test_a_tombstone_without_order_is_bad_or_ignored(
    policy: str | None, bad: int, ignored: int
) -> None:
    """Where the order is in the value, a tombstone never deletes."""
    told = Folded(
        [record(0, {"id": 1, "at": 1}), record(1, None, key=b'{"id": 1}')],
        spec=declared(tombstones=policy),
    )

    assert (len(told.rows), len(told.bad), told.recounts[0].counts["ignored"]) == (1, bad, ignored)


def test_a_tombstone_may_be_meant_for_quarantine() -> None:
    """Where the stream says so, a null value deletes nothing, though it could be placed."""
    spec = declared(sequence_by=[], tombstones="quarantine")

    told = Folded([record(0, {"id": 1}), record(1, None, key=b"1")], spec=spec)

    assert (len(told.rows), told.bad) == (1, {(0, 1): "a tombstone is not for this stream"})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"name": "x", "at": 1}, "a key column is null"),
        ({"id": 1, "at": None}, "a column of sequence_by is null"),
        ({"id": "1", "at": 1}, "not a value of the declared type: '1'"),
        (b"[1]", "a JSON object was expected, not list"),
    ],
    ids=["key", "order", "type", "no object"],
)
def test_what_cannot_be_applied_has_its_reason(value: object, reason: str) -> None:
    """A record without key or order, or that is not of the declared types, is bad."""
    assert Folded([record(0, value)]).bad == {(0, 0): reason}


def test_what_cannot_be_seen_leaves_winners_in_doubt() -> None:
    """Without the records before the coverage, nobody knows whether a key was there."""
    blind = full_coverage(earliest={P0: 10})
    one, two = record(10, {"id": 1, "at": 1}), record(11, {"id": 1, "at": 2})

    told = Folded([one], [two], coverage=blind)

    assert [each.doubtful for each in told.recounts] == [1, 1]


def test_by_offset_alone_a_key_once_seen_leaves_no_doubt() -> None:
    """Without a declared order, no earlier record can beat one that was seen."""
    blind = full_coverage(earliest={P0: 10}, is_ordered=False)
    one, two = record(10, {"id": 1, "at": 1}), record(11, {"id": 1, "at": 2})

    told = Folded([one], [two], coverage=blind, spec=declared(sequence_by=[]))

    assert [each.doubtful for each in told.recounts] == [1, 0]
    assert told.dispositions(2) == {"updated": 1}


@pytest.mark.parametrize("compacted", [True, False], ids=["compacted", "not compacted"])
def test_only_compaction_excuses_records_that_are_gone(compacted: bool) -> None:
    """A compacted topic holds fewer records than were read; in any other they are missing."""
    coverage = full_coverage()
    with remembering() as store:
        fold = Fold(folding(declared(), store, coverage), is_compacted=lambda topic: compacted)
        fold.batch(batch(1, stretch(0, 3)), [[record(2, {"id": 1, "at": 1})]])

    assert coverage.thinned == ({1} if compacted else set())
    assert coverage.covers_record((1, 1, *P0, 0), 1) is not compacted


def test_a_batch_larger_than_memory_is_folded_in_chunks() -> None:
    """Winners are found over all chunks of a batch, not within each."""
    chunks: list[list[Record]] = [
        [record(3 * i + j, {"id": j, "at": i}) for j in range(3)] for i in range(4)
    ]
    with remembering() as store:
        fold = Fold(folding(declared(), store, full_coverage()))
        recount = fold.batch(batch(1), chunks)

    assert (recount.records.total(), recount.counts["superseded"], dict(recount.dispositions)) == (
        12,
        9,
        {"inserted": 3},
    )


@pytest.mark.parametrize(
    ("constraint", "fields", "names", "bad"),
    [
        pytest.param("at > 1", {}, ["b"], [0, 2], id="a null meets nothing"),
        pytest.param("name LIKE 'a%' OR at IS NULL", {}, ["a", "c"], [1], id="text"),
        pytest.param("id <=> 2 - 0", {}, ["b"], [0, 2], id="a generated column"),
        pytest.param("id < 9", {}, ["a", "b", "c"], [], id="all meet it"),
        pytest.param("at > 1", {"where": "at IS NOT NULL"}, ["b"], [0], id="filtered"),
    ],
)
def test_a_row_that_the_table_would_not_take_is_bad(
    constraint: str, fields: dict[str, str], names: list[str], bad: list[int]
) -> None:
    """What the commit of its batch notes decides, and not what the table asks today."""
    values = [
        {"id": 1, "name": "a", "at": 1},
        {"id": 2, "name": "b", "at": 2},
        {"id": 3, "name": "c", "at": None},
    ]
    spec = declared(sequence_by=[], **fields)
    records = [record(offset, value) for offset, value in enumerate(values)]
    later = [record(n + 5, {**value, "id": n + 7}) for n, value in enumerate(values)]
    asked = {1: {"constraints": {"mine": constraint}}, 2: {"constraints": {}}}

    folded = Folded(records, later, spec=spec, declarations=asked)

    assert [row[1] for row in folded.rows if row[0] < 7] == names
    assert sorted(offset for _, offset in folded.bad) == bad
    assert folded.recounts[1].counts["quarantined"] == 0


def test_a_delete_leaves_no_row_to_meet_a_constraint() -> None:
    """Unless it is soft: then its row is what the delete says, and is bad like any other."""
    one = record(0, {"id": 1, "name": "a", "at": 2})
    delete = record(1, {"id": 1, "name": "gone", "at": None})
    asked = {1: {"constraints": {"mine": "at > 1"}}}
    fields = {"apply_as_deletes": "name = 'gone'", "sequence_by": []}

    hard = Folded([one, delete], spec=declared(**fields), declarations=asked)
    soft = Folded([one, delete], spec=declared(deletes="soft", **fields), declarations=asked)

    assert (hard.rows, hard.bad) == ([], {})
    assert [row[1] for row in soft.rows] == ["a"]
    assert list(soft.bad) == [(0, 1)]


@pytest.mark.parametrize("mode", [{}, {"mode": "insert_only"}, {"ignore_null_updates": True}])
def test_rows_of_records_that_have_more_are_counted(mode: dict[str, object]) -> None:
    """Whatever becomes of columns that a record leaves out; a delete has no row."""
    spec = declared(format="debezium", sequence_by=[], **mode)
    more, row = {"id": 1, "name": "a", "at": 1, "more": None}, {"id": 2, "name": "b", "at": 2}
    sides = [(None, more), (None, row), (more, None)]
    records = [
        record(n, {"op": "c" if after else "d", "before": before, "after": after})
        for n, (before, after) in enumerate(sides)
    ]

    assert Folded(records, spec=spec).recounts[0].undeclared == 1
