"""The line of a batch as far as its judgement, on literal records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from pyspark.sql import DataFrame

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.modes.engines.frame_cache import FrameCache
from oncelake.ingestion.modes.engines.rows import Rows
from oncelake.ingestion.pipeline.decode import decode
from oncelake.ingestion.pipeline.plan import compile_plan
from oncelake.ingestion.pipeline.statements.transform import plan_transformation, transform
from oncelake.ingestion.pipeline.validate import validate
from oncelake.ingestion.settings import Settings


@contextmanager
def stages(
    records: DataFrame,
    spec: StreamSpec,
    reached: Offsets | None = None,
    constraints: Mapping[str, str] | None = None,
) -> Iterator[tuple[Rows, ...]]:
    """Give out what each stage makes of records: decoded, transformed, validated."""
    with closing(FrameCache()) as frames:
        plan = compile_plan(spec)
        decoded = decode(records, plan.decode, Stream(spec=spec, settings=Settings()), frames)
        by = plan_transformation(records.sparkSession, plan.rows)
        transformed = transform(decoded, plan.rows, frames, by)
        validated = validate(transformed, plan.judge, reached or Offsets(), constraints or {})
        yield decoded, transformed, validated


def judged(
    records: DataFrame,
    spec: StreamSpec,
    reached: Offsets | None = None,
    constraints: Mapping[str, str] | None = None,
) -> Rows:
    """Judge records of a stream that declares no function, whose frames would have to be kept."""
    with stages(records, spec, reached, constraints) as (*_, validated):
        return validated
