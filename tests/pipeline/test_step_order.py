"""What is done before what, and what each count is measured by."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from oncelake.ingestion.delta.files import is_delta
from oncelake.ingestion.modes.upsert import UpsertMode
from tests.support.world import World, row


def test_deletes_are_remembered_before_they_are_committed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that dies at its commit has written its deletes down; the other order loses them."""
    world.send(row(1, "a"))
    world.run()
    world.send(None, id=1)

    def dying(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(UpsertMode, "commit", dying)
    with pytest.raises(ZeroDivisionError):
        world.run()

    (written,) = world.paths.tombstones.path.glob("*.parquet")
    remembered = pq.read_table(written).to_pylist()
    assert not is_delta(world.paths.tombstones), "what no commit names is in no log"
    assert [(each["id"], each["_seq"]) for each in remembered] == [(1, 2)]
    assert world.log.last_seq(world.topic) == 1


def test_rows_that_do_not_carry_their_seq_turn_the_books_red(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was decided is held against the rows that are there, not against itself."""
    world.send(row(1, "a"), row(2, "b"))
    seq = "CASE WHEN s.id = 1 THEN CAST(0 AS BIGINT) ELSE s._seq END"
    monkeypatch.setattr(UpsertMode, "_values", lambda _: {"_seq": seq})

    report = world.run()

    assert report.batches[0].problems == ("the table holds 1 row of this batch, expected 2",)
