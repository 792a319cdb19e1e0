"""A batch's counts held against its records, counted again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from oncelake.ingestion.verify.compare.ledger import miscounts
from oncelake.ingestion.verify.fold.rule import Recount
from oncelake.ingestion.verify.read.snapshot import Batch
from tests.verify.factories import P0, batch, stretch


def recount(**fields: Any) -> Recount:
    """Return what ten records became: one each of most things, and five inserts."""
    dispositions = Counter({"inserted": 5, "updated": 1, "stale": 1})
    counts = Counter({"superseded": 1, "quarantined": 1, "ignored": 1})
    given = {"records": Counter({P0: 10}), "counts": counts}
    return Recount(**{**given, "dispositions": dispositions, **fields})


COUNTS = {"superseded": 1, "quarantined": 1, "ignored": 1, "inserted": 5, "updated": 1, "stale": 1}


def batch_of(**counts: int) -> Batch:
    """Return the ledger's row of the same batch, which had two gaps."""
    return batch(1, stretch(0, 12, records=10), counts={**COUNTS, **counts})


def test_counts_that_are_right_have_no_difference() -> None:
    """The ledger of a sound batch says what counting again gives."""
    assert list(miscounts(batch_of(), recount())) == []


@pytest.mark.parametrize(
    "name",
    [
        *("offsets", "read", "gaps", "superseded", "quarantined", "ignored"),
        *("inserted", "updated", "deleted", "deleted_absent", "stale", "unchanged"),
    ],
)
def test_every_count_is_held_against_the_records(name: str) -> None:
    """A count that is off by one is named, whichever it is."""
    off = batch_of(**{name: batch_of().counts.get(name, 0) + 1})

    found = [each.what for each in miscounts(off, recount())]

    assert f"{name}, counted again" in found


def test_counts_that_trade_places_are_named() -> None:
    """That the sums are right does not make an insert an update."""
    found = [str(each) for each in miscounts(batch_of(inserted=4, updated=2), recount())]

    assert found == [
        "batch 1: inserted, counted again: expected 5, found 4",
        "batch 1: updated, counted again: expected 1, found 2",
    ]


def test_records_of_a_range_are_counted_apart() -> None:
    """A range that claims more records than it has is named."""
    lying = batch(1, stretch(0, 12, records=11), counts={**batch_of().counts})

    found = [each.what for each in miscounts(lying, recount())]

    assert found == ["records in t-0 [0, 12), counted again", "gaps in t-0 [0, 12), counted again"]


def test_what_was_read_again_is_in_offsets_and_read_only() -> None:
    """Overlap is no part of the ranges; its own gaps are allowed for."""
    again = batch_of(offsets=15, read=12, gaps=3, overlap=2)

    assert list(miscounts(again, recount())) == []
    assert [each.what for each in miscounts(batch_of(overlap=2), recount())] != []


def test_winners_in_doubt_leave_room_but_no_more() -> None:
    """A winner in doubt may have had any disposition; the others must be there."""
    doubtful = recount(dispositions=Counter({"inserted": 3, "updated": 1, "stale": 1}), doubtful=2)

    assert list(miscounts(batch_of(), doubtful)) == []
    assert list(miscounts(batch_of(inserted=4, updated=2), doubtful)) == []
    assert list(miscounts(batch_of(inserted=2, updated=4), doubtful)) != []
    assert [each.what for each in miscounts(batch_of(inserted=4), doubtful)] == [
        "winners accounted for, counted again"
    ]
    assert list(miscounts(batch_of(inserted=6), doubtful)) != []
