"""Several tables of one topic: each stream stands for itself, and nothing is left out."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from oncelake.ingestion.declaration.files.loader import load_streams
from oncelake.ingestion.formats import route
from oncelake.ingestion.lake.lock import Holder, held_by_python
from oncelake.ingestion.operations.follow.follow import Follow
from oncelake.ingestion.operations.follow.together import SharedReading
from oncelake.ingestion.pipeline.report import RunReport
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.support import arrow_source
from tests.support.long import twins
from tests.support.proof import find_problems, prove
from tests.support.world import World, wait_until
from tests.trials.failpoints import crashing_at

KEYS: dict[str, Any] = {"keys": ["id"], "sequence_by": ["_timestamp"]}
TABLES: dict[str, Any] = {
    "orders": {"schema": "id INT NOT NULL, total INT", **KEYS},
    "payments": {"when": ["paid", "refunded"], "schema": "id INT NOT NULL", **KEYS},
    "clicks": {"schema": "page STRING NOT NULL", "mode": "append", "keys": []},
}


class Shop:
    """A topic, and the streams of one file that fill its tables.

    Attributes:
        streams: A world of each stream, by its table.
    """

    def __init__(self, world: World, **fields: Any) -> None:
        self.world = world
        self.declare(**fields)

    def declare(self, **fields: Any) -> None:
        """Write the file anew."""
        world = self.world
        file = {"topic": world.topic, "route_by": "type", "tables": TABLES, **fields}
        folder = world.settings.streams
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{world.topic}.yaml").write_text(json.dumps(file))
        specs = {each.name: each.require_spec() for each in load_streams(folder)}
        self.streams = {
            name.removeprefix(f"{world.topic}_"): replace(
                world, declared=spec.model_dump(by_alias=True, exclude_unset=True)
            )
            for name, spec in specs.items()
        }

    def counts(self, *names: str) -> Mapping[str, list[int]]:
        """Return some counts of each stream, of all its batches."""
        return {
            table: [sum(row.counts.get(name, 0) for row in stream.ledger) for name in names]
            for table, stream in self.streams.items()
        }

    def run_together(self, *tables: str, **parts: Any) -> dict[str, RunReport | Exception]:
        """Run streams as one command does; return the report of each, or what it raised."""
        names = {table: self.streams[table] for table in tables or self.streams}
        together = SharedReading(stream.name for stream in names.values())

        def run(stream: World) -> RunReport | Exception:
            try:
                return stream.run(together=together, **parts)
            except Exception as error:  # noqa: BLE001 (the test looks at it)
                return error
            finally:
                together.leave(stream.name)

        with ThreadPoolExecutor(len(names)) as threads:
            return dict(zip(names, threads.map(run, names.values()), strict=True))

    def problems(self) -> list[str]:
        """Return what is wrong with any of the streams."""
        return [each for stream in self.streams.values() for each in find_problems(stream)]


def rows_of(world: World) -> list[dict[str, Any]]:
    """Read the rows of a table, whatever its mode."""
    names = [column.name for column in world.spec.columns]
    return [row for each in world.paths.table.scan(names) for row in each.to_pylist()]


def record(type_: str, id: int, **fields: Any) -> dict[str, Any]:
    """A record of one kind."""
    return {"type": type_, "id": id, **fields}


MIXED = [
    *(record("orders", 1, total=5), record("paid", 1), record("clicks", 0, page="/")),
    *(record("orders", 2, total="much"), record("views", 3), b"not JSON"),
]


@pytest.mark.parametrize("otherwise", ["quarantine", "ignore", "clicks"])
def test_each_record_is_in_one_table_and_the_proof_finds_it_there(
    world: World, otherwise: str
) -> None:
    """The books of every stream balance, and hold what the others have as well."""
    shop = Shop(world, otherwise=otherwise)
    world.send(*MIXED)
    world.send(*MIXED, partition=1)
    world.send(None, partition=1, id=1)

    for stream in shop.streams.values():
        assert stream.run().is_balanced

    assert shop.problems() == []
    assert rows_of(shop.streams["clicks"]) == [{"page": "/"}] * 2
    assert rows_of(shop.streams["payments"]) == []
    assert rows_of(shop.streams["orders"]) == []
    found = shop.counts("read", "routed_elsewhere", "unrouted", "tombstones_shared")
    assert {tuple(counts[:1] + counts[2:3]) for counts in found.values()} == {
        (13, 4 if otherwise == "ignore" else 0)
    }
    assert [found[table][3] for table in TABLES] == [1, 1, 0]
    own = sum(read - other - none - shared for read, other, none, shared in found.values())
    assert own + 1 + found["clicks"][2] == 13


def ranges_of(world: World) -> list[list[tuple[int, int, int]]]:
    """Return partition, start and end of each range of each batch."""
    return [
        [(it.range.partition, it.range.start, it.range.end) for it in row.ranges]
        for row in world.ledger
    ]


def test_streams_that_run_together_read_each_batch_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One query hands the same ranges to each, in batches as one stream alone would read them."""
    shop = Shop(world, max_offsets_per_trigger=5)
    world.send(*MIXED, *(record("paid", id) for id in range(2, 8)))
    read = []
    monkeypatch.setattr(arrow_source, "records_in", noting(arrow_source.records_in, read))

    reports = shop.run_together()

    assert [len(part) for batch in read for part in batch if len(part)] == [5, 5, 2]
    assert {table: getattr(each, "lag", each) for table, each in reports.items()} == dict.fromkeys(
        TABLES, 0
    )
    assert all(
        ranges_of(each) == ranges_of(shop.streams["orders"]) for each in shop.streams.values()
    )
    assert shop.problems() == []


