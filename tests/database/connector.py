"""Writes a database's log to a topic, as Debezium does, or as a producer of plain rows."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import count
from typing import Any, Final

from fastavro import parse_schema, schemaless_writer

from tests.database.database import Change, Database, Row, net
from tests.database.declared import Image, Setup, Source
from tests.support.debezium import MISSING
from tests.support.debezium import field as typed
from tests.support.registry import framed
from tests.support.small_registry import SmallRegistry
from tests.support.topics_in_memory import Cluster, Headers, Record

_TYPES: Final = {"id": "int32", "part": "int32", "shard": "int32", "n": "int32"}
_ROW: Final = Row(0, 0, 0, addr=(None, None))
_BEGAN_MS: Final = 1_700_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """A record, and the change that it is sent for.

    Attributes:
        is_repeated: Whether it says nothing that another record does not say.
    """

    key: Image | None
    value: Any
    headers: Headers
    change: Change
    is_repeated: bool = False


@dataclass
class Connector:
    """Follows a database, and sends what its log has.

    Attributes:
        changes: Those that were captured, in the order in which they were sent at first.
        sent: The records by partition and offset.
    """

    setup: Setup
    database: Database
    cluster: Cluster
    topic: str
    registry: SmallRegistry | None = None
    changes: list[Change] = field(default_factory=list)
    sent: dict[tuple[int, int], Sent] = field(default_factory=dict)
    _known: dict[int, Row] = field(default_factory=dict)

    def capture(self, changes: Sequence[Change]) -> None:
        """Send what a transaction, a truncate or a snapshot has done."""
        if self.setup.source.writes == "rows":
            is_snapshot = any(change.op == "r" for change in changes)
            known = {} if is_snapshot else self._known
            self._known, number = self.database.by_key, len(self.database.log)
            changes = list(net(known, self._known, number=number))
        self.changes += changes
        self._send(changes)

    def restart(self, count: int) -> None:
        """Send the last changes once more, as a connector does that has died since."""
        self._send(self.changes[-count:])

    def _send(self, changes: Sequence[Change]) -> None:
        for change in changes:
            for record in self.records(change):
                self._produce(record)

    def records(self, change: Change) -> Iterator[Sent]:
        """Yield the records of a change."""
        if self.setup.source.writes == "rows":
            yield from self._of_row(change)
        elif change.op == "t":
            yield Sent(key=None, value=self._event(change, "t"), headers=[], change=change)
        elif change.is_move and self.setup.source.kafka_key == "primary":
            yield from self._of_move(change)
        else:
            yield from self._of_event(change, change.op)

    def _of_row(self, change: Change) -> Iterator[Sent]:
        row = change.after or change.before
        assert row is not None, "of a row that is there, or is gone"
        key, headers = self.setup.source.key_of(row.key), self._headers(row)
        value = self.setup.source.image(row, change.altered)
        del value["shard"]
        if self.setup.declared.is_ordered:
            value |= {"lsn": change.number, "gone": change.op == "d"}
        if change.op != "d" or self.setup.deletes_by_record:
            yield Sent(key=key, value=value, headers=headers, change=change)
        if change.op == "d":
            is_repeated = self.setup.deletes_by_record
            yield Sent(key=key, value=None, headers=[], change=change, is_repeated=is_repeated)

    def _of_move(self, change: Change) -> Iterator[Sent]:
        """Yield the delete of the old key, and the row anew."""
        assert change.before is not None
        assert change.after is not None
        names = [
            ("__debezium.newkey", self._kafka_key(change.after)),
            ("__debezium.oldkey", self._kafka_key(change.before)),
        ]
        new, old = ((name, _in_json(self._keyed(key))) for name, key in names)
        yield from self._of_event(change, "d", new)
        yield from self._of_event(change, "c", old)

    def _of_event(self, change: Change, op: str, *headers: tuple[str, bytes]) -> Iterator[Sent]:
        row = change.before if op == "d" else change.after
        assert row is not None, "of a row that is there, or is gone"
        key, more = self._kafka_key(row), self._headers(row)
        value = self._event(change, op)
        yield Sent(key=key, value=value, headers=[*more, *headers], change=change)
        if op == "d":
            yield Sent(key=key, value=None, headers=[], change=change, is_repeated=True)

    def _event(self, change: Change, op: str) -> Image:
        source = {"connector": "postgresql", "table": "t", "lsn": change.number}
        before = change.before if op in ("u", "d") else None
        after = change.after if op in ("c", "u", "r") else None
        payload = {
            "before": before and self._before(before, change, op),
            "after": after and self._after(after, change),
            "source": source,
            "op": op,
            "ts_ms": _BEGAN_MS + change.number,
        }
        return self._with_schema(payload, change.altered)

    def _before(self, row: Row, change: Change, op: str) -> Image | None:
        """Return what the log has of a row's old values."""
        source = self.setup.source
        image = source.image(row, change.altered)
        if source.identity == "full":
            return image
        if source.identity == "nothing" or (op == "u" and not change.is_move):
            return None
        return {name: value if name in source.keys else None for name, value in image.items()}

    def _after(self, row: Row, change: Change) -> Image:
        image = self.setup.source.image(row, change.altered)
        left_out = change.unsent if self.setup.source.identity != "full" else ()
        return {**image, **dict.fromkeys(left_out, MISSING)}

    def _kafka_key(self, row: Row) -> Image:
        source = self.setup.source
        return {"shard": row.shard} if source.kafka_key == "shard" else source.key_of(row.key)

    def _headers(self, row: Row) -> Headers:
        if not self.setup.declared.takes_header or row.tenant is None:
            return []
        return [("x-tenant", row.tenant.encode())]

    def _with_schema(self, payload: Image, altered: frozenset[str]) -> Image:
        if not self.setup.source.has_schemas:
            return payload
        row = {"type": "struct", "optional": True, "name": "s.t.Value"}
        columns = [*connect_columns(self.setup.source, altered)]
        sides = [{**row, "fields": columns, "field": side} for side in ("before", "after")]
        schema = {"type": "struct", "fields": sides, "optional": False, "name": "s.t.Envelope"}
        return {"schema": schema, "payload": payload}

    def _keyed(self, key: Image) -> Image:
        if not self.setup.source.has_schemas or self.setup.source.writes == "rows":
            return key
        columns = [typed(name, "int32") for name in key]
        schema = {"type": "struct", "fields": columns, "optional": False, "name": "s.t.Key"}
        return {"schema": schema, "payload": key}

    def _produce(self, sent: Sent) -> None:
        partitions = self.cluster.topic(self.topic).partitions
        at = zlib.crc32(json.dumps(sent.key).encode()) % len(partitions)
        if self.setup.source.encoding == "avro":
            key, value = self._in_avro(sent)
        else:
            key = None if sent.key is None else _in_json(self._keyed(sent.key))
            value = None if sent.value is None else _in_json(sent.value)
        record = Record(
            timestamp_ms=_BEGAN_MS + len(self.sent),
            key=key,
            value=value,
            headers=sent.headers or None,
        )
        self.sent[at, partitions[at].append(record)] = sent

    def _in_avro(self, sent: Sent) -> tuple[bytes | None, bytes | None]:
        assert self.registry is not None, "it has the schemas"
        key = value = None
        if sent.key is not None:
            schema = avro_key(sent.key)
            key = _written(self._registered("key", schema), schema, sent.key)
        if sent.value is not None:
            schema = avro_envelope(self.setup.source, sent.change.altered)
            value = _written(self._registered("value", schema), schema, sent.value)
        return key, value

    def _registered(self, part: str, schema: Image) -> int:
        assert self.registry is not None, "it has the schemas"
        subject, text = f"{self.topic}-{part}", json.dumps(schema)
        for version in count(1):
            number = self.registry.versions.get((subject, version))
            if number is None:
                return self.registry.add(text, at=(subject, version))
            if self.registry.schemas[number]["schema"] == text:
                return number
        raise AssertionError("the numbers of versions do not end")


