"""``oncelake batch`` and ``accept --batch``: what a person sees and decides at the gate."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.shell import answer, oncelake
from tests.support.gate import waiting, withheld_by
from tests.support.world import World, row

RULE = {"named": {"rule": "name IS NOT NULL", "on_miss": "refuse"}}


@pytest.fixture
def stream(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a stream at whose gate a batch waits."""
    world.declare(publish="checked", expect=RULE)
    world.send(row(1, "a"), row(2, None))
    assert withheld_by(world) == ["expect.named"]
    world.write_declaration()
    world.set_environment(monkeypatch)
    return world.name


def test_a_batch_that_waits_is_shown_with_its_rows_and_the_ways_on(
    world: World, stream: str, tmp_path: Path
) -> None:
    """Ranges, what it misses, a row of it with its place, and the command with the id."""
    file = tmp_path / "waits.parquet"
    shown = oncelake("batch", stream, "--rows", str(file))

    assert shown.exit_code == 1
    for text in (
        f"{world.topic}-0 [0, 2)",
        "expect.named: 1 row does not meet name IS NOT NULL",
        f"{world.topic}-0 1: id: 2, name: None",
        f"oncelake accept {stream} --batch {waiting(world).id}",
    ):
        assert text in shown.stdout
    assert pq.read_table(file)["id"].to_pylist() == [1, 2]
    document = answer(oncelake("batch", stream, "--json"))
    assert document["waits"]["id"] == waiting(world).id
    assert [each["name"] for each in document["waits"]["misses"]] == ["expect.named"]


def test_status_tells_that_a_batch_waits(stream: str) -> None:
    """Since when, why, and what to do; the exit code is that of a run."""
    told = oncelake("status", stream)

    assert told.exit_code == 1
    assert "is not published (since 20" in told.stdout + told.stderr
    assert f"oncelake batch {stream}" in told.stdout + told.stderr


def test_nothing_waits_and_nothing_is_accepted_by_mistake(
    world: World, stream: str, tmp_path: Path
) -> None:
    """Another id, no id, no reason, and a folder that is not there are each told."""
    unknown = oncelake("accept", stream, "--batch", "00000000", "--reason", "why")
    assert (unknown.exit_code, "not the batch that was accepted" in unknown.stderr) == (1, True)
    unnamed = oncelake("accept", stream, "--reason", "why")
    assert (unnamed.exit_code, f"--batch {waiting(world).id}" in unnamed.stderr) == (2, True)
    assert oncelake("accept", stream, "--batch", waiting(world).id, "--reason", " ").exit_code == 2
    lost = oncelake("batch", stream, "--rows", str(tmp_path / "no" / "such.parquet"))
    assert (lost.exit_code, "No such file" in lost.stderr) == (2, True)
    world.declare(expect={})
    world.run()
    world.write_declaration()
    done = oncelake("batch", stream)
    assert (done.exit_code, "no batch waits" in done.stdout) == (0, True)
    assert answer(oncelake("batch", stream, "--json")) == {"stream": stream, "waits": None}
