"""Fields about topics, runs and sinks, and the operations: what happens between two batches."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from typing import Any, Final

from oncelake.ingestion.errors import NotReplayableError, RefusedError, SchemaChangedError
from oncelake.ingestion.operations.alter import alter
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.upkeep.maintain import maintain
from oncelake.ingestion.sinks.delta import transaction
from tests.pairs.fields import silent
from tests.pairs.plan import FIRST_MS, Event, Feature, Message, Plan
from tests.pairs.records import drafts, write_fields

STREAMS: Final = "streams.md"
Act = Callable[[Any], None]
OWN: Final = {"a": ("a",), "b": ("b", "c")}


def _asked_always(plan: Plan) -> None:
    """Let batches ask an index of keys in a table of any size (sinks.md)."""
    del plan
    transaction.ROWS_PER_KEY = 0


def at(moment: int | None, act: Act) -> Callable[[Plan], None]:
    """Return a shape that lets something happen at a moment."""

    def shape(plan: Plan) -> None:
        plan.acts.setdefault(moment, []).append(act)

    return shape


# Which records are whose: routes.md.


def _routed(by: str) -> Callable[[Plan], None]:
    """A record is of the table that its route names, before it is decoded (routes.md)."""

    def shape(plan: Plan) -> None:
        plan.streams = tuple(OWN)
        plan.counted = (*plan.counted, "routed_elsewhere", "unrouted")
        if by == "field":
            plan.add_column("kind", "STRING")
        plan.writes.append(write)
        plan.steps["route"].append(route)

    def write(plan: Plan, message: Message, dice: random.Random) -> None:
        kinds = ["a", "a", "b", "b", "c", "x", None]
        if by == "header" and message.value is None:
            # What a null value of another route does is tried apart.
            kinds.remove("x")
        kind = dice.choice(kinds)
        message.row["kind"] = kind
        if by == "header" and kind is not None:
            message.headers["kind"] = kind
        elif by == "field" and isinstance(message.value, dict):
            message.value["kind"] = kind

    def route(plan: Plan, events: list[Event]) -> list[Event]:
        for event in events:
            route_event(plan, event, by)
        return events

    return shape


def route_event(plan: Plan, event: Event, by: str) -> None:
    """Leave an event to whom it belongs to."""
    from tests.pairs.oracle import tombstone_policy

    stream, first = plan.stream, "a"
    if event.kind == "truncate":
        return
    is_null = event.kind == "tombstone" and "kind" not in event.message.headers
    if is_null and tombstone_policy(plan) == "delete":
        return
    if is_null and tombstone_policy(plan) == "ignore":
        event.fate = "" if stream == first else "routed_elsewhere"
        return
    message = event.message
    kind = message.headers.get("kind") if by == "header" else event.written.get("kind")
    owner = next((name for name, kinds in OWN.items() if kind in kinds), None)
    otherwise = plan.declared.get("otherwise", "quarantine")
    if owner is None and otherwise in OWN:
        owner = otherwise
    if owner == stream:
        return
    if owner is not None:
        event.fate, event.faults = "routed_elsewhere", set()
    elif otherwise == "ignore":
        event.fate, event.faults = "unrouted", set()
    elif stream == first:
        event.faults = {"unrouted"}
    else:
        event.fate, event.faults = "routed_elsewhere", set()


def _two_topics(plan: Plan) -> None:
    plan.topics = ("", "-b")


# Where the first run begins: streams.md.


def _earlier(it: Any) -> None:
    """Send records that the stream is not to read."""
    made = drafts(it.plan, it.dice, 0) if it.plan.draft is None else []
    for message in made:
        write_fields(it.plan, message, it.dice)
        message.is_unread, message.time_ms = True, message.time_ms - 100_000
    it.send(made)


def _latest(it: Any) -> None:
    _earlier(it)
    it.declare()
    it.run()


def _from_offsets(it: Any) -> None:
    _earlier(it)
    ends = {topic: it.ends(topic) for topic in it.topics}
    it.plan.fields["starting.offsets"] = ends


def _forget(it: Any) -> None:
    """Let Kafka's retention delete records before they are read (delivery.md)."""
    made = drafts(it.plan, it.dice, 1) if it.plan.draft is None else []
    for message in made:
        write_fields(it.plan, message, it.dice)
        message.is_unread = True
    it.send(made)
    it.forget()
    it.lost = list(it.sent)
    it.plan.is_proven_whole = False


def _abort(it: Any) -> None:
    """Send records in a transaction that is aborted: their offsets are gaps."""
    made = drafts(it.plan, it.dice, 1)[:3] if it.plan.draft is None else []
    for message in made:
        write_fields(it.plan, message, it.dice)
        message.is_aborted = True
    it.send_aborted(made)


# The table's columns: change.md.


