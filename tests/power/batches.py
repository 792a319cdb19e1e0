"""Batches of literal rows on a disk whose power is cut, again and again, without Kafka and Spark.

    the quarantine's file → table → quarantine → ledger, as a run writes them → cut, at a sync or
    at any moment → what is there is undone or healed, and is what so many batches make → the next

What batch N changes depends on N alone, so that the table says how many of them it must hold.
"""

from __future__ import annotations

import datetime as dt
import random
import secrets
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Final

import pyarrow as pa

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_type, system_columns
from oncelake.ingestion.delta.files import open_rows
from oncelake.ingestion.delta.integrity import refuse_damaged
from oncelake.ingestion.delta.log import DeltaLog
from oncelake.ingestion.errors import DamagedTableError
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.lake.ledger import Ledger, LedgerRow
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.side_tables import project, read_back
from oncelake.ingestion.modes.engines.local import LocalEngine
from oncelake.ingestion.recovery.heal import undo_half_written_commits
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.delta.table import DeltaSinkTable
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, Identity, SideFile
from oncelake.ingestion.tables.table import Change, TableDefinition
from tests.trials.judge import Acknowledged, committed_in, differences, lost_batches
from tests.trials.oracle import KnownRecord, newest_per_key
from tests.trials.power import Disk, PlannedCut, cut_while

STREAM: Final = "orders"
_COLUMNS: Final = (
    DeclaredColumn(name="id", type=parse_type("BIGINT"), nullable=True, comment=""),
    *system_columns(),
)
# A batch makes about so many syncs, and takes about so long.
_SYNCS, _SECONDS = 30, 0.5
_NOTE: Final = CommitMetadata(
    kind="ingest",
    seq=0,
    run_id="r",
    epoch=1,
    identity=Identity(cluster_id="c", topic_ids={}, keys=("id",), order=()),
    columns="id BIGINT",
    next=Offsets(),
    counts={"read": 3},
)


def rows_after(batches: int) -> list[tuple[int, int]]:
    """Return ids and their batches: batch N writes N and again N-1, and deletes N-3.

    The first is batch 0, as everywhere.
    """
    changes = (
        KnownRecord(place=(0, seq), values={"id": id}, is_delete=id == seq - 3)
        for seq in range(batches)
        for id in (seq, seq - 1, seq - 3)
        if id >= 0
    )
    return [(each.values["id"], each.place[1]) for each in newest_per_key(changes)]


