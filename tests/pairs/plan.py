"""What two fields make together: a declaration, records for it, and what must become of them.

Nothing here knows the product. A field adds its part to a ``Plan``: what it declares, how its
records are written, and the steps of the oracle that its page of docs promises.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Row = dict[str, Any]

# What is done to a stream, and declared by no field.
OPERATIONS: Final = frozenset({"redrive", "replay", "rewind", "rebuild", "maintain"})
# The one order in which the oracle takes its steps; a field adds to some of them.
STAGES: Final = ("decode", "route", "explode", "compute", "delete", "validate", "settle")
BASE: Final = {
    "id": "INT NOT NULL",
    "name": "STRING",
    "at": "INT NOT NULL",
    "amount": "INT",
    "state": "STRING",
}
# Later than every year that a test of the clock could mean, and a whole second.
FIRST_MS: Final = 1_700_000_000_000


@dataclass(kw_only=True, eq=False)
class Message:
    """One record as it is sent, and where it lands.

    Attributes:
        row: What the producer means; fields write it into value, key and headers.
        value: The fields of the value as they are written; bytes where it is none of the format.
        key: The fields of the Kafka key; bytes where it cannot be read.
        op: The operation of a change of Debezium, of which ``value`` is the row that it is about.
        before: The row before it, of an update.
        lsn: Its position in the database's log.
        fault: Why it cannot be applied, where its bytes alone say so.
        is_spoiled: Whether it was made bad on purpose.
        is_unread: Whether the stream never gets to see it.
        is_aborted: Whether its transaction was aborted, so that it is a gap.
    """

    row: Row
    time_ms: int
    batch: int
    partition: int
    value: Row | bytes | None = None
    key: Row | bytes | None = None
    op: str = ""
    before: Row | None = None
    lsn: int = 0
    headers: dict[str, str | None] = field(default_factory=dict)
    topic: str = ""
    offset: int = -1
    fault: str = ""
    is_spoiled: bool = False
    is_unread: bool = False
    is_aborted: bool = False

    @property
    def place(self) -> tuple[str, int, int]:
        """Its coordinates in Kafka."""
        return self.topic, self.partition, self.offset


@dataclass(kw_only=True, eq=False)
class Event:
    """What a record says of one row; a record may say something of several.

    Attributes:
        written: The fields of the value that the row is read from, by name.
        row: The columns of the value, later those of the table.
        kind: ``row``, ``delete``, or ``tombstone`` until it is decided what that means.
        is_of_format: Whether the format itself says that it is a delete.
        faults: Why it cannot be applied; the record is bad if there is any.
        fate: What becomes of it otherwise: ``filtered``, ``ignored``, ``elsewhere``, ``unrouted``.
        left_out: Columns that the record leaves out because they have not changed.
        moved_from: The key whose row has become this one.
        extra: Fields that no column takes.
    """

    message: Message
    written: Row = field(default_factory=dict)
    row: Row = field(default_factory=dict)
    kind: str = "row"
    is_of_format: bool = False
    faults: set[str] = field(default_factory=set)
    fate: str = ""
    index: int = 0
    left_out: frozenset[str] = frozenset()
    moved_from: tuple[Any, ...] | None = None
    extra: Row = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Tell whether it may still become part of the table."""
        return not self.faults and not self.fate


Step = Callable[["Plan", list[Event]], list[Event]]
Write = Callable[["Plan", Message, random.Random], None]


