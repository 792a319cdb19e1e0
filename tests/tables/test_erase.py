"""A key is erased from a table outside the lake as from a Delta table, and the proof holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from oncelake.ingestion.cli.app import app
from oncelake.ingestion.errors import RefusedError, RewindError
from oncelake.ingestion.operations.erase.erase import Certificate, erase
from oncelake.ingestion.operations.history.archive import list_archive, prune
from oncelake.ingestion.operations.history.rewind import read_history, rewind
from oncelake.ingestion.sinks.delta import transaction
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.support.long import twins
from tests.support.proof import find_problems, prove
from tests.support.world import World, row
from tests.trials.failpoints import PlannedError, crashing_at

PERSON, NUMBER = "Ada Lovelace", 123


def erased(world: World, **key: Any) -> Certificate:
    """Erase the rows that have some values."""
    written = json.dumps(key)
    return erase(world.spec, world.settings, key=written, reason="a request", run_id="r")


@pytest.mark.parametrize(
    ("sink", "place"),
    [("iceberg", Failpoint.VACUUMED), ("postgres", Failpoint.DECIDED)],
)
def test_an_erase_that_dies_is_finished_and_proven(world: World, place: Failpoint) -> None:
    """Rows, deletes and bad records go; nothing brings them back; no rewind leads behind it."""
    world.declare(
        schema="id TINYINT NOT NULL, name STRING, at INT NOT NULL",
        sequence_by=["at"],
        apply_as_deletes="at = 3",
    )
    world.send(row(NUMBER, PERSON, at=3), row(1, "a", at=1), row(2, "b", at=1))
    world.run()
    world.send(row(NUMBER, PERSON, at=4), {"id": NUMBER, "name": PERSON}, row(2, "b2", at=2))
    world.run()
    with crashing_at(place), pytest.raises(PlannedError):
        erased(world, id=NUMBER)
    assert any("was cut short" in notice for notice in world.run().notices)

    done = erased(world, id=NUMBER)

    assert done.has_erased
    assert done.row.counts["erase_completes.3"] == 1
    assert world.rows() == [row(1, "a", 1), row(2, "b2", 2)]
    assert PERSON not in repr(world.quarantined())
    assert world.replay().total("filtered") == 2
    verdict = prove(world)
    assert verdict.holds, verdict.differences
    assert read_history(world.paths)[0].seq == world.ledger[-1].seq
    if "rewind" not in world.paths.sink.kind.cannot:
        with pytest.raises(RewindError, match="a key was erased since"):
            rewind(world.spec, world.settings, to="seq:2", reason="a test", run_id="r")
        rewind(world.spec, world.settings, to=f"seq:{done.row.seq}", reason="a test", run_id="r")
    assert world.rows() == [row(1, "a", 1), row(2, "b2", 2)]


@pytest.mark.parametrize("sink", ["postgres", *twins("iceberg")])
def test_a_stream_without_keys_is_erased_by_any_column(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal rows go together, from a shell, too, and each is counted."""
    world.declare(mode="append", keys=[])
    world.send(row(1, PERSON), row(1, PERSON), row(2, None), row(3, PERSON), row(1, "a"))
    world.run()
    world.write_declaration()
    world.set_environment(monkeypatch)
    command = ["erase", world.topic, "--key", json.dumps({"name": PERSON, "id": 1})]

    done = CliRunner().invoke(app, [*command, "--reason", "a request", "--yes"])

    assert "2 rows of the table" in done.stdout, done.output
    assert world.rows() == [row(2, None), row(3, PERSON), row(1, "a")]
    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", ["postgres", "iceberg"])
def test_a_rebuild_under_way_does_not_bring_a_key_back(world: World) -> None:
    """What was made of the new table is gone with the refusal, and not only with the next rebuild.

    Its name outside the lake is the only one that has the key then.
    """
    world.send(row(NUMBER, PERSON), row(1, "a"))
    world.run()

    def erase_meanwhile(*_: Any) -> None:
        erased(world, id=NUMBER)

    gone = "a key of it erased, while the new one was made|could not go on .* It was removed"
    with pytest.raises(RefusedError, match=gone):
        world.rebuild(on_batch=erase_meanwhile)

    beside = world.paths.at(world.spec.sink.beside(world.name)).table
    assert not beside.log().exists
    world.rebuild()
    assert world.rows() == [row(1, "a")]
    assert prove(world).holds


@pytest.mark.parametrize("sink", ["delta"])
def test_no_index_keeps_a_hash_of_an_erased_key(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the table's, though no longer declared, nor that of one that was made beside it."""
    monkeypatch.setattr(transaction, "ROWS_PER_KEY", 0)
    world.declare(deletion_vectors=True, sink={"delta": {"key_index": True}})
    for _ in range(2):
        world.send(row(NUMBER, PERSON), row(1, "a"))
        world.run()
    (beside := world.settings.state / "rebuild" / "keys" / world.name).mkdir(parents=True)
    assert (world.settings.state / "keys" / world.name / "manifest").exists()
    world.declare(deletion_vectors=True, sink={"delta": {}})
    world.run()

    erased(world, id=NUMBER)

    assert world.rows() == [row(1, "a")]
    assert not any(index.exists() for index in world.paths.indexes)
    beside.mkdir()
    world.rebuild()
    assert not any(index.exists() for index in world.paths.indexes)


@pytest.mark.parametrize("sink", ["iceberg"])
def test_what_a_rebuild_has_replaced_is_pruned_before_an_erase(world: World) -> None:
    """The message names the entry of the archive, with which the old rows go."""
    world.send(row(NUMBER, PERSON), row(1, "a"))
    world.run()
    world.rebuild()
    with pytest.raises(RefusedError, match="which keep older rows") as refused:
        erased(world, id=NUMBER)
    (entry,) = list_archive(world.name, world.settings)
    assert f"oncelake archive prune {world.name} {entry.entry} --yes" in str(refused.value)

    prune(world.name, (entry.entry,), world.settings, run_id="p")

    erased(world, id=NUMBER)
    assert world.rows() == [row(1, "a")]
    assert {*world.paths.table._entry.loaded().metadata.refs} == {"main"}  # type: ignore[attr-defined]
    assert find_problems(world) == ()
