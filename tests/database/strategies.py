"""What Hypothesis draws histories from: small statements, few keys, and any valid declaration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import Any, Final, Literal, NamedTuple

from hypothesis import strategies as st

from tests.database.database import Database, Delete, Move, Put, Statement, Update
from tests.database.declared import CONDITIONS, STATES, Declared, Setup, Source, Table
from tests.database.history import (
    KEYS_OF_A_SESSION,
    Alter,
    History,
    ReadAll,
    Restart,
    Snapshot,
    Step,
    Transaction,
    Truncate,
)

_KEYS: Final = 4
_VALUES: Final[dict[str, Sequence[Any]]] = {
    "state": STATES,
    "v": ("a", "b", "c", None),
    "wide": (None, "w", "wwwwwwww", "xxxxxxxx"),
    "n": (None, 1, 2, 2**40),
    "addr": (None, ("c", None), ("c", "z")),
    "extra": (None, "e"),
    "tenant": ("t", None, "tt"),
}
_OPTIONAL: Final = {name: st.sampled_from(values) for name, values in _VALUES.items()}


class _Idea(NamedTuple):
    """A statement before it is known which rows there are."""

    kind: Literal["put", "update", "move", "delete"]
    which: int
    to: int
    values: dict[str, Any]

    def about(self, session: int, alive: Sequence[int]) -> Statement:
        """Return the statement, of a row that is there if there is one."""
        first = session * KEYS_OF_A_SESSION
        if self.kind == "put" or not alive:
            values = {"state": "open", "v": "a", **self.values}
            return Put(first + 1 + self.which, tuple(values.items()))
        key = alive[self.which % len(alive)]
        if self.kind == "update":
            return Update(key, tuple(self.values.items()))
        to = first + 1 + self.to
        # Some other key, which may be taken.
        return Delete(key) if self.kind == "delete" else Move(key, to if to != key else first + 1)


class _Shift(NamedTuple):
    """Rows that take over each other's keys, in a chain to a free key or in a circle."""

    which: int
    is_circle: bool

    def about(self, session: int, alive: Sequence[int]) -> Iterator[Statement]:
        """Yield the moves, of all rows that there are."""
        keys = [*alive[self.which :], *alive[: self.which]]
        free = session * KEYS_OF_A_SESSION + _KEYS + 1
        for key, to in pairwise([*keys, keys[0] if self.is_circle else free] if keys else []):
            yield Move(key, to)


_nth = st.integers(0, _KEYS - 1)
_values = st.fixed_dictionaries({}, optional=_OPTIONAL)
_ideas = st.builds(
    _Idea,
    st.sampled_from(("put", "update", "update", "move", "move", "delete")),
    _nth,
    _nth,
    _values,
)
_several = st.lists(_ideas, min_size=1, max_size=3)
_shifts = st.builds(_Shift, _nth, st.booleans())
_ALTERS: Final = (Alter("add"), Alter("widen"), Alter("nest"))
_rare = st.sampled_from(
    (ReadAll(), Truncate(), Snapshot(), Restart(1), Restart(3), Restart(6), *_ALTERS)
)


def _steps(sessions: int) -> st.SearchStrategy[Any]:
    def of(nth: int) -> st.SearchStrategy[Any]:
        if nth == 3 * sessions:
            return _rare
        return _shifts if nth % 8 == 7 else _several

    return st.integers(0, 6 * sessions).flatmap(of)


