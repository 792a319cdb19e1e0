"""The job that runs a stream, and what all jobs share."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import dagster as dg

from ingestion.declaration.loader import DeclaredStream
from ingestion.declaration.names import suggest
from ingestion.declaration.spec import StreamSpec
from ingestion.errors import InvalidSpecError

StreamOrSpec = TypeVar("StreamOrSpec", DeclaredStream, StreamSpec)


def job_name(stream: str) -> str:
    """Return the name of a stream's job."""
    return f"ingest_{stream}_job"


def sensor_name(stream: str) -> str:
    """Return the name of the sensor that starts a stream's runs."""
    return f"{stream}_lag"


FOLLOW_JOB = "follow_job"
FOLLOW_SENSOR = "follow"


def ingest_job(stream: str) -> "dg.UnresolvedAssetJobDefinition":
    """Return the job that materializes one stream, in one process and one JVM."""
    return dg.define_asset_job(
        job_name(stream),
        selection=[stream],
        description=f"Read what Kafka holds now into {stream}",
        executor_def=dg.in_process_executor,
    )


def op_job(
    op: dg.OpDefinition, description: str, tags: Mapping[str, str] | None = None
) -> dg.JobDefinition:
    """Return the job of one op, named after it, which runs in the process that starts it."""
    graph = dg.GraphDefinition(name=f"{op.name}_job", description=description, node_defs=[op])
    return graph.to_job(executor_def=dg.in_process_executor, tags=tags)


def chosen(streams: Sequence[StreamOrSpec], names: Sequence[str]) -> list[StreamOrSpec]:
    """Return the streams of these names, or all when none is named.

    Raises:
        InvalidSpecError: there is none of a name: nothing to do would look like done.
    """
    by_name = {stream.name: stream for stream in streams}
    for name in names:
        if name not in by_name:
            raise InvalidSpecError(f"no stream is called {name!r}; {suggest(name, by_name)}")
    return [by_name[name] for name in dict.fromkeys(names)] if names else list(streams)
