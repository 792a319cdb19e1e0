"""Which columns of decoded records identify a row, which order its records, and what deletes; pure.

Names only suggest; what the sample contradicts is not proposed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from oncelake.ingestion.declaration.sql import quoted
from oncelake.ingestion.declaration.types import PLAIN_NAME, SqlType
from oncelake.ingestion.errors import counted
from oncelake.ingestion.operations.init.decode_sample import SampleRow

# Equality of these is reliable, and a Kafka key can hold them.
_KEY_TYPES: Final = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "DECIMAL"),
    *("STRING", "VARCHAR", "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ"),
)
_ORDER_TYPES: Final = ("INT", "BIGINT", "DECIMAL", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ")
_WHOLE_IDS: Final = ("id", "_id", "key", "uuid", "guid", "pk")
# The first pattern that a column matches ranks it.
_ORDERS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"(last_)?(updated|modified|changed)(_?at|_?on|_?time|_?ts)?",
        r"version|revision|(__(source_)?)?(lsn|scn)|seq|sequence(_?(no|number))?",
        r"(__(source_)?)?(ts|timestamp|event_?(time|ts|at))(_?(ms|us|ns))?",
        r"\w+(_at|_version|_lsn)|\w+[a-z]At",
    )
)
_VAGUE: Final = len(_ORDERS) - 1
_MISTAKES: Final = 0.1
# A row has them from its first record on.
_BIRTHS: Final = re.compile(r"(created|inserted|registered|born|started|opened)", re.IGNORECASE)
_OPERATIONS: Final = ("op", "operation", "action", "change_type", "event_type", "event", "status")
_DELETES: Final = ("d", "delete", "deleted", "remove", "removed")
_FLAGS: Final = ("__deleted", "_deleted", "deleted", "is_deleted")
# What Debezium adds to an event that it unwraps: the texts of a column, and of a delete.
_UNWRAPPED: Final = {
    "__deleted": ({"true", "false"}, "true"),
    "__op": ({"c", "r", "u", "d", "t"}, "d"),
}
_DELETED_AT: Final = ("deleted_at", "deletedat", "deleted_on")


K = TypeVar("K", bound=Hashable)


class OrderColumn(NamedTuple):
    """A column that orders the records of a key, and what speaks for it."""

    column: str
    grew: bool


def can_be_key(type_: SqlType) -> bool:
    """Tell whether a column of a type may identify a row."""
    return type_.word in _KEY_TYPES


def is_rarely_null(name: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether nearly every row has the column; the others are mistakes."""
    return sum(row[name] is None for row in rows) <= _MISTAKES * len(rows)


def is_never_null(name: str, rows: Iterable[Mapping[str, Any]]) -> bool:
    """Tell whether every row has the column."""
    return all(row[name] is not None for row in rows)


def find_key_by_name(
    stream: str, types: Mapping[str, SqlType], rows: Sequence[Mapping[str, Any]]
) -> str | None:
    """Return the column that is named like a key, and hardly ever null.

    ``id``, or the stream's own id, is taken as such; any other ``…_id`` only if no value of it
    comes twice: an order has a customer_id, too.
    """
    candidates = [
        name for name, type_ in types.items() if can_be_key(type_) and is_rarely_null(name, rows)
    ]
    own = {f"{part}_{word}" for part in _entities(stream) for word in ("id", "key", "no", "number")}
    for is_named_well in (
        lambda name: _snake(name) in _WHOLE_IDS,
        lambda name: _snake(name) in own,
        lambda name: (
            _snake(name).endswith(("_id", "_key", "_uuid"))
            and len({row[name] for row in rows}) == len(rows)
        ),
    ):
        found = next(filter(is_named_well, candidates), None)
        if found is not None:
            return found
    return None


