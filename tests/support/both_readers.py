"""What engine and proof make of the same records, each by its own code, without Spark and Kafka."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.modes.engines.local import LocalEngine
from oncelake.ingestion.operations.init.decode_sample import judge_here, table_of
from oncelake.ingestion.operations.init.sample import SampledRecord, TopicSample
from oncelake.ingestion.pipeline.plan import compile_plan
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.fold.classify import Classified, Classifier
from oncelake.ingestion.verify.read.record import Record

Headers = tuple[tuple[str, bytes | None], ...]


class Sent(NamedTuple):
    """A record as it is sent."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()


def declared(**fields: Any) -> StreamSpec:
    """Return a small stream of topic ``t``."""
    base = {"name": "s", "topic": "t", "schema": "id BIGINT, name STRING", "keys": ["id"]}
    return StreamSpec.model_validate({**base, **fields})


def batch_of(spec: StreamSpec, settings: Settings, records: Sequence[Sent]) -> pa.Table:
    """Return the judged batch that the engine makes of records, as its worker does."""
    sample = TopicSample(
        topic="t",
        partitions=1,
        ranges=(),
        records=tuple(
            SampledRecord(0, offset, 1_000 * offset, each.key, each.value, each.headers)
            for offset, each in enumerate(records)
        ),
    )
    table = table_of(sample.topic, sample.records)
    rows = judge_here(table, compile_plan(spec), settings)
    with duckdb.connect(config={"autoload_known_extensions": "false"}) as tables:
        tables.execute("SET TimeZone = 'UTC'")
        tables.register("decoded", rows.here())
        return tables.sql(f"SELECT * FROM ({rows.sql}) ORDER BY _offset").to_arrow_table()


def judged(spec: StreamSpec, settings: Settings, records: Sequence[Sent]) -> list[dict[str, Any]]:
    """Return the engine's judgement of each record."""
    rows: list[dict[str, Any]] = batch_of(spec, settings, records).to_pylist()
    return rows


def classified(spec: StreamSpec, settings: Settings, records: Sequence[Sent]) -> Classified:
    """Return the proof's judgement of the same records."""
    sent = (
        Record("t", 0, offset, 1_000 * offset, each.key, each.value, each.headers)
        for offset, each in enumerate(records)
    )
    return Classifier(spec, settings=settings).classify(sent, seq=1)


@contextmanager
def engine_of(batch: pa.Table) -> Iterator[LocalEngine]:
    """Yield the local engine that holds a batch."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        closing(LocalEngine("s", Path(scratch))) as engine,
    ):
        engine.hold(batch)
        yield engine
