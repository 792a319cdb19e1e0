"""The rule of each mode, in the proof's own words: one table, however the records came."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.verify.decode.coerce import UnprovableError
from oncelake.ingestion.verify.read.record import Record
from tests.verify.factories import P0, Folded, declared, full_coverage, record

GONE = {"apply_as_deletes": "name = 'gone'"}
AGGREGATES = {
    "n": "count(*)",
    "total": "sum(at)",
    "mean": "avg(at)",
    "names": "set(name)",
    "low": "min(name)",
    "newest": "last(name)",
    "oldest": "first(name)",
}
SPECS = {
    "upsert": declared(**GONE),
    "soft upsert": declared(deletes="soft", **GONE),
    "append": declared(mode="append", keys=[], sequence_by=[]),
    "insert_only": declared(mode="insert_only"),
    "scd2": declared(mode="scd2", **GONE),
    "tracked scd2": declared(mode="scd2", track=["name"], **GONE),
    "aggregate": declared(mode="aggregate", aggregates=AGGREGATES),
}
stories = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["a", "b", "gone"]), st.integers(0, 4)),
    min_size=1,
    max_size=12,
)


def records_of(values: list[Any]) -> list[Record]:
    """Return records of keys, names and times, in two partitions."""
    return [
        record(offset, {"id": id, "name": name, "at": at}, partition=offset % 2)
        for offset, (id, name, at) in enumerate(values)
    ]


def rows(spec: StreamSpec, *batches: list[Record]) -> list[Any]:
    """Fold batches, and return the rows but for the batch numbers."""
    return sorted((row[:-1] for row in Folded(*batches, spec=spec).rows), key=repr)


@pytest.mark.parametrize("mode", SPECS)
@settings(deadline=None, max_examples=30)
@given(values=stories, data=st.data())
def test_neither_cuts_nor_the_order_of_arrival_change_the_rows(
    mode: str, values: list[Any], data: st.DataObject
) -> None:
    """All records at once, one by one, and one by one in any other order give the same rows."""
    spec, whole = SPECS[mode], records_of(values)
    shuffled = data.draw(st.permutations(whole))

    expected = rows(spec, whole)
    assert rows(spec, *([each] for each in whole)) == expected
    assert rows(spec, *([each] for each in shuffled)) == expected


@pytest.mark.parametrize("mode", SPECS)
@settings(deadline=None, max_examples=30)
@given(values=stories)
def test_every_record_has_one_disposition(mode: str, values: list[Any]) -> None:
    """The books balance in every mode, batch by batch."""
    folded = Folded(*([each] for each in records_of(values)), spec=SPECS[mode])

    for recount in folded.recounts:
        assert (
            recount.records.total()
            == recount.dispositions.total()
            + recount.counts["superseded"]
            + recount.counts["ignored"]
        )


@settings(deadline=None, max_examples=60)
@given(
    values=st.lists(
        st.tuples(
            st.integers(0, 1),
            st.sampled_from(["a", "b", "gone", None]),
            st.none() | st.integers(0, 9),
        ),
        min_size=1,
        max_size=10,
    ),
    cut=st.sets(st.integers(1, 9)),
)
def test_a_partial_update_loses_nothing_wherever_it_is_cut(
    values: list[Any], cut: set[int]
) -> None:
    """Each column is the last that was not null since the key's last delete."""
    spec = declared(sequence_by=[], ignore_null_updates=True, **GONE)
    records = [
        record(offset, {"id": id, "name": name, "at": at}, partition=id)
        for offset, (id, name, at) in enumerate(values)
    ]
    expected: dict[int, list[Any]] = {}
    for id, name, at in values:
        old = expected.pop(id, [None, None])
        if name != "gone":
            new = [name, at]
            expected[id] = [o if n is None else n for n, o in zip(new, old, strict=True)]
    bounds = [0, *sorted(each for each in cut if each < len(records)), len(records)]
    batches = [records[a:b] for a, b in pairwise(bounds)]

    for folded in (Folded(records, spec=spec), Folded(*batches, spec=spec)):
        assert {row[0]: list(row[1:3]) for row in folded.rows} == expected
        for recount in folded.recounts:
            assert (
                recount.records.total()
                == recount.dispositions.total() + recount.counts["superseded"]
            )


def test_the_first_record_of_a_key_is_the_row() -> None:
    """An older one that comes late takes its place, and a younger one is stale."""
    folded = Folded(
        *([each] for each in records_of([(1, "b", 5), (1, "c", 7), (1, "a", 3)])),
        spec=SPECS["insert_only"],
    )

    assert [row[1] for row in folded.rows] == ["a"]
    assert [folded.dispositions(seq) for seq in (1, 2, 3)] == [
        {"inserted": 1},
        {"stale": 1},
        {"updated": 1},
    ]