@dataclass(kw_only=True)
class Plan:
    """A declaration in the making.

    Attributes:
        fields: The declared fields, an option of a map by its path: ``format.type``.
        needs: Fields that are declared, too, unless somebody has declared another value.
        columns: The table's columns, by name.
        value: The value's columns, where they are not the table's.
        given: Columns that key or headers give, and not the value: ``key``, or a header's name.
        type_faults: The reasons of the format for a value of another type.
        steps: The oracle's steps, by stage.
        writes: How records are written, one after the other.
        last_writes: What is written behind all of these.
        encode: Makes the bytes of a value.
        broken: Bytes that are no value of the format, and the reason of that.
        stream: Of a routed file or several topics: the table that is meant.
        is_ordered: Whether records of a key have to come in the order of their times.
        partitions: How many the topic has.
        database: Whose changes the records are, if they are changes.
        read: What a record says, where that is more than its fields.
        is_one_column: Whether the format fills one column alone.
        is_proven_whole: Whether Kafka holds all that the proof asks for.
        counted: The counts of the ledger that are compared.
        acts: What happens before the records of a batch are sent, or, with ``None``, at the end.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    needs: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=lambda: dict(BASE))
    value: dict[str, str] | None = None
    given: dict[str, str] = field(default_factory=dict)
    key_names: tuple[str, ...] | None = None
    type_faults: frozenset[str] = frozenset({"wrong_type"})
    steps: dict[str, list[Step]] = field(default_factory=lambda: {s: [] for s in STAGES})
    writes: list[Write] = field(default_factory=list)
    last_writes: list[Write] = field(default_factory=list)
    encode: Callable[[Plan, Message], bytes] | None = None
    encode_key: Callable[[Plan, Row], bytes | None] | None = None
    broken: tuple[bytes, str] = (b"{", "malformed_json")
    draft: Callable[[Plan, random.Random, int], list[Message]] | None = None
    streams: tuple[str, ...] = ("",)
    topics: tuple[str, ...] = ("",)
    stream: str = ""
    is_ordered: bool = False
    partitions: int = 2
    read: Callable[[Plan, Message], list[Event]] | None = None
    database: Any = None
    is_proven_whole: bool = True
    is_one_column: bool = False
    counted: tuple[str, ...] = ("read", "quarantined", "ignored", "filtered")
    acts: dict[int | None, list[Callable[[Any], None]]] = field(default_factory=dict)

    @property
    def declared(self) -> Mapping[str, Any]:
        """The fields that are declared, those that are needed included."""
        all_ = {**self.needs, **self.fields}
        mode = all_.get("mode", "upsert")
        if mode != "append":
            all_.setdefault("keys", ["id"])
        if mode == "scd2":
            all_.setdefault("sequence_by", ["_timestamp"])
        if mode == "aggregate":
            all_.setdefault("aggregates", dict(AGGREGATES))
        return all_

    @property
    def mode(self) -> str:
        """The write mode."""
        return str(self.declared.get("mode", "upsert"))

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return tuple(self.declared.get("keys", ()))

    @property
    def sequence(self) -> tuple[str, ...]:
        """The columns that order the records of a key."""
        return tuple(self.declared.get("sequence_by", ()))

    @property
    def has_deletes(self) -> bool:
        """Tell whether a record can say that a row is gone."""
        return self.mode in {"upsert", "scd2"}

    @property
    def keeps_left_out(self) -> bool:
        """Tell whether a row keeps the columns that an update of Debezium leaves out."""
        is_change = self.declared.get("format.type") == "debezium" and self.has_deletes
        is_partial = bool(self.declared.get("ignore_null_updates"))
        return is_change and self.value is None and not is_partial

    @property
    def is_kept_in_order(self) -> bool:
        """Tell whether the records of a key are applied in the order in which they come."""
        return set(self.sequence) <= {"_timestamp", "lsn"}

    @property
    def value_columns(self) -> dict[str, str]:
        """The columns of a record, by name, before anything is computed."""
        return self.columns if self.value is None else self.value

    @property
    def payload(self) -> dict[str, str]:
        """Those that the bytes of the value give."""
        return {n: t for n, t in self.value_columns.items() if n not in self.given}

    @property
    def kafka_key(self) -> tuple[str, ...]:
        """The columns that the Kafka key has."""
        if self.key_names is not None:
            return self.key_names
        return tuple(n for n in self.keys if n not in self.given) or ("id",)

    def is_of(self, stream: str, message: Message) -> bool:
        """Tell whether a stream reads the topic of a record."""
        if not self.fields.get("table_per_topic"):
            return True
        return stream.endswith("_b") == message.topic.endswith("-b")

    def own_value(self) -> dict[str, str]:
        """Let the value have columns of its own, and return them to be changed."""
        if self.value is None:
            self.value = dict(self.columns)
        return self.value

    def add_column(self, name: str, type_: str) -> None:
        """Add a column to the table, and to the value."""
        self.columns[name] = type_
        if self.value is not None:
            self.value[name] = type_

    def declaration(self, topics: list[str]) -> dict[str, Any]:
        """Return the content of the stream's file."""
        made: dict[str, Any] = {"topic": topics[0], "schema": ddl(self.columns)}
        if len(topics) > 1:
            made = {"topics": topics, "schema": ddl(self.columns)}
        if "topic_pattern" in self.fields:
            made = {"topic_pattern": f"{topics[0]}.*", "schema": ddl(self.columns)}
        if self.value is not None:
            made["value_schema"] = ddl(self.value)
        for path, value in self.declared.items():
            name, _, option = path.partition(".")
            if option and value is None:
                continue
            if option:
                made.setdefault(name, {})[option] = value
            elif value is not None and name not in OPERATIONS:
                made[name] = value
        return made


AGGREGATES: Final = {
    "records": "count(*)",
    "total": "sum(amount)",
    "least": "min(at)",
    "most": "max(at)",
    "names": "set(name)",
}


def ddl(columns: Mapping[str, str]) -> str:
    """Write columns as a declaration has them."""
    return ", ".join(f"{name} {type_}" for name, type_ in columns.items())


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A field, or a value of one that means another thing.

    Attributes:
        name: What it is called in the list of pairs.
        fields: What it declares, an option of a map by its path.
        page: The page of docs that promises what it does.
        needs: What it declares, too, unless its partner declares another value.
        shape: Adds its records and the steps of the oracle.
        rank: Fields of a lower rank shape the plan first.
        has_spark: Whether only Spark can apply it.
    """

    name: str
    fields: Mapping[str, Any]
    page: str
    needs: Mapping[str, Any] = field(default_factory=dict)
    shape: Callable[[Plan], None] = lambda plan: None
    rank: int = 5
    has_spark: bool = False


def plan_of(*features: Feature) -> Plan:
    """Return what features make together."""
    plan = Plan()
    for feature in features:
        plan.fields |= feature.fields
    for feature in features:
        plan.needs |= {k: v for k, v in feature.needs.items() if k not in plan.fields}
    for feature in sorted(features, key=lambda it: it.rank):
        feature.shape(plan)
    return plan