def connect_columns(source: Source, altered: frozenset[str]) -> Iterator[Image]:
    """Yield the columns of a row, as Kafka Connect's JSON has them."""
    for name in source.image(_ROW, altered):
        if name == "addr":
            names = ("city", "zip") if "nest" in altered else ("city",)
            yield typed(name, "struct", fields=[typed(each, "string") for each in names])
        else:
            is_wide = name == "n" and "widen" in altered
            yield typed(name, "int64" if is_wide else _TYPES.get(name, "string"))


def avro_key(key: Image) -> Image:
    """Return the schema of a Kafka key."""
    fields = [{"name": name, "type": "int"} for name in key]
    return {"type": "record", "name": "Key", "namespace": "s.t", "fields": fields}


def avro_envelope(source: Source, altered: frozenset[str]) -> Image:
    """Return the schema of an envelope."""

    def optional(name: str, type_: Any) -> Image:
        return {"name": name, "type": ["null", type_], "default": None}

    columns = []
    for each in connect_columns(source, altered):
        type_: Any = {"int32": "int", "int64": "long", "string": "string"}.get(each["type"])
        if each["type"] == "struct":
            inner = [optional(part["field"], "string") for part in each["fields"]]
            type_ = {"type": "record", "name": "Address", "fields": inner}
        columns.append(optional(each["field"], type_))
    row = {"type": "record", "name": "Value", "fields": columns}
    place = [("connector", "string"), ("table", "string"), ("lsn", "long")]
    at = [{"name": name, "type": type_} for name, type_ in place]
    fields = [
        optional("before", row),
        optional("after", "s.t.Value"),
        {"name": "source", "type": {"type": "record", "name": "Source", "fields": at}},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": "long"},
    ]
    return {"type": "record", "name": "Envelope", "namespace": "s.t", "fields": fields}


def _in_json(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _written(number: int, schema: Image, value: Image) -> bytes:
    payload = BytesIO()
    schemaless_writer(payload, parse_schema(schema), value)
    return framed(number, payload.getvalue())
