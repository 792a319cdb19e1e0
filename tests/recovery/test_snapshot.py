"""What a run is refused for, and where it goes on, follows from the snapshot alone."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oncelake.ingestion.declaration.sinks import SinkSpec
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import (
    ForeignTableError,
    IdentityChangedError,
    OffsetsUnknownError,
    RefusedError,
    SideTableIncompleteError,
    TableAlteredError,
    TableReplacedError,
    TableRestoredError,
    TableRolledBackError,
    TableSettingsError,
)
from oncelake.ingestion.kafka.offsets import Offsets, Range, TopicPartition
from oncelake.ingestion.lake.ledger import LedgerRow, LoadedLedger
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.recovery.heal import UnrecordedCommit, plan_healing
from oncelake.ingestion.recovery.position import position_of, red_batches
from oncelake.ingestion.recovery.side_tables import Held, SideTable, refuse_incomplete
from oncelake.ingestion.recovery.snapshot import TableSnapshot, TableState
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.tables.commit_log import Commit
from oncelake.ingestion.tables.commit_metadata import (
    UNKNOWN,
    CommitMetadata,
    CountedRange,
    Identity,
)
from tests.support.world import changed

PATHS = StreamPaths.of("orders", Settings(lake=Path("/lake"), state=Path("/state")))
SPEC = StreamSpec.model_validate(
    {"name": "orders", "topic": "orders", "schema": "id INT NOT NULL", "keys": ["id"]}
)
IDENTITY = Identity(cluster_id="c", topic_ids={"orders": "t"}, keys=("id",), order=())
AT = TopicPartition("orders", 0)


def metadata(seq: int, **fields: Any) -> CommitMetadata:
    """Return what a commit that read ten records says of itself."""
    counts = {"offsets": 10, "read": 10, "gaps": 0, "inserted": 10}
    begun = (seq - 1) * 10
    part = Range(topic="orders", partition=0, start=begun, end=begun + 10)
    return CommitMetadata(
        **{
            "kind": "ingest",
            "seq": seq,
            "run_id": "r",
            "epoch": 1,
            "identity": IDENTITY,
            "columns": SPEC.ddl,
            "ranges": (CountedRange(range=part, records=10, gaps=0),),
            "next": Offsets({AT: part.end}),
            "counts": counts,
            **fields,
        }
    )


def commit(version: int, made: CommitMetadata | None, **fields: Any) -> Commit:
    """Return a commit of ours that inserted ten rows, or of somebody else."""
    return Commit(
        **{
            "version": version,
            "timestamp_ms": 0,
            "operation": "MERGE",
            "metrics": {"numTargetRowsInserted": 10},
            "txns": {"oncelake:orders": made.seq} if made else {},
            "changes_rows": True,
            "metadata": made,
            **fields,
        }
    )


def row(seq: int, **fields: Any) -> LedgerRow:
    """Return the ledger's row of a batch that inserted ten rows."""
    projected = LedgerRow.of(commit(seq, metadata(seq)), "id")
    return replace(projected, **{"committed_at": dt.datetime.now(dt.UTC), **fields})


def snapshot(*rows: LedgerRow, table: TableState | None = None, **fields: Any) -> TableSnapshot:
    """Return a stream whose ledger holds ``rows``."""
    return TableSnapshot(paths=PATHS, table=table, ledger=LoadedLedger(rows=rows), **fields)


def table(seq: int | None, newest: Commit | None, **fields: Any) -> TableState:
    """Return the state of the table that the ledger knows."""
    return TableState(**{"table_id": "id", "seq": seq, "newest": newest, **fields})


HEALTHY = table(2, commit(2, metadata(2)))


def test_a_commit_tells_the_position_before_the_ledger() -> None:
    """Offsets come from the newest commit, also while the ledger lacks its row."""
    at = position_of(snapshot(row(1), table=HEALTHY))

    assert at is not None
    assert (at.seq, at.source, at.next, at.columns) == (2, "commit", {AT: 20}, SPEC.ddl)


def test_the_ledger_tells_the_position_once_the_commits_have_aged_out() -> None:
    """Ranges of the ledger's rows add up to the offsets."""
    at = position_of(snapshot(row(1), row(2), table=table(2, None)))

    assert at is not None
    assert (at.seq, at.source, at.next, at.identity) == (2, "ledger", {AT: 20}, IDENTITY)


def test_rows_tell_no_offsets() -> None:
    """Where nothing remembers what was read, there is an epoch to go beyond, and no more."""
    aged = snapshot(table=table(2, None, highest_epoch=3))

    at = position_of(aged, OffsetsUnknownError)

    assert at is not None
    assert (at.source, at.epoch, at.next, at.identity) == ("rows", 3, {}, UNKNOWN)
    with pytest.raises(OffsetsUnknownError):
        position_of(aged)


@pytest.mark.parametrize(
    "nothing",
    [
        pytest.param(snapshot(), id="no table"),
        pytest.param(snapshot(table=table(None, None, is_empty=True)), id="empty table"),
    ],
)
def test_a_stream_without_a_table_has_no_position(nothing: TableSnapshot) -> None:
    """A first run, or one that died before its first commit, begins from nothing."""
    assert position_of(nothing) is None


