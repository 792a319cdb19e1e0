"""A TRUNCATE of the source that waits in quarantine, crossed with what else a stream may be.

While it waits, the table may have rows that the source has not: a record that may have taken the
last of two rows that are alike waits, too. The proof must come to the same, whatever becomes of the
declaration, of the table or of the quarantine meanwhile.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from pydantic import SecretStr

from oncelake.ingestion.operations.history.rewind import rewind
from tests.operations.test_routes import Shop
from tests.support.long import twins
from tests.support.proof import find_problems, prove
from tests.support.world import World

Row = dict[str, Any]
DDL: Final = "id BIGINT NOT NULL, v STRING, kind STRING, lsn BIGINT"
WIDE: Final = DDL.replace("kind STRING", "kind STRING, more STRING")
FORMAT: Final = {"type": "debezium", "columns": {"lsn": "source.lsn"}}
FIELDS: Final[Row] = {
    "schema": DDL,
    "keys": ["id"],
    "format": FORMAT,
    "schema_change": "evolve",
    "quarantine_rate": {"stop_above": 1},
}
MODES: Final[dict[str, Row]] = {
    "hard": {},
    "soft": {"deletes": "soft", "sequence_by": ["lsn"]},
    "history": {"mode": "scd2", "sequence_by": ["lsn"]},
}


def row(id: int, v: str, kind: str = "x") -> Row:
    """A row of the source."""
    return {"id": id, "v": v, "kind": kind}


def change(op: str, before: Row | None, after: Row | None, lsn: int) -> Row:
    """A change of the source."""
    return {"op": op, "before": before, "after": after, "source": {"lsn": lsn}}


MADE: Final = change("c", None, row(2, "a"), 1)
TRUNCATE: Final = change("t", None, None, 2)
# A row that is like the one from before takes over its key, and leaves it again.
ALIKE: Final = [
    change("c", None, row(1, "a"), 3),
    change("u", row(1, "a"), row(2, "a"), 4),
    change("d", row(2, "a"), None, 5),
]
WAITING: Final = ["truncate", "moved_key"]


def run_each(world: World, *changes: Row) -> None:
    """Read each change in a batch of its own."""
    for each in changes:
        world.send(each)
        assert world.run().is_balanced


def reasons(world: World) -> list[str]:
    """Return why records wait in quarantine."""
    return [each["reason"] for each in world.quarantined() if each["redriven_seq"] is None]


def current(world: World) -> list[int]:
    """Return the keys of the rows that are not deleted."""
    spec = world.spec
    marks = {"_deleted": spec.deletes == "soft", "current": spec.mode == "scd2"}
    names = ["id", *(name for name, is_there in marks.items() if is_there)]
    found = [each for batch in world.paths.table.scan(names) for each in batch.to_pylist()]
    is_gone = {"_deleted": True, "current": False}
    return sorted(
        each["id"] for each in found if not any(each.get(n) is gone for n, gone in is_gone.items())
    )


@pytest.fixture(params=["delta", "iceberg", *twins("postgres")])
def sunk(request: pytest.FixtureRequest, world: World) -> World:
    """A stream of one sink."""
    if request.param == "postgres":
        address = SecretStr(request.getfixturevalue("postgres_address"))
        world.settings = world.settings.model_copy(update={"postgres": address})
    world.declare(**FIELDS, sink=request.param)
    return world


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_divided", [True, False], ids=["batches", "one batch"])
def test_a_row_like_one_from_before_it_waits_in_each_mode(
    sunk: World, mode: str, *, is_divided: bool
) -> None:
    """As a hard delete it may take the last row, as a soft one mark it, as history end it."""
    sunk.declare(**MODES[mode])
    if is_divided:
        run_each(sunk, MADE, TRUNCATE, *ALIKE)
    else:
        sunk.send(MADE, TRUNCATE, *ALIKE)
        assert sunk.run().is_balanced

    assert reasons(sunk) == WAITING
    assert current(sunk) == [2]
    assert find_problems(sunk) == ()


@pytest.mark.parametrize("mode", MODES)
def test_it_waits_on_where_columns_come_meanwhile(sunk: World, mode: str) -> None:
    """Between the truncate and the rows that are alike, and behind them."""
    sunk.declare(**MODES[mode])
    run_each(sunk, MADE, TRUNCATE, *ALIKE[:1])
    sunk.declare(schema=WIDE)
    run_each(sunk, *ALIKE[1:])

    assert reasons(sunk) == WAITING
    assert find_problems(sunk) == ()
    sunk.declare(schema=WIDE.replace("more", "other STRING, more"))
    run_each(sunk, change("c", None, row(3, "b"), 6))
    assert (reasons(sunk), current(sunk)) == (WAITING, [2, 3])
    assert find_problems(sunk) == ()


@pytest.mark.parametrize("mode", MODES)
def test_a_redrive_of_a_part_releases_nothing_that_waits_for_it(sunk: World, mode: str) -> None:
    """Neither of the moved row alone, nor of all; where it is applied, the row from before goes."""
    sunk.declare(**MODES[mode])
    run_each(sunk, MADE, TRUNCATE, *ALIKE)

    for reason in ("moved_key", "truncate", None):
        assert sunk.redrive(reason=reason).redriven == 0
        assert prove(sunk).differences == ()

    assert (reasons(sunk), current(sunk)) == (WAITING, [2])
    assert find_problems(sunk) == ()


@pytest.mark.parametrize("sunk", ["delta", "iceberg"], indirect=True)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("to", [1, 2, 3], ids=["before it", "to it", "behind it"])
def test_a_rewind_comes_to_the_same(sunk: World, mode: str, to: int) -> None:
    """It takes out of quarantine what the undone batches put there, and it is read again."""
    sunk.declare(**MODES[mode])
    run_each(sunk, MADE, TRUNCATE, *ALIKE)

    rewind(sunk.spec, sunk.settings, to=f"seq:{to}", reason="a test", run_id="r")

    assert prove(sunk).differences == ()
    assert sunk.run().is_balanced
    assert (reasons(sunk), current(sunk)) == (WAITING, [2])
    assert find_problems(sunk) == ()


@pytest.mark.parametrize("mode", ["hard", "soft", "history"])
def test_each_table_of_a_topic_has_one_that_waits(sunk: World, mode: str) -> None:
    """What is declared later, and a redrive, change nothing in the counts of then."""
    fields = {**sunk.declared, **MODES[mode]}
    shop = Shop(sunk, **fields, route_by="kind", tables={"x": {}, "y": {}})
    x, y = shop.streams.values()
    for each in [MADE, TRUNCATE, *ALIKE, change("c", None, row(7, "a", "y"), 6)]:
        sunk.send(each)
        assert [each.run().is_balanced for each in (x, y)] == [True, True]
    assert shop.problems() == []

    shop = Shop(sunk, **{**fields, "schema": WIDE}, route_by="kind", tables={"x": {}, "y": {}})
    x, y = shop.streams.values()
    for each in (x, y):
        each.redrive()

    assert [reasons(each) for each in (x, y)] == [WAITING, ["truncate"]]
    assert [current(each) for each in (x, y)] == [[2], [7]]
    assert shop.problems() == []
