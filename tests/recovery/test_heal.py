"""What a crash, or a hand, took from the ledger comes back from the table's own log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import CommitConflictError
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.lake.ledger import Ledger, LedgerRow
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.recovery.heal import heal_ledger
from oncelake.ingestion.recovery.position import position_of
from oncelake.ingestion.recovery.snapshot import read_snapshot
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, Identity

SPEC = StreamSpec.model_validate(
    {"name": "s", "topic": "t", "schema": "id INT NOT NULL", "keys": ["id"]}
)


@pytest.fixture
def paths(tmp_path: Path) -> StreamPaths:
    """A table that was opened, and no more."""
    places = StreamPaths.of("s", Settings(lake=tmp_path / "lake", state=tmp_path / "state"))
    empty = pa.schema([("id", pa.int32()), ("_seq", pa.int64())]).empty_table()
    write_deltalake(places.data.path, empty)
    decide(places, 0)
    return places


def decide(
    paths: StreamPaths, seq: int, *, accepts: tuple[int, ...] = (), run_id: str = "r"
) -> LedgerRow:
    """Commit a person's word, and return the ledger row that it should have."""
    metadata = CommitMetadata(
        kind="accept",
        seq=seq,
        run_id=run_id,
        epoch=1,
        identity=Identity(cluster_id="c", topic_ids={"t": "x"}, keys=("id",), order=()),
        columns="id INT",
        next=Offsets(),
        reason="why",
        accepts=accepts,
    )
    commit = paths.table.commit_note(metadata)
    return LedgerRow.of(commit, DeltaTable(paths.data.path).metadata().id)


def healed(paths: StreamPaths) -> list[int]:
    """Heal, and list the seqs of the rows that were missing."""
    snapshot = read_snapshot(paths)
    position = position_of(snapshot)
    assert position is not None
    return [row.seq for row in heal_ledger(SPEC, snapshot, position).recovered]


def test_a_hole_in_the_ledger_is_filled(paths: StreamPaths) -> None:
    """Rows that are missing below one that is there come back, too."""
    rows = [decide(paths, seq) for seq in (1, 2, 3, 4)]
    ledger = Ledger(paths.ledger)
    ledger.put(rows[0], rows[3])

    found = healed(paths)

    assert found == [2, 3]
    assert ledger.rows() == tuple(rows)
    assert healed(paths) == []


def test_a_decision_is_honoured_after_a_crash(paths: StreamPaths) -> None:
    """Accepted in a commit, red in the ledger: the person is not asked a second time."""
    red = replace(decide(paths, 1), balanced=False, accepted=None)
    ledger = Ledger(paths.ledger)
    ledger.put(red)
    decide(paths, 2, accepts=(1,))

    found = healed(paths)

    assert found == [2]
    assert [(row.seq, row.is_red, row.accepted) for row in ledger.rows()] == [
        (1, False, "why"),
        (2, False, "why"),
    ]


def test_a_decision_is_honoured_though_the_ledger_forgot_the_batch(paths: StreamPaths) -> None:
    """The row of the batch is made again, and what accepts it is in the log, and in the ledger."""
    decide(paths, 1)
    decision = decide(paths, 2, accepts=(1,))
    Ledger(paths.ledger).put(decision)

    assert healed(paths) == [1]

    assert [row.accepted for row in Ledger(paths.ledger).rows()] == ["why", "why"]


def test_a_decision_never_takes_a_seq_that_is_taken(paths: StreamPaths) -> None:
    """A writer that was overtaken is told so, instead of committing the same seq twice."""
    decide(paths, 1)

    with pytest.raises(CommitConflictError, match="holds seq 1 as its last"):
        decide(paths, 1, run_id="another")

    assert len(DeltaTable(paths.data.path).history()) == 3
