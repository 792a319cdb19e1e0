"""The algebra of offsets, held against sets of single offsets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelake.ingestion.kafka.offsets import (
    Fit,
    InvalidRangeError,
    Offsets,
    Range,
    TopicPartition,
    cut,
    fit,
)

# Under load the clock says nothing about the code.
quick = settings(max_examples=50, deadline=None)

partitions = st.builds(TopicPartition, st.sampled_from(["a", "b-1"]), st.integers(0, 3))
numbers = st.integers(0, 40)
positions = st.dictionaries(partitions, numbers).map(Offsets)


@st.composite
def plans(draw: st.DrawFn) -> tuple[Range, ...]:
    """Draw the planned ranges of a batch: at most one a partition."""
    spans = draw(st.dictionaries(partitions, st.tuples(numbers, numbers)))
    return tuple(
        Range(topic=at.topic, partition=at.partition, start=min(span), end=max(span))
        for at, span in spans.items()
    )


def offsets_of(ranges: tuple[Range, ...]) -> list[tuple[str, int, int]]:
    """List every single offset that the ranges cover, sorted, repeats included."""
    return sorted((r.topic, r.partition, at) for r in ranges for at in range(r.start, r.end))


def span(start: int, end: int, partition: int = 0) -> Range:
    """Return a range of topic ``a``."""
    return Range(topic="a", partition=partition, start=start, end=end)


@quick
@given(plans(), positions)
def test_a_plan_is_fresh_or_overlap_and_never_both(
    planned: tuple[Range, ...], reached: Offsets
) -> None:
    """Every planned offset is in exactly one of fresh and overlap."""
    found = fit(planned, reached)

    assert sorted(offsets_of(found.fresh) + offsets_of(found.overlap)) == offsets_of(planned)


@quick
@given(plans(), positions)
def test_the_position_decides_what_is_fresh(planned: tuple[Range, ...], reached: Offsets) -> None:
    """Fresh offsets lie at or beyond the position, overlap lies below it."""
    found = fit(planned, reached)

    assert all(r.start >= reached.get(r.topic_partition, 0) for r in found.fresh)
    assert all(r.end <= reached.get(r.topic_partition, 0) for r in found.overlap)


@quick
@given(plans(), positions)
def test_holes_and_fresh_cover_all_from_the_position_to_the_end(
    planned: tuple[Range, ...], reached: Offsets
) -> None:
    """What lies between the position and a plan's end is fresh or a hole, without remainder."""
    found = fit(planned, reached)

    wanted = [
        (r.topic, r.partition, at)
        for r in planned
        for at in range(reached.get(r.topic_partition, 0), r.end)
    ]
    assert set(wanted) <= set(offsets_of(found.fresh) + offsets_of(found.holes))
    assert not set(offsets_of(found.holes)) & set(offsets_of(planned))


@quick
@given(plans(), positions)
def test_advancing_by_what_is_fresh_never_moves_back(
    planned: tuple[Range, ...], reached: Offsets
) -> None:
    """No partition's position falls when a batch is committed, and none is forgotten."""
    after = reached.advanced_by(fit(planned, reached).fresh)

    assert all(after[at] >= reached[at] for at in reached)
    assert all(after[r.topic_partition] >= r.end for r in planned)


@quick
@given(plans(), positions)
def test_a_committed_plan_is_stale_when_planned_again(
    planned: tuple[Range, ...], reached: Offsets
) -> None:
    """The same plan, laid against the position it led to, holds nothing fresh and no hole."""
    after = reached.advanced_by(fit(planned, reached).fresh)

    again = fit(planned, after)

    assert offsets_of(again.fresh) == []
    assert again.holes == ()
    assert again.is_stale == bool(offsets_of(planned))


@quick
@given(positions, positions)
def test_ranges_lead_from_one_position_to_another(reached: Offsets, added: Offsets) -> None:
    """The ranges to an end begin at the position, and advancing by them arrives there."""
    ends = Offsets({at: reached.get(at, 0) + more for at, more in added.items()})

    ranges = reached.ranges_to(ends)

    assert sum(map(len, ranges)) == reached.lag_to(ends) == sum(added.values())
    assert reached.advanced_by(ranges) == Offsets({**reached, **ends})


@quick
@given(positions)
def test_positions_survive_json(reached: Offsets) -> None:
    """What is written as Spark's JSON is read back the same."""
    assert Offsets.from_json(reached.to_json()) == reached


@quick
@given(positions, positions)
def test_new_partitions_are_added_and_known_ones_left_alone(
    reached: Offsets, others: Offsets
) -> None:
    """A position that is known outweighs one that is offered."""
    both = reached.with_new(others)

    assert {at: both[at] for at in reached} == dict(reached)
    assert set(both) == set(reached) | set(others)


