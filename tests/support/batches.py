"""The line of a batch as far as its judgement, on literal records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame

from ingestion.declaration.spec import StreamSpec
from ingestion.kafka.offsets import Offsets
from ingestion.lake.stream import Stream
from ingestion.pipeline.decode import decode
from ingestion.pipeline.explode import explode
from ingestion.pipeline.frame_cache import FrameCache
from ingestion.pipeline.transform import transform
from ingestion.pipeline.validate import validate
from ingestion.settings import Settings


@contextmanager
def stages(records: DataFrame, spec: StreamSpec) -> Iterator[tuple[DataFrame, ...]]:
    """Give out what each stage makes of records: decoded, exploded, transformed, validated."""
    with FrameCache() as frames:
        decoded = decode(records, Stream(spec=spec, settings=Settings()), frames)
        exploded = explode(decoded, spec)
        transformed = transform(exploded, spec, frames)
        yield decoded, exploded, transformed, validate(transformed, spec, Offsets())


def judged(records: DataFrame, spec: StreamSpec, reached: Offsets | None = None) -> DataFrame:
    """Judge records of a stream that declares no function, whose frames would have to be kept."""
    with FrameCache() as frames:
        decoded = decode(records, Stream(spec=spec, settings=Settings()), frames)
        transformed = transform(explode(decoded, spec), spec, frames)
        return validate(transformed, spec, reached or Offsets())
