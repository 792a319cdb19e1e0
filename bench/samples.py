"""Records to decode: flights and orders as JSON, and flights in the wire format of a registry."""

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
    types = [(c.name, _AVRO[c.dataType.simpleString()]) for c in columns]
    fields = [{"name": name, "type": ["null", type_]} for name, type_ in types]
    schema = {"type": "record", "name": "flight", "fields": fields}
    parsed, encoded = parse_schema(schema), []
    for value in values:
        stream = BytesIO(_MAGIC_AND_ID)
        stream.seek(len(_MAGIC_AND_ID))
        row = json.loads(value)
        row["updated_at"] = dt.datetime.fromisoformat(row["updated_at"])
        schemaless_writer(stream, parsed, row)
        encoded.append(stream.getvalue())
    return json.dumps(schema), encoded