def test_a_history_has_the_bounds_of_each_version() -> None:
    """Late versions take their place, deletes end one, and equal times leave one of no length."""
    story = [(1, "a", 1), (1, "c", 5), (1, "gone", 7), (1, "b", 3), (1, "B", 3), (1, "d", 9)]
    folded = Folded(*([each] for each in records_of(story)), spec=SPECS["scd2"])

    assert {row[1]: row[3:6] for row in folded.rows} == {
        "a": (1, 3, False),
        "B": (3, 3, False),
        "b": (3, 5, False),
        "c": (5, 7, False),
        "d": (9, None, True),
    }
    assert [each.extra["closed"] for each in folded.recounts] == [0, 1, 1, 1, 0, 0]


def test_a_version_is_a_change_of_what_is_tracked() -> None:
    """A late record, or a delete, parts two that were equal; another version becomes none."""
    story = [(1, "a", 1), (1, "a", 5), (1, "b", 3), (1, "b", 9), (1, "b", 7), (1, "gone", 8)]
    folded = Folded(*([each] for each in records_of(story)), spec=SPECS["tracked scd2"])

    assert [(row[1], *row[3:6]) for row in sorted(folded.rows, key=lambda row: row[2])] == [
        ("a", 1, 3, False),
        ("b", 3, 5, False),
        ("a", 5, 7, False),
        ("b", 7, 8, False),
        ("b", 9, None, True),
    ]
    names = ("closed", "untracked", "withdrawn", "restored")
    assert [[each.extra[name] for name in names] for each in folded.recounts] == [
        [0, 0, 0, 0],
        [0, 1, 0, 0],
        [1, 0, 0, 1],
        [1, 0, 0, 0],
        [1, 0, 1, 0],
        [1, 0, 0, 1],
    ]


def test_tracked_columns_are_not_proven_without_what_came_before() -> None:
    """The record before a version may have been equal."""
    with pytest.raises(UnprovableError, match="no longer holds"):
        Folded(
            records_of([(1, "a", 1)]),
            spec=SPECS["tracked scd2"],
            coverage=full_coverage(earliest={P0: 5}),
        )


def test_a_delete_before_a_late_version_ends_it() -> None:
    """A delete that found nothing is remembered, and ends what comes late before it."""
    folded = Folded(
        *([each] for each in records_of([(1, "gone", 5), (1, "a", 3)])), spec=SPECS["scd2"]
    )

    assert [row[3:6] for row in folded.rows] == [(3, 5, False)]
    assert (folded.dispositions(1), folded.dispositions(2)) == (
        {"deleted_absent": 1},
        {"inserted": 1},
    )


def test_a_group_counts_the_records_that_made_it_and_those_that_it_got() -> None:
    """Records of a group that is new in the batch are inserted; of one that was there, updated."""
    one, two, three = records_of([(1, "a", 1), (1, "b", 2), (2, "c", 3)])
    folded = Folded([one], [two, three], spec=SPECS["aggregate"])

    assert (folded.dispositions(1), folded.dispositions(2)) == (
        {"inserted": 1},
        {"updated": 1, "inserted": 1},
    )
    assert [(each.extra["groups"], each.extra["groups_new"]) for each in folded.recounts] == [
        (1, 1),
        (2, 1),
    ]


def test_windows_begin_where_the_clock_of_the_epoch_does() -> None:
    """A moment belongs to the window that it begins, and those before 1970 have windows, too."""
    spec = declared(
        mode="aggregate",
        schema="id BIGINT, at TIMESTAMP",
        sequence_by=[],
        aggregates={"n": "count(*)"},
        window={"column": "at", "every": "10 minutes"},
    )
    moments = ["2024-01-01T00:09:59", "2024-01-01T00:10:00", "1969-12-31T23:59:59", None]
    records = [record(n, {"id": 1, "at": at}) for n, at in enumerate(moments)]

    folded = Folded(records, spec=spec)

    assert [(f"{row[1]:%d %H:%M}", f"{row[2]:%d %H:%M}") for row in folded.rows] == [
        ("31 23:50", "01 00:00"),
        ("01 00:00", "01 00:10"),
        ("01 00:10", "01 00:20"),
    ]
    assert folded.bad == {(0, 3): "a key column is null"}


def test_a_group_whose_first_records_are_gone_is_not_proven() -> None:
    """What was folded and cannot be read again may have been anything."""
    with pytest.raises(UnprovableError, match="no longer holds"):
        Folded(
            records_of([(1, "a", 1)]),
            spec=SPECS["aggregate"],
            coverage=full_coverage(earliest={P0: 5}),
        )
