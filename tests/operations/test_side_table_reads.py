"""Every command that reads quarantine or tombstones reads what any engine has left there."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from oncelake.assets.checks.evidence import _refused
from oncelake.ingestion.cli.app import app
from oncelake.ingestion.operations.doctor.examine import examine_leftovers
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.upkeep.maintain import maintain
from oncelake.ingestion.settings import Settings
from tests.support.long import only_long, twins
from tests.support.world import World


def answer(world: World, *words: str) -> dict[str, Any]:
    """Type a command, and read its document."""
    result = CliRunner().invoke(app, [*words, world.topic, "--json"])
    assert result.exit_code == 0, (words, result.output, result.exception)
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def prepare(world: World) -> None:
    """Let an erase, a redrive, aged records and a maintenance go over rows and deletes."""
    world.declare(schema="id STRING NOT NULL, name STRING", quarantine_rate={"stop_above": 1})
    world.send({"id": "old", "name": 1}, b"{")
    world.run()
    ledger = DeltaTable(world.paths.ledger.path)
    ledger.update(updates={"committed_at": "committed_at - INTERVAL '40 days'"})
    world.send({"id": "a", "name": "a"}, {"id": "a", "name": 1}, {"id": "b", "name": 2}, b"{")
    world.send(None, id="a")
    world.send({"id": "d", "name": "d"}, {"id": "d", "name": []})
    world.run()
    world.declare(types={"name": "lenient"}, maintenance={"keep_quarantine_days": 30})
    (reason,) = {each["reason"] for each in world.quarantined() if b"1" in each["value"]}
    world.redrive(reason=reason)
    world.send(None, id="d")
    world.send({"name": "no key"}, {"id": "e", "name": []}, b"{")
    world.run()
    erase(world.spec, world.settings, key='{"id": "a"}', reason="a test", run_id="r")
    maintain(world.spec, world.settings, run_id="r", window=dt.timedelta(0))


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("engine", ["local", *twins("spark")])
@only_long
def test_every_read_of_a_side_table_finds_it_whole(
    settings: Settings, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """What was updated, merged or put together is filtered by its text, counted and proven."""
    chosen = settings.model_copy(update={"merge_engine": engine})
    with World.made(chosen, spark) as world:
        prepare(world)
        world.write_declaration()
        world.set_environment(monkeypatch)

        waiting = answer(world, "quarantine")["reasons"]
        groups = {each["reason"]: each["records"] for each in waiting}
        by_reason = {
            reason: answer(world, "quarantine", "--reason", reason)["waiting"] for reason in groups
        }

        assert by_reason == groups
        assert answer(world, "status")["quarantined"] == sum(groups.values())
        assert list(examine_leftovers(world.topic, world.paths)) == []
        assert answer(world, "verify")["holds"]
        refused = _refused(world.paths, world.ledger)
        assert not [each for each in refused if each.reason.startswith("unknown")]
        assert world.redrive(reason="malformed_json").still_bad
        assert world.run().notices == ()
