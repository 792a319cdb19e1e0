"""The job that runs streams, and what all jobs share."""

from collections.abc import Sequence

import dagster as dg

from oncelake.assets.translation import AS_DECLARED, Translation
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.declaration.names import suggest
from oncelake.ingestion.errors import InvalidSpecError

INGEST_JOB = "ingest_job"
FOLLOW_JOB = "follow_job"
# On each run that sensor or schedule has asked for: the stream that it is of, or several by commas.
STREAM_TAG = "oncelake/stream"
_LAG_TAG = "oncelake/lag"


def ingest_job(
    streams: Sequence[DeclaredStream], translation: Translation = AS_DECLARED
) -> "dg.UnresolvedAssetJobDefinition":
    """Return the job that materializes the streams selected, in one process and one JVM."""
    return dg.define_asset_job(
        translation.name(INGEST_JOB),
        selection=dg.AssetSelection.assets(*(translation.key(each.name) for each in streams)),
        description="Read what Kafka holds now into the streams selected",
        executor_def=dg.in_process_executor,
    )


def run_of(
    stream: str, translation: Translation, *, run_key: str | None = None, unread: int = 0
) -> dg.RunRequest:
    """Request a run of one stream."""
    lag = {_LAG_TAG: str(unread)} if unread else {}
    return dg.RunRequest(
        job_name=translation.name(INGEST_JOB),
        asset_selection=[translation.key(stream)],
        run_key=run_key,
        tags={STREAM_TAG: stream, **lag},
    )


def joined(requests: Sequence[dg.RunRequest]) -> dg.RunRequest:
    """Return the run of several streams in place of one of each."""
    tags = [each.tags for each in requests]
    return dg.RunRequest(
        job_name=requests[0].job_name,
        asset_selection=[key for each in requests for key in each.asset_selection or ()],
        tags={
            STREAM_TAG: ",".join(each[STREAM_TAG] for each in tags),
            _LAG_TAG: str(sum(int(each.get(_LAG_TAG, 0)) for each in tags)),
        },
    )


def op_job(
    op: dg.OpDefinition, translation: Translation, *, is_run_again: bool = True
) -> dg.JobDefinition:
    """Return the job of one op, named after it, which runs in the process that starts it.

    Its step keeps the op's name in every translation, and with it the configuration of a run.

    Args:
        op: What it does, under its name in the translation.
        translation: Gives op and job their names.
        is_run_again: Whether Dagster's run retries may begin a run anew that has failed.
    """
    step = op.name.removeprefix(translation.prefix)
    graph = dg.GraphDefinition(
        name=f"{op.name}_job",
        description=op.description,
        node_defs=[op],
        dependencies={dg.NodeInvocation(op.name, alias=step): {}},
    )
    tags = {} if is_run_again else {"dagster/max_retries": "0"}
    return graph.to_job(executor_def=dg.in_process_executor, tags=tags)


def chosen(streams: Sequence[DeclaredStream], names: Sequence[str]) -> list[DeclaredStream]:
    """Return the streams of these names, or all when none is named.

    Raises:
        InvalidSpecError: there is none of a name: nothing to do would look like done.
    """
    by_name = {stream.name: stream for stream in streams}
    for name in names:
        if name not in by_name:
            raise InvalidSpecError(f"no stream is called {name!r}; {suggest(name, by_name)}")
    return [by_name[name] for name in dict.fromkeys(names)] if names else list(streams)
