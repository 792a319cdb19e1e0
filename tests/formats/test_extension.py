"""A format or a write mode more is one file and one row, of the engine and of the proof each."""

from __future__ import annotations

import pytest

from oncelake.ingestion.declaration.formats import FORMATS, Format
from oncelake.ingestion.declaration.modes import MODES, Mode
from oncelake.ingestion.verify import decode as read_formats
from oncelake.ingestion.verify.fold import fold
from oncelake.ingestion.verify.verify import verify
from tests.support.proof import find_problems
from tests.support.world import World, row
from tests.toys.latest_batch_proof import LatestBatch

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def with_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the format, and nothing else."""
    monkeypatch.setitem(FORMATS, "pairs", Format(module="tests.toys.pairs"))


@pytest.fixture
def with_latest_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the write mode, and nothing else."""
    mode = Mode(
        module="tests.toys.latest_batch", has_keys=False, has_order=False, has_deletes=False
    )
    monkeypatch.setitem(MODES, "latest_batch", mode)


@pytest.mark.usefixtures("with_pairs")
def test_a_new_format_is_one_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has quarantine, books and keys; its proof is one file more, or verify says so."""
    world.declare(format="pairs", key_format="pairs")
    world.send(b"id=1;name=a;at=3", b"id=2;name=b;more=x", b"id=x", b"garbage", b"name=nobody")
    world.producer.produce(world.topic, value=None, key=b"id=2", partition=0)
    world.producer.flush(30)
    world.run()

    assert world.rows() == [row(1, "a", at=3)]
    reasons = [each["reason"] for each in world.quarantined()]
    assert reasons == ["wrong_number", "not_pairs", "missing_key"]
    assert world.ledger[-1].counts["extra_fields.more"] == 1
    assert verify(world.spec, world.settings).obstacles == ("pairs is not provable",)
    monkeypatch.setitem(read_formats._FORMATS, "pairs", "tests.toys.pairs_proof")
    assert find_problems(world) == ()


@pytest.mark.usefixtures("with_latest_batch")
def test_a_new_mode_is_one_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has offsets, transaction id and books; its proof is one file more, or verify says so."""
    world.declare(mode="latest_batch", keys=[], max_offsets_per_trigger=2)
    world.send(row(1, "a"), row(2, "b"), row(3, "c"), b"bad", b"worse")
    world.run()

    assert [each["id"] for each in world.rows()] == [3]
    assert [each.is_red for each in world.ledger] == [False] * 3
    assert verify(world.spec, world.settings).obstacles == ("latest_batch is not provable",)
    monkeypatch.setitem(fold._MODES, "latest_batch", LatestBatch)
    assert find_problems(world) == ()
