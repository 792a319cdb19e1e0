"""Whose turn it is, without Kafka, Spark or a clock."""

from __future__ import annotations

import pytest

from oncelake.ingestion.declaration.parts import FollowPace
from oncelake.ingestion.errors import (
    DependencyError,
    KeyInTwoPartitionsError,
    RecordsMissedError,
    TransientError,
)
from oncelake.ingestion.operations.follow.turns import Turn

PACE = FollowPace(every_seconds=5, min_records=100, max_wait_seconds=30)
REFUSED = KeyInTwoPartitionsError("orders", "key 1 …", remedy="sequence_by")
SILENT = DependencyError("Kafka does not answer")


def is_due(turn: Turn, *, lag: int | None, now: float, condition: object = "as it was") -> bool:
    """Ask whether it is the stream's turn, by the pace above."""
    return turn.is_due(PACE, lag=lag, condition=condition, now=now)


@pytest.mark.parametrize(
    ("lag", "due"),
    [
        pytest.param(0, False, id="nothing new"),
        pytest.param(99, False, id="too few, just seen"),
        pytest.param(100, True, id="enough"),
        pytest.param(None, True, id="only a run can tell"),
    ],
)
def test_a_stream_is_run_when_enough_is_unread(lag: int | None, due: bool) -> None:
    """A handful of records does not make a commit at once."""
    assert is_due(Turn().seen(lag, 1000), lag=lag, now=1000) is due


def test_a_few_records_wait_no_longer_than_declared() -> None:
    """The time counts from when they were first seen, and begins anew once they were read."""
    seen = Turn().seen(3, 1000).seen(7, 1020)

    assert not is_due(seen, lag=7, now=1029)
    assert is_due(seen, lag=7, now=1030)
    after = seen.begun(1030).ended(is_balanced=True).seen(0, 1035).seen(2, 1040)
    assert not is_due(after, lag=2, now=1069)
    assert is_due(after, lag=2, now=1070)


def test_a_busy_stream_is_run_no_more_often_than_declared() -> None:
    """However much is unread, its commits keep their distance, and so their number is bounded."""
    turn = Turn().begun(1000).ended(is_balanced=True).seen(9000, 1002)

    assert not is_due(turn, lag=9000, now=1004.9)
    assert is_due(turn, lag=9000, now=1005)


@pytest.mark.parametrize(
    ("error", "pauses"),
    [
        pytest.param(SILENT, [2, 4, 8, 16, 32, 60, 60], id="a dependency"),
        pytest.param(REFUSED, [30, 60, 120, 240, 480, 600, 600], id="a refusal"),
        pytest.param(RecordsMissedError("missed"), [30, 60], id="something is wrong"),
        pytest.param(ValueError("odd"), [30, 60], id="unexpected"),
    ],
)
def test_pauses_after_failures_grow_and_are_bounded(error: Exception, pauses: list[int]) -> None:
    """What passes by itself is tried again soon; what a person must decide, seldom."""
    turn, now = Turn(), 1000.0
    for pause in pauses:
        turn = turn.failed(error, "as it was", now)
        assert not is_due(turn, lag=500, now=now + pause - 0.1)
        assert is_due(turn, lag=0, now=now + pause)
        now += pause
    many = turn
    for _ in range(2000):
        many = many.failed(error, "as it was", now)
    assert many.not_before - now <= 600


def test_a_decision_ends_the_pause() -> None:
    """A file that was mended, or a commit to the table, is a reason to try again now."""
    turn = Turn().failed(REFUSED, "as it was", 1000)

    assert not is_due(turn, lag=5, now=1001)
    assert is_due(turn, lag=0, now=1001, condition="mended")


@pytest.mark.parametrize(
    ("turn", "code"),
    [
        pytest.param(Turn().ended(is_balanced=True), 0, id="balanced"),
        pytest.param(Turn().ended(is_balanced=False), 1, id="red"),
        pytest.param(Turn().failed(REFUSED, None, 0), 3, id="refused"),
        pytest.param(Turn().failed(SILENT, None, 0), 5, id="a dependency"),
        pytest.param(Turn().failed(ValueError(), None, 0), 1, id="unexpected"),
        pytest.param(Turn().failed(REFUSED, None, 0).ended(is_balanced=True), 0, id="mended"),
    ],
)
def test_a_stream_adds_what_is_wrong_now_to_the_exit_code(turn: Turn, code: int) -> None:
    """What was mended meanwhile counts no longer."""
    assert turn.exit_code == code


def test_success_forgets_the_failures() -> None:
    """The next failure begins with the shortest pause again, and is told again."""
    failed = Turn().failed(TransientError("a"), None, 0).failed(TransientError("a"), None, 10)
    after = failed.begun(20).ended(is_balanced=True)

    assert (after.failures, after.message) == (0, "")
    assert after.failed(TransientError("a"), None, 30).not_before == 32
