"""The rows that records come to, in plain Python, by the sentences of the docs.

It knows what was sent, decodes no bytes, and shares no line with engine or proof. The order of its
steps is documented in docs/transform.md and docs/routes.md:

    decode    what is no record of the format, or no value of its column, is bad (json.md)
    route     a record of another table is none of this one's business (routes.md)
    explode   each element is a row (transform.md)
    compute   ``where``, then ``select`` (transform.md)
    delete    null values, and what ``apply_as_deletes`` selects (streams.md)
    validate  what lacks a key, its order or a required column is bad (streams.md)
    settle    a TRUNCATE waits, or ends what was before it (debezium.md)
    fold      by the order of the records, as the mode says (modes.md)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.pairs.fold import fold
from tests.pairs.plan import STAGES, Event, Message, Plan, Row

INT_RANGES: Final = {"INT": 31, "BIGINT": 63}


@dataclass(kw_only=True)
class Outcome:
    """What must become of the records.

    Attributes:
        rows: The rows of the table.
        bad: The reasons why a record is in quarantine, by its place; one of them is named there.
        counts: How many records were read, ignored and so on.
    """

    rows: list[Row]
    bad: dict[tuple[str, int, int], set[str]]
    counts: Counter[str] = field(default_factory=Counter)


def outcome(plan: Plan, messages: Sequence[Message]) -> Outcome:
    """Return what must become of the records that a stream reads."""
    read = [each for each in messages if not (each.is_unread or each.is_aborted)]
    events = [event for message in read for event in opened(plan, message)]
    for stage in STAGES:
        for step in (*FIRST.get(stage, ()), *plan.steps[stage], *LAST.get(stage, ())):
            events = step(plan, events)
    events = _whole_records(events)
    rows = fold(plan, [each for each in events if each.is_open])
    # A fold may find that a record has nothing to keep.
    bad: dict[tuple[str, int, int], set[str]] = {}
    for event in events:
        if event.faults:
            bad.setdefault(event.message.place, set()).update(event.faults)
    counts = Counter(read=len(read), quarantined=len(bad))
    good = [each for each in events if not each.faults]
    counts.update(each.fate for each in good if each.fate)
    counts["filtered"] += sum(each.kind == "left" and each.is_open for each in good)
    return Outcome(rows=rows, bad=bad, counts=counts)


def opened(plan: Plan, message: Message) -> list[Event]:
    """Return what a record says, before anything is made of it."""
    if message.value is None:
        return [Event(message=message, kind="tombstone")]
    if message.fault:
        return [Event(message=message, faults={message.fault})]
    if plan.read:
        return plan.read(plan, message)
    assert isinstance(message.value, dict)
    return [Event(message=message, written=dict(message.value))]


def _whole_records(events: list[Event]) -> list[Event]:
    """A record is applied as a whole or not at all (transform.md, debezium.md)."""
    faults: dict[tuple[str, int, int], set[str]] = {}
    for event in events:
        if event.faults:
            faults.setdefault(event.message.place, set()).update(event.faults)
    for event in events:
        if event.message.place in faults:
            event.faults = faults[event.message.place]
    return events


def read_columns(plan: Plan, events: list[Event]) -> list[Event]:
    """Give each column its value; one that it cannot hold makes the record bad."""
    for event in events:
        if event.faults or event.kind == "tombstone":
            continue
        for name, type_ in plan.payload.items():
            event.row[name], is_held = read_value(plan, name, type_, event.written.get(name))
            if not is_held and event.is_of_format and name not in plan.keys:
                # A delete needs its key alone.
                event.row[name] = None
            elif not is_held:
                event.faults |= plan.type_faults
        payload = plan.payload
        event.extra = {n: v for n, v in event.written.items() if n not in payload}
    return events


def read_value(plan: Plan, name: str, type_: str, value: Any) -> tuple[Any, bool]:
    """Return what a column holds of a value, and whether it can."""
    word = type_.split()[0]
    if name in plan.declared.get("types", {}):
        if word in INT_RANGES and isinstance(value, str) and value.lstrip("-").isdigit():
            value = int(value)
        elif word == "STRING" and isinstance(value, int):
            value = str(value)
    if value is None:
        return value, True
    if word in INT_RANGES:
        size = 1 << INT_RANGES[word]
        return value, type(value) is int and -size <= value < size
    if word == "STRING":
        return value, isinstance(value, str)
    return value, word == "BINARY" or isinstance(value, list)


def read_given(plan: Plan, events: list[Event]) -> list[Event]:
    """Give columns of headers and of the Kafka key their values (transform.md)."""
    for event in events:
        message = event.message
        for name, source in plan.given.items():
            if source == "key":
                if isinstance(message.key, bytes):
                    event.faults.add("bad_key")
                else:
                    event.row[name] = (message.key or {}).get(name)
            else:
                word = plan.value_columns[name].split()[0]
                value = message.headers.get(source)
                event.row[name] = int(value) if word in INT_RANGES and value else value
    return events


def tombstone_policy(plan: Plan) -> str:
    """What a null value means: the table of docs/streams.md."""
    if policy := plan.declared.get("tombstones"):
        return str(policy)
    if plan.declared.get("format.type") == "debezium":
        return "ignore"
    if not plan.has_deletes:
        return "quarantine"
    of_record = {*plan.keys, "_timestamp", *plan.given} - set(plan.declared.get("select", {}))
    from_key = {name for name, source in plan.given.items() if source == "key"}
    if from_key and not set(plan.keys) <= plan.given.keys():
        return "quarantine"
    return "delete" if set(plan.sequence) <= of_record else "quarantine"


def apply_tombstones(plan: Plan, events: list[Event]) -> list[Event]:
    """Let a null value delete the row of its Kafka key, or not (streams.md)."""
    policy = tombstone_policy(plan)
    for event in events:
        if event.kind != "tombstone" or not event.is_open:
            continue
        if policy == "ignore":
            event.fate, event.faults = "ignored", set()
        elif policy == "quarantine":
            event.faults |= REASONS_OF_TOMBSTONES
        else:
            key = event.message.key
            given = key if isinstance(key, dict) else {}
            known = {**{name: given.get(name) for name in plan.kafka_key}, **event.row}
            event.kind, event.is_of_format = "delete", True
            event.row = {n: known.get(n) for n in (*plan.keys, *plan.sequence)}
            if any(event.row.get(name) is None for name in plan.keys):
                _miss_key(plan, event)
    return events


def _miss_key(plan: Plan, event: Event) -> None:
    """A null value without the key is bad; of several tables it may be another's (routes.md)."""
    is_shared = "route_by" in plan.declared and "kind" not in event.message.headers
    if is_shared:
        event.fate = "ignored"
    else:
        event.faults.add("tombstone_without_key")


