"""The assets of one file in one run of Dagster: Kafka is read once, and each stands for itself."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from typing import Any

import dagster as dg
import pytest

from oncelake.assets.refusals import REFUSED
from oncelake.ingestion.declaration.files.loader import load_streams
from oncelake.ingestion.lake.lock import Holder, held_by_python
from oncelake.ingestion.operations import run as run_module
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.assets.conftest import refusal_of
from tests.assets.shell import assets_of, materialize_assets, reported_in
from tests.operations.test_routes import TABLES, Shop, record
from tests.support.world import World

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    # Dagster's own, wherever one resource holds another.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run:DeprecationWarning"),
]


SOUND = [
    *(record("orders", 1, total=5), record("paid", 1), record("clicks", 0, page="/")),
    *(record("orders", 2, total=7), record("paid", 2), record("clicks", 0, page="/a")),
]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try once more, and at once."""
    monkeypatch.setattr("oncelake.assets.assets.RETRY_AFTER_SECONDS", (0,))


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries that read Kafka, by the stream whose session they ran in."""
    begun: list[str] = []
    honest = run_module.drain

    def drain(*given: Any, name: str, **more: Any) -> None:
        begun.append(name.split()[0])
        honest(*given, name=name, **more)

    monkeypatch.setattr(run_module, "drain", drain)
    return begun


def reads(world: World, instance: dg.DagsterInstance, *selected: str) -> dg.ExecuteInProcessResult:
    """Materialize the assets of a file, or some of its tables."""
    keys = [f"{world.topic}_{table}" for table in selected]
    return materialize_assets(assets_of(world), world.settings, instance, keys or None)


def reported(shop: Shop, instance: dg.DagsterInstance) -> Mapping[str, list[int]]:
    """Return the seqs that Dagster's materializations report of each table."""
    return {
        table: [seq for _, seqs in reported_in(instance, stream.name) for seq in seqs]
        for table, stream in shop.streams.items()
    }


def test_the_assets_of_a_file_read_kafka_once(
    world: World, instance: dg.DagsterInstance, queries: list[str]
) -> None:
    """Each has a materialization and checks of its own; a run of nothing new starts no query."""
    shop = Shop(world)
    world.send(*SOUND)

    done = [reads(world, instance) for _ in range(2)]

    assert [each.success for each in done] == [True, True]
    assert len(queries) == 1
    assert reported(shop, instance) == {table: [1] for table in shop.streams}
    checked = {each.asset_key for each in done[0].get_asset_check_evaluations()}
    assert checked == {dg.AssetKey(stream.name) for stream in shop.streams.values()}
    assert shop.problems() == []


def test_those_that_are_not_selected_are_left_alone(
    world: World, instance: dg.DagsterInstance, queries: list[str]
) -> None:
    """One alone reads alone; two read together, from the lower of their offsets."""
    shop = Shop(world)
    world.send(*SOUND)

    done = [reads(world, instance, *some) for some in (["orders"], ["orders", "clicks"])]

    assert [each.success for each in done] == [True, True]
    assert len(queries) == 2
    assert reported(shop, instance) == {"orders": [1], "clicks": [1], "payments": []}
    # Of those that ran at once nobody knows whose CPU time it was.
    orders = shop.streams["orders"].name
    told = [
        event
        for each in done
        for event in each.asset_materializations_for_node(f"ingest_{orders}")
        if event.asset_key == dg.AssetKey(orders)
    ]
    assert ["cpu_seconds" in each.metadata for each in told] == [True, False]


def test_checks_alone_run_nothing(
    world: World, instance: dg.DagsterInstance, queries: list[str]
) -> None:
    """They judge what stands there, and the siblings that are materialized share no reading."""
    shop = Shop(world)
    world.send(*SOUND)
    keys = {table: dg.AssetKey(stream.name) for table, stream in shop.streams.items()}
    checks = dg.AssetSelection.checks_for_assets(keys["payments"])
    alone = dg.AssetSelection.assets(keys["orders"]).without_checks()
    reads(world, instance)
    world.send(record("paid", 7))

    done = materialize_assets(assets_of(world), world.settings, instance, alone | checks)

    assert done.success
    assert queries[1:] == [shop.streams["orders"].name]
    assert {each.asset_key for each in done.get_asset_check_evaluations()} == {keys["payments"]}
    assert reported(shop, instance) == {"orders": [1, 2], "clicks": [1], "payments": [1]}


def failed_steps(result: dg.ExecuteInProcessResult) -> set[str | None]:
    """Return the steps that failed."""
    return {each.step_key for each in result.get_step_failure_events()}


def test_one_that_is_refused_keeps_no_other_from_being_materialized(
    world: World, instance: dg.DagsterInstance, queries: list[str]
) -> None:
    """Its own step fails, in its own words, and what reads another's table is executed."""
    shop = Shop(world)
    world.send(*SOUND)
    assert reads(world, instance).success
    other = {**TABLES["payments"], "schema": "id INT NOT NULL, at INT NOT NULL", "keys": ["at"]}
    shop.declare(tables={**TABLES, "payments": other})
    world.send(record("orders", 7, total=7))
    read: list[str] = []

    @dg.asset(deps=[f"{world.topic}_orders"])
    def totals() -> None:
        read.append("orders")

    done = materialize_assets([*assets_of(world), totals], world.settings, instance)

    refused = f"{world.topic}_payments"
    assert failed_steps(done) == {f"ingest_{refused}"}
    assert read == ["orders"]
    assert len(queries) == 2
    assert reported(shop, instance) == {"orders": [1, 2], "clicks": [1, 2], "payments": [1]}
    run = instance.get_run_by_id(done.run_id)
    assert run is not None
    assert run.tags[REFUSED] == "IdentityChangedError"
    standing = {
        each.name: refusal_of(each, instance, world.settings)
        for each in load_streams(world.settings.streams)
    }
    assert [name for name, why in standing.items() if why] == [refused]


def test_a_termination_ends_all_of_them(
    world: World, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The open batch is as if never begun, and the next run reports what was committed."""
    shop = Shop(world, max_offsets_per_trigger=2)
    world.send(*SOUND)
    honest = run_module.hit

    def hit(at: Failpoint) -> None:
        honest(at)
        if at is Failpoint.BATCH_DONE and not interrupted.is_set():
            interrupted.set()
            (run,) = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
            instance.report_run_canceling(run)
            os.kill(os.getpid(), signal.SIGINT)

    interrupted = threading.Event()
    monkeypatch.setattr(run_module, "hit", hit)
    first, second = reads(world, instance), reads(world, instance)

    ended = instance.get_run_by_id(first.run_id)
    assert ended is not None
    assert ended.status is dg.DagsterRunStatus.CANCELED
    assert second.success
    seqs = {table: [row.seq for row in stream.ledger] for table, stream in shop.streams.items()}
    assert reported(shop, instance) == seqs
    assert shop.problems() == []


def test_one_that_dies_is_tried_again_alone(
    world: World, instance: dg.DagsterInstance, queries: list[str]
) -> None:
    """What passes by itself passes for it alone: the others are not run again."""
    shop = Shop(world)
    world.send(*SOUND)
    locked = shop.streams["clicks"]

    with held_by_python(locked.paths, Holder.me("another")):
        done = reads(world, instance)

    assert failed_steps(done) == {f"ingest_{locked.name}"}
    assert len(queries) == 1
    assert reported(shop, instance) == {"orders": [1], "payments": [1], "clicks": []}
    assert reads(world, instance).success
    assert reported(shop, instance) == {table: [1] for table in shop.streams}
