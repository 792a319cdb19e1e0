"""What decoding costs: each format through the seam that Spark calls, on one core, without Spark.

    python -m bench.decode [RECORDS [ROUNDS]]

Values lie in memory, in batches as large as Spark's; each round opens the decoding anew, as each of
Spark's tasks does. The best round counts: CPU time grows with what else the machine does.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from rich.console import Console
from rich.table import Table

from bench.samples import NESTED, ORDERS, WITH_UNION, flights, in_avro, nested_in_avro, orders
from oncelake.ingestion.declaration.files.loader import load_stream
from oncelake.ingestion.declaration.formats import FORMATS
from oncelake.ingestion.formats import avro
from oncelake.ingestion.formats import json as json_format
from oncelake.ingestion.formats.decoder import Decode, Encoded
from oncelake.ingestion.formats.registry.wire_format import FramedDecoder
from oncelake.ingestion.kafka.schema_registry import SchemaId, WriterSchema
from oncelake.ingestion.pipeline.schema.types import row_type

RECORDS: Final = 100_000
ROUNDS: Final = 5
_BATCH: Final = 10_000
_ROOT: Final = Path(__file__).parents[1]
_PLAIN: Final = (
    "id BIGINT, customer STRING, total DOUBLE, placed_at TIMESTAMP, paid BOOLEAN, note STRING, "
    "quantity INT, region STRING"
)


class DecodeCase(NamedTuple):
    """Some values, what they should hold, and whether each is decoded alone."""

    name: str
    values: list[bytes]
    encoded: Encoded
    one_by_one: bool = False

    def opened(self) -> Decode:
        """Open the decoding."""
        if self.one_by_one:
            return FramedDecoder(self.encoded, "AVRO", avro.compiled, name=avro.record_name)
        of_avro = bool(self.encoded.writer_schemas)
        return avro.opened(self.encoded) if of_avro else json_format.opened(self.encoded)


def cases(count: int) -> Iterator[DecodeCase]:
    """Yield what is decoded."""
    demo, fewer = (
        row_type(load_stream(_ROOT / path).ddl)
        for path in ("assets/streams/flights.yaml", "bench/flights.yaml")
    )
    of_flights, undeclared = flights(count), len(demo) - len(fewer)
    plain = list(plain_orders(count))
    yield DecodeCase("8 columns", plain, _encoded(row_type(_PLAIN)))
    exact = row_type(_PLAIN.replace("total DOUBLE", "total DECIMAL(12, 2)"))
    yield DecodeCase("8 columns, one DECIMAL", plain, _encoded(exact))
    yield DecodeCase(f"flights, {len(demo)} columns", of_flights, _encoded(demo))
    yield DecodeCase(f"flights, {undeclared} fields undeclared", of_flights, _encoded(fewer))
    yield DecodeCase("orders, with DECIMAL and objects", orders(count), _encoded(row_type(ORDERS)))
    yield of_avro(f"flights in Avro, {len(demo)} columns", demo, in_avro(of_flights, demo))
    for name, ddl in {"": NESTED, ", with a union": WITH_UNION}.items():
        nested = nested_in_avro(count, with_union=bool(name))
        in_columns = of_avro(f"nested orders in Avro{name}", row_type(ddl), nested)
        yield in_columns
        alone = f"{in_columns.name}, one by one"
        yield in_columns._replace(name=alone, values=nested[1][:_BATCH], one_by_one=True)


def of_avro(name: str, columns: StructType, written: tuple[str, list[bytes]]) -> DecodeCase:
    """Return what is decoded by a schema of Avro."""
    text, values = written
    schemas: dict[SchemaId, WriterSchema] = {1: WriterSchema(id=1, type="AVRO", text=text)}
    return DecodeCase(name, values, _encoded(columns, schemas))


def plain_orders(count: int) -> Iterator[bytes]:
    """Yield orders of one plain value a column."""
    chance = random.Random(1)
    for number in range(count):
        order = {
            "id": number,
            "customer": f"customer {chance.randrange(10**6)}",
            "total": chance.randrange(10**6) / 100,
            "placed_at": f"2024-02-{chance.randrange(10, 30)}T12:30:{chance.randrange(10, 60)}Z",
            "paid": chance.random() < 0.5,
            "note": "said later, perhaps",
            "quantity": chance.randrange(100),
            "region": "eu-west-1 b",
        }
        yield json.dumps(order).encode()


def _encoded(schema: StructType, schemas: Mapping[SchemaId, WriterSchema] | None = None) -> Encoded:
    return Encoded(
        schema=schema,
        is_key=False,
        options=FORMATS["avro" if schemas else "json"].options(),
        extra_fields="ignore",
        writer_schemas=schemas or {},
    )


def seconds(case: DecodeCase, rounds: int) -> float:
    """Return the seconds of CPU that all its values take, at best.

    Raises:
        ValueError: one of them is refused.
    """
    starts = range(0, len(case.values), _BATCH)
    batches = [pa.array(case.values[at : at + _BATCH], pa.binary()) for at in starts]
    costs = []
    for _ in range(rounds):
        decode, before = case.opened(), time.process_time()
        decoded = [decode(batch) for batch in batches]
        costs.append(time.process_time() - before)
        if any(each.field(1).null_count < len(each) for each in decoded):
            raise ValueError(f"{case.name}: a record is refused")
    return min(costs)


def main(count: int = RECORDS, rounds: int = ROUNDS) -> None:
    """Measure, and print what a CPU decodes in a second."""
    SparkSession.builder.master("local[1]").getOrCreate()  # Only Spark reads its own DDL.
    table = Table("decoded", "bytes a record", "records / CPU s")
    for case in cases(count):
        size = sum(map(len, case.values)) / len(case.values)
        table.add_row(case.name, f"{size:.0f}", f"{len(case.values) / seconds(case, rounds):,.0f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
