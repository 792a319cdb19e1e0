"""Histories that were found to end in wrong rows, each with the fewest steps that show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from tests.database.database import Delete, Move, Put, Update
from tests.database.declared import Declared, Setup, Source, Table
from tests.database.history import Alter, History, ReadAll, Restart, Step, Transaction, Truncate
from tests.database.judge import Ground, hold

ROUTED: Final = (Table(name="opened", when=("open",)), Table(name="ended", when=("closed",)))
MARKED: Final = tuple(replace(table, mode="soft") for table in ROUTED)
OPEN: Final = (Table(name="t", where="state = 'open'"),)
FOLLOWED: Final = {
    "embedded": Source(has_schemas=True, has_more=True),
    "registry": Source(encoding="avro", has_more=True),
}
KEYS_ONLY: Final = Source(identity="default", kafka_key="shard")


def of(*steps: Step, source: Source | None = None, **declared: Any) -> History:
    """Return a history of one partition."""
    setup = Setup(source=source or Source(), declared=Declared(**declared))
    return History(setup=setup, steps=steps)


def put(key: int, **values: Any) -> Transaction:
    """A transaction that makes a row."""
    return Transaction((Put(key, tuple({"state": "open", "v": "a", **values}.items())),))


def update(key: int, **values: Any) -> Transaction:
    """A transaction that changes a row."""
    return Transaction((Update(key, tuple(values.items())),))


def moves(*keys: tuple[int, int]) -> Transaction:
    """A transaction that gives rows other keys."""
    return Transaction(tuple(Move(*each) for each in keys))


CHAIN: Final = (put(1), put(2, v="b"), moves((1, 2), (2, 3)))
SWAP: Final = (put(1), put(2, v="b"), moves((1, 2), (2, 1)))
FOUND: Final[Mapping[str, History]] = {
    "a route that changes": of(put(1), update(1, state="closed"), tables=ROUTED),
    "a route that changes, without the row before": of(
        put(1), update(1, state="closed"), tables=ROUTED, source=Source(identity="default")
    ),
    "a route that becomes none": of(
        put(1), update(1, state=None), tables=ROUTED, otherwise="ignore"
    ),
    "a route that changes, where deletes are marked": of(
        put(1), ReadAll(), update(1, state="closed"), tables=MARKED
    ),
    "a route that changes, to a table of all changes": of(
        *(put(1, state="closed"), put(1)),
        tables=(ROUTED[0], replace(ROUTED[1], mode="append")),
    ),
    "a row of no table that gets another key, where deletes are marked": of(
        *(put(1, state=None), moves((1, 2))), tables=MARKED, otherwise="ignore"
    ),
    "a delete without its route": of(
        put(1),
        Transaction((Delete(1),)),
        tables=ROUTED,
        otherwise="ignore",
        source=Source(identity="default"),
    ),
    "a delete without its row": of(
        put(1),
        Transaction((Delete(1),)),
        tables=ROUTED,
        otherwise="ignore",
        source=Source(identity="nothing"),
    ),
    "a truncate of several tables": of(put(1, state="closed"), Truncate(), tables=ROUTED),
    "a truncate of several tables, which stops": of(
        put(1), Truncate(), tables=ROUTED, on_truncate="stop"
    ),
    **{
        f"a truncate of several tables in Avro, {on_truncate}": of(
            *(put(1, state="closed"), ReadAll(), Truncate(), put(1)),
            tables=ROUTED,
            on_truncate=on_truncate,
            source=Source(encoding="avro"),
            schema="registry",
        )
        for on_truncate in ("quarantine", "stop")
    },
    "a truncate in Avro that is applied": of(
        *(put(1), ReadAll(), Truncate(), put(2)),
        on_truncate="apply",
        source=Source(encoding="avro"),
        schema="registry",
    ),
    "keys in a chain": of(*CHAIN, source=Source(kafka_key="shard")),
    "keys that swap": of(*SWAP, source=Source(kafka_key="shard")),
    "keys in a chain, of which only keys are known": of(*CHAIN, source=KEYS_ONLY, is_ordered=True),
    "keys in a chain, of which each record is a batch": of(
        *CHAIN, source=Source(kafka_key="shard"), limit=1
    ),
    "keys that swap, of which each record is a batch": of(
        *SWAP, source=Source(kafka_key="shard"), limit=1
    ),
    "keys in a chain, sent once more": of(
        *CHAIN, Restart(2), source=Source(kafka_key="shard"), is_ordered=True, limit=1
    ),
    "a key that is taken over and left again, of which only keys are known": of(
        *(put(1), put(2, v="b"), Transaction((Move(1, 2), Move(1, 3)))),
        source=KEYS_ONLY,
        is_ordered=True,
    ),
    "rows alike that swap their keys": of(put(1), put(2), moves((1, 2), (2, 1))),
    "keys in a chain, sent as deletes and new rows": of(*CHAIN),
    "keys that swap, sent as deletes and new rows": of(*SWAP),
    "a key that is taken over from a row that is then deleted": of(
        put(1), put(2, v="b"), Transaction((Move(1, 2), Delete(2)))
    ),
    "a key that is taken over from a row like it": of(
        put(1), put(2), Transaction((Move(1, 2), Delete(2)))
    ),
    "a key that is taken over from a row of no table": of(
        *(put(1, state=None), put(4, v="b"), moves((1, 2)), moves((4, 2), (2, 3))),
        tables=ROUTED,
        otherwise="ignore",
    ),
    "an update that leaves the condition": of(put(1), update(1, state="closed"), tables=OPEN),
    "a row that leaves the condition": of(
        put(1), update(1, state="closed"), tables=OPEN, source=Source(writes="rows")
    ),
    **{
        f"a field within a column of Iceberg, by {schema}": of(
            *(put(1), ReadAll(), Alter("nest"), put(2, addr=("c", "z"))),
            source=source,
            schema=schema,
            sink="iceberg",
        )
        for schema, source in FOLLOWED.items()
    },
    "a row that leaves the condition, in the next run": of(
        put(1), ReadAll(), update(1, state="closed"), tables=OPEN, source=Source(identity="default")
    ),
    **{
        f"rows of two tables that swap their keys, {mode}, {limit} at once": of(
            *(put(1), put(2, state="closed"), moves((2, 1), (1, 2))),
            tables=(ROUTED[0], replace(ROUTED[1], mode=mode)),
            is_ordered=True,
            limit=limit,
        )
        for mode in ("upsert", "soft", "scd2")
        for limit in (32, 1)
    },
    # Of two rows like each other one has left, and waits.
    **{
        f"a row that a waiting one may have left alone, {limit} at once": of(
            *(Transaction((Put(2, ()),)), moves((2, 1))),
            Transaction((Put(4, (("v", "a"), ("n", 1))), Move(1, 4), Move(1, 1))),
            update(4, n=None),
            Transaction((Move(1, 2), Update(4, (("n", 1),)))),
            moves((4, 1)),
            is_ordered=True,
            limit=limit,
        )
        for limit in (32, 1)
    },
    "a marked delete behind a row that waits": of(
        *(Transaction((Put(3, (("wide", "w" * 8),)), Put(4, ()))), moves((4, 2))),
        *(moves((2, 3), (3, 5)), moves((5, 1))),
        tables=(Table(name="t", mode="soft"),),
        is_ordered=True,
        source=Source(identity="default"),
    ),
    **{
        f"a row like one that has come before, {sent}": of(
            *(put(1), put(2), moves((1, 4)), moves((2, 4), (4, 2))), source=Source(kafka_key=key)
        )
        for sent, key in {"sent as updates": "shard", "sent as deletes and rows": "primary"}.items()
    },
    **{
        f"a row that takes over a key of another table, {limit} at once": of(
            *(put(5), put(3, state="closed"), moves((3, 5), (5, 6))),
            tables=ROUTED,
            source=Source(kafka_key="shard"),
            limit=limit,
        )
        for limit in (32, 1)
    },
    **{
        f"a row of another table between two of this one, {limit} at once": of(
            *(put(3), put(1, state="closed"), moves((1, 3), (3, 5)), moves((3, 5), (5, 3))),
            *(put(4), moves((4, 5), (5, 1))),
            tables=ROUTED,
            source=Source(kafka_key="shard"),
            limit=limit,
        )
        for limit in (32, 1)
    },
    **{
        f"a row of no table that leaves its key to another, {otherwise}, {limit} at once": of(
            *(put(1, state="done"), put(2), Transaction((Move(2, 1), Delete(1)))),
            tables=ROUTED,
            otherwise=otherwise,
            is_ordered=True,
            limit=limit,
        )
        for otherwise in ("quarantine", "ignore", "ended")
        for limit in (32, 1)
    },
    "rows of other tables in a circle, of which only keys are known": of(
        Transaction((Put(4, ()), Put(3, (("state", "open"),)), Put(2, (("state", "open"),)))),
        moves((4, 2), (2, 3), (3, 4)),
        tables=ROUTED,
        source=KEYS_ONLY,
        is_ordered=True,
    ),
    "a row of another table that changes under a key that it has lost": of(
        Transaction((Put(3, (("state", None),)), Put(2, (("state", None), ("wide", "w" * 8))))),
        Transaction((Move(2, 3), Update(3, (("state", "closed"),)), Move(3, 2))),
        Transaction((Delete(3),)),
        tables=ROUTED,
        otherwise="ended",
    ),
    "a row of another table that leaves the key of a marked row": of(
        *(put(1), put(1, state=None), put(2), Transaction((Move(1, 4), Move(2, 1)))),
        *(update(1, state="closed"), moves((1, 5))),
        tables=(replace(ROUTED[0], mode="soft"), ROUTED[1]),
        source=Source(kafka_key="shard"),
    ),
    "a delete that is read after a later row has taken its key": of(
        *(put(1), put(2, v="b"), put(12), put(14), put(16)),
        *(Transaction((Delete(2),)), moves((1, 2))),
        source=Source(kafka_key="shard", partitions=3),
        is_ordered=True,
        limit=3,
    ),
    "a move that is read after the delete of the row it moved upon": of(
        *(put(14), put(12), put(11, v=None), *(put(2 * n) for n in range(10, 20))),
        moves((11, 12), (12, 14), (14, 11)),
        source=Source(kafka_key="shard", partitions=3),
        is_ordered=True,
        limit=15,
    ),
    "a contest that a delete of the key alone has ended": of(
        *(put(63), Transaction((Put(61, ()),)), Transaction((Move(63, 61), Delete(63)))),
        *(Transaction((Delete(61),)), Transaction((Put(62, ()),)), moves((62, 61)), ReadAll()),
        Transaction((Delete(61),)),
        tombstones="delete",
    ),
    "a null value in the batch after its delete": of(
        *(put(3), put(1, v="b"), Transaction((Move(3, 1), Delete(1)))),
        tombstones="delete",
        limit=3,
    ),
    "a move that comes again without its large value": of(
        *(put(4, wide="w" * 8), moves((4, 5)), ReadAll(), Restart(1), ReadAll()),
        Transaction((Delete(5),)),
        source=Source(identity="nothing"),
        is_ordered=True,
    ),
    "a move that comes again twice without its large value": of(
        *(put(4, wide="w" * 8), moves((4, 5)), ReadAll(), Restart(1), ReadAll(), Restart(1)),
        source=Source(identity="nothing"),
        is_ordered=True,
    ),
    "a key that is taken over by a row whose large value is left out": of(
        *(put(1, wide="w" * 8), put(2), ReadAll(), Transaction((Move(1, 2), Delete(1)))),
        source=KEYS_ONLY,
        is_ordered=True,
    ),
    **{
        f"a key that is taken over from a row whose large value is left out, {limit} at once": of(
            *(put(1), put(4, wide="w" * 8), ReadAll(), moves((4, 2))),
            Transaction((Move(1, 2), Move(1, 3))),
            source=KEYS_ONLY,
            is_ordered=True,
            limit=limit,
        )
        for limit in (32, 2)
    },
    "a marked row whose delete is another table's record": of(
        *(put(22, state="closed"), put(21), moves((21, 22), (22, 25))),
        tables=MARKED,
        source=KEYS_ONLY,
        is_ordered=True,
    ),
    "a move that takes no row, and waits for a large value": of(
        Transaction((Put(3, (("wide", "w" * 8),)),)),
        *(Transaction((Put(2, ()),)), update(3, tenant="tt"), moves((2, 3), (3, 1))),
        source=KEYS_ONLY,
        is_ordered=True,
    ),
    "a large value of a key whose last delete took no row": of(
        *(Transaction((Put(63, ()),)), moves((63, 61)), Transaction((Delete(61),))),
        Transaction((Put(64, (("wide", "w"),)), Put(62, (("v", "a"), ("tenant", "tt"))))),
        moves((64, 62), (62, 61)),
        Transaction((Update(61, (("wide", "x" * 8),)), Move(62, 61), Move(62, 63))),
        moves((61, 64)),
        source=KEYS_ONLY,
        is_ordered=True,
        takes_header=True,
    ),
    "moves in a circle that nothing orders": of(
        *(put(4, wide="w" * 8), moves((4, 2)), moves((2, 3)), moves((3, 2))),
        Transaction((Delete(2),)),
        source=Source(identity="nothing", partitions=3),
    ),
    "a large value of a row of which nobody knows whether it has left its key": of(
        *(Transaction((Put(1, ()),)), moves((1, 2))),
        *(Transaction((Move(2, 3), Put(1, (("state", "open"),)))), update(3, wide="w" * 8)),
        moves((1, 3), (3, 4)),
        tables=ROUTED,
        otherwise="ended",
        is_ordered=True,
        source=Source(identity="default"),
    ),
    # The source has nothing left of the row that is like the one which goes.
    **{
        f"a row like one that a waiting truncate has left, {limit} at once": of(
            *(put(2), Truncate(), put(1), Transaction((Put(4, (("n", 1),)),)), moves((4, 2))),
            Transaction((Move(1, 2), Delete(1))),
            is_ordered=is_ordered,
            limit=limit,
        )
        for limit, is_ordered in ((32, True), (1, True), (16, False))
    },
    "a row that differs from another in what is computed alone": of(
        *(put(1), put(2, v="b"), Transaction((Move(2, 1), Move(2, 3)))),
        tables=OPEN,
        computes=True,
    ),
    "a row that has moved on where a waiting move has brought another": of(
        Transaction((Put(1, ()), Put(2, (("v", "a"),)), Put(3, (("n", 1),)))),
        *(Transaction((Move(2, 1), Delete(2))), moves((3, 4), (1, 3)), moves((4, 3), (4, 1))),
        source=KEYS_ONLY,
        is_ordered=True,
        limit=2,
    ),
    # The new row's partition is read before that of the old row's last value.
    "a large value that moves to another partition": of(
        Transaction((Put(3, ()), Put(2, ()), Put(4, ()))),
        update(2, n=1),
        Transaction((Update(2, (("wide", "w" * 8),)), Move(2, 1), Update(4, (("n", 2),)))),
        source=Source(identity="default", partitions=3),
        is_ordered=True,
        limit=4,
    ),
}


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    """Where histories are played."""
    with Ground.made() as made:
        yield made


@pytest.mark.parametrize("history", FOUND.values(), ids=FOUND)
def test_tables_end_as_the_database_does(history: History, ground: Ground) -> None:
    """Or the difference is explained."""
    hold(history, ground, is_told_short=False)
