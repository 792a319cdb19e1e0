"""The fields of a declaration, one by one: what each declares, needs and promises.

Each is written from the page of docs that it names, and knows nothing of the others: what two of
them come to together follows from the order of the oracle's steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from tests.pairs.plan import AGGREGATES, Event, Feature, Message, Plan, Row, Step, Write
from tests.pairs.statements import SELECTED, WHERE, evaluate


def adding(*writes: Write, **steps: Step) -> Callable[[Plan], None]:
    """Return a shape that adds writes, and steps by their stages."""

    def shape(plan: Plan) -> None:
        plan.writes += writes
        for stage, step in steps.items():
            plan.steps[stage].append(step)

    return shape


# Which rows: modes.md.


def _window(plan: Plan) -> None:
    plan.needs.setdefault("aggregates", dict(AGGREGATES))


def _apply_as_deletes(plan: Plan, events: list[Event]) -> list[Event]:
    """A record that `apply_as_deletes` selects deletes the row of its key (streams.md)."""
    for event in events:
        if event.is_open and event.kind == "row" and event.row.get("state") == "gone":
            event.kind = "delete"
    return events


def _expect(plan: Plan, events: list[Event]) -> list[Event]:
    """A row that misses a rule waits; a delete is asked only where its row stays (gate.md)."""
    asked = ("row", "delete") if plan.declared.get("deletes") == "soft" else ("row",)
    for event in events:
        amount = event.row.get("amount")
        if event.is_open and event.kind in asked and amount is not None and amount >= 4:
            event.faults.add("violates_constraint")
    return events


# How values are read: json.md, transform.md.


def _quote(plan: Plan, message: Message, dice: random.Random) -> None:
    for name in ("amount", "name"):
        value = _payload_of(message).get(name)
        if type(value) is int and dice.random() < 0.5:
            _payload_of(message)[name] = str(value)
        elif name == "name" and value is not None and dice.random() < 0.3:
            _payload_of(message)[name] = 17


def _payload_of(message: Message) -> Row:
    """Return the fields of a value that can be written."""
    return message.value if isinstance(message.value, dict) else {}


def _add_extra(plan: Plan, message: Message, dice: random.Random) -> None:
    if message.value and not message.fault and dice.random() < 0.3:
        _payload_of(message)["surprise"] = dice.choice(["x", "y"])


def _reject_extra(plan: Plan, events: list[Event]) -> list[Event]:
    """The record goes to quarantine as `unknown_field` (json.md); a delete has only its key."""
    for event in events:
        if event.extra and not event.is_of_format:
            event.faults.add("unknown_field")
    return events


def _header(name: str, header: str) -> Write:
    """Move a column of the row into a header."""

    def write(plan: Plan, message: Message, dice: random.Random) -> None:
        value = message.row.get(name)
        if value is not None:
            message.headers[header] = str(value)

    return write


def _tenant(plan: Plan) -> None:
    """A column that only a header has; some records have none (transform.md)."""
    plan.add_column("tenant", "STRING")
    plan.given["tenant"] = "x-tenant"

    def write(plan: Plan, message: Message, dice: random.Random) -> None:
        message.row["tenant"] = dice.choice(["t1", "t2", None])
        _header("tenant", "x-tenant")(plan, message, dice)

    plan.writes.append(write)


def _header_key(plan: Plan) -> None:
    """A key column that a header has (transform.md)."""
    plan.add_column("tenant", "STRING NOT NULL")
    plan.given["tenant"] = "x-tenant"

    def write(plan: Plan, message: Message, dice: random.Random) -> None:
        # One tenant for an id, so that a key stays in its partition; or none, which is bad.
        message.row["tenant"] = None if dice.random() < 0.1 else f"t{message.row['id'] % 3}"
        _header("tenant", "x-tenant")(plan, message, dice)

    plan.writes.append(write)


def _header_order(plan: Plan) -> None:
    """An order that a header has, of null values, too (transform.md, streams.md)."""
    plan.add_column("version", "INT NOT NULL")
    plan.given["version"] = "x-version"

    def write(plan: Plan, message: Message, dice: random.Random) -> None:
        message.row["version"] = dice.randrange(30)
        _header("version", "x-version")(plan, message, dice)

    plan.writes.append(write)


def _from_key(plan: Plan) -> None:
    """The Kafka key gives the key column, in every record (transform.md)."""
    plan.columns.setdefault("id", "INT NOT NULL")
    plan.given["id"] = "key"
    plan.key_names = ("id",)

    def write(plan: Plan, message: Message, dice: random.Random) -> None:
        _payload_of(message).pop("id", None)
        if isinstance(message.value, dict) and dice.random() < 0.07:
            message.key, message.fault = b"{", ""
        elif dice.random() < 0.05:
            message.key = {"id": None}

    plan.writes.append(write)


def _java_key(plan: Plan) -> None:
    plan.columns["id"] = "BIGINT NOT NULL"

    def encode(plan: Plan, row: Row) -> bytes | None:
        return None if row["id"] is None else int(row["id"]).to_bytes(8, signed=True)

    plan.encode_key = encode
    plan.key_names = ("id",)


def _two_keys(plan: Plan) -> None:
    """Two columns identify a row (streams.md)."""
    plan.add_column("part", "STRING NOT NULL")

    def write(plan: Plan, message: Message, dice: random.Random) -> None:
        is_change = plan.declared.get("format.type") == "debezium"
        # A row of a database has one key, so that a part of it follows from the other.
        part = "pq"[message.row["id"] // 2 % 2] if is_change else dice.choice("pq")
        message.row["part"] = part
        if isinstance(message.value, dict):
            message.value["part"] = part

    plan.writes.append(write)


# What is computed: transform.md.


def _where(plan: Plan, events: list[Event]) -> list[Event]:
    """Records for which the condition is not true are left out; null values are not asked.

    In the modes that have deletes the table is the source's rows that meet the condition: a record
    that is left out deletes the row of its key.
    """
    for event in events:
        is_asked = event.is_open and event.kind == "row"
        if not is_asked or evaluate(WHERE, event.row) is True:
            continue
        has_key = all(event.row.get(name) is not None for name in plan.keys)
        has_order = all(event.row.get(n) is not None for n in plan.sequence if n != "_timestamp")
        leaves = plan.has_deletes and "on_filtered" not in plan.declared
        if plan.declared.get("ignore_null_updates") and evaluate(WHERE, event.row) is None:
            leaves = False
        if leaves and has_key and not has_order:
            event.faults.add("missing_order")
        elif leaves and has_key:
            event.kind = "left"
        else:
            event.fate = "filtered"
    return events


def _select(plan: Plan) -> None:
    """The value's `label` gives `name`, in capitals (transform.md)."""
    value = plan.own_value()
    value["label"] = value.pop("name", "STRING")

    def write(plan: Plan, message: Message, dice: random.Random) -> None:
        payload = _payload_of(message)
        if "name" in payload:
            payload["label"] = payload.pop("name")

    def compute(plan: Plan, events: list[Event]) -> list[Event]:
        for event in events:
            if event.is_open and event.kind != "tombstone":
                made = {name: evaluate(sql, event.row) for name, sql in SELECTED.items()}
                event.row = {**event.row, **made}
        return events

    plan.writes.append(write)
    plan.steps["compute"].append(compute)