@pytest.mark.parametrize(
    ("found", "error"),
    [
        pytest.param(snapshot(row(1)), TableReplacedError, id="table gone beside its ledger"),
        pytest.param(
            snapshot(row(2), table=replace(HEALTHY, table_id="other")),
            TableReplacedError,
            id="another table",
        ),
        pytest.param(
            snapshot(row(1), row(2), row(3), table=HEALTHY), TableRolledBackError, id="older copy"
        ),
        pytest.param(snapshot(has_stray_files=True), ForeignTableError, id="files without a log"),
        pytest.param(snapshot(table=table(None, None)), ForeignTableError, id="not ours"),
        pytest.param(
            snapshot(table=replace(HEALTHY, others=(commit(3, None, operation="DELETE"),))),
            TableAlteredError,
            id="altered",
        ),
        pytest.param(
            snapshot(
                table=replace(
                    HEALTHY, others=(commit(3, None, operation="RESTORE", changes_rows=False),)
                )
            ),
            TableRestoredError,
            id="restored",
        ),
        pytest.param(
            snapshot(
                table=replace(HEALTHY, settings_error=TableSettingsError("o", "p", remedy="r"))
            ),
            TableSettingsError,
            id="forbidden setting",
        ),
    ],
)
def test_a_table_that_is_not_the_one_we_left_is_refused(
    found: TableSnapshot, error: type[RefusedError]
) -> None:
    """Each way to be another table has an error of its own."""
    with pytest.raises(error):
        position_of(found)


def test_another_table_of_the_same_sink_is_named() -> None:
    """What was renamed by hand is the same table; one without a name in the ledger is gone."""
    old, new = (SinkSpec.model_validate({"iceberg": {"table": f"shop.{n}"}}) for n in ("a", "b"))
    declared = {"sink": old.model_dump(exclude_unset=True)}
    known = row(2, table_id="iceberg:1", declaration=declared)
    gone, unnamed, renamed = (
        replace(found, paths=StreamPaths.of("orders", PATHS.settings, new))
        for found in (
            snapshot(known),
            snapshot(replace(known, declaration=None)),
            snapshot(known, table=replace(HEALTHY, table_id=known.table_id)),
        )
    )

    with pytest.raises(IdentityChangedError, match=r"of shop\.a .* declares shop\.b .* rebuild"):
        position_of(gone)
    with pytest.raises(TableReplacedError, match=r"at shop\.b .* gone"):
        position_of(unnamed)
    at = position_of(renamed)
    assert at is not None
    assert at.seq == 2


def test_compaction_by_somebody_else_concerns_nobody() -> None:
    """A commit that moves rows to other files leaves the position as it was."""
    moved = replace(HEALTHY, others=(commit(3, None, operation="OPTIMIZE", changes_rows=False),))

    at = position_of(snapshot(table=moved))

    assert at is not None
    assert at.seq == 2


def test_an_unrecorded_batch_is_projected_from_its_commit() -> None:
    """Counts come from its note; rows that are missing make it red."""
    lacking = UnrecordedCommit(commit=commit(2, metadata(2)), rows_of_seq=10)

    whole = plan_healing(SPEC, "id", [row(1)], [lacking])
    short = plan_healing(SPEC, "id", [row(1)], [replace(lacking, rows_of_seq=9)])

    assert [(each.seq, each.balanced) for each in whole.rows] == [(1, True), (2, True)]
    assert [each.seq for each in whole.recovered] == [2]
    assert whole.recovered[0].counts["inserted"] == 10
    (finding,) = red_batches(PATHS, short.rows)
    assert re.search(
        r"batch 2 .*rewind orders --to seq:1 --reason .*oncelake rebuild", str(finding)
    )


@pytest.mark.parametrize(
    ("sink", "says"),
    [
        pytest.param(
            "postgres", "If they are wrong, oncelake rebuild orders; if", id="no way back"
        ),
        pytest.param(
            "kafka",
            "If they are wrong, declare another table or topic in `sink`, and oncelake rebuild o",
            id="no other in its place",
        ),
    ],
)
def test_a_red_batch_is_refused_with_what_its_sink_can_do(sink: str, says: str) -> None:
    """No remedy is one that would be refused, too."""
    settings = changed(PATHS.settings, kafka="localhost:9", postgres="postgresql://o@localhost:9/o")
    paths = StreamPaths.of("orders", settings, SinkSpec.model_validate({sink: {}}))

    (finding,) = red_batches(paths, [row(1, balanced=False)])
    assert says in str(finding)


def test_an_unrecorded_acceptance_reaches_the_batch_it_accepts() -> None:
    """A red batch stays red, with the reason beside it."""
    red = row(1, balanced=False)
    made = metadata(2, kind="accept", reason="known", accepts=(1,), ranges=(), counts={})

    healing = plan_healing(
        SPEC, "id", [red], [UnrecordedCommit(commit=commit(2, made), rows_of_seq=0)]
    )

    assert [(each.seq, each.accepted) for each in healing.accepted] == [(1, "known")]
    assert not list(red_batches(PATHS, healing.rows))


@pytest.mark.parametrize(
    ("side", "sentence"),
    [
        pytest.param(
            SideTable(path=PATHS.quarantine, newest=Held(seq=4, written=3, there=2)),
            "holds 2 rows of batch 4, which wrote 3",
            id="rows",
        ),
        pytest.param(
            SideTable(path=PATHS.quarantine, redriven=Held(seq=5, written=2, there=0)),
            "holds 0 records that batch 5 has redriven, of 2",
            id="marks",
        ),
    ],
)
def test_a_side_table_that_is_short_of_rows_is_refused(side: SideTable, sentence: str) -> None:
    """The refusal names the batch, and both numbers."""
    with pytest.raises(SideTableIncompleteError, match=sentence):
        refuse_incomplete(side)


def test_a_side_table_that_holds_what_was_written_passes() -> None:
    """Rows that are there more than once are for the proof to find."""
    held = Held(seq=4, written=3, there=3)

    refuse_incomplete(SideTable(path=PATHS.quarantine, newest=held, redriven=held))