def _in_turns(parts: Sequence[Sequence[Any]]) -> Iterator[Step]:
    """Yield the steps of all sessions in turns, each about rows that are there."""
    database = Database()
    for turn in zip_longest(*parts):
        for session, step in enumerate(turn):
            if not isinstance(step, list | _Shift):
                yield from (step,) if step is not None else ()
                if isinstance(step, Alter):
                    database.alter(step.what)
                elif isinstance(step, Truncate):
                    database.truncate()
                continue
            alive = [k for k in sorted(database.by_key) if k // KEYS_OF_A_SESSION == session]
            if isinstance(step, _Shift):
                statements = tuple(step.about(session, alive))
            else:
                statements = tuple(idea.about(session, alive) for idea in step)
            transaction = Transaction(statements)
            if database.commit(transaction.statements):
                yield transaction


@st.composite
def _sources(draw: st.DrawFn) -> Source:
    writes = draw(st.sampled_from(("debezium", "debezium", "debezium", "rows")))
    is_debezium = writes == "debezium"
    kafka_key = draw(st.sampled_from(("primary", "primary", "shard"))) if is_debezium else "primary"
    encoding = draw(st.sampled_from(("json", "json", "avro"))) if is_debezium else "json"
    is_hidden = kafka_key == "shard" or encoding == "avro"
    identities = ("full", "default") if is_hidden else ("full", "default", "nothing")
    has_schemas = is_debezium and encoding == "json" and draw(st.booleans())
    is_followed = encoding == "avro" or (has_schemas and draw(st.booleans()))
    return Source(
        writes=writes,
        has_schemas=has_schemas,
        identity=draw(st.sampled_from(identities)),
        is_composite=draw(st.booleans()),
        kafka_key=kafka_key,
        partitions=draw(st.sampled_from((1, 3))),
        encoding=encoding,
        has_more=is_followed,
    )


@st.composite
def _tables(draw: st.DrawFn, *, has_history: bool, may_route: bool) -> tuple[Table, ...]:
    modes = ("upsert", "upsert", "soft", *(("scd2",) if has_history else ()), "append")
    conditions = st.sampled_from((None, None, *CONDITIONS))

    def table(name: str, *when: str) -> Table:
        mode = draw(st.sampled_from(modes))
        return Table(name=name, when=when, mode=mode, where=draw(conditions))

    if may_route and draw(st.booleans()):
        return (table("opened", "open"), table("ended", "closed"))
    return (table("t"),)


@st.composite
def _setups(draw: st.DrawFn, sinks: Sequence[str], sessions: int) -> Setup:
    source, is_ordered = draw(_sources()), draw(st.booleans())
    sink, is_debezium = draw(st.sampled_from(sinks)), source.writes == "debezium"
    schema = "written"
    if source.has_more:
        schema = "registry" if source.encoding == "avro" else "embedded"
    is_written, has_history = schema == "written", is_ordered
    tables = draw(_tables(has_history=has_history, may_route=schema != "embedded"))
    is_routed = len(tables) > 1
    truncates = ["quarantine", "stop"]
    if not is_routed and tables[0].mode == "upsert":
        truncates.append("apply")
    policies = [None] if is_ordered or not is_debezium else [None, "delete"]
    policies += ["ignore", "quarantine"] if is_debezium else []
    return Setup(
        source=source,
        declared=Declared(
            tables=tables,
            otherwise=draw(st.sampled_from(("quarantine", "ignore", tables[-1].name)))
            if is_routed
            else "quarantine",
            is_ordered=is_ordered,
            on_truncate=draw(st.sampled_from(truncates)) if is_debezium else "quarantine",
            tombstones=draw(st.sampled_from(policies)),
            computes=is_written and draw(st.sampled_from((False, False, True))),
            takes_header=is_written and draw(st.booleans()),
            schema=schema,
            limit=draw(st.sampled_from((1000, 8 * sessions, 4 * sessions))),
            sink=sink,
        ),
    )


@st.composite
def histories(
    draw: st.DrawFn,
    *,
    sessions: int = 4,
    sinks: Sequence[str] = ("delta", "vectors", "divided", "iceberg", "partitions"),
    without: Sequence[str] = (),
) -> History:
    """Draw a declaration, and some steps of several sessions.

    Args:
        sessions: How many.
        sinks: Those to draw from.
        without: Features that no history may have.
    """
    setup = draw(_setups(sinks, sessions))
    of_session = st.lists(_steps(sessions), max_size=12)
    parts = [draw(of_session) for _ in range(sessions)]
    history = History(setup=setup, steps=tuple(_in_turns(parts))).possible()
    return history.without([*without, *setup.not_promised])
