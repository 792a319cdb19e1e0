"""The ledger: one row a batch, and the memory that outlives Delta's log.

It is a projection: every row can be made again from the commit it describes, so it is written
after the commit, by MERGE on (table id, seq), and a crash in between is healed by the next run.
It is written by delta-rs, which takes milliseconds where a Spark MERGE takes a second.

Where commits are about to leave the log, a copy goes into the table's own folder first, and with
the table wherever that goes: a ledger that is lost is made again from log and copy together.
"""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from oncelake.ingestion.declaration.sinks import SinkSpec
from oncelake.ingestion.delta.commits import EXACTLY, commit_again
from oncelake.ingestion.delta.durability import seal_commits
from oncelake.ingestion.delta.files import is_delta, open_delta, open_whole, storage_options
from oncelake.ingestion.delta.integrity import refuse_damaged, translate_read_errors
from oncelake.ingestion.delta.log import DeltaLog
from oncelake.ingestion.delta.log_files import log_files
from oncelake.ingestion.errors import DamagedTableError
from oncelake.ingestion.kafka.last_record import LastRecord, LastRecords, of_rows, rows_of
from oncelake.ingestion.kafka.offsets import Offsets, TopicPartition
from oncelake.ingestion.lake.archive import archive_table
from oncelake.ingestion.lake.books import COUNTS, imbalances
from oncelake.ingestion.lake.lock import refuse_lost_lease
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.checksums import matches_checksum, seal
from oncelake.ingestion.storage.damage import damaged_table, stream_of
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_log import Commit
from oncelake.ingestion.tables.commit_metadata import (
    MOVING,
    REWOUND_TO,
    UNKNOWN,
    CountedRange,
    Identity,
    Kind,
    app_id,
)
from oncelake.ingestion.tables.format import marks, refuse_newer

