"""A process that follows streams for long, beside which a newer version writes one of them."""

from __future__ import annotations

from subprocess import CompletedProcess

import pytest

from oncelake.ingestion.errors import NewerFormatError
from oncelake.ingestion.operations.follow.follow import Follow
from oncelake.ingestion.pipeline.spark.session import SharedSpark
from tests.operations.test_follow import Told, following, told, until
from tests.operations.test_routes import Shop, record
from tests.support.long import only_long, twins
from tests.support.proof import find_problems
from tests.support.world import World, changed, row
from tests.upgrade.newer import Newer
from tests.upgrade.test_two_versions import contents, newer

__all__ = ["newer", "told"]
pytestmark = [pytest.mark.kafka, pytest.mark.slow]

# One record alone is left to the newer version; two begin a run of this one.
PACE = {"follow": {"every_seconds": 1, "min_records": 2, "max_wait_seconds": 3600}}


def follow_of(world: World, told: Told) -> Follow:
    """Follow all that is declared, without Spark."""
    return following(
        world.settings.streams,
        told,
        settings=world.settings,
        spark=SharedSpark(lambda _: world.spark),
        every_seconds=0.2,
    )


class Beside:
    """A newer version, which writes a stream once while this one follows it."""

    def __init__(self, newer: Newer, world: World) -> None:
        self.newer, self.world = newer, world
        self.done: list[CompletedProcess[str]] = []
        self.left: dict[str, bytes] = {}

    def writes(self) -> bool:
        """Run the stream, and keep what it leaves."""
        self.done.append(self.newer.oncelake(self.world, "run"))
        self.left = self.found()
        return True

    def found(self) -> dict[str, bytes]:
        """Return what there is of the stream."""
        found = contents(self.world).items()
        return {name: each for name, each in found if "/" not in name or self.world.name in name}

    def goes_on(self) -> list[str]:
        """Run and prove the stream; return what is wrong."""
        self.done += [self.newer.oncelake(self.world, word) for word in ("run", "verify")]
        return [each.stderr for each in self.done if each.returncode]


@pytest.mark.parametrize("sink", ["delta", *twins("iceberg", "postgres", "kafka")])
def test_who_follows_leaves_a_stream_to_the_version_that_has_written_it(
    world: World, newer: Newer, told: Told, sink: str, request: pytest.FixtureRequest
) -> None:
    """Its next batch is refused with exit 3, before and after more records; the others go on."""
    if sink == "postgres":
        address = request.getfixturevalue("postgres_address")
        world.settings = changed(world.settings, postgres=address)
    with World.made(world.settings, world.spark) as other:
        for each in (world, other):
            each.declare(sink=sink, **PACE)
            each.write_declaration()
            each.send(row(1, "a"), row(2, "b"))
        beside, follow = Beside(newer, world), follow_of(world, told)

        def newer_writes() -> bool:
            world.send(row(3, "c"))
            return beside.writes()

        def more_comes() -> bool:
            for each in (world, other):
                each.send(row(4, "d"), row(5, "e"))
            # A file that has changed is tried again at once.
            world.declare(description="changed")
            world.write_declaration()
            return True

        code = until(
            follow,
            lambda: {world.name, other.name} <= {*told.reports},
            newer_writes,
            lambda: bool(told.failures),
            more_comes,
            lambda: told.reports.count(other.name) == 2,
            lambda: follow._turns[world.name].failures == 2,
        )

        assert (code, told.failures) == (3, [f"{world.name}: NewerFormatError"])
        assert told.reports.count(world.name) == 1
        assert beside.found() == beside.left
        assert beside.goes_on() == []
        assert [each["id"] for each in other.rows()] == [1, 2, 4, 5]
        assert find_problems(other) == ()


@only_long
def test_siblings_of_a_stream_that_a_newer_version_has_written_go_on(
    world: World, newer: Newer, told: Told
) -> None:
    """They read Kafka together, and the one that is refused keeps none of them waiting."""
    shop = Shop(world, otherwise="ignore", **PACE)
    beside, follow = Beside(newer, shop.streams["orders"]), follow_of(world, told)
    others = [shop.streams[table].name for table in ("payments", "clicks")]
    world.send(record("orders", 1, total=5), record("paid", 1), record("clicks", 0, page="/"))

    def newer_writes() -> bool:
        world.send(record("orders", 2, total=7))
        return beside.writes()

    def more_comes() -> bool:
        world.send(record("orders", 3, total=9), record("paid", 3), record("clicks", 0, page="/a"))
        shop.declare(otherwise="ignore", description="changed", **PACE)
        return True

    code = until(
        follow,
        lambda: len({*told.reports}) == 3,
        newer_writes,
        lambda: bool(told.failures),
        more_comes,
        lambda: all(told.reports.count(each) == 2 for each in others),
        lambda: follow._turns[beside.world.name].failures == 2,
    )

    assert (code, told.failures) == (3, [f"{beside.world.name}: NewerFormatError"])
    assert beside.found() == beside.left
    assert beside.goes_on() == []
    # Their proof compares what each of them left to the others.
    for table in ("payments", "clicks"):
        with pytest.raises(NewerFormatError, match="orders__ledger was written by"):
            find_problems(shop.streams[table])
        assert Beside(newer, shop.streams[table]).goes_on() == []