@pytest.mark.parametrize("place", [Failpoint.PREPARED, Failpoint.COMMITTED])
@pytest.mark.parametrize("is_alone", [False, True], ids=["with the others", "alone"])
def test_a_stream_that_fell_behind_catches_up(
    world: World, place: Failpoint, *, is_alone: bool
) -> None:
    """The others have gone on; what they hold already is their overlap, and counted once."""
    shop = Shop(world, max_offsets_per_trigger=4)
    world.send(*MIXED, record("paid", 2))
    with crashing_at(place, nth=2):
        first = shop.run_together()
    (behind,) = (table for table, each in first.items() if isinstance(each, Exception))
    world.send(record("paid", 3), record("orders", 5, total=1))

    second = shop.run_together(*([behind] if is_alone else []))

    assert [each for each in second.values() if isinstance(each, Exception)] == []
    overlap = {table: counts[0] for table, counts in shop.counts("overlap").items()}
    assert overlap == {table: 0 if is_alone or table == behind else 3 for table in TABLES}
    shop.run_together()
    assert shop.problems() == []


def test_the_proof_adds_up_what_all_tables_have_read(world: World) -> None:
    """Of the records that they have read together, each is of one table, or of none."""
    shop = Shop(world, otherwise="ignore", max_offsets_per_trigger=4)
    world.send(*MIXED)
    world.send(None, id=1)
    shop.run_together()
    world.send(record("paid", 2), record("paid", 3))
    shop.streams["payments"].run()

    verdict = prove(shop.streams["orders"])

    assert verdict.equation == (
        f"routes: 7 records = {world.topic}_orders 2 + {world.topic}_payments 1"
        f" + {world.topic}_clicks 1 + unrouted 2 + tombstones_shared 1"
    )
    assert prove(shop.streams["payments"]).routes == verdict.routes
    assert verdict.holds


def test_the_proof_compares_nothing_that_other_routes_have_written(world: World) -> None:
    """A table that is added later begins at the start, where its records were of nobody."""
    few = {name: TABLES[name] for name in ("orders", "payments")}
    shop = Shop(world, tables=few)
    world.send(*MIXED)
    shop.run_together()
    shop.declare(tables=TABLES)
    alone = shop.run_together()
    nothing = prove(shop.streams["orders"]).routes
    world.send(*MIXED)

    shop.run_together()

    assert (nothing, alone["clicks"].total("inserted")) == ({}, 1)
    verdict = prove(shop.streams["clicks"])
    assert verdict.routes is not None
    assert verdict.routes["records"] == 6
    assert {table: prove(each).difference_count for table, each in shop.streams.items()} == (
        {table: {} for table in TABLES}
    )