def test_a_partition_wholly_below_the_position_stays_where_it_is() -> None:
    """A plan that is old in one partition and new in another moves only the other."""
    reached = Offsets({TopicPartition("a", 0): 10})

    found = fit([span(0, 5), span(0, 5, partition=1)], reached)

    assert found.fresh == (span(10, 10), span(0, 5, partition=1))
    assert not found.is_stale
    assert reached.advanced_by(found.fresh)[TopicPartition("a", 0)] == 10


@pytest.mark.parametrize(
    ("planned", "reached", "found"),
    [
        pytest.param(span(5, 9), 5, Fit(fresh=(span(5, 9),), holes=(), overlap=()), id="next"),
        pytest.param(
            span(3, 9), 5, Fit(fresh=(span(5, 9),), holes=(), overlap=(span(3, 5),)), id="overlap"
        ),
        pytest.param(
            span(7, 9), 5, Fit(fresh=(span(7, 9),), holes=(span(5, 7),), overlap=()), id="hole"
        ),
        pytest.param(
            span(1, 3), 5, Fit(fresh=(span(5, 5),), holes=(), overlap=(span(1, 3),)), id="stale"
        ),
        pytest.param(span(5, 5), 5, Fit(fresh=(span(5, 5),), holes=(), overlap=()), id="empty"),
    ],
)
def test_a_plan_lies_against_a_position(planned: Range, reached: int, found: Fit) -> None:
    """Each way a range can lie against a position is told apart."""
    assert fit([planned], Offsets({TopicPartition("a", 0): reached})) == found


def test_a_partition_never_seen_begins_at_zero() -> None:
    """A plan that starts later in a new partition leaves a hole."""
    assert fit([span(4, 6)], Offsets()).holes == (span(0, 4),)


def test_lag_counts_what_is_unread_and_nothing_less() -> None:
    """A position beyond its end, as after retention, does not hide another partition's lag."""
    reached = Offsets({TopicPartition("a", 0): 10, TopicPartition("a", 1): 3})
    ends = {TopicPartition("a", 0): 4, TopicPartition("a", 1): 8, TopicPartition("a", 2): 2}

    assert reached.lag_to(ends) == 7


@pytest.mark.parametrize(
    ("start", "end"), [pytest.param(2, 1, id="backwards"), pytest.param(-1, 1, id="below zero")]
)
def test_what_is_no_range_cannot_be_built(start: int, end: int) -> None:
    """A range that ends before it starts, or starts below zero, is refused."""
    with pytest.raises(InvalidRangeError, match=r"a-0 \["):
        span(start, end)


def test_a_range_follows_only_in_its_own_partition() -> None:
    """Contiguity is a matter of one partition."""
    assert span(5, 6).follows(span(1, 5))
    assert not span(5, 6).follows(span(1, 4))
    assert not span(5, 6).follows(span(1, 5, partition=1))


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "3", '{"a": 1}', '{"a": null}', '{"a": {"x": 1}}', '{"a": {"0": null}}'),
        *('{"a": {"0": 1.7}}', '{"a": {"0": true}}', '{"a": {"0": "1"}}'),
    ],
    ids=[
        *("empty", "cut", "list", "number", "flat", "null", "partition", "offset"),
        *("fraction", "boolean", "text"),
    ],
)
def test_what_is_no_position_is_refused(text: str) -> None:
    """Text of another form is a ValueError, whatever is wrong with it."""
    with pytest.raises(ValueError):  # noqa: PT011 (json's and int's own messages count too)
        Offsets.from_json(text)


def test_ranges_are_cut_evenly() -> None:
    """Every batch has a share of each range; together they are the ranges, and none is empty."""
    ranges = [
        Range(topic="t", partition=n, start=5, end=5 + size) for n, size in enumerate((10, 1))
    ]

    batches = list(cut(ranges, 4))

    assert [sum(map(len, batch)) for batch in batches] == [3, 4, 4]
    assert {each.start for each in batches[0]} == {5}
    assert all(len(each) for batch in batches for each in batch)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.integers(1, 9))
def test_parts_are_smaller_than_the_whole_and_make_it_up(sizes: list[int], largest: int) -> None:
    """However short the ranges are; so what is cut again and again ends with single offsets.

    What is empty comes with the first: the ledger learns of each partition where it begins.
    """
    ranges = [Range(topic="t", partition=n, start=7, end=7 + size) for n, size in enumerate(sizes)]

    batches = list(cut(ranges, largest))

    at = Offsets({each.topic_partition: each.start for each in ranges})
    for number, batch in enumerate(batches):
        assert sum(map(len, batch))
        assert all(part.start == at[part.topic_partition] for part in batch)
        assert all(len(part) or not number for part in batch)
        at = at.advanced_by(batch)
    assert at == Offsets({each.topic_partition: each.end for each in ranges})
    assert len(batches) > 1 or sum(sizes) <= largest
