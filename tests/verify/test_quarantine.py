"""The quarantine held against the records that belong there."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

import pytest

from oncelake.ingestion.verify.compare.quarantine import as_bad, misplaced
from oncelake.ingestion.verify.coverage import Coverage
from tests.verify.factories import P0, batch, full_coverage, record, remembering, stretch

BAD = [record(3, b"no", key=b"k"), record(4, None), record(5, b"x" * 1_000)]


def kept(offset: int, **fields: Any) -> tuple[Any, ...]:
    """Return the quarantine's row of one of those records, or of another at that offset."""
    known = {each.offset: each for each in BAD}.get(offset, record(offset, b"other"))
    sent = dt.datetime.fromtimestamp(offset, dt.UTC)
    given = {"topic": "t", "partition": 0, "offset": offset, "timestamp": sent, "seq": 1}
    raw = {"key": known.key, "value": known.value, "removed": None}
    return tuple({**given, **raw, **fields}.values())


SOUND = [kept(3), kept(4), kept(5)]


def differences(*chunks: list[tuple[Any, ...]], coverage: Coverage | None = None) -> list[str]:
    """Return what is wrong with a quarantine."""
    with remembering() as store:
        shelf = store.table("bad")
        shelf.put(dict(as_bad(each, "why", 1) for each in BAD))
        known = coverage or full_coverage()
        found = misplaced(chunks, shelf, known, bare=Counter())
        return [str(difference) for difference in found]


def test_exactly_the_bad_records_have_no_difference() -> None:
    """Place, raw key and raw value are equal, in any order."""
    assert differences(SOUND[:1], SOUND[:0:-1]) == []


def test_a_bad_record_that_is_not_there_is_named_with_its_reason() -> None:
    """What cannot be applied and is not kept is lost."""
    assert differences(SOUND[1:]) == [
        "t-0 offset 3 · batch 1: belongs in quarantine (why), and is not there: expected b'no'"
    ]


def test_a_good_record_in_quarantine_is_named() -> None:
    """A record that can be applied does not belong there."""
    assert differences([*SOUND, kept(9)]) == [
        "t-0 offset 9 · batch 1: is in quarantine, and the topic has no bad record there: "
        "found b'other'"
    ]


@pytest.mark.parametrize("chunks", [([*SOUND, kept(3)],), (SOUND, [kept(3)])], ids=["one", "two"])
def test_a_record_that_is_there_twice_is_named(chunks: tuple[list[tuple[Any, ...]], ...]) -> None:
    """Each bad record is kept once."""
    assert differences(*chunks) == ["t-0 offset 3 · batch 1: is in quarantine more than once"]


@pytest.mark.parametrize(
    ("offset", "changed", "name"),
    [
        (3, {"key": b"K"}, "key"),
        (3, {"value": b"yes"}, "value"),
        (4, {"value": b""}, "value"),
        (5, {"value": b"x" * 999 + b"y"}, "value"),
        (3, {"seq": 0}, "_seq"),
        (3, {"timestamp": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}, "_timestamp"),
    ],
    ids=["key", "value", "null", "long value", "seq", "timestamp"],
)
def test_what_is_kept_is_raw(offset: int, changed: dict[str, Any], name: str) -> None:
    """Every byte counts; null is not empty."""
    rows = [kept(offset, **changed), *(row for row in SOUND if row[2] != offset)]

    (problem,) = differences(rows)

    assert f"its {name} in quarantine is not the record's" in problem


def test_rows_beyond_coverage_are_checked_against_the_ledger_only() -> None:
    """Nobody can tell what a record was that Kafka no longer holds; only that it was read."""
    for end, count in ((9, 0), (1, 1)):
        coverage = full_coverage(earliest={P0: 2}, batches={1: batch(1, stretch(0, end))})

        assert len(differences([*SOUND, kept(1)], coverage=coverage)) == count


def test_a_place_is_another_record_in_another_epoch() -> None:
    """What an earlier epoch had at an offset has nothing to do with what is there now."""
    earlier = batch(0, stretch(0, 9), epoch=1)
    coverage = full_coverage(epoch=2, batches={0: earlier, 1: batch(1, stretch(0, 9), epoch=2)})

    assert differences([*SOUND, kept(3, seq=0), kept(8, seq=0)], coverage=coverage) == []
    assert len(differences([*SOUND, kept(3, seq=0), kept(3, seq=0)], coverage=coverage)) == 1


def test_an_accepted_batch_is_not_compared() -> None:
    """What a person accepted may be as it is."""
    assert differences([], coverage=full_coverage(accepted=frozenset({1}))) == []
