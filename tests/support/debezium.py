"""Change events as Debezium 3.6 writes them, for PostgreSQL and for MySQL."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import Any

Field = dict[str, Any]

MISSING = "__debezium_unavailable_value"


def unscaled(value: str, scale: int) -> str:
    """A NUMERIC as the connector writes it by default: its unscaled bytes in base64."""
    number = int(Decimal(value).scaleb(scale))
    return base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, signed=True)).decode()


def field(name: str, type: str, semantic: str | None = None, **more: Any) -> Field:
    """A column's schema, as Kafka Connect's JSON converter writes it."""
    named = {"name": semantic, "version": 1} if semantic else {}
    return {"type": type, "optional": True, **named, "field": name, **more}


POSTGRES = [
    {**field("id", "int64"), "optional": False},
    field("name", "string"),
    field("total", "bytes", "org.apache.kafka.connect.data.Decimal",
          parameters={"scale": "2", "connect.decimal.precision": "12"}),
    field("any_number", "struct", "io.debezium.data.VariableScaleDecimal",
          fields=[field("scale", "int32"), field("value", "bytes")]),
    field("born", "int32", "io.debezium.time.Date"),
    field("millis", "int64", "io.debezium.time.Timestamp"),
    field("micros", "int64", "io.debezium.time.MicroTimestamp"),
    field("zoned", "string", "io.debezium.time.ZonedTimestamp"),
    field("ratio", "double"),
    field("blob", "bytes"),
    field("tags", "array", items={"type": "string", "optional": True}),
]  # fmt: skip


class Connector:
    """Writes the events of one table, in the order of the database's log."""

    def __init__(self, columns: list[Field], *, schemas: bool, source: Field) -> None:
        """Take the table's columns, whether schemas are sent, and where the log begins."""
        self._columns, self._schemas, self.source = columns, schemas, source

    def event(self, op: str, before: Field | None, after: Field | None, **source: Any) -> bytes:
        """One envelope."""
        self.source = {**self.source, **source}
        payload = {
            "before": before, "after": after, "source": self.source, "transaction": None,
            "op": op, "ts_ms": 1709210000123, "ts_us": 1709210000123456, "ts_ns": 0,
        }  # fmt: skip
        if not self._schemas:
            return json.dumps(payload, separators=(",", ":")).encode()
        rows = [{**self._struct(), "field": side} for side in ("before", "after")]
        schema = {"type": "struct", "fields": rows, "optional": False, "name": "s.t.Envelope"}
        whole = {"schema": schema, "payload": payload}
        return json.dumps(whole, separators=(",", ":")).encode()

    def _struct(self) -> Field:
        return {"type": "struct", "fields": self._columns, "optional": True, "name": "s.t.Value"}


def postgres(*, schemas: bool) -> Connector:
    """A table of PostgreSQL."""
    source = {
        "version": "3.6.1.Final", "connector": "postgresql", "name": "s", "ts_ms": 1709210000000,
        "snapshot": "false", "db": "d", "sequence": '["24023119","24023128"]', "schema": "public",
        "table": "t", "txId": 771, "lsn": 24023128, "xmin": None,
    }  # fmt: skip
    return Connector(POSTGRES, schemas=schemas, source=source)


def mysql(columns: list[Field], *, schemas: bool) -> Connector:
    """A table of MySQL."""
    source = {
        "version": "3.6.1.Final", "connector": "mysql", "name": "m", "ts_ms": 1709210000000,
        "snapshot": "false", "db": "d", "sequence": None, "table": "t", "server_id": 223344,
        "gtid": None, "file": "binlog.000003", "pos": 154, "row": 0, "thread": 7, "query": None,
    }  # fmt: skip
    return Connector(columns, schemas=schemas, source=source)
