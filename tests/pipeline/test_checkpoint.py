"""Spark's checkpoint is read for a person, and never believed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from oncelake.ingestion.kafka.offsets import Offsets, TopicPartition
from oncelake.ingestion.pipeline.checkpoint import Checkpoint, open_generation
from oncelake.ingestion.storage.checksums import seal, sidecar_of
from oncelake.ingestion.storage.location import Location

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
        seal(Location.of(at / name))
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
    assert list(tmp_path.iterdir()) == [fresh.path]


def test_the_first_run_begins_the_first_generation(tmp_path: Path) -> None:
    """Without any, there is nothing to say."""
    fresh, found = open_generation(tmp_path / "none", TABLE)

    assert (fresh.path.name, found) == ("1", None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('v1\n{}\n{"t":', "Expecting value"),
        ('v1\n{}\n["t"]', "not a map"),
        ("garbage", "cut short or garbage"),
        ('v1\n{}\n{"t":{"0":7,"1":4}}', "it stood at"),
        ('v1\n{}\n{"other":{"0":9,"1":4}}', "it stood at Offsets(other-0: 9"),
    ],
    ids=["truncated", "not offsets", "garbage", "elsewhere", "another topic"],
)
def test_offsets_without_a_seal_are_compared_with_the_table(
    tmp_path: Path, text: str, said: str
) -> None:
    """Where no checksum gives a change away, what the file says is held against the table."""
    at = generation(tmp_path) / "offsets/1"
    at.write_text(text)
    sidecar_of(Location.of(at)).delete()

    fresh, found = open_generation(tmp_path, TABLE)

    assert fresh.path.name == "2"
    assert found is not None
    assert said in found


FILES = ["metadata", "sources/0/0", "offsets/0", "offsets/1", "commits/0", "commits/1"]
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "zero-length": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "garbage": lambda content: b"\x80garbage\xff",
    "flipped": lambda content: bytes([content[0] ^ 1]) + content[1:],
    "flipped-last": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "other-stream": lambda content: content.replace(b"t", b"u").replace(b"x", b"y"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_every_kind_of_file_damage_is_reported(tmp_path: Path, file: str, damage: str) -> None:
    """Every kind of damage to every kind of file is told by the file's name, and stops nothing."""
    at = generation(tmp_path) / file
    at.write_bytes(DAMAGES[damage](at.read_bytes()))

    fresh, found = open_generation(tmp_path, TABLE)

    assert (fresh.path.name, list(tmp_path.iterdir())) == ("2", [fresh.path])
    assert found in {f"{file} is empty", f"{file} is not as it was written"}


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("metadata", "metadata is missing"),
        ("sources/0/0", "0 cannot be read"),
        ("offsets/1", "batch 0 was planned, 1 finished"),
        ("commits/1", "batch 1 was planned, 0 finished"),
        ("offsets", "no batch was planned, 1 finished"),
        ("commits", "no batch of it was finished"),
    ],
)
def test_a_missing_file_is_reported(tmp_path: Path, file: str, said: str) -> None:
    """A missing file or folder is told, and stops nothing."""
    at = generation(tmp_path) / file
    shutil.rmtree(at) if at.is_dir() else at.unlink()

    fresh, found = open_generation(tmp_path, TABLE)

    assert fresh.path.name == "2"
    assert found is not None
    assert said in found


def test_an_old_copy_of_everything_is_reported(tmp_path: Path) -> None:
    """A checkpoint from last week is sound in itself, and stands where the table no longer is."""
    generation(tmp_path)
    moved_on = Offsets({TopicPartition("t", 0): 12, TopicPartition("t", 1): 4})

    _, found = open_generation(tmp_path, moved_on)

    assert found is not None
    assert "it stood at Offsets(t-0: 9, t-1: 4), the table at Offsets(t-0: 12, t-1: 4)" in found


@pytest.mark.parametrize("left", ["no folder", "an empty folder", "an empty generation"])
def test_a_missing_checkpoint_is_reported(tmp_path: Path, left: str) -> None:
    """Where an earlier run has left a checkpoint, none at all is worth a word."""
    folder = tmp_path / "checkpoints"
    if left != "no folder":
        (folder / "1" if left == "an empty generation" else folder).mkdir(parents=True)

    _, found = open_generation(folder, TABLE, had_one=True)

    assert found in {"there was none", "metadata is missing"}
