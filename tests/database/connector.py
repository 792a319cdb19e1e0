"""Writes a database's log to a topic, as Debezium does, or as a producer of plain rows."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.database.database import Change, Database, Row, net
from tests.database.declared import Image, Setup
from tests.support.debezium import MISSING
from tests.support.debezium import field as typed
from tests.support.topics_in_memory import Cluster, Headers, Record

_TYPES: Final = {"id": "int32", "part": "int32", "shard": "int32", "n": "int32"}
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
        value = self.setup.source.image(row)
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
        new, old = ((name, json.dumps(self._keyed(key)).encode()) for name, key in names)
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
        return self._with_schema(payload)

    def _before(self, row: Row, change: Change, op: str) -> Image | None:
        """Return what the log has of a row's old values."""
        image, source = self.setup.source.image(row), self.setup.source
        if source.identity == "full":
            return image
        if source.identity == "nothing" or (op == "u" and not change.is_move):
            return None
        return {name: value if name in source.keys else None for name, value in image.items()}

    def _after(self, row: Row, change: Change) -> Image:
        image = self.setup.source.image(row)
        left_out = change.unsent if self.setup.source.identity != "full" else ()
        return {**image, **dict.fromkeys(left_out, MISSING)}

    def _kafka_key(self, row: Row) -> Image:
        source = self.setup.source
        return {"shard": row.shard} if source.kafka_key == "shard" else source.key_of(row.key)

    def _headers(self, row: Row) -> Headers:
        if not self.setup.declared.takes_header or row.tenant is None:
            return []
        return [("x-tenant", row.tenant.encode())]

    def _with_schema(self, payload: Image) -> Image:
        if not self.setup.source.has_schemas:
            return payload
        row = {"type": "struct", "optional": True, "name": "s.t.Value"}
        names = ("id", "part", *Row._fields[2:])
        columns = [typed(name, _TYPES.get(name, "string")) for name in names]
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
        key = None if sent.key is None else json.dumps(self._keyed(sent.key)).encode()
        at = zlib.crc32(json.dumps(sent.key).encode()) % len(partitions)
        value = None if sent.value is None else json.dumps(sent.value).encode()
        record = Record(
            timestamp_ms=_BEGAN_MS + len(self.sent),
            key=key,
            value=value,
            headers=sent.headers or None,
        )
        self.sent[at, partitions[at].append(record)] = sent