def _rename_in_value(plan: Plan) -> None:
    """The value has a column more, which is required and which no column of the table takes."""
    plan.own_value()["source"] = "STRING NOT NULL"

    def write(plan: Plan, message: Message, dice: random.Random) -> None:
        if isinstance(message.value, dict):
            message.value["source"] = dice.choice(["s", "s", "s", "s", None])

    def require(plan: Plan, events: list[Event]) -> list[Event]:
        for event in events:
            if event.is_open and event.kind == "row" and event.row.get("source") is None:
                event.faults.add("missing_required")
        return events

    plan.writes.append(write)
    plan.steps["validate"].append(require)


def _explode(plan: Plan) -> None:
    """The value has an array, of which each element is a row."""
    plan.add_column("tag", "STRING")
    plan.own_value()["tag"] = "ARRAY<STRING>"

    def write(plan: Plan, message: Message, dice: random.Random) -> None:
        if isinstance(message.value, dict):
            message.value["tag"] = dice.choice([["x"], ["x", "y"], ["z", None, "x"], [], None])

    def explode(plan: Plan, events: list[Event]) -> list[Event]:
        return [one for event in events for one in _elements(event)]

    plan.writes.append(write)
    plan.steps["explode"].append(explode)


def _elements(event: Event) -> Iterator[Event]:
    if not event.is_open or event.kind == "tombstone":
        yield event
        return
    elements = event.row.get("tag") or []
    if not elements:
        # Left out, a delete would leave its rows in the table.
        event.row["tag"] = None
        event.fate = "" if event.is_of_format else "filtered"
        yield event
    for nth, element in enumerate(elements):
        row = {**event.row, "tag": element}
        yield replace(event, row=row, index=nth, faults=set())


JSON: Final = "json.md"
MODES: Final = "modes.md"
GATE: Final = "gate.md"
STREAMS: Final = "streams.md"
TRANSFORM: Final = "transform.md"

