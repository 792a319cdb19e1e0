"""Spark's checkpoint is read for a person, and never believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingestion.checkpoint import Checkpoint, open_generation
from ingestion.offsets import Offsets, TopicPartition

TABLE = Offsets({TopicPartition("t", 0): 9, TopicPartition("t", 1): 4})


def generation(folder: Path, number: int = 1, *, finished: int = 2) -> Path:
    """Write what Spark writes for two batches, of which ``finished`` are."""
    at = folder / str(number)
    for name, text in {
        "metadata": '{"id":"x"}',
        "sources/0/0": '\0v1\n{"t":{"0":0,"1":0}}',
        "offsets/0": 'v1\n{"batchWatermarkMs":0}\n{"t":{"0":5,"1":4}}',
        "offsets/1": 'v1\n{"batchWatermarkMs":0}\n{"t":{"0":9,"1":4}}',
        **{f"commits/{number}": 'v1\n{"nextBatchWatermarkMs":0}' for number in range(finished)},
    }.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_text(text)
    return at


def test_planned_ranges_are_read_from_the_offset_log(tmp_path: Path) -> None:
    """A batch covers what lies between its predecessor's ends and its own."""
    checkpoint = Checkpoint(generation(tmp_path))

    assert [str(r) for r in checkpoint.planned(0)] == ["t-0 [0, 5)", "t-1 [0, 4)"]
    assert [str(r) for r in checkpoint.planned(1)] == ["t-0 [5, 9)", "t-1 [4, 4)"]


def test_each_run_begins_a_new_generation(tmp_path: Path) -> None:
    """The earlier generations are dropped, and one that agreed is not worth a word."""
    generation(tmp_path, 3)

    fresh, found = open_generation(tmp_path, TABLE)

    assert (fresh.path.name, found) == ("4", None)
    assert list(tmp_path.iterdir()) == []


def test_the_first_run_begins_the_first_generation(tmp_path: Path) -> None:
    """Without any, there is nothing to say."""
    fresh, found = open_generation(tmp_path / "none", TABLE)

    assert (fresh.path.name, found) == ("1", None)


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("offsets/1", "", "cut short"),
        ("offsets/1", "garbage", "cut short or garbage"),
        ("offsets/1", 'v1\n{}\n{"t":', "Expecting value"),
        ("offsets/1", 'v1\n{}\n["t"]', "not a map"),
        ("commits/1", None, "was planned"),
        ("offsets/1", 'v1\n{}\n{"t":{"0":7,"1":4}}', "it stood at"),
    ],
    ids=["empty", "garbage", "truncated", "not offsets", "unfinished", "elsewhere"],
)
def test_what_the_last_generation_says_otherwise_is_told(
    tmp_path: Path, file: str, text: str | None, said: str
) -> None:
    """Damage, an unfinished batch or another place is told in a line, and stops nothing."""
    at = generation(tmp_path) / file
    at.unlink() if text is None else at.write_text(text)

    fresh, found = open_generation(tmp_path, TABLE)

    assert fresh.path.name == "2"
    assert found is not None
    assert said in found