def _new_column(plan: Plan) -> None:
    """A new column is null in the rows that are there (change.md)."""

    def write(plan: Plan, message: Message, dice: random.Random) -> None:
        if message.batch and isinstance(message.value, dict):
            message.value["colour"] = dice.choice(["red", None])

    def declare(it: Any) -> None:
        if it.plan.is_one_column:
            return
        it.plan.add_column("colour", "STRING")
        it.declare()

    plan.writes.append(write)
    plan.acts.setdefault(1, []).append(declare)


def _renamed(plan: Plan) -> None:
    """A column gets another name, and keeps its values (change.md)."""
    plan.add_column("remark", "STRING")

    def write(plan: Plan, message: Message, dice: random.Random) -> None:
        if isinstance(message.value, dict):
            is_late = message.batch and not plan.keeps_left_out
            message.value["remark" if is_late else "note"] = dice.choice(["n", None])

    def begin(it: Any) -> None:
        it.plan.fields.pop("renamed_from")
        _swap(it.plan, "remark", "note")

    def rename(it: Any) -> None:
        _swap(it.plan, "note", "remark")
        it.plan.fields["renamed_from"] = {"remark": "note"}
        it.declare()
        if it.plan.keeps_left_out:
            # The deletes are remembered with all columns.
            it.expect(SchemaChangedError, lambda: _alter(it))
            begin(it)
            it.declare()
            return
        _alter(it)
        for message in it.sent:
            if isinstance(message.value, dict) and "note" in message.value:
                message.value["remark"] = message.value.pop("note")

    plan.writes.append(write)
    plan.acts.setdefault(0, []).append(begin)
    plan.acts.setdefault(1, []).append(rename)


def _alter(it: Any) -> None:
    for world in it.streams.values():
        alter(world.spec, world.settings, drops=(), run_id="alter")


def _swap(plan: Plan, old: str, new: str) -> None:
    for columns in filter(None, (plan.columns, plan.value)):
        kept = {new if name == old else name: type_ for name, type_ in columns.items()}
        columns.clear()
        columns.update(kept)


# Operations.


def _quote_curable(plan: Plan, message: Message, dice: random.Random) -> None:
    """Write some numbers in quotes, which a mended declaration can read."""
    value = message.value
    is_spared = message.is_spoiled or plan.declared.get("format.type") == "csv"
    is_asked = isinstance(value, dict) and message.batch < 2 and not is_spared
    if is_asked and type(value.get("amount")) is int and dice.random() < 0.3:  # type: ignore[union-attr]
        value["amount"] = str(value["amount"])  # type: ignore[index,call-overload]


def _remember_reasons(plan: Plan, events: list[Event]) -> list[Event]:
    """What is still bad stays as it is, with the reason that it had (quarantine.md)."""
    for event in events:
        written = event.written.get("amount")
        if event.faults and isinstance(written, str) and event.message.batch < 2:
            event.faults |= plan.type_faults
    return events


def _redrive(it: Any) -> None:
    """Records that a mended declaration can read are applied, each where its offset puts it."""
    plan = it.plan
    if plan.declared.get("ignore_null_updates"):
        for world in it.streams.values():
            it.expect(RefusedError, world.redrive)
        return
    if plan.declared.get("format.type", "json") == "json" and "amount" in plan.payload:
        plan.fields["types"] = {"amount": "lenient", **plan.fields.get("types", {})}
    it.declare()
    for world in it.streams.values():
        world.redrive()
    # A redrive counts its records once more.
    plan.counted = ()


def _redriven(plan: Plan) -> None:
    plan.steps["settle"].append(_remember_reasons)
    plan.last_writes.append(_quote_curable)
    plan.acts.setdefault(2, []).append(_redrive)


def _replay(it: Any) -> None:
    """A record that is in the table is unchanged, and no other row changes (rewind.md)."""
    declared, keeps = it.plan.declared, it.plan.keeps_left_out
    is_refused = declared.get("ignore_null_updates") or it.plan.mode == "aggregate" or keeps
    for world in it.streams.values():
        if is_refused:
            it.expect(NotReplayableError, world.replay)
        else:
            world.replay()
    # A replay counts its records once more.
    it.plan.counted = ()


def _rewind(it: Any) -> None:
    """Everything goes back to an earlier batch, and the next run reads on from there."""
    for world in it.streams.values():
        spec, settings = world.spec, world.settings
        rewind(spec, settings, to="seq:1", reason="a trial", run_id="rewind")
    if "renamed_from" in it.plan.fields:
        # Columns are as they were, too.
        _alter(it)
    it.run()
    it.plan.counted = ()


def _rebuild(it: Any) -> None:
    """A rebuild makes the same table of the topic."""
    for world in it.streams.values():
        world.rebuild(without_lost=not it.plan.is_proven_whole)
    for message in it.sent if "renamed_from" in it.plan.fields else ():
        # The new table reads each record by the new name.
        if isinstance(message.value, dict) and not message.batch and "remark" in message.value:
            message.value["note"] = message.value.pop("remark")
    for message in it.lost:
        # The new table has what Kafka still holds.
        message.is_unread = True


