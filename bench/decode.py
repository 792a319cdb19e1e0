"""What decoding costs: strict JSON beside a bare ``from_json``, and Avro by the record.

    python -m bench.decode [RECORDS [ROUNDS]]

One core, one JVM, values that lie in memory, results that go nowhere; the contenders take turns,
and the first rounds warm the JVM up and are not counted. CPU time is that of Python and the JVM,
compiling and collecting garbage included.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from rich.console import Console
from rich.table import Table

from bench.cpu import cpu_seconds
from bench.samples import ORDERS, flights, in_avro, orders, registry_that_knows
from ingestion.declaration.loader import load_stream
from ingestion.declaration.parts import FormatSpec
from ingestion.formats.decoder import decode
from ingestion.pipeline.schema import row_type
from ingestion.pipeline.session import start_session
from ingestion.settings import Settings, load_settings

RECORDS: Final = 100_000
ROUNDS: Final = 7
_WARM_UP: Final = 4
_ROOT: Final = Path(__file__).parents[1]


class DecodeCase(NamedTuple):
    """One way to decode.

    Attributes:
        name: What is decoded, and how.
        decoded: The frame that does it when it is written.
        bare: Name of the contender that decodes the same by ``from_json`` alone.
    """

    name: str
    decoded: DataFrame
    bare: str


class Cost(NamedTuple):
    """Seconds that one round took."""

    cpu: float
    wall: float


@contextmanager
def one_core() -> Iterator[SparkSession]:
    """Start Spark on one core, in a scratch folder."""
    scratch = Path(tempfile.mkdtemp(prefix="oncelake-bench-"))
    own = load_settings()
    settings = own.model_copy(update={"state": scratch, "spark_master": "local[1]"})
    try:
        yield start_session(settings)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def contenders(spark: SparkSession, count: int, registry: Settings) -> Iterator[DecodeCase]:
    """Yield each format strictly, and JSON by ``from_json`` alone."""
    demo, fewer = (
        row_type(load_stream(_ROOT / path).ddl)
        for path in ("assets/streams/flights.yaml", "bench/flights.yaml")
    )
    of_flights, of_orders = _held(spark, flights(count)), _held(spark, orders(count))
    samples = {
        f"flights, {len(demo)} columns": (of_flights, demo),
        f"flights, {len(demo) - len(fewer)} fields undeclared": (of_flights, fewer),
        "orders, with DECIMAL and objects": (of_orders, row_type(ORDERS)),
    }
    for name, (values, schema) in samples.items():
        yield DecodeCase(f"{name}: from_json", _bare(values, schema), "")
        yield DecodeCase(name, _strict(values, schema, "json", registry), f"{name}: from_json")


def _held(spark: SparkSession, values: list[bytes]) -> DataFrame:
    rows = [(bytearray(value),) for value in values]
    return spark.createDataFrame(rows, "_value BINARY").coalesce(1).localCheckpoint()


def _bare(values: DataFrame, schema: StructType) -> DataFrame:
    text = F.col("_value").cast("string")
    return values.withColumn("_said", F.from_json(text, schema))


def _strict(values: DataFrame, schema: StructType, format_: str, settings: Settings) -> DataFrame:
    return decode(
        values,
        FormatSpec(type=format_),
        column="_value",
        into="_said",
        schema=schema,
        extra_fields="ignore",
        settings=settings,
    )


def measured(all_: list[DecodeCase], rounds: int) -> dict[str, Cost]:
    """Let them take turns, and return the medians."""
    costs: dict[str, list[Cost]] = {each.name: [] for each in all_}
    for number in range(_WARM_UP + rounds):
        for each in all_:
            cpu, wall = cpu_seconds(os.getpid()), time.monotonic()
            each.decoded.write.format("noop").mode("overwrite").save()
            cost = Cost(cpu_seconds(os.getpid()) - cpu, time.monotonic() - wall)
            if number >= _WARM_UP:
                costs[each.name].append(cost)
    return {
        name: Cost(*(statistics.median(part) for part in zip(*each, strict=True)))
        for name, each in costs.items()
    }


def _table(all_: list[DecodeCase], costs: dict[str, Cost], count: int) -> Table:
    table = Table("decoded", "CPU s", "wall s", "records / CPU s", "CPU, from_json = 1", "wall")
    for each in all_:
        cost, bare = costs[each.name], costs.get(each.bare)
        ratios = [f"{mine / its:.2f}" for mine, its in zip(cost, bare, strict=True)] if bare else []
        table.add_row(
            each.name, f"{cost.cpu:.2f}", f"{cost.wall:.2f}", f"{count / cost.cpu:,.0f}", *ratios
        )
    return table


def main(count: int = RECORDS, rounds: int = ROUNDS) -> None:
    """Measure, and print medians and their ratios."""
    with one_core() as spark:
        demo = row_type(load_stream(_ROOT / "assets/streams/flights.yaml").ddl)
        schema, framed = in_avro(flights(count), demo)
        with registry_that_knows(schema) as address:
            settings = load_settings().model_copy(update={"schema_registry": address})
            all_ = list(contenders(spark, count, settings))
            avro = _strict(_held(spark, framed), demo, "avro", settings)
            all_.append(DecodeCase(f"flights in Avro, {len(demo)} columns", avro, ""))
            costs = measured(all_, rounds)
    Console(width=120).print(_table(all_, costs, count))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