@pytest.mark.parametrize("engine", ["auto", *twins("spark")])
def test_old_offsets_are_routed_again_by_the_routes_of_now(world: World, engine: str) -> None:
    """What a table has gained comes by a replay, and a rebuild leaves out what it has lost.

    A record that waits is let go to another table only on request.
    """
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    shop = Shop(world)
    world.send(*MIXED, record("refunded", 8))
    shop.run_together()
    tables = {**TABLES, "payments": {**TABLES["payments"], "when": "paid"}}
    shop.declare(tables={**tables, "clicks": {**TABLES["clicks"], "when": ["clicks", "views"]}})

    kept = shop.streams["orders"].redrive()
    shop.streams["payments"].rebuild()
    replayed = shop.streams["clicks"].replay()
    released = shop.streams["orders"].redrive(reason="unrouted")

    assert kept.batches == ()
    assert kept.still_bad == {"unrouted": 2, "wrong_type": 1}
    assert (released.total("routed_elsewhere"), released.still_bad) == (1, {"unrouted": 1})
    assert rows_of(shop.streams["payments"]) == [{"id": 1}]
    assert replayed.total("quarantined") == 1, "a view has no page"
    assert shop.problems() == []


def test_following_runs_siblings_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one job, so that no other stream waits for more than one of them."""
    shop, reports, groups = Shop(world), dict[str, RunReport](), list[int]()
    world.send(*MIXED)
    lead = SharedReading._lead
    monkeypatch.setattr(
        SharedReading,
        "_lead",
        lambda self, leader, all_: (groups.append(len(all_)), lead(self, leader, all_))[1],
    )
    spark: Any = SimpleNamespace(of=lambda name: lambda backlog: world.spark, has_died=False)
    following = Follow(
        settings=world.settings,
        spark=spark,
        run_id="f",
        jobs=1,
        every_seconds=0.1,
        for_seconds=8,
        on_report=lambda declared, report: reports.update({declared.name: report}),
        on_failure=lambda declared, error: pytest.fail(str(error)),
    )
    threading.Thread(
        target=lambda: (wait_until(lambda: len(reports) == 3, "no reports"), following.stop.set())
    ).start()

    assert following.execute() == 0

    assert groups == [3]
    assert shop.problems() == []


@pytest.mark.parametrize("place", ["in no table", "in two tables"])
def test_the_proof_finds_a_record_that_was_routed_wrongly(
    world: World, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Its stream's own proof names it, and that of a sibling that the sums are wrong."""
    shop, honest = Shop(world), route._are_in
    mistaken: dict[Any, Any] = {
        "in no table": {("paid", "refunded"): ("refunded",)},
        "in two tables": {
            ("orders",): ("orders", "paid"),
            ("paid", "refunded", "clicks"): ("refunded", "clicks"),
        },
    }[place]
    monkeypatch.setattr(
        route, "_are_in", lambda found, routes: honest(found, mistaken.get(routes, routes))
    )
    world.send(*MIXED)
    shop.run_together()
    monkeypatch.undo()

    verdicts = {table: prove(stream) for table, stream in shop.streams.items()}

    table = "payments" if place == "in no table" else "orders"
    assert verdicts[table].difference_count["rows"] == 1
    assert "nowhere or twice" in str(verdicts["clicks"].differences)


@pytest.mark.parametrize("problem", ["locked", "refused"])
def test_a_stream_that_cannot_go_on_keeps_no_sibling_back(world: World, problem: str) -> None:
    """Its siblings commit as if it were not there, and it says itself what is wrong."""
    shop = Shop(world)
    world.send(*MIXED)
    shop.run_together()
    world.send(record("paid", 7), record("orders", 7, total=7))
    orders = shop.streams["orders"]
    held: AbstractContextManager[None] = nullcontext()
    if problem == "refused":
        orders.declare(keys=["id", "total"])
    if problem == "locked":
        held = held_by_python(orders.paths, Holder.me("another"))

    with held:
        reports = shop.run_together()

    assert isinstance(reports["orders"], Exception)
    assert {"id": 7} in rows_of(shop.streams["payments"])


def noting(function: Any, calls: list[Any]) -> Any:
    """Return a function that keeps what its last argument was."""

    def noted(*given: Any) -> Any:
        calls.append(given[-1])
        return function(*given)

    return noted