FIELDS: Final = (
    Feature(name="mode: append", fields={"mode": "append"}, page=MODES),
    Feature(name="mode: insert_only", fields={"mode": "insert_only"}, page=MODES),
    Feature(name="mode: scd2", fields={"mode": "scd2"}, page=MODES),
    Feature(name="track", fields={"track": ["name"]}, needs={"mode": "scd2"}, page=MODES),
    Feature(name="mode: aggregate", fields={"mode": "aggregate"}, page=MODES),
    Feature(
        name="aggregates",
        fields={"aggregates": {**AGGREGATES, "newest": "last(name)"}},
        needs={"mode": "aggregate", "sequence_by": ["at"]},
        page=MODES,
    ),
    Feature(
        name="window",
        fields={"window": {"column": "_timestamp", "every": "10 seconds"}},
        needs={"mode": "aggregate"},
        page=MODES,
        shape=_window,
    ),
    Feature(name="deletes: soft", fields={"deletes": "soft"}, page=MODES),
    Feature(name="ignore_null_updates", fields={"ignore_null_updates": True}, page=MODES),
    Feature(
        name="apply_as_deletes",
        fields={"apply_as_deletes": "state = 'gone'"},
        page=STREAMS,
        shape=adding(delete=_apply_as_deletes),
    ),
    Feature(
        name="expect",
        fields={
            "expect": {"small": {"rule": "amount < 4 OR amount IS NULL", "on_miss": "quarantine"}}
        },
        page=GATE,
        shape=adding(settle=_expect),
    ),
    Feature(
        name="publish",
        fields={"publish": "checked"},
        needs={"guard": {"rows_between": [0, 100_000], "growth": 1e6}},
        page=GATE,
    ),
    *(
        Feature(name=f"tombstones: {policy}", fields={"tombstones": policy}, page=STREAMS)
        for policy in ("delete", "ignore", "quarantine")
    ),
    Feature(name="sequence_by: at", fields={"sequence_by": ["at"]}, page=STREAMS),
    Feature(name="sequence_by: _timestamp", fields={"sequence_by": ["_timestamp"]}, page=STREAMS),
    Feature(
        name="keys: two", fields={"keys": ["id", "part"]}, page=STREAMS, shape=_two_keys, rank=2
    ),
    Feature(
        name="types: lenient",
        fields={"types": {"amount": "lenient", "name": "lenient"}},
        page=JSON,
        shape=adding(_quote),
    ),
    Feature(
        name="extra_fields: ignore",
        fields={"extra_fields": "ignore"},
        page=JSON,
        shape=adding(_add_extra),
    ),
    Feature(
        name="extra_fields: keep",
        fields={"extra_fields": "keep"},
        page=JSON,
        shape=adding(_add_extra),
    ),
    Feature(
        name="extra_fields: reject",
        fields={"extra_fields": "reject"},
        page=JSON,
        shape=adding(_add_extra, decode=_reject_extra),
    ),
    Feature(
        name="from_headers: column",
        fields={"from_headers": {"tenant": "x-tenant"}},
        page=TRANSFORM,
        shape=_tenant,
        rank=3,
    ),
    Feature(
        name="from_headers: key",
        fields={"from_headers": {"tenant": "x-tenant"}, "keys": ["tenant", "id"]},
        page=TRANSFORM,
        shape=_header_key,
        rank=3,
    ),
    Feature(
        name="from_headers: order",
        fields={"from_headers": {"version": "x-version"}, "sequence_by": ["version"]},
        page=TRANSFORM,
        shape=_header_order,
        rank=3,
    ),
    Feature(name="from_key", fields={"from_key": ["id"]}, page=TRANSFORM, shape=_from_key, rank=6),
    Feature(
        name="key_format: long",
        fields={"key_format.type": "long"},
        page="formats.md",
        shape=_java_key,
        rank=2,
    ),
    Feature(
        name="where", fields={"where": WHERE}, page=TRANSFORM, shape=adding(compute=_where), rank=3
    ),
    Feature(
        name="on_filtered: keep",
        fields={"on_filtered": "keep"},
        needs={"where": WHERE},
        page=TRANSFORM,
        shape=adding(compute=_where),
        rank=4,
    ),
    Feature(
        name="select", fields={"select": dict(SELECTED)}, page=TRANSFORM, shape=_select, rank=4
    ),
    Feature(
        name="value_schema",
        fields={"value_schema": None},
        page=TRANSFORM,
        shape=_rename_in_value,
        rank=4,
    ),
    Feature(
        name="explode",
        fields={"explode": "tag", "value_schema": None},
        page=TRANSFORM,
        shape=_explode,
        rank=4,
    ),
)


def silent() -> dict[str, Any]:
    """Fields that change no row, each with a value of its own."""
    return {
        "description": "what it is",
        "owners": ["team:lake"],
        "group": "other",
        "tags": {"domain": "sales"},
        "quarantine_rate": {"stop_above": 1},
        "freshness_minutes": 5,
        "retention_warning": "24 hours",
        "expectations": [{"type": "expect_table_row_count_to_be_between", "min_value": 0}],
        "verify": True,
        "schedule": "0 * * * *",
        "sensor": False,
        "sensor_seconds": 30,
        "follow": {"every_seconds": 7},
        "rewind_window_days": 9,
        "maintenance": {"nightly": False},
        "discover": "manual",
    }
