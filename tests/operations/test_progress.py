"""What a run says of itself as it goes."""

from __future__ import annotations

import pytest

from oncelake.ingestion.operations.progress import Progress
from tests.cli.shell import row


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands where its only item says."""
    now = [1_000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_a_run_names_each_step_and_how_far_it_is(clock: list[float]) -> None:
    """Looking, reading, merging, committing: the rate leaves out what came before reading."""
    said: list[str] = []
    progress = Progress(said.append)

    progress.look()
    clock[0] += 60
    progress.read(40)
    clock[0] += 2
    progress.merge(10)
    progress.commit(row(1), 30)

    assert said == [
        "looking for new records…",
        "reading 40 offsets…",
        "merging 10 records… (0 of 40 offsets)",
        "batch 1 committed as version 2 · 10 of 40 offsets · 5 records/s · lag 30",
    ]


def test_a_rate_below_one_record_a_second_is_left_out(clock: list[float]) -> None:
    """As a whole number it would be 0, of a batch that has records."""
    said: list[str] = []
    progress = Progress(said.append)

    progress.read(40)
    clock[0] += 60
    progress.commit(row(1), 30)

    assert said[-1] == "batch 1 committed as version 2 · 10 of 40 offsets · lag 30"


def test_quick_batches_are_told_by_what_they_committed_alone(clock: list[float]) -> None:
    """A merge that comes within a second of the line before is no line of its own."""
    said: list[str] = []
    progress = Progress(said.append)
    progress.read(40)

    progress.merge(10)
    progress.commit(row(1), 30)
    progress.merge(10)
    progress.commit(row(2), 20)

    assert [each.partition(" ")[0] for each in said] == ["reading", "batch", "batch"]
