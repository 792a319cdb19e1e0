"""How events become rows: docs/modes.md, mode by mode, over all records of a stream at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tests.pairs.plan import Event, Plan, Row

Key = tuple[Any, ...]


def fold(plan: Plan, events: list[Event]) -> list[Row]:
    """Return the rows of the table that these events come to."""
    in_order = sorted(events, key=lambda event: order_of(plan, event))
    mode = plan.mode
    if mode == "upsert" and plan.declared.get("ignore_null_updates"):
        mode = "partial"
    return FOLDS[mode](plan, in_order)


def order_of(plan: Plan, event: Event) -> Key:
    """By `sequence_by`, then topic, partition, offset, element (streams.md)."""
    moments = (moment_of(event, name) for name in plan.sequence)
    return (*moments, *event.message.place, event.index)


def moment_of(event: Event, name: str) -> Any:
    """Return what a column of `sequence_by` says."""
    return event.message.time_ms if name == "_timestamp" else event.row[name]


def key_of(plan: Plan, event: Event) -> Key:
    """Return the key of an event's row."""
    return tuple(event.row[name] for name in plan.keys)


def row_of(plan: Plan, event: Event, **more: Any) -> Row:
    """Return an event as a row of the table."""
    row = {name: event.row.get(name) for name in plan.columns}
    row |= {"_partition": event.message.partition, "_offset": event.message.offset}
    if plan.declared.get("explode"):
        row["_index"] = event.index
    if plan.declared.get("extra_fields") == "keep":
        row["_extra_fields"] = event.extra or None
    return {**row, **more}


def keep(plan: Plan, event: Event, row: Row, before: Mapping[Key, Row | None], key: Key) -> bool:
    """Take over what an update leaves out; tell whether there was a row that has it."""
    if not event.left_out:
        return True
    old = before.get(event.moved_from or key)
    if old is None:
        # Sent in again behind a newer row it would be stale, and wait no longer.
        event.faults |= {"nothing_to_keep", *(["stale"] if "redrive" in plan.fields else [])}
        return False
    row |= {name: old[name] for name in event.left_out}
    return True


def _upsert(plan: Plan, events: list[Event]) -> list[Row]:
    """One row per key: its newest record; a delete removes it, or marks it (modes.md)."""
    is_soft = plan.declared.get("deletes") == "soft"
    live: dict[Key, Row | None] = {}
    marked: dict[Key, Row] = {}
    for event in events:
        key = key_of(plan, event)
        row = row_of(plan, event, **({"_deleted": False} if is_soft else {}))
        if event.kind == "left":
            live[key] = None
            marked.pop(key, None)
        elif event.kind == "delete":
            live[key] = None
            marked[key] = {**row, "_deleted": True}
        elif keep(plan, event, row, live, key):
            live[key] = row
            marked.pop(key, None)
    rows = [row for row in live.values() if row is not None]
    return [*rows, *marked.values()] if is_soft else rows


def _partial(plan: Plan, events: list[Event]) -> list[Row]:
    """Each column has the last value that was not null since the key's last delete (modes.md).

    What no column has is the newest record's.
    """
    live: dict[Key, Row | None] = {}
    for event in events:
        key, row = key_of(plan, event), row_of(plan, event)
        if event.kind in ("delete", "left"):
            live[key] = None
            continue
        old = live.get(key) or {}
        kept = {name: old.get(name) for name in plan.columns if row[name] is None}
        live[key] = {**row, **kept}
    return [row for row in live.values() if row is not None]


def _append(plan: Plan, events: list[Event]) -> list[Row]:
    """Every good record is a row (modes.md)."""
    return [row_of(plan, event) for event in events]


def _insert_only(plan: Plan, events: list[Event]) -> list[Row]:
    """One row per key: its first record (modes.md)."""
    first: dict[Key, Row] = {}
    for event in events:
        first.setdefault(key_of(plan, event), row_of(plan, event))
    return list(first.values())


def _scd2(plan: Plan, events: list[Event]) -> list[Row]:
    """Every record is a version of its key, valid until the next event (modes.md).

    With `track`, where one of its columns is not that of the event before it.
    """
    (name,) = plan.sequence
    tracked = plan.declared.get("track", ())
    rows: list[Row] = []
    newest: dict[Key, Row | None] = {}
    current: dict[Key, Row] = {}
    for event in events:
        key, moment = key_of(plan, event), moment_of(event, name)
        row = row_of(plan, event, valid_from=moment, valid_to=None, current=True)
        if event.kind == "row" and not keep(plan, event, row, newest, key):
            continue
        before, newest[key] = newest.get(key), row if event.kind == "row" else None
        is_row = before is not None and event.kind == "row"
        if before and is_row and tracked and all(before[each] == row[each] for each in tracked):
            continue
        if (old := current.pop(key, None)) is not None:
            old |= {"valid_to": moment, "current": False}
        if event.kind == "row":
            current[key] = row
            rows.append(row)
    return rows


def _aggregate(plan: Plan, events: list[Event]) -> list[Row]:
    """One row per group: every record is folded into it exactly once (modes.md)."""
    groups: dict[Key, list[Event]] = {}
    window = plan.declared.get("window")
    for event in events:
        groups.setdefault((*key_of(plan, event), *_window_of(event, window)), []).append(event)
    rows = []
    for key, members in groups.items():
        newest = max(members, key=lambda event: event.message.place)
        row = dict(zip(plan.keys, key, strict=False))
        if window:
            row |= {"window_start": key[-1], "window_end": key[-1] + WINDOW_MS}
        row |= {name: _folded(text, members) for name, text in plan.declared["aggregates"].items()}
        row |= {"_partition": newest.message.partition, "_offset": newest.message.offset}
        rows.append(row)
    return rows


WINDOW_MS: Final = 10_000


def _window_of(event: Event, window: Any) -> Key:
    """Return the beginning of the window of an event's time, if there are windows."""
    return (event.message.time_ms // WINDOW_MS * WINDOW_MS,) if window else ()


def _folded(text: str, events: Iterable[Event]) -> Any:
    function, _, column = text.removesuffix(")").partition("(")
    if column == "*":
        return len(list(events))
    every = [event.row.get(column) for event in events]
    values = [value for value in every if value is not None]
    if function == "last":
        return every[-1]
    if function == "set":
        return sorted(set(values))
    made: Mapping[str, Callable[[list[Any]], Any]] = {"sum": sum, "min": min, "max": max}
    return made[function](values) if values else None


FOLDS: Final[Mapping[str, Callable[[Plan, list[Event]], list[Row]]]] = {
    "upsert": _upsert,
    "partial": _partial,
    "append": _append,
    "insert_only": _insert_only,
    "scd2": _scd2,
    "aggregate": _aggregate,
}