_RANGE = pa.struct(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        **dict.fromkeys(("start", "end", "records", "gaps"), pa.int64()),
    }
)
SCHEMA = pa.schema(
    [
        pa.field("table_id", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("epoch", pa.int32(), nullable=False),
        pa.field("committed_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("delta_version", pa.int64(), nullable=False),
        pa.field("ranges", pa.list_(_RANGE)),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
        pa.field("balanced", pa.bool_()),
        pa.field("accepted", pa.string()),
        pa.field("identity", pa.string()),
        pa.field("format", pa.int32()),
        pa.field("oncelake", pa.string()),
    ]
)
_COMPOSED = frozenset({"ranges", "counts", "identity", "format", "oncelake"})
# Every run reads the whole ledger, and each row is written as a file of its own.
_MOST_FILES = 50
_SETTINGS = {"delta.checkpointInterval": "10"}


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerRow:
    """One batch, as the ledger remembers it; the fields are the table's columns.

    Beside them, ``last`` has the last record of each of its ranges, and ``problems`` says what does
    not balance; only the run that found it knows.
    """

    table_id: str
    seq: int
    kind: Kind
    epoch: int
    committed_at: dt.datetime
    run_id: str
    delta_version: int
    ranges: tuple[CountedRange, ...]
    counts: Mapping[str, int]
    balanced: bool
    accepted: str | None = None
    identity: Identity = UNKNOWN
    columns: str = ""
    erased: Mapping[str, Any] | None = None
    declaration: Mapping[str, Any] | None = None
    last: LastRecords = field(default_factory=dict)
    adopted: Mapping[str, Any] | None = None
    problems: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        commit: Commit,
        table_id: str,
        *,
        problems: Sequence[str] = (),
    ) -> LedgerRow:
        """Project a commit of ours; it balances when nothing was found wrong with it.

        Every count of the books is there by its name, those of 0 too.
        """
        metadata = commit.metadata
        assert metadata is not None, "a commit of ours has a note"
        read = {counted.range.topic_partition for counted in metadata.ranges}
        return cls(
            table_id=table_id,
            seq=metadata.seq,
            kind=metadata.kind,
            epoch=metadata.epoch,
            committed_at=commit.committed_at,
            run_id=metadata.run_id,
            delta_version=commit.version,
            ranges=metadata.ranges,
            counts={**dict.fromkeys(COUNTS, 0), **metadata.counts},
            balanced=not problems,
            # A batch that was let through the gate may still be red.
            accepted=None if problems and metadata.kind == "ingest" else metadata.reason,
            identity=metadata.identity,
            columns=metadata.columns,
            erased=metadata.erased,
            declaration=metadata.declaration,
            last={at: record for at, record in metadata.last.items() if at in read},
            adopted=metadata.adopted,
            problems=tuple(problems),
        )

    @property
    def sink(self) -> str:
        """The sink that its table is of: but for Delta, the ids begin so."""
        return self.table_id.rpartition(":")[0] or "delta"

    @property
    def declared_sink(self) -> SinkSpec:
        """The sink as it was declared then; without a table's name where nothing tells of it."""
        declared = (self.declaration or {}).get("sink")
        return SinkSpec.model_validate(declared or {self.sink: {}})

    @property
    def is_red(self) -> bool:
        """Tell whether the books of this batch do not balance and nobody has accepted that."""
        return not self.balanced and self.accepted is None

    def says(self) -> str:
        """Say what does not balance, from the counts."""
        lines = imbalances(self.counts, rows_of_seq=0, rows_expected=0, kind=self.kind)
        return "; ".join(self.problems or lines) or "the rows in the table were not those it wrote"

    def as_record(self) -> dict[str, Any]:
        """Return the columns of the table."""
        identity = {**self.identity.as_row(), "columns": self.columns}
        last = rows_of(self.last) or None
        more = {"erased": self.erased, "declaration": self.declaration, "last": last}
        more |= {"adopted": self.adopted}
        identity |= {name: value for name, value in more.items() if value is not None}
        return {
            **{name: getattr(self, name) for name in SCHEMA.names if name not in _COMPOSED},
            "identity": None if self.identity == UNKNOWN else json.dumps(identity),
            "ranges": [counted.as_row() for counted in self.ranges],
            "counts": list(self.counts.items()),
            **marks(),
        }

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> LedgerRow:
        """Read what ``as_record`` wrote."""
        identity = json.loads(record["identity"] or "{}")
        read = {
            "identity": Identity.of_row(identity) if identity else UNKNOWN,
            "columns": identity.get("columns", ""),
            "erased": identity.get("erased"),
            "declaration": identity.get("declaration"),
            "adopted": identity.get("adopted"),
            "last": of_rows(identity.get("last", {})),
            "ranges": tuple(map(CountedRange.of_row, record["ranges"])),
            "counts": record["counts"],
        }
        there = {name: record[name] for name in SCHEMA.names if name not in _COMPOSED}
        return cls(**{**there, **read})


class Ledger:
    """The ledger table of one stream."""

    def __init__(self, path: Location) -> None:
        self.path = path

    @property
    def exists(self) -> bool:
        """Tell whether the ledger has been written at least once."""
        return is_delta(self.path)

    def rows(self) -> tuple[LedgerRow, ...]:
        """Read every row, in the order in which the batches were committed.

        Raises:
            DamagedTableError: the ledger was written, and cannot be read any more.
        """
        log = DeltaLog(self.path)
        if log.has_lost_its_log:
            raise damaged_table(self.path, "its _delta_log is gone")
        if not log.exists:
            return ()
        refuse_damaged(log)
        with translate_read_errors(self.path):
            raw = open_whole(self.path, log.snapshot).to_table().to_pylist(maps_as_pydicts="strict")
            for record in raw:
                refuse_newer(stream_of(self.path), self.path, record)
            return _in_order(map(LedgerRow.of_record, raw))

    def rows_of(self, table_id: str) -> tuple[LedgerRow, ...]:
        """Read the rows of one table, by seq."""
        return LoadedLedger(rows=self.rows()).rows_of(table_id)

    def put(self, *rows: LedgerRow) -> None:
        """Write rows, replacing those of the same table and seq; doing it twice changes nothing.

        What a person has accepted meanwhile stays accepted.
        """
        self._write(rows, is_over=True)

    def add(self, *rows: LedgerRow) -> None:
        """Write the rows that are not there: one of the run that committed the batch knows more."""
        self._write(rows, is_over=False)

    def _write(self, rows: Sequence[LedgerRow], *, is_over: bool) -> None:
        if rows:
            written = pa.Table.from_pylist([row.as_record() for row in rows], schema=SCHEMA)
            commit_again(lambda: self._merge(written, is_over=is_over), self.path.name)

    def _merge(self, written: pa.Table, *, is_over: bool) -> None:
        if not self.exists:
            options = storage_options(self.path)
            DeltaTable.create(
                *(str(self.path), SCHEMA),
                mode="ignore",
                configuration=_SETTINGS,
                storage_options=options,
            )
            log_files(self.path).forget()
        table = open_delta(self.path)
        if _are_new(written, table):
            # Much cheaper, and it fails where somebody else has written since the look.
            write_deltalake(
                table, written, mode="append", schema_mode="merge", commit_properties=EXACTLY
            )
        else:
            _replace(table, written, is_over=is_over)
        if len(table.file_uris()) >= _MOST_FILES:
            table.optimize.compact()
        seal_commits(self.path)


def _are_new(rows: pa.Table, table: DeltaTable) -> bool:
    """Tell by the statistics of a ledger's files that none of them holds any of some rows."""
    files = pa.table(table.get_add_actions(flatten=True))
    names = ("min.table_id", "max.table_id", "min.seq", "max.seq")
    if not {*names} <= {*files.column_names}:
        return not files.num_rows
    known = list(zip(*(files[name].to_pylist() for name in names), strict=True))
    wanted = zip(rows["table_id"].to_pylist(), rows["seq"].to_pylist(), strict=True)
    return all(
        None not in file and not (file[0] <= table_id <= file[1] and file[2] <= seq <= file[3])
        for table_id, seq in wanted
        for file in known
    )


def _replace(table: DeltaTable, rows: pa.Table, *, is_over: bool) -> None:
    merger = table.merge(
        rows,
        "t.table_id = s.table_id AND t.seq = s.seq",
        source_alias="s",
        target_alias="t",
        merge_schema=True,
        # So the files are skipped, by their statistics, that hold none of these rows.
        streamed_exec=False,
    )
    if is_over:
        columns = {name: f"s.{name}" for name in SCHEMA.names}
        columns["accepted"] = "coalesce(s.accepted, t.accepted)"
        merger = merger.when_matched_update(columns)
    merger.when_not_matched_insert_all().execute()


def _in_order(rows: Iterable[LedgerRow]) -> tuple[LedgerRow, ...]:
    return tuple(sorted(rows, key=lambda row: (row.committed_at, row.seq)))


def copy_ledger(paths: StreamPaths) -> None:
    """Copy a stream's ledger into the folder of its table; needs the stream's lock."""
    records = [row.as_record() for row in Ledger(paths.ledger).rows()]
    written = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(records, schema=SCHEMA), written)
    # Without checksums it would not be doubted; with those of its predecessor it is not believed.
    paths.ledger_copy.put(written.getvalue())
    seal(paths.ledger_copy)


