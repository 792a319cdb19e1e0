"""The formats of values: docs/formats.md and docs/debezium.md."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final

from fastavro import schemaless_writer
from fastavro.schema import fingerprint, to_parsing_canonical_form

from oncelake.ingestion.errors import SourceTruncatedError
from tests.pairs.plan import FIRST_MS, Event, Feature, Message, Plan, Row
from tests.pairs.records import PER_BATCH, draw_row, message_of, topic_of, write_fields

DEBEZIUM: Final = "debezium.md"
FORMATS: Final = "formats.md"
MISSING: Final = "__debezium_unavailable_value"


def _csv(plan: Plan) -> None:
    """A line has its fields in the order of the columns, and no names (formats.md)."""
    plan.type_faults, plan.broken = frozenset({"type_mismatch"}), (b"1,2", "malformed_csv")

    def forget_names(plan: Plan, message: Message, dice: random.Random) -> None:
        if isinstance(message.value, dict):
            message.value.pop("surprise", None)

    def encode(plan: Plan, message: Message) -> bytes:
        assert isinstance(message.value, dict)
        values = [message.value.get(name) for name in plan.payload]
        return ",".join("" if each is None else str(each) for each in values).encode()

    plan.last_writes.append(forget_names)
    plan.encode = encode


def _one_column(type_: str) -> Callable[[Plan], None]:
    """The value is one column, as it is (formats.md)."""

    def shape(plan: Plan) -> None:
        plan.columns = {"line": f"{type_} NOT NULL"}
        plan.broken, plan.is_one_column = (b"\xff", "invalid_utf8"), True
        if "from_key" in plan.fields:
            plan.needs.pop("mode", None)
        plan.last_writes.append(write)

    def write(plan: Plan, message: Message, dice: random.Random) -> None:
        if isinstance(message.value, dict):
            text = f"{message.row['id']} {message.row['name']}"
            message.value = {"line": text if type_ == "STRING" else text.encode()}
        if type_ == "BINARY":
            message.fault = ""

    def encode(plan: Plan, message: Message) -> bytes:
        assert isinstance(message.value, dict)
        line = message.value["line"]
        return line if isinstance(line, bytes) else line.encode()

    def all_of_it(plan: Plan) -> None:
        shape(plan)
        plan.encode = encode

    return all_of_it


def _avro_schema(row: Row) -> dict[str, Any]:
    """Return the schema by which a row is written: names and types are those that it has."""
    fields = []
    for name, value in row.items():
        type_: Any = "string" if isinstance(value, str) else "int"
        if name == "tag":
            type_ = {"type": "array", "items": ["null", "string"]}
        if value is None and name in {"name", "state", "label", "colour", "part", "source"}:
            type_ = "string"
        fields.append({"name": name, "type": ["null", type_]})
    return {"type": "record", "name": "shop.Row", "fields": fields}


def _avro_single(plan: Plan) -> None:
    """A fingerprint in front of the payload names one of the schemas in the file (formats.md)."""
    plan.type_faults, plan.broken = frozenset({"type_mismatch"}), (b"{", "not_framed")
    known: dict[str, dict[str, Any]] = {}

    def meet(plan: Plan, message: Message, dice: random.Random) -> None:
        if isinstance(message.value, dict) and not message.fault:
            schema = _avro_schema(message.value)
            known[json.dumps(schema)] = schema
            plan.fields["format.schemas"] = list(known.values())

    def encode(plan: Plan, message: Message) -> bytes:
        assert isinstance(message.value, dict)
        schema, payload = _avro_schema(message.value), BytesIO()
        schemaless_writer(payload, schema, message.value)
        digest = fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
        return b"\xc3\x01" + bytes.fromhex(digest) + payload.getvalue()

    plan.last_writes.append(meet)
    plan.encode = encode


class Database:
    """A table of a database, and the changes that Debezium writes of it.

    Attributes:
        toasts: Whether updates leave out the large column that they have not changed.
        moves: Whether an update may change the key of a row.
        repeats: Whether the connector sends its last events again.
        truncates: Whether the table is emptied at times.
    """

    def __init__(self, *, toasts: bool = False, moves: bool = False, repeats: bool = False) -> None:
        self.live: dict[int, Row] = {}
        self.toasts, self.moves, self.repeats = toasts, moves, repeats
        self.truncates = False
        self.lsn = 100
        self._sent: list[Message] = []

    def changes(self, plan: Plan, dice: random.Random, batch: int) -> list[Message]:
        """Draw the changes of a batch."""
        made = list[Message]()
        while len(made) < PER_BATCH:
            self.lsn += 1
            if self.repeats and made and dice.random() < 0.15:
                made.append(self._again(dice.choice(made), batch))
            elif self.truncates and self.live and dice.random() < 0.1:
                made.append(self._truncate(plan, batch))
            else:
                made += self._change(plan, dice, batch)
        return made

    def _change(self, plan: Plan, dice: random.Random, batch: int) -> list[Message]:
        clock = self.lsn
        new = draw_row(dice, clock)
        old = self.live.get(new["id"])
        if old is None:
            self.live[new["id"]] = new
            return [self._spoiled(self._message(plan, new, dice.choice("ccr"), batch), dice)]
        if dice.random() < 0.2:
            del self.live[new["id"]]
            gone = self._message(plan, old, "d", batch)
            null = self._message(plan, old, "", batch)
            null.value = None
            return [gone, null] if dice.random() < 0.5 else [gone]
        target = (new["id"] + 1) % 6 + 1
        # Only in one topic have the records of two keys an order without a column.
        is_ordered = topic_of(plan, target) == topic_of(plan, new["id"])
        if self.moves and is_ordered and target not in self.live and dice.random() < 0.4:
            del self.live[new["id"]]
            new = {**new, "id": target}
        written = dict(new)
        if self.toasts and dice.random() < 0.4 and plan.is_kept_in_order:
            new["name"] = old["name"]
            written["name"] = MISSING
        self.live[new["id"]] = new
        message = self._message(plan, written, "u", batch)
        message.before = dict(old)
        return [self._spoiled(message, dice)]

    def _spoiled(self, message: Message, dice: random.Random) -> Message:
        """Let a few events be such as no table can hold."""
        if dice.random() < 0.06 and isinstance(message.value, dict):
            message.is_spoiled = True
            message.value |= {"amount": "much", "state": "open"}
            message.row = dict(message.value)
        elif dice.random() < 0.04:
            message.fault = "malformed_debezium"
        return message

    def _message(self, plan: Plan, row: Row, op: str, batch: int) -> Message:
        time_ms = FIRST_MS + self.lsn * 1_000
        message = message_of(plan, dict(row), time_ms, batch)
        message.op, message.lsn = op, self.lsn
        return message

    def _again(self, message: Message, batch: int) -> Message:
        again = Message(**{n: getattr(message, n) for n in message.__dataclass_fields__})
        again.value = dict(message.value) if isinstance(message.value, dict) else message.value
        return again

    def _truncate(self, plan: Plan, batch: int) -> Message:
        self.live.clear()
        message = self._message(plan, {"id": 0}, "t", batch)
        message.value = {}
        return message


def read_change(plan: Plan, message: Message) -> list[Event]:
    """What an event says of rows (debezium.md)."""
    assert isinstance(message.value, dict)
    if message.op == "t":
        return [Event(message=message, kind="truncate")]
    if message.op == "d":
        written = dict(message.value)
        return [Event(message=message, kind="delete", is_of_format=True, written=written)]
    written = dict(message.value)
    left_out = {name for name, value in written.items() if value == MISSING and message.op == "u"}
    written |= dict.fromkeys(left_out)
    event = Event(message=message, written=written, left_out=frozenset(left_out))
    events = [event]
    before = message.before
    names = [name for name in plan.keys if name not in plan.given]
    has_moved = before is not None and any(before[n] != written.get(n) for n in names)
    is_known = all(written.get(name) is not None for name in names)
    if before is not None and has_moved and is_known and plan.has_deletes:
        ended = Event(message=message, kind="delete", is_of_format=True, written=dict(before))
        ended.index = 1
        events.append(ended)
    return events


def apply_change(plan: Plan, events: list[Event]) -> list[Event]:
    """Keep what an update leaves out, or null, or let it be bad (debezium.md, TOAST)."""
    declared = plan.declared
    for event in events:
        if event.kind == "truncate":
            continue
        moved = next((e for e in events if e.message is event.message and e.index == 1), None)
        if moved and moved is not event and moved.row:
            event.moved_from = tuple(moved.row.get(name) for name in plan.keys)
        if not event.left_out:
            continue
        is_partial = bool(declared.get("ignore_null_updates"))
        if plan.value is not None or (is_partial and event.moved_from):
            event.faults.add("unavailable_value")
        if is_partial or not plan.has_deletes:
            event.left_out = frozenset()
    return events


def truncate(plan: Plan, events: list[Event]) -> list[Event]:
    """A TRUNCATE waits, or deletes the rows that earlier records have written (debezium.md)."""
    applied = plan.declared.get("format.on_truncate") == "apply"
    last = -1
    for event in events:
        if event.kind == "truncate":
            event.fate = "ignored" if applied else ""
            event.faults |= set() if applied else {"truncate"}
            last = max(last, event.message.offset)
    for event in events:
        if applied and event.message.offset < last and event.is_open:
            event.fate = "gone"
    return events


def _debezium(**of_database: bool) -> Callable[[Plan], None]:
    def shape(plan: Plan) -> None:
        database = Database(**of_database)
        plan.database = database
        plan.is_ordered = True
        plan.draft = database.changes
        plan.type_faults = frozenset({"type_mismatch"})
        plan.broken = (b'{"op": "x"}', "malformed_debezium")
        plan.read = read_change
        plan.steps["decode"].append(apply_change)
        plan.steps["settle"].append(truncate)
        plan.encode = encode

    def encode(plan: Plan, message: Message) -> bytes:
        row: Any = message.value
        envelope = {"op": message.op, "before": message.before, "after": row}
        if message.op == "d":
            envelope |= {"before": row, "after": None}
        if message.op == "t":
            envelope |= {"before": None, "after": None}
        envelope["source"] = {"connector": "postgresql", "table": "t", "lsn": message.lsn}
        return json.dumps(envelope).encode()

    return shape


def _be_of_debezium(plan: Plan) -> None:
    """Let an option have a database, unless its partner has brought one."""
    if plan.database is None:
        _debezium()(plan)


def _lsn(plan: Plan) -> None:
    """A column of the envelope orders the events; those that come again change nothing."""
    _be_of_debezium(plan)
    plan.columns["lsn"] = "BIGINT NOT NULL"
    plan.database.repeats = True

    def take(plan: Plan, message: Message, dice: random.Random) -> None:
        if isinstance(message.value, dict):
            message.value["lsn"] = message.lsn

    plan.writes.append(take)


def _truncates(policy: str) -> Callable[[Plan], None]:
    def shape(plan: Plan) -> None:
        _be_of_debezium(plan)
        plan.database.truncates = policy != "stop"
        if policy == "apply":
            plan.partitions = 1
            plan.counted = ("read", "quarantined")
        if policy == "stop":
            plan.acts.setdefault(None, []).append(stop)

    def stop(it: Any) -> None:
        """The run is refused until the declaration says what to do (debezium.md)."""
        message = it.plan.database._truncate(it.plan, 9)
        write_fields(it.plan, message, it.dice)
        it.send([message])
        for _ in range(2):
            it.refuse(SourceTruncatedError, message)
        it.plan.fields["format.on_truncate"] = "quarantine"
        it.declare()
        it.run()

    return shape


_TYPE: Final = {"format.type": "debezium"}
FORMATS_OF_VALUES: Final = (
    Feature(
        name="format.columns",
        fields={"format.columns": {"lsn": "source.lsn"}, "sequence_by": ["lsn"]},
        needs=_TYPE,
        page=DEBEZIUM,
        shape=_lsn,
        rank=1,
    ),
    *(
        Feature(
            name=f"on_truncate: {policy}",
            fields={"format.on_truncate": policy},
            needs=_TYPE,
            page=DEBEZIUM,
            shape=_truncates(policy),
            rank=1,
        )
        for policy in ("quarantine", "stop", "apply")
    ),
    Feature(name="format: csv", fields={"format.type": "csv"}, page=FORMATS, shape=_csv, rank=9),
    Feature(
        name="format: string",
        fields={"format.type": "string"},
        needs={"mode": "append"},
        page=FORMATS,
        shape=_one_column("STRING"),
        rank=0,
    ),
    Feature(
        name="format: raw",
        fields={"format.type": "raw"},
        needs={"mode": "append"},
        page=FORMATS,
        shape=_one_column("BINARY"),
        rank=0,
    ),
    Feature(
        name="format: avro",
        fields={
            "format.type": "avro",
            "format.framing": "single_object",
            "format.schemas": [{"type": "record", "name": "shop.Row", "fields": []}],
        },
        page=FORMATS,
        shape=_avro_single,
        rank=10,
    ),
    Feature(name="format: debezium", fields=_TYPE, page=DEBEZIUM, shape=_debezium(), rank=0),
    Feature(
        name="format: debezium, TOAST",
        fields=_TYPE,
        page=DEBEZIUM,
        shape=_debezium(toasts=True),
        rank=0,
    ),
    Feature(
        name="format: debezium, moved keys",
        fields=_TYPE,
        page=DEBEZIUM,
        shape=_debezium(moves=True, toasts=True),
        rank=0,
    ),
)