REASONS_OF_TOMBSTONES: Final = {
    *("tombstone_quarantined", "tombstone_without_order", "tombstone_without_key"),
    "unexpected_tombstone",
}


def validate(plan: Plan, events: list[Event]) -> list[Event]:
    """Let what lacks something be bad (streams.md, quarantine)."""
    for event in events:
        if event.fate or event.kind == "truncate" or event.faults - {"missing_required"}:
            continue
        needed = [n for n, t in plan.columns.items() if t.endswith("NOT NULL")]
        nulls = [n for n in needed if event.row.get(n) is None and n not in event.left_out]
        if event.kind == "delete" and not plan.has_deletes:
            event.faults.add("unexpected_delete")
        elif any(event.row.get(name) is None for name in plan.keys):
            event.faults.add("missing_key")
        elif any(event.row.get(n) is None for n in plan.sequence if n != "_timestamp"):
            event.faults.add("missing_order")
        elif event.kind == "row" and nulls:
            event.faults.add("missing_required")
    return events


Steps = dict[str, tuple[Callable[[Plan, list[Event]], list[Event]], ...]]
FIRST: Final[Steps] = {"decode": (read_columns, read_given)}
LAST: Final[Steps] = {"delete": (apply_tombstones,), "validate": (validate,)}


def places(events: Iterable[Event]) -> list[tuple[str, int, int]]:
    """Return where records are, for messages."""
    return sorted(event.message.place for event in events)