@dataclass
class Subject:
    """A stream's tables on a disk.

    Attributes:
        acknowledged: The batches that were gone on from.
        undone: How many commits a power cut has left half-written.
    """

    disk: Disk
    acknowledged: Acknowledged = field(default_factory=dict)
    undone: int = 0

    @property
    def paths(self) -> StreamPaths:
        """The places of its tables."""
        folder = self.disk.path
        return StreamPaths.of(STREAM, Settings(lake=folder / "lake", state=folder / "state"))

    @property
    def table(self) -> DeltaSinkTable:
        """The table of its rows."""
        return DeltaSinkTable(STREAM, self.paths.data)

    def write(self, seq: int) -> None:
        """Write a batch as a run does."""
        if not self.table.log().exists:
            self.table.create(TableDefinition(columns=_COLUMNS, keys=("id",)))
        run_id = secrets.token_hex(8)
        side = self._quarantine(seq, run_id)
        metadata = replace(_NOTE, seq=seq, run_id=run_id, side={"quarantine": side})
        change = Change(
            inserted=_rows({seq}, seq),
            updated=_rows({seq - 1} if seq > 0 else set(), seq),
            deleted=pa.table({"id": pa.array([seq - 3] if seq > 2 else [], pa.int64())}),
        )
        with closing(self.table.begin(seq)) as transaction:
            transaction.commit(change, metadata)
        commit = self.table.log().find(STREAM, seq)
        assert commit is not None, f"batch {seq} is not in the log"
        self.table.seal()
        table_id = self.table.log().table_id()
        project(self.paths, metadata, table_id)
        Ledger(self.paths.ledger).put(LedgerRow.of(commit, table_id))
        self.acknowledged[seq] = run_id

    def _quarantine(self, seq: int, run_id: str) -> SideFile:
        bad, file = pa.table({"_seq": [seq], "run_id": [run_id]}), f"{run_id}.parquet"
        with (
            tempfile.TemporaryDirectory() as scratch,
            closing(LocalEngine(STREAM, Path(scratch))) as engine,
        ):
            engine.hold(bad)
            engine.write_parquet("SELECT * FROM batch", self.paths.quarantine / file)
        return read_back(self.paths.quarantine / file)

    def heal(self) -> int:
        """Undo what is half-written, as a run does, and return how many batches are there."""
        self.undone += len(list(undo_half_written_commits(self.paths)))
        log = self.table.log()
        if not log.exists:
            return 0
        self.table.seal()
        for commit in reversed([*log.newest_first()]):
            if commit.metadata:
                project(self.paths, commit.metadata, log.table_id())
        last = log.last_seq(STREAM)
        return 0 if last is None else last + 1

    def problems(self, batches: int) -> Iterator[str]:
        """Yield what is wrong with tables that should hold so many batches."""
        logs = [DeltaLog(table) for table in self.paths.tables]
        try:
            for log in logs:
                if log.exists:
                    refuse_damaged(log)
        except DamagedTableError as error:
            yield str(error)
            return
        if logs[0].exists:
            found = open_rows(self.paths.data).to_table(columns=["id", "_seq"]).to_pylist()
            there = [(row["id"], row["_seq"]) for row in found]
            yield from differences(there, rows_after(batches))
        yield from self._lost(committed_in(logs[0].standing()))

    def _lost(self, made: Acknowledged) -> Iterator[str]:
        """Yield what log, ledger and quarantine have of other batches than those of the log."""
        entered = committed_in(Ledger(self.paths.ledger).rows())
        for place, there in (("log", made), ("ledger", entered)):
            yield from lost_batches(self.acknowledged, there, place)
        if unknown := entered.items() - made.items():
            yield f"the ledger has batches that nobody committed: {unknown}"
        is_there = DeltaLog(self.paths.quarantine).exists
        bad = open_rows(self.paths.quarantine).to_table().to_pylist() if is_there else []
        kept = [(row["_seq"], row["run_id"]) for row in bad]
        for batch in made.items():
            if kept.count(batch) != 1:
                yield f"batch {batch} has {kept.count(batch)} rows in quarantine"


def _rows(ids: set[int], seq: int) -> pa.Table:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    row = {"_topic": "t", "_partition": 0, "_offset": 0, "_timestamp": at, "_epoch": 1, "_seq": seq}
    types = [("id", pa.int64()), ("_topic", pa.string()), ("_partition", pa.int32())]
    types += [("_offset", pa.int64()), ("_timestamp", pa.timestamp("us", "UTC"))]
    types += [("_epoch", pa.int32()), ("_seq", pa.int64())]
    return pa.Table.from_pylist([{"id": each, **row} for each in sorted(ids)], pa.schema(types))


def cut_while_writing(subject: Subject, dice: random.Random) -> tuple[str, ...]:
    """Write batches until the power is cut, and return what is wrong then."""
    batches, at_sync = subject.heal(), dice.random() < 0.5
    cut = PlannedCut(
        sync=dice.randint(1, 2 * _SYNCS) if at_sync else None,
        seconds=None if at_sync else dice.uniform(0, 2 * _SECONDS),
    )

    def write(over: threading.Event) -> None:
        for seq in count(batches):
            if over.is_set():
                return
            subject.write(seq)

    cut_while(subject.disk, cut, dice, write)
    return tuple(subject.problems(subject.heal()))
