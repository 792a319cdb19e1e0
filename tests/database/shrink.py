"""Makes a history smaller that ends wrong, so that a person can read why.

It knows what sessions, statements and declarations are, and needs some sixty plays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

from tests.database.database import Put, Statement, Update
from tests.database.declared import Declared, Setup, Source, Table
from tests.database.history import KEYS_OF_A_SESSION, History, Step, Transaction

_MOST_PLAYS: Final = 200
Item = TypeVar("Item")
EndsSo = Callable[[History], bool]


def smallest(history: History, ends_so: EndsSo) -> History:
    """Return a history that ends in the same way, and does not with anything less.

    Args:
        history: One that ends so.
        ends_so: Plays a history, and tells whether it does.
    """
    left, features = iter(range(_MOST_PLAYS)), history.features().keys()

    def still(candidate: History) -> bool:
        # With a feature of its own it might end so for another reason.
        may_be = candidate.is_legal and candidate.features().keys() <= features
        return may_be and next(left, None) is not None and ends_so(candidate)

    history = next(filter(still, _of_one_session(history)), history)
    history = _with_fewer_steps(history, still)
    history = _simpler(history, still)
    for at, step in enumerate(history.steps):
        if isinstance(step, Transaction):
            history = _with_less_of(history, at, still)
    return _simpler(_with_fewer_steps(history, still), still)


def _of_one_session(history: History) -> Iterator[History]:
    for session in sorted(history.sessions):
        steps = tuple(step for step in history.steps if _session_of(step) in (session, None))
        yield replace(history, steps=steps)


def _session_of(step: Step) -> int | None:
    return step.statements[0].key // KEYS_OF_A_SESSION if isinstance(step, Transaction) else None


def _fewer(items: Sequence[Item], still: Callable[[tuple[Item, ...]], bool]) -> tuple[Item, ...]:
    """Leave out as many items as can be left out, many at a time first."""
    kept, size = tuple(items), max(1, len(items) // 2)
    while size:
        at = 0
        while at < len(kept):
            rest = kept[:at] + kept[at + size :]
            if still(rest):
                kept = rest
            else:
                at += size
        size //= 2
    return kept


def _with_fewer_steps(history: History, still: EndsSo) -> History:
    steps = _fewer(history.steps, lambda steps: still(replace(history, steps=steps)))
    return replace(history, steps=steps)


def _with_less_of(history: History, at: int, still: EndsSo) -> History:
    """Leave out statements of a transaction, and values of statements."""

    def of(statements: Sequence[Any]) -> History:
        steps = [*history.steps]
        steps[at] = Transaction(tuple(statements))
        return replace(history, steps=tuple(steps))

    step = history.steps[at]
    assert isinstance(step, Transaction), "which has statements"
    statements = _fewer(step.statements, lambda some: bool(some) and still(of(some)))
    for nth in range(len(statements)):
        statements = _with_fewer_values(statements, nth, lambda some: still(of(some)))
    return of(statements)


def _with_fewer_values(
    statements: tuple[Statement, ...], nth: int, still: Callable[[tuple[Statement, ...]], bool]
) -> tuple[Statement, ...]:
    statement = statements[nth]
    if not isinstance(statement, Put | Update):
        return statements

    def of(values: Any) -> tuple[Statement, ...]:
        return (*statements[:nth], replace(statement, values=values), *statements[nth + 1 :])

    return of(_fewer(statement.values, lambda values: still(of(values))))


def _simpler(history: History, still: EndsSo) -> History:
    """Declare as little as possible."""
    while simpler := next(filter(still, _of_setups(history)), None):
        history = simpler
    return history


def _of_setups(history: History) -> Iterator[History]:
    source, declared = history.setup.source, history.setup.declared
    for changed in _with_defaults(source, Source()):
        yield replace(history, setup=Setup(source=changed, declared=declared))
    for changed in (*_with_defaults(declared, Declared()), *_of_tables(declared)):
        yield replace(history, setup=Setup(source=source, declared=changed))


def _with_defaults(value: Any, default: Any) -> Iterator[Any]:
    for field in fields(value):
        wanted = getattr(default, field.name)
        if getattr(value, field.name) != wanted:
            yield replace(value, **{field.name: wanted})


def _of_tables(declared: Declared) -> Iterator[Declared]:
    for at, table in enumerate(declared.tables):
        default = Table(name=table.name, when=table.when)
        for changed in _with_defaults(table, default):
            tables = (*declared.tables[:at], changed, *declared.tables[at + 1 :])
            yield replace(declared, tables=tables)
