"""A run that dies while its table follows a newer schema leaves what the next one makes whole."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product

import pytest
from pyspark.sql import SparkSession

from oncelake.ingestion.declaration.files.topics import topics_file
from oncelake.ingestion.lake.ledger import Ledger
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.failpoints import Failpoint
from oncelake.ingestion.verify.verify import verify
from tests.formats.test_altered_tables import Shop, by_key, phases, recorded
from tests.formats.test_capture import typed
from tests.support.long import twins
from tests.support.world import World, environment_of
from tests.trials.failpoints import PlannedCrash, crashing_at
from tests.trials.kills import process_group

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

# What a run passes that meets a newer schema, and so begins again.
PLACES = (
    *(Failpoint.LOOKING, Failpoint.LOCK_HELD, Failpoint.ALTERED, Failpoint.SCHEMA_NOTED),
    *(Failpoint.TABLE_READ, Failpoint.GENERATION_OPENED, Failpoint.QUERY_STARTED),
    *(Failpoint.BATCH_PLANNED, Failpoint.COLUMNS_KEPT, Failpoint.BATCH_MATERIALISED),
    *(Failpoint.PREPARED, Failpoint.COMMITTED, Failpoint.PROJECTED, Failpoint.LEDGER_WRITTEN),
    Failpoint.REPORTED,
)
TABLES = ("orders", "customers")


# Which sink, and the engine that writes it.
WRITERS = (("delta", "local"), ("delta", "spark"), ("iceberg", "local"))


@pytest.fixture
def shop(request: pytest.FixtureRequest, settings: Settings, spark: SparkSession) -> Iterator[Shop]:
    """A database whose tables have been read once, and are altered since."""
    sink, engine = getattr(request, "param", WRITERS[0])
    settings = settings.model_copy(update={"merge_engine": engine})
    with World.made(settings, spark) as world:
        shop = Shop(world, sink, 1)
        events = [[each for each in phase if each["table"] in TABLES] for phase in phases()]
        shop.deliver(events[0][:18])
        shop.discover()
        shop.run()
        for phase in (events[0][18:], *events[1:]):
            shop.deliver(phase)
        yield shop


def refuse_damage(shop: Shop) -> None:
    """Run to the end, and compare every cell with the database's; nothing is read twice."""
    shop.run()
    for spec in shop.streams():
        table = spec.name.removeprefix("shop_")
        expected = [
            {name: text and typed(spec.types[name], text) for name, text in row.items()}
            for row in recorded(table)
        ]
        found = [{name: row[name] for name in expected[0]} for row in shop.rows(spec)]
        assert by_key(found, spec) == by_key(expected, spec)
        assert verify(spec, shop.world.settings).differences == ()
        seqs = [row.seq for row in Ledger(shop.paths(spec).ledger).rows()]
        assert seqs == [*range(1, len(seqs) + 1)]


@pytest.mark.parametrize("is_kept", [True, False], ids=["same host", "host with an older file"])
@pytest.mark.parametrize("place", [Failpoint.ALTERED, Failpoint.COLUMNS_KEPT])
def test_a_run_that_fails_in_the_middle_is_made_whole(
    shop: Shop, place: Failpoint, is_kept: bool
) -> None:
    """An error between the file, the columns and their note, in this process."""
    found = topics_file(shop.file)
    older = found.read_text()
    with crashing_at(place, 1), pytest.raises(Exception, match=f"{place}"):
        shop.run()
    if not is_kept:
        found.write_text(older)

    refuse_damage(shop)


@pytest.mark.parametrize(
    ("shop", "place", "nth"),
    [
        *twins(
            *(
                pytest.param(writer, place, nth, id=f"{' '.join(writer)} {place} {nth}")
                for writer, place, nth in product(WRITERS, PLACES, (1, 2))
            )
        )
    ],
    indirect=["shop"],
)
def test_a_run_that_is_killed_is_made_whole(shop: Shop, place: Failpoint, nth: int) -> None:
    """Python and the JVM together, at each step of the first pass and of the second."""
    world = shop.world
    visits = world.settings.state / "visits"
    crash = PlannedCrash(place=place, nth=nth, way="kill_group", visits=str(visits))
    environment = {**environment_of(world.settings), **crash.environment()}
    command = [sys.executable, "-m", "ingestion", "run", "shop_orders"]
    log = world.settings.state / "log"
    with process_group(command, environment, log) as process:
        code = process.wait(300)

    assert code in {-9, 0}, log.read_text()[-2000:]
    assert (code == -9) == (visits.read_text().split().count(place) >= nth)
    refuse_damage(shop)