def _entities(stream: str) -> set[str]:
    """Return what a row of a stream may be called: of ``shop_orders`` an order, for example."""
    last = stream.rpartition("_")[2]
    return {each for name in (stream, last) for each in (name, name.removesuffix("s"))}


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def find_crossing_key(keys: Iterable[tuple[K, int]]) -> K | None:
    """Return a key that comes from more than one partition, if there is one."""
    seen: dict[K, int] = {}
    return next((key for key, at in keys if seen.setdefault(key, at) != at), None)


def find_order(
    keys: Sequence[str],
    types: Mapping[str, SqlType],
    records: Sequence[SampleRow],
    *,
    must_grow: bool = False,
) -> OrderColumn | None:
    """Return the column that is named like an order, never null, and never smaller than before.

    Before is the record of the same key, of the same partition, at a lower offset. A name that says
    little, such as ``due_at``, is believed only where some key has two values, as any is with
    ``must_grow``.
    """
    rows = [each.row for each in records if each.row is not None]
    ranked = []
    for at, (name, type_) in enumerate(types.items()):
        rank = _order_rank(name)
        if rank is None or name in keys or type_.word not in _ORDER_TYPES:
            continue
        if not is_never_null(name, rows) or (grew := _growth(name, keys, records)) is None:
            continue
        if grew or not (must_grow or rank == _VAGUE):
            ranked.append((rank, at, OrderColumn(name, grew)))
    return min(ranked)[2] if ranked else None


def _order_rank(name: str) -> int | None:
    if _BIRTHS.match(name):
        return None
    names = (name, _snake(name))
    matches = (any(map(pattern.fullmatch, names)) for pattern in _ORDERS)
    return next((rank for rank, is_match in enumerate(matches) if is_match), None)


def _growth(name: str, keys: Sequence[str], records: Sequence[SampleRow]) -> bool | None:
    """Tell whether some key has several values of a column; ``None`` if it fell along any key.

    Only within a partition is it known which record is the later one.
    """
    last: dict[Any, Any] = {}
    values = defaultdict[Any, set[Any]](set)
    for partition, row in records:
        if row is not None:
            key, value = tuple(row[each] for each in keys), row[name]
            if value < last.get((key, partition), value):
                return None
            last[key, partition] = value
            values[key].add(value)
    return any(len(of_key) > 1 for of_key in values.values())


def find_deletes(
    types: Mapping[str, SqlType], rows: Sequence[Mapping[str, Any]]
) -> tuple[str, str] | None:
    """Return the condition that selects deletes, and how many rows it selects, put into words."""
    for name, type_ in types.items():
        if type_.parts or type_.word == "VARIANT":
            continue
        condition = _delete_condition(name, type_, {row[name] for row in rows})
        if condition is not None:
            text, deletes = condition
            selected = sum(row[name] in deletes for row in rows)
            return text, f"it selects {selected:,} of {counted(len(rows), 'row')} sampled"
    return None


def _delete_condition(name: str, type_: SqlType, values: set[Any]) -> tuple[str, set[Any]] | None:
    """Return what a column's deletes have in common, and their values; nothing without any."""
    column, low = name if PLAIN_NAME.fullmatch(name) else quoted(name), name.lower()
    given = values - {None}
    if type_.word == "STRING" and name in _UNWRAPPED:
        known, delete = _UNWRAPPED[name]
        return (f"{name} = '{delete}'", {delete}) if given and given <= known else None
    if type_.word == "STRING" and low in _OPERATIONS:
        words = {value for value in given if value.lower() in _DELETES}
        texts = ", ".join(f"'{word}'" for word in sorted(words))
        return (f"{column} IN ({texts})", words) if words else None
    if type_.word == "BOOLEAN" and low in _FLAGS and True in given:
        return column, {True}
    is_time = type_.word in ("STRING", "TIMESTAMP", "TIMESTAMP_NTZ", "DATE")
    is_deleted_at = is_time and low in _DELETED_AT and bool(given)
    return (f"{column} IS NOT NULL", given) if is_deleted_at else None
