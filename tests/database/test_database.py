"""The oracle itself: a database that keeps its constraints, and a judge that notices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from tests.database import judge as judging
from tests.database.connector import Connector
from tests.database.database import Database, Delete, Move, Put, Update
from tests.database.declared import Declared, Setup, Source, Table
from tests.database.history import History, Restart, Transaction, Truncate
from tests.database.judge import Ground, judge
from tests.database.shrink import smallest
from tests.support.topics_in_memory import Cluster

ONE, TWO = Put(1, (("v", "a"),)), Put(2, (("v", "b"),))


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    """Where histories are played."""
    with Ground.made() as made:
        yield made


def texts(database: Database) -> dict[int, str | None]:
    """Return ``v`` by key."""
    return {key: row.v for key, row in sorted(database.by_key.items())}


@pytest.mark.parametrize(
    ("statements", "due"),
    [
        ([Move(1, 2), Move(2, 3)], {2: "a", 3: "b"}),
        ([Move(1, 2), Move(2, 1)], {1: "b", 2: "a"}),
        ([Move(2, 3), Move(1, 2)], {2: "a", 3: "b"}),
        ([Move(1, 2)], {1: "a", 2: "b"}),
        ([Delete(1), Put(1, (("v", "c"),))], {1: "c", 2: "b"}),
        ([Update(1, (("v", None),)), Delete(2)], {1: None}),
        ([Put(2, (("v", "c"),)), Put(3, ())], {1: "a", 2: "c", 3: None}),
    ],
    ids=["a chain", "a swap", "in order", "a key twice", "anew", "update and delete", "puts"],
)
def test_a_transaction_is_executed_whole_or_not_at_all(
    statements: list[Any], due: dict[int, str | None]
) -> None:
    """Keys may cross within it, and each has one row in the end."""
    database = Database()
    database.commit([ONE, TWO])

    changes = database.commit(statements)

    assert texts(database) == due
    assert bool(changes) == (due != {1: "a", 2: "b"})
    assert [change.number for change in database.log] == [*range(1, len(database.log) + 1)]


MOVE: Final[Mapping[str, tuple[Source, list[Any]]]] = {
    "of the connector's key": (Source(), ["d", None, "c"]),
    "of another key": (Source(kafka_key="shard"), ["u"]),
    "of plain rows": (Source(writes="rows"), [None, None]),
}


@pytest.mark.parametrize(("source", "due"), MOVE.values(), ids=MOVE)
def test_a_move_is_written_as_the_source_writes_it(source: Source, due: list[Any]) -> None:
    """A delete, its null value and a new row; one update; or a null value and a row."""
    database, cluster = Database(), Cluster()
    cluster.create("t", 1, {})
    connector = Connector(Setup(source=source), database, cluster, "t")
    connector.capture(database.commit([ONE]))
    before = len(connector.sent)

    connector.capture(database.commit([Move(1, 2)]))

    sent = [*connector.sent.values()][before:]
    assert [each.value and each.value.get("op") for each in sent] == due
    names = [name for each in sent for name, _ in each.headers]
    is_two = due[0] == "d"
    assert names == (["__debezium.newkey", "__debezium.oldkey"] if is_two else [])


def history(*statements: Any, **declared: Any) -> History:
    """Return a history, each statement a transaction."""
    setup = Setup(declared=Declared(**declared))
    steps = [
        each if isinstance(each, Truncate | Restart) else Transaction((each,))
        for each in statements
    ]
    return History(setup=setup, steps=tuple(steps))


@pytest.mark.parametrize("mode", ["upsert", "soft", "scd2", "append"])
@pytest.mark.parametrize("sink", ["delta", "vectors", "divided", "iceberg", "partitions"])
def test_a_plain_history_ends_right(ground: Ground, mode: Any, sink: Any) -> None:
    """In every mode that a sink has."""
    tables = (Table(name="t", mode=mode),)
    played = history(
        *(ONE, TWO, Update(1, (("v", "c"),)), Delete(2), TWO, Move(2, 3), Restart(3)),
        tables=tables,
        is_ordered=True,
        sink=sink,
    )

    assert judge(played, ground) == []


def test_a_truncate_that_stops_is_no_problem_and_one_that_is_applied_is_right(
    ground: Ground,
) -> None:
    """A refusal needs its reason in the history."""
    steps = (ONE, Truncate(), TWO)

    assert [judge(history(*steps, on_truncate=policy), ground) for policy in ("stop", "apply")] == [
        [],
        [],
    ]


def test_the_judge_notices_a_row_that_stays(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the proof notices, too, makes it worse or better."""
    played = history(ONE, TWO, Delete(1))
    rows = judging.rows_of
    monkeypatch.setattr(judging, "rows_of", lambda play, table: [*rows(play, table), STALE])

    (problem,) = judge(played, ground)

    assert problem.kind == "wrong, and called proven"
    assert "found {'id': 1" in problem.what


STALE: Final = {"id": 1, "part": 1, "state": None, "v": "a", "wide": None, "n": None}


def test_what_ends_wrong_is_told_with_the_fewest_steps() -> None:
    """Of sessions, steps, statements, values and what is declared."""
    tables = (Table(name="t", mode="soft", where="n > 1"),)
    put = Put(11, (("state", "open"), ("v", "b")))
    steps = [Transaction((ONE,)), Transaction((put, Move(11, 12))), Truncate()]
    setup = Setup(source=Source(partitions=3), declared=Declared(tables=tables, limit=9))
    whole = History(setup=setup, steps=(*steps, *steps))

    def ends_so(played: History) -> bool:
        text = " ".join(map(str, played.steps))
        return "v = 'b'" in text and played.setup.declared.tables[0].where is not None

    found = smallest(whole, ends_so)

    assert found.steps == (Transaction((Put(11, (("v", "b"),)),)),)
    assert found.setup == Setup(declared=Declared(tables=(Table(name="t", where="n > 1"),)))