def _maintain(it: Any) -> None:
    """Upkeep changes no row (maintain.md)."""
    for world in it.streams.values():
        maintain(world.spec, world.settings, run_id="maintain", window=dt.timedelta(0))


def _moment(ms: int) -> str:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC).isoformat()


TABLES: Final = {"a": {}, "b": {"when": ["b", "c"]}}
COURSE: Final = (
    Feature(
        name="route_by: field",
        fields={"route_by": "kind", "tables": TABLES},
        page="routes.md",
        shape=_routed("field"),
        rank=2,
    ),
    Feature(
        name="route_by: header",
        fields={"route_by": "header:kind", "tables": TABLES},
        page="routes.md",
        shape=_routed("header"),
        rank=2,
    ),
    Feature(
        name="otherwise: ignore",
        fields={"otherwise": "ignore", "route_by": "kind", "tables": TABLES},
        page="routes.md",
        shape=_routed("field"),
        rank=2,
    ),
    Feature(
        name="otherwise: a table",
        fields={"otherwise": "b", "route_by": "kind", "tables": TABLES},
        page="routes.md",
        shape=_routed("field"),
        rank=2,
    ),
    Feature(name="topics", fields={"topics": None}, page=STREAMS, shape=_two_topics, rank=1),
    Feature(
        name="topic_pattern",
        fields={"topic_pattern": None, "topics": None},
        page=STREAMS,
        shape=_two_topics,
        rank=1,
    ),
    Feature(
        name="table_per_topic",
        fields={"table_per_topic": True, "topics": None},
        page=STREAMS,
        shape=_two_topics,
        rank=1,
    ),
    Feature(
        name="starting: latest",
        fields={"starting.at": "latest"},
        page=STREAMS,
        shape=at(0, _latest),
        rank=8,
    ),
    Feature(
        name="starting: timestamp",
        fields={"starting.timestamp": _moment(FIRST_MS - 50_000), "starting.at": None},
        page=STREAMS,
        shape=at(0, _earlier),
        rank=8,
    ),
    Feature(
        name="starting: offsets",
        fields={"starting.offsets": {"t": {"0": 1, "1": 1}}, "starting.at": None},
        page=STREAMS,
        shape=at(0, _from_offsets),
        rank=8,
    ),
    Feature(name="max_offsets_per_trigger", fields={"max_offsets_per_trigger": 4}, page=STREAMS),
    *(
        Feature(
            name=f"gaps: {policy}",
            fields={"gaps": policy},
            page=STREAMS,
            shape=at(1, _abort),
            rank=8,
        )
        for policy in ("auto", "always", "never")
    ),
    Feature(
        name="delivery: at_most_once",
        fields={"delivery": "at_most_once"},
        page="delivery.md",
        shape=at(1, _forget),
        rank=8,
    ),
    Feature(
        name="schema_change: evolve",
        fields={"schema_change": "evolve"},
        page="change.md",
        shape=_new_column,
        rank=8,
    ),
    Feature(
        name="renamed_from",
        fields={"renamed_from": {"remark": "note"}},
        page="change.md",
        shape=_renamed,
        rank=3,
    ),
    Feature(name="deletion_vectors", fields={"deletion_vectors": True}, page="maintain.md"),
    Feature(
        name="key_index",
        fields={"sink.delta": {"key_index": True}},
        needs={"deletion_vectors": True},
        page="sinks.md",
        shape=_asked_always,
    ),
    Feature(
        name="change_data_feed",
        fields={"sink.delta": {"change_data_feed": True}},
        page="sinks.md",
    ),
    Feature(name="sink: iceberg", fields={"sink.iceberg": {"spark_names": True}}, page="sinks.md"),
    Feature(
        name="partition_by",
        # Every update moves its row to another partition, whatever is declared beside it.
        fields={"partition_by": ["bucket(2, id)", "truncate(3, _offset)"]},
        needs={"sink.iceberg": {}},
        page="sinks.md",
    ),
    Feature(
        name="sort_by",
        fields={"sort_by": ["_offset"]},
        needs={"sink.iceberg": {}},
        page="sinks.md",
    ),
    Feature(name="cluster_by", fields={"cluster_by": ["_offset"]}, page="sinks.md"),
    Feature(name="what changes no row", fields=silent(), page=STREAMS),
    Feature(name="backfill_from", fields={"backfill_from": "2024-01-01"}, page="dagster.md"),
    Feature(
        name="redrive", fields={"redrive": None}, page="quarantine.md", shape=_redriven, rank=9
    ),
    Feature(name="replay", fields={"replay": None}, page="rewind.md", shape=at(2, _replay), rank=8),
    Feature(name="rewind", fields={"rewind": None}, page="rewind.md", shape=at(2, _rewind), rank=7),
    Feature(
        name="rebuild", fields={"rebuild": None}, page="change.md", shape=at(2, _rebuild), rank=8
    ),
    Feature(
        name="maintain",
        fields={"maintain": None},
        page="maintain.md",
        shape=at(2, _maintain),
        rank=8,
    ),
)
