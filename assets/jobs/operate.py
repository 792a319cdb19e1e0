"""The operations of a stream in Dagster, so that no refusal needs a shell.

One job does them. Each is a class of its configuration, which the launchpad shows as a choice. A
decision requires a reason, and keeps it.

Dagster reads the annotations of a job's configuration, so this module does not postpone them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import dagster as dg
from pydantic import Field

from oncelake.assets.asset_specs import version_of
from oncelake.assets.failures import StreamFailureError, StreamRetryError, translate_errors
from oncelake.assets.jobs.jobs import STREAM_TAG, op_job
from oncelake.assets.translation import AS_DECLARED, Translation
from oncelake.ingestion.declaration.files.loader import find_stream
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import InvalidSpecError, StreamLockedError
from oncelake.ingestion.settings import Settings
from oncelake.resources.part import settings_of
from oncelake.resources.spark import SparkResource

if TYPE_CHECKING:
    from oncelake.ingestion.lake.ledger import LedgerRow

# As long as a run of the stream may well take: ten minutes.
_LOCKED_RETRIES, _LOCKED_SECONDS = 60, 10

_WHY = Field(description="Why; it is kept with what is decided.")


class At:
    """Where an operation is done: the stream, and the run that does it."""

    def __init__(
        self, spec: StreamSpec, settings: Settings, spark: SparkResource, run: dg.OpExecutionContext
    ) -> None:
        self.spec = spec
        self.settings = settings
        self.spark = spark
        self.run_id = run.run.run_id
        self.say = run.log.info


class RedriveQuarantine(dg.Config):
    """Send the quarantine through today's declaration again."""

    kind: Literal["redrive"] = "redrive"
    of_reason: str | None = Field(None, description="Only records that wait for this reason.")

    def execute(self, at: At) -> dict[str, Any]:
        """Redrive; red books fail the run."""
        from oncelake.ingestion.operations.quarantine.redrive import Redrive

        report = Redrive(
            spec=at.spec,
            settings=at.settings,
            spark=at.spark.session_for,
            run_id=at.run_id,
            reason=self.of_reason,
        ).execute()
        return {
            "waiting": report.waiting,
            "redriven": report.redriven,
            "still_bad": dict(report.still_bad),
            "red": red_of(report.batches),
        }


class Accept(dg.Config):
    """Accept a batch at the gate, a lost range, red books, or a table that somebody changed."""

    kind: Literal["accept"] = "accept"
    reason: str = _WHY
    batch: str | None = Field(None, description="The id of a batch at the gate: publish it.")

    def execute(self, at: At) -> dict[str, Any]:
        """Publish the batch that waits, or write the acceptance into table and ledger."""
        from oncelake.ingestion.operations import publish

        row = publish.publish_or_accept(
            at.spec,
            at.settings,
            at.spark.session_for,
            batch=self.batch,
            reason=self.reason,
            run_id=at.run_id,
            tell=at.say,
        )
        return {**_decided(row), "red": red_of((row,))}


class AdoptTopic(dg.Config):
    """Go on with a topic that was made again: rows stay, and it is read from its start."""

    kind: Literal["adopt_topic"] = "adopt_topic"
    reason: str = _WHY

    def execute(self, at: At) -> dict[str, Any]:
        """Begin a new epoch."""
        from oncelake.ingestion.operations import decisions

        row = decisions.adopt_topic(at.spec, at.settings, reason=self.reason, run_id=at.run_id)
        return _decided(row)


class RebuildTable(dg.Config):
    """Make the table anew beside the old one, and swap them; the old one is archived."""

    kind: Literal["rebuild"] = "rebuild"
    reason: str = _WHY
    without_lost: bool = Field(False, description="Go on without what Kafka no longer holds.")

    def execute(self, at: At) -> dict[str, Any]:
        """Rebuild; red books fail the run, and leave the old table in place."""
        from oncelake.ingestion.operations.history.archive import waiting_records
        from oncelake.ingestion.operations.history.rebuild import Rebuild
        from oncelake.ingestion.operations.run import Run

        run = Run(
            spec=at.spec,
            settings=at.settings,
            spark=at.spark.session_for,
            run_id=at.run_id,
            tell=at.say,
        )
        done = Rebuild(run=run, without_lost=self.without_lost, reason=self.reason).execute()
        return {
            "archived": done.old.named,
            "quarantined_archived": waiting_records(done.old.archived),
            "red": red_of(done.report.batches),
        }


