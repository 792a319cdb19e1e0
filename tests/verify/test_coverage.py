"""What a proof can see, and what it says of the rest."""

from __future__ import annotations

from oncelake.ingestion.verify.coverage import Coverage, accepted_in
from oncelake.ingestion.verify.read.snapshot import Batch
from oncelake.ingestion.verify.read.spill import CHUNK
from tests.verify.factories import P0, P1, batch, full_coverage, remembering, stretch

BATCHES = [
    batch(1, stretch(0, 5), stretch(0, 2, at=P1)),
    batch(2, stretch(5, 9), stretch(2, 4, at=P1)),
]


def coverage_of(**fields: object) -> Coverage:
    """Return a coverage over these batches."""
    return full_coverage(batches={each.seq: each for each in BATCHES}, **fields)


def test_everything_there_leaves_nothing_to_say() -> None:
    """While Kafka holds what was read, each batch can be counted again."""
    assert [coverage_of().can_recount(each) for each in BATCHES] == [True, True]
    assert list(coverage_of().limits()) == []


def test_a_batch_is_cut_at_what_is_left() -> None:
    """What retention left of a batch is read, and its counts are not compared."""
    coverage = coverage_of(earliest={P0: 3, P1: 0})

    assert [coverage.can_recount(each) for each in BATCHES] == [False, True]
    assert [str(part) for part in coverage.covered_ranges(BATCHES[0])] == [
        "t-0 [3, 5)",
        "t-1 [0, 2)",
    ]
    assert list(coverage.limits()) == ["t-0: proven from offset 3 on; Kafka no longer holds [0, 3)"]


def test_where_the_stream_began_nothing_is_missing() -> None:
    """What was never to be read is not missed."""
    coverage = full_coverage(begin={P0: 7}, earliest={P0: 5})

    assert (coverage.is_partial, coverage.first_offset(P0), list(coverage.limits())) == (
        False,
        7,
        [],
    )


def test_earlier_epochs_cannot_be_seen() -> None:
    """Their topics are gone, whatever their offsets were."""
    coverage = coverage_of(epoch=2)

    assert [coverage.covered_ranges(each) for each in BATCHES] == [[], []]
    assert "epoch 2 began after batch 2" in next(coverage.limits())


def accepted(seq: int, **fields: object) -> Batch:
    """Return a person's acceptance."""
    return batch(seq, **{"kind": "accept", "accepted": "why", **fields})


def test_acceptances_are_distinguished() -> None:
    """A red batch, a lost range, a new epoch and a restored table mean different things."""
    red = batch(1, stretch(0, 5), balanced=False, accepted="red")
    lost = accepted(2, ranges=(stretch(5, 9),), counts={"lost": 4}, balanced=False)

    assert accepted_in([red, accepted(2, accepted="red")]) == (frozenset({1}), 0)
    assert accepted_in([BATCHES[0], lost]) == (frozenset(), 0)
    assert accepted_in([BATCHES[0], accepted(2, epoch=2)]) == (frozenset(), 0)
    for taken in ("altered", "cut", "quarantine_written_off", "tombstones_written_off"):
        both = accepted(2, accepted="red", counts={taken: 1})
        assert accepted_in([red, both]) == (frozenset({1}), 2)


def test_a_restored_table_puts_all_before_it_in_doubt() -> None:
    """What a person accepted as it was is not judged; what came later is."""
    coverage = coverage_of(accepted_through=1)

    assert [coverage.can_recount(each) for each in BATCHES] == [False, True]
    # Rows that were adopted are of seq 0.
    assert [coverage.is_accepted(seq) for seq in (0, 1, 2)] == [True, True, False]
    assert coverage_of().is_accepted(0) is False


def test_a_spill_table_keeps_finds_and_forgets_in_chunks() -> None:
    """What was kept comes back, what was found is marked, whatever the keys look like."""
    keys = [repr([number, "é'\x00\""]) for number in range(CHUNK + 5)]
    with remembering() as store:
        table = store.table("things")
        table.put({key: (key, None) for key in keys})
        assert table.get([keys[7], "nosuch"]) == {keys[7]: (keys[7], None)}
        assert table.find(["nosuch", *keys[:3]]) == set()
        assert table.find(["nosuch", keys[2], keys[4]]) == {"nosuch", keys[2]}
        assert len(table) == len(keys)
        unfound = [key for chunk in table.chunks(unfound=True) for key in chunk]
        assert sorted(unfound) == sorted({*keys} - {*keys[:3], keys[4]})
        table.clear()
        assert len(table) == 0
