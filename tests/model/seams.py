"""Where the model takes the place of Spark, Delta, delta-rs, Kafka and the kernel, nowhere else.

Everything that decides (``run``, ``start``, ``recovery``, ``healing``, ``position``, ``batch``,
``books``, ``offsets``, ``metadata``, ``accept``, ``adopt_topic``) is the product's own code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import oncelake.ingestion.delta.log
import oncelake.ingestion.lake.ledger
import oncelake.ingestion.lake.lock
import oncelake.ingestion.lake.side_tables
import oncelake.ingestion.lake.stream
import oncelake.ingestion.modes.mode
import oncelake.ingestion.operations.decisions
import oncelake.ingestion.operations.history.rewind
import oncelake.ingestion.operations.quarantine.redrive
import oncelake.ingestion.operations.run
import oncelake.ingestion.pipeline.batch
import oncelake.ingestion.pipeline.gaps
import oncelake.ingestion.pipeline.redrive_batch
import oncelake.ingestion.pipeline.schema.create_table
import oncelake.ingestion.pipeline.schema.evolve
import oncelake.ingestion.recovery.foreign_commits
import oncelake.ingestion.recovery.heal
import oncelake.ingestion.recovery.side_tables
import oncelake.ingestion.recovery.snapshot
import oncelake.ingestion.recovery.standing
import oncelake.ingestion.recovery.start
import oncelake.ingestion.recovery.topics
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import StreamLockedError
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.lake.lock import Holder
from tests.model import engine, evolution, frames, query, sink
from tests.model.lake import ModelLedger, ModelLog, OpenedSide
from tests.model.process import is_dead, step

if TYPE_CHECKING:
    from tests.model.world import World


@contextmanager
def simulated() -> Iterator[None]:
    """Let the product run on worlds in memory while the block runs."""
    with ExitStack() as stack:
        for owner, names in _seams():
            for name, replacement in names.items():
                stack.enter_context(patch.object(owner, name, replacement))
        yield


def _seams() -> tuple[tuple[Any, dict[str, Any]], ...]:
    itself: Any = lambda side: side  # noqa: E731 (as above)
    nothing: Any = lambda *given, **named: None  # noqa: E731 (one word in a table of words)
    paths = SimpleNamespace(of=lambda stream, world, sink=None: world.paths)
    outside = {"StreamPaths": paths, "Kafka": lambda world: world.cluster}
    return (
        (
            oncelake.ingestion.operations.run,
            {
                "Holder": SimpleNamespace(me=_me),
                "choose_engine": lambda stream: (stream.settings.engine, None),
                "refuse_missing_jars": nothing,
                "refuse_bad_condition": nothing,
                "refuse_bad_transformation": nothing,
                "evolve_schema": _evolve_schema,
                "keep_columns": evolution.keep_columns,
                "open_generation": open_generation,
                "probe_storage": nothing,
                "translate_engine_errors": lambda stream: nullcontext(),
                "read_stream": lambda spark, spec, world, starting, lag: query.Stream(
                    world, starting
                ),
                "drain": query.drain,
            },
        ),
        (
            oncelake.ingestion.pipeline.schema.create_table,
            {
                "allowed_changes": _if_followed(
                    oncelake.ingestion.pipeline.schema.create_table.allowed_changes
                ),
            },
        ),
        (
            oncelake.ingestion.recovery.topics,
            {"parse_columns": evolution.parsed},
        ),
        (
            oncelake.ingestion.recovery.snapshot,
            {
                "DeltaLog": ModelLog,
                "refuse_half_swapped": nothing,
            },
        ),
        (
            oncelake.ingestion.recovery.start,
            {"allowed_changes": _if_followed(oncelake.ingestion.recovery.start.allowed_changes)},
        ),
        (
            oncelake.ingestion.pipeline.schema.evolve,
            {"is_delta": lambda side: False, "refuse_bad_constraints": nothing},
        ),
        (StreamSpec, {"with_columns": evolution.with_columns}),
        (
            oncelake.ingestion.recovery.standing,
            {"end_half_done": lambda paths: ()},
        ),
        (
            oncelake.ingestion.lake.lock,
            {
                "held_by_python": held,
                "held_by_jvm": lambda spark, paths, holder: held(paths, holder),
            },
        ),
        (
            oncelake.ingestion.lake.ledger,
            {"DeltaLog": ModelLog, "Ledger": ModelLedger, "refuse_lost_lease": nothing},
        ),
        (oncelake.ingestion.lake.stream, outside),
        (oncelake.ingestion.modes.mode, {"read_back": sink.read_back}),
        (
            oncelake.ingestion.delta.log,
            {"log_files": lambda path: SimpleNamespace(forget=nothing)},
        ),
        (
            oncelake.ingestion.lake.side_tables,
            {
                "read_named": sink.read_named,
                "is_delta": lambda side: side.versions > 0,
                "open_delta": OpenedSide.of,
                "seal_commits": nothing,
                "refuse_lost_lease": nothing,
                "translate_read_errors": lambda path: nullcontext(),
            },
        ),
        (oncelake.ingestion.lake.side_tables._Projection, {"add": sink.add, "mark": sink.mark}),
        (
            oncelake.ingestion.recovery.side_tables,
            {
                "DeltaLog": ModelLog,
                "refuse_damaged": nothing,
                # No disk alters a file here.
                "damages_of": lambda log: iter(()),
                "count_rows": sink.count_rows,
            },
        ),
        (
            oncelake.ingestion.recovery.heal,
            {
                "Ledger": ModelLedger,
                "refuse_lost_lease": nothing,
                "translate_read_errors": lambda path: nullcontext(),
                "mode_class": lambda mode: sink.ModelUpsert,
            },
        ),
        (
            oncelake.ingestion.pipeline.batch,
            {
                "Ledger": ModelLedger,
                "decode": evolution.decode,
                "transform": frames.unchanged,
                "validate": frames.validate,
                "open_engine": engine.open_engine,
                "open_writer": lambda name, engine, stream, seq, version: SimpleNamespace(
                    version=version, close=nothing
                ),
                "count_records": frames.count_records,
                "refuse_lost_lease": nothing,
                "mode_class": lambda mode: sink.ModelUpsert,
                "read_delta": itself,
                "read_table": lambda spark, side, settings, version: side,
                "waiting_records": lambda side, reason: frames.Waiting(
                    side.world, tuple(side.waiting())
                ),
            },
        ),
        (oncelake.ingestion.pipeline.gaps, {"_holes_between": frames.holes_between}),
        (
            oncelake.ingestion.operations.decisions,
            {
                "archive_table": nothing,
                "held": lambda paths, run_id: held(paths, _me(run_id)),
            },
        ),
        (
            oncelake.ingestion.operations.quarantine.redrive,
            {
                "Ledger": ModelLedger,
                "translate_engine_errors": lambda stream: nullcontext(),
                "translate_read_errors": lambda path: nullcontext(),
            },
        ),
        (
            oncelake.ingestion.operations.quarantine.redrive.Redrive,
            {"_waiting": lambda _, paths: sink.waiting(paths.quarantine)},
        ),
        (
            oncelake.ingestion.pipeline.redrive_batch,
            {
                "count_records": frames.count_records,
            },
        ),
        (
            oncelake.ingestion.operations.history.rewind,
            {
                "StreamPaths": paths,
                "held": lambda paths, run_id: held(paths, _me(run_id)),
            },
        ),
    )


def _if_followed(honest: Any) -> Any:
    """Leave a part of the product to streams that follow a schema: others change no column."""

    def part(*given: Any, **named: Any) -> Any:
        spec = next(getattr(each, "spec", each) for each in given if each is not None)
        return honest(*given, **named) if spec.follows_schema else ()

    return part


def _evolve_schema(spark: Any, stream: Any, position: Any, **named: Any) -> Any:
    if not stream.spec.follows_schema:
        return position, ()
    return oncelake.ingestion.pipeline.schema.evolve.evolve_schema(spark, stream, position, **named)


def _me(run_id: str) -> Holder:
    return Holder(run_id=run_id, pid=1, host="model", since="now")


@contextmanager
def held(paths: Any, holder: Holder) -> Iterator[None]:
    """Hold the kernel's lock: it goes with the block or with the process, whichever ends first."""
    world: World = paths.world
    step("take the lock")
    if world.locking == "none":
        yield
        return
    if world.lock is not None:
        raise StreamLockedError(f"{holder.run_id}: {world.lock} holds the stream")
    world.lock = holder.run_id
    try:
        yield
    finally:
        if not is_dead() and world.lock == holder.run_id:
            world.lock = None


def open_generation(
    world: World, table_at: Offsets, **_: object
) -> tuple[query.Checkpoint, str | None]:
    """Begin a generation of the checkpoint at the table's offsets."""
    return query.Checkpoint(world, table_at), None