class Reset(dg.Config):
    """Archive the tables: the next run ingests the topic from scratch."""

    kind: Literal["reset"] = "reset"
    reason: str = _WHY

    def execute(self, at: At) -> dict[str, Any]:
        """Archive the tables."""
        from oncelake.ingestion.operations import decisions
        from oncelake.ingestion.operations.history.archive import waiting_records

        name = at.spec.name
        done = decisions.reset(
            name, at.settings, reason=self.reason, run_id=at.run_id, sink=at.spec.sink
        )
        return {
            "archived": done.named,
            "quarantined_archived": waiting_records(done.archived),
        }


class ReplayOffsets(dg.Config):
    """Read offsets again that the table has read, and add what is missing."""

    kind: Literal["replay"] = "replay"
    begin: str = Field(description="earliest, a moment with its zone, or offsets as JSON.")
    end: str | None = Field(None, description="A moment, or offsets; none: all that was read.")

    def execute(self, at: At) -> dict[str, Any]:
        """Replay; red books fail the run."""
        from oncelake.ingestion.operations.history.replay import Replay

        report = Replay(
            spec=at.spec,
            settings=at.settings,
            spark=at.spark.session_for,
            run_id=at.run_id,
            begin=self.begin,
            end=self.end,
        ).execute()
        counts = {name: report.total(name) for name in ("read", "inserted", "overlap")}
        return {
            "ranges": [str(part) for part in report.ranges],
            **counts,
            "red": red_of(report.batches),
        }


class RewindTable(dg.Config):
    """Set table, side tables and next offsets back to a savepoint."""

    kind: Literal["rewind"] = "rewind"
    reason: str = _WHY
    to: str = Field(description="seq:41, version:57, or a moment with its zone.")

    def execute(self, at: At) -> dict[str, Any]:
        """Rewind: the next run reads on from the offsets of then."""
        from oncelake.ingestion.operations.history.rewind import rewind

        point, row = rewind(at.spec, at.settings, to=self.to, reason=self.reason, run_id=at.run_id)
        return {"back_at_seq": point.seq, **_decided(row)}


class OperateConfig(dg.Config):
    """On which stream which operation, with what it asks for."""

    stream: str = Field(description="The stream's name.")
    operation: (
        RedriveQuarantine | Accept | AdoptTopic | RebuildTable | Reset | ReplayOffsets | RewindTable
    ) = Field(discriminator="kind")


def operate_job(translation: Translation = AS_DECLARED) -> dg.JobDefinition:
    """Return the job that does any operation on a stream, as it is configured."""

    @dg.op(
        name=translation.name("operate"),
        required_resource_keys={*translation.resource_keys()},
        description="Redrive a stream, or decide what its runs are refused for",
    )
    def operate(
        context: dg.OpExecutionContext,
        config: OperateConfig,
    ) -> None:
        context.instance.add_run_tags(context.run.run_id, {STREAM_TAG: config.stream})
        with translate_errors(config.stream), _waiting_for_the_stream():
            _refuse_without_reason(config.operation)
            resources = translation.resources(context)
            settings, spark = settings_of(*resources), resources[-1]
            spec = find_stream(settings.streams, config.stream)
            done = config.operation.execute(At(spec, settings, spark, context))
        red = done.pop("red", "")
        context.add_output_metadata(done)
        if red:
            raise StreamFailureError(f"the books do not balance: {red}", metadata=done)

    # Killed, it may have taken effect: a second reset would archive what was read since.
    return op_job(operate, translation, is_run_again=False)


@contextmanager
def _waiting_for_the_stream() -> Iterator[None]:
    """Begin again where a run holds the stream: nothing was done."""
    try:
        yield
    except StreamLockedError as error:
        raise StreamRetryError(
            str(error), max_retries=_LOCKED_RETRIES, seconds_to_wait=_LOCKED_SECONDS
        ) from error


def _refuse_without_reason(operation: dg.Config) -> None:
    if not getattr(operation, "reason", "given").strip():
        raise InvalidSpecError("say why, in `reason`; it is kept with what is decided")


def _decided(row: "LedgerRow") -> dict[str, Any]:
    return {"seq": row.seq, **version_of(row.sink, row.delta_version), "epoch": row.epoch}


def red_of(batches: "tuple[LedgerRow, ...]") -> str:
    """Say which books do not balance; nothing when all do."""
    return "; ".join(row.says() for row in batches if row.is_red)