def _read_copy(paths: StreamPaths) -> tuple[LedgerRow, ...]:
    """Read the copy; nothing where there is none, or none that can be trusted."""
    content = paths.ledger_copy.read_if_there()
    if content is None or not matches_checksum(paths.ledger_copy, content):
        return ()
    try:
        records = pq.read_table(io.BytesIO(content)).to_pylist(maps_as_pydicts="strict")
    except pa.ArrowException:
        return ()
    for record in records:
        refuse_newer(paths.stream, paths.ledger_copy, record)
    return tuple(map(LedgerRow.of_record, records))


def written_seqs(seqs: Iterable[int]) -> str:
    """Write down seqs, those that follow one another by the first and the last."""
    runs: list[tuple[int, int]] = []
    for seq in sorted(seqs):
        if runs and runs[-1][1] == seq - 1:
            runs[-1] = (runs[-1][0], seq)
        else:
            runs.append((seq, seq))
    return ", ".join(
        f"{first} to {last}" if last > first + 1 else ", ".join(map(str, range(first, last + 1)))
        for first, last in runs
    )


def standing_rows(rows: Iterable[LedgerRow]) -> tuple[LedgerRow, ...]:
    """Return the rows of a table, by seq, that no later rewind has undone."""
    standing: list[LedgerRow] = []
    for row in rows:
        if row.kind == "rewind":
            standing = [kept for kept in standing if kept.seq <= row.counts[REWOUND_TO]]
        standing.append(row)
    return tuple(standing)


def next_offsets(rows: Sequence[LedgerRow]) -> Offsets:
    """Return the next offset of each partition that ``rows``, in order, have reached.

    Only those of the newest epoch count: the offsets of an earlier one mean other records.
    """
    reached = Offsets()
    for row in standing_rows(rows):
        if row.epoch == rows[-1].epoch and row.kind in MOVING:
            reached = reached.advanced_by(counted.range for counted in row.ranges)
    return reached


def last_records(rows: Sequence[LedgerRow]) -> LastRecords:
    """Return the last record that ``rows``, in order, have read of each partition of now."""
    read: dict[TopicPartition, LastRecord] = {}
    for row in standing_rows(rows):
        if row.epoch == rows[-1].epoch and row.kind in MOVING:
            # Of a range without one, a person has decided that it no longer counts.
            named = {counted.range.topic_partition for counted in row.ranges}
            read = {at: each for at, each in read.items() if at not in named} | dict(row.last)
    return read


