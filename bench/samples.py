"""Records to decode: flights and orders, as JSON and in the wire format of a registry."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Sequence
from io import BytesIO
from itertools import islice
from typing import Any, Final

from fastavro import parse_schema, schemaless_writer
from pyspark.sql.types import StructType

from oncelake.ingestion.cli.demo.flights import plain

ORDERS: Final = (
    "id BIGINT NOT NULL, customer STRING NOT NULL, total DECIMAL(12, 2), placed_at TIMESTAMP, "
    "paid BOOLEAN, note STRING, lines ARRAY<STRUCT<sku: STRING NOT NULL, count: INT NOT NULL>>"
)
_AVRO: Final = {
    "int": "int",
    "string": "string",
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
}
NESTED: Final = (
    "id BIGINT, customer STRUCT<name: STRING, city: STRING>, placed_at TIMESTAMP, note STRING, "
    "lines ARRAY<STRUCT<sku: STRING NOT NULL, count: INT NOT NULL>>, labels MAP<STRING, STRING>"
)
# With a column for values that are of one of two types.
WITH_UNION: Final = f"{NESTED}, payment STRUCT<name: STRING, number: BIGINT>"
_MAGIC_AND_ID: Final = b"\0\0\0\0\1"


def flights(count: int) -> list[bytes]:
    """Return flights as the demo sends them; those that were cancelled have explicit nulls."""
    return [each.value for each in islice(plain(), count) if each.value]


def orders(count: int) -> list[bytes]:
    """Return orders with decimals, objects below and escapes, as ``json.dumps`` writes them."""
    chance = random.Random(1)
    return [json.dumps(_order(number, chance)).encode() for number in range(count)]


def _order(number: int, chance: random.Random) -> dict[str, Any]:
    return {
        "id": number,
        "customer": f"customer {chance.randrange(10**6)}",
        "total": chance.randrange(10**6) / 100,
        "placed_at": f"2024-02-{chance.randrange(10, 30)}T12:30:{chance.randrange(10, 60)}Z",
        "paid": chance.random() < 0.5,
        "note": None if chance.random() < 0.5 else "Zoë said: later",
        "lines": [{"sku": f"A-{chance.randrange(10**6)}", "count": n} for n in range(3)],
    }


def in_avro(values: Sequence[bytes], columns: StructType) -> tuple[str, list[bytes]]:
    """Return the schema of the columns, and the values framed and encoded by it, as schema id 1."""
    fields = [(c.name, ["null", _AVRO[c.dataType.simpleString()]]) for c in columns]
    rows = [json.loads(value) for value in values]
    for row in rows:
        row["updated_at"] = dt.datetime.fromisoformat(row["updated_at"])
    return _encoded(_record("flight", fields), rows)


def nested_in_avro(count: int, *, with_union: bool) -> tuple[str, list[bytes]]:
    """Return the schema of orders that hold a record, a list and a map, and the orders, framed."""
    line = _record("line", [("sku", "string"), ("count", "int")])
    fields: list[tuple[str, Any]] = [
        ("id", "long"),
        ("customer", _record("customer", [("name", "string"), ("city", ["null", "string"])])),
        ("placed_at", _AVRO["timestamp"]),
        ("note", ["null", "string"]),
        ("lines", {"type": "array", "items": line}),
        ("labels", {"type": "map", "values": "string"}),
    ]
    if with_union:
        ways = _record("transfer", [("name", "string")]), _record("card", [("number", "long")])
        fields.append(("payment", ["null", *ways]))
    chance = random.Random(1)
    return _encoded(_record("order", fields), [_nested(each, chance) for each in range(count)])


def _nested(number: int, chance: random.Random) -> dict[str, Any]:
    sizes = range(chance.randrange(6))
    by = chance.choice([None, {"name": "Zoë"}, {"number": chance.randrange(10**12)}])
    return {
        "id": number,
        "customer": {"name": f"customer {chance.randrange(10**6)}", "city": "Zürich"},
        "placed_at": dt.datetime(2024, 2, 10, 12, 30, chance.randrange(60), tzinfo=dt.UTC),
        "note": None if chance.random() < 0.5 else "Zoë said: later",
        "lines": [{"sku": f"A-{chance.randrange(10**6)}", "count": n} for n in sizes],
        "labels": {f"label {n}": "x" for n in range(chance.randrange(3))},
        "payment": by,
    }


def _record(name: str, fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    types = [{"name": field, "type": type_} for field, type_ in fields]
    return {"type": "record", "name": name, "fields": types}


def _encoded(schema: dict[str, Any], rows: Sequence[dict[str, Any]]) -> tuple[str, list[bytes]]:
    parsed, encoded = parse_schema(schema), []
    for row in rows:
        stream = BytesIO(_MAGIC_AND_ID)
        stream.seek(len(_MAGIC_AND_ID))
        schemaless_writer(stream, parsed, row)
        encoded.append(stream.getvalue())
    return json.dumps(schema), encoded