def first_offsets(rows: Sequence[LedgerRow], topic_ids: Mapping[str, str] | None = None) -> Offsets:
    """Return where the newest epoch of a table's rows began in each partition.

    With ``topic_ids``, where any epoch did, of topics that had that id then.
    """
    begun: dict[TopicPartition, int] = {}
    for row in (each for each in standing_rows(rows) if each.kind in MOVING):
        is_newest, was = row.epoch == rows[-1].epoch, row.identity.topic_ids
        is_known = topic_ids is not None and row.identity != UNKNOWN
        for part in (counted.range for counted in row.ranges):
            topic = part.topic
            if was.get(topic) == (topic_ids or {}).get(topic) if is_known else is_newest:
                begun.setdefault(part.topic_partition, part.start)
    return Offsets(begun)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedLedger:
    """The ledger as it was found: its rows, or why it has none.

    Attributes:
        rows: In the order in which they were committed; none when it is damaged.
        copied: Those of them that only the copy has.
        damage: Why it could not be read.
        archived: Where the damaged one was moved.
    """

    rows: tuple[LedgerRow, ...] = ()
    copied: tuple[LedgerRow, ...] = ()
    damage: str | None = None
    archived: Location | None = None

    def rows_of(self, table_id: str) -> tuple[LedgerRow, ...]:
        """Return the rows of one table, by seq."""
        mine = (row for row in self.rows if row.table_id == table_id)
        return tuple(sorted(mine, key=lambda row: row.seq))

    def completed(self, paths: StreamPaths, table_id: str, last_seq: int) -> LoadedLedger:
        """Add the rows of a table that only the copy has."""
        lacking = lacking_seqs({row.seq for row in self.rows_of(table_id)}, last_seq)
        known = _read_copy(paths) if lacking else ()
        copied = tuple(row for row in known if row.table_id == table_id and row.seq in lacking)
        return replace(self, rows=_in_order((*self.rows, *copied)), copied=copied)


def lacking_seqs(known: Collection[int], last: int) -> set[int]:
    """Return the batches up to the last that are not known.

    Seq 0 opened the table, and is in the ledger only of one that was adopted: it may lack where
    nothing is known.
    """
    return set(range(1, last + 1)) - {*known} | (set() if known else {0})


def put_rows(paths: StreamPaths, *rows: LedgerRow) -> None:
    """Write rows into a stream's ledger, unless this run slept past its lease."""
    refuse_lost_lease(paths)
    Ledger(paths.ledger).put(*rows)


def known_paths(stream: str, settings: Settings, sink: SinkSpec | None) -> StreamPaths:
    """Return the places of a stream; without a ``sink``, its rows are where the ledger says.

    So it is of a file that cannot be read, or is gone: that declares no sink, and no other one.
    """
    paths = StreamPaths.of(stream, settings, sink)
    if sink is None and (known := load_ledger(paths).rows):
        return paths.at(known[-1].declared_sink)
    return paths


def load_ledger(paths: StreamPaths) -> LoadedLedger:
    """Read the ledger, and leave it as it is."""
    try:
        return LoadedLedger(rows=Ledger(paths.ledger).rows())
    except DamagedTableError as error:
        return LoadedLedger(damage=error.problem)


def refuse_newer_table(paths: StreamPaths) -> bool:
    """Make sure that the newest note which is whole is of no newer version; tell if there is one.

    Raises:
        NewerFormatError: it is.
    """
    with suppress(DamagedTableError):
        log = paths.table.log()
        for version in log.versions() if log.exists else ():
            with suppress(DamagedTableError):
                if app_id(paths.stream) in log.read(version).txns:
                    return True
    return False


def load_or_archive_ledger(paths: StreamPaths) -> LoadedLedger:
    """Read the ledger; a damaged one moves into the archive, so that it can be made again.

    It is a projection, so its damage is no reason to stop while the table's commits are there.
    Needs the stream's lock. Beside a table that is gone the ledger stays: it is the last trace.
    """
    ledger = load_ledger(paths)
    if ledger.damage is None or not paths.table.log().exists:
        return ledger
    # One that a newer version wrote is not damaged; its copy tells once its notes are gone.
    if not refuse_newer_table(paths) and not _read_copy(paths):
        remedy = f"restore it from a backup, or oncelake rebuild {paths.stream}"
        raise DamagedTableError(paths.stream, ledger.damage, remedy=remedy)
    (archived,) = archive_table(paths, [paths.ledger], why=ledger.damage)
    return replace(ledger, archived=archived)
