"""A whole proof in columns: the records of all batches, what they come to, and the table's rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, cast

import duckdb
import pyarrow as pa
from confluent_kafka import Message

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.verify.columns import NotInColumnsError
from oncelake.ingestion.verify.columns.events import SENT, Events, RowColumns
from oncelake.ingestion.verify.columns.fold import FoldQueries
from oncelake.ingestion.verify.columns.memory import (
    ProofMemory,
    ProofMemoryError,
    events_of,
    save_memory,
    tables_of,
)
from oncelake.ingestion.verify.columns.records import Records, Run, decoding_of
from oncelake.ingestion.verify.columns.versions import VersionQueries
from oncelake.ingestion.verify.compare.continuity import refuse_another_log
from oncelake.ingestion.verify.compare.quarantine import BadRecord
from oncelake.ingestion.verify.fold.redrives import Redrives
from oncelake.ingestion.verify.fold.rule import FoldContext, Recount
from oncelake.ingestion.verify.read.record import SYSTEM_COLUMNS, Record
from oncelake.ingestion.verify.read.snapshot import Batch
from oncelake.ingestion.verify.read.spill import SpillTable
from oncelake.ingestion.verify.read.topic import TopicReader, record_of
from oncelake.ingestion.verify.verdict import Difference

_AT_ONCE: Final = 100_000
_MOST_BYTES: Final = 64 * 1024 * 1024
# Batches of records, and those that change no row.
_READS: Final = frozenset({"ingest", "redrive", "replay"})
_IDLE: Final = frozenset({"schema", "rewind"})
_LEFT_OUT: Final = {"keep": "columns_kept", "null": "columns_unavailable"}
# Places of rows that are due and not found, or found and not due, the first of them.
_DIFFERING: Final = """
SELECT tp, off, bool_or(is_due), bool_or(NOT is_due) FROM (
    SELECT tp, off, TRUE AS is_due FROM (FROM expected EXCEPT ALL FROM found)
    UNION ALL
    SELECT tp, off, FALSE FROM (FROM found EXCEPT ALL FROM expected)
) GROUP BY tp, off ORDER BY tp, off LIMIT 1000
"""
_MISSED: Final = """
SELECT count(*) FROM expected e ANTI JOIN found f
ON e.tp = f.tp AND e.off = f.off AND e.digest = f.digest
"""


class ColumnProof:
    """Proves a stream, whole or since an earlier proof; nobody has accepted anything in it.

    Attributes:
        bad: What belongs in quarantine, of the batches that are read.
        records: How many records were read.
    """

    def __init__(
        self,
        context: FoldContext,
        redrives: Redrives,
        database: duckdb.DuckDBPyConnection,
        settings: Settings,
        place: Location,
        known: ProofMemory | None = None,
    ) -> None:
        """Plan it; ``place`` has what is known of an earlier proof, and gets what is known then.

        Raises:
            NotInColumnsError: the stream has what is proven record by record alone.
            ProofMemoryError: what an earlier proof has left is not whole.
        """
        spec, coverage = context.spec, context.coverage
        last = known.seq if known else 0
        batches = sorted(coverage.batches.values(), key=lambda batch: batch.seq)
        self._batches = [batch for batch in batches if batch.seq > last]
        _refuse_gone(context, self._batches, known)
        self._queries = queries_of(database, spec)
        self._spec, self._context, self._database = spec, context, database
        self._redrives = redrives
        columns = RowColumns.of(spec, coverage.begin, epoch=coverage.epoch)
        self._numbers = {at: n for n, at in enumerate(columns.partitions)}
        self._events = Events(database, columns)
        self._known, self._place = known, place
        database.execute("CREATE TEMP TABLE remembered AS FROM events")
        if known is not None:
            if known.partitions != (*columns.partitions[: len(known.partitions)],):
                # Its digests have other numbers of partitions.
                raise ProofMemoryError("is of other partitions")
            for part in events_of(known, place):
                database.register("part", part)
                database.execute("INSERT INTO remembered BY NAME FROM part")
                database.unregister("part")
        # What lies elsewhere no batch has read: it is found where the quarantine is compared.
        known_at = (each for each in redrives.places if each[0] in self._numbers)
        kept_back = [(self._numbers[at], offset) for at, offset in known_at]
        self._records = Records(spec, decoding_of(spec, settings), self._events, kept_back)
        counted = Counter[str](values_coerced=0, tombstones_shared=0)
        # A record that leaves a column out is proven record by record.
        counted |= {_LEFT_OUT[spec.unavailable]: 0} if spec.unavailable else {}
        reads = [batch for batch in self._batches if batch.kind in _READS]
        self._recounts = {
            batch.seq: Recount(is_replay=batch.kind == "replay", extra=counted.copy())
            for batch in reads
        }
        self._has_replays = any(batch.kind == "replay" for batch in reads)
        is_of_today = context.classifiers.is_of_today
        self._of_today = {batch.seq for batch in reads if is_of_today(batch)}
        self._by_seq = {batch.seq: batch for batch in self._batches}
        self.bad: SpillTable[BadRecord] = context.store.table("bad_in_columns")
        self.records = 0
        self._types = {*known.record_types} if known else set[str]()

    def read(self, topic: TopicReader, tell: Callable[[int], None]) -> None:
        """Read and decode every record.

        Raises:
            TopicTruncatedError: the log is not the one that the batches have read.
            NotInColumnsError: some record has what is proven record by record alone.
        """
        runs: list[Run] = []
        count = size = 0
        for batch in (self._by_seq[seq] for seq in self._recounts):
            if batch.kind == "redrive":
                continue
            for at, messages in topic.messages(batch.ranges):
                if batch.kind == "ingest":
                    self._refuse_another_log(batch, at, messages)
                self._recounts[batch.seq].records[at] += len(messages)
                runs.append(Run(batch.seq, self._numbers[at], messages))
                count += len(messages)
                size += sum(map(len, messages))
                if count >= _AT_ONCE or size >= _MOST_BYTES:
                    self._take(runs, tell)
                    runs, count, size = [], 0, 0
        self._take(runs, tell)
        for batch in (self._by_seq[seq] for seq in self._recounts):
            for records in self._redrives.of(batch) if batch.kind == "redrive" else ():
                self._recounts[batch.seq].records.update(record.at for record in records)
                self._judge(batch, records)

    def count(self) -> Iterator[tuple[Batch, Recount]]:
        """Fold the events; yield each batch with what its records became."""
        self._queries.fold(self._recounts, has_replays=self._has_replays)
        for seq, undeclared in self._records.undeclared.items():
            self._recounts[seq].undeclared += undeclared
        for seq, recount in self._recounts.items():
            if self._redrives.can_recount(self._by_seq[seq]):
                yield self._by_seq[seq], recount

    def compare(self, rows: Iterable[pa.RecordBatch], tell: Callable[[int], None]) -> int:
        """Compare the table's rows with those that the events come to; return how many there are.

        Raises:
            NotInColumnsError: any row is missing, is too many, or is not as it should be.
        """
        run = self._database.execute
        run("CREATE TEMP TABLE found (tp INTEGER, off BIGINT, digest UBIGINT)")
        self._database.register("numbers", _numbers(self._events.columns.partitions))
        done = 0
        for part in tables_of(rows, _AT_ONCE):
            self._refuse_other_types(part)
            self._database.register("batch", part)
            run(f"INSERT INTO found {self._found()}")
            self._database.unregister("batch")
            tell(done := done + part.num_rows)
        expected, missed = self._number("SELECT count(*) FROM expected"), self._number(_MISSED)
        if missed or expected != done:
            why = f"{missed} rows of {expected} differ from the table's {done}"
            raise NotInColumnsError(why, [*self._differences()])
        return done

    def remember(self, memory: ProofMemory) -> None:
        """Leave what the next proof goes on from.

        Raises:
            OSError: it cannot be written there.
        """
        events = self._database.sql(self._queries.to_remember())
        save_memory(memory, self._place, events.to_arrow_reader(_AT_ONCE))

    @property
    def record_types(self) -> tuple[str, ...]:
        """The names of record types that were applied, where the declaration names none."""
        return (*self._types,)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the table that are compared."""
        return (*self._events.columns.names, *SYSTEM_COLUMNS)

    def _take(self, runs: Sequence[Run], tell: Callable[[int], None]) -> None:
        ignored, doubtful = self._records.add([run for run in runs if run.seq in self._of_today])
        for run in runs:
            if run.seq not in self._of_today:
                doubtful.setdefault(run.seq, []).extend(map(record_of, run.messages))
        for seq, number in ignored.items():
            self._recounts[seq].counts["ignored"] += number
        for seq, records in doubtful.items():
            self._judge(self._by_seq[seq], records)
        self._note_types(self._records.record_types)
        self.records += sum(len(run.messages) for run in runs)
        tell(self.records)

    def _note_types(self, names: Iterable[str]) -> None:
        """Take names of record types; one beyond the first is a difference, or of another topic."""
        self._types.update(names)
        if len(self._types) > 1:
            raise NotInColumnsError("records of several types are proven record by record")

    def _judge(self, batch: Batch, records: Sequence[Record]) -> None:
        """Let the rule decide about records of a batch."""
        recount = self._recounts[batch.seq]
        classify = self._context.classifiers.of(batch)
        result = self._redrives.classified(records, batch.seq, classify, recount)
        if result.unread or result.truncates:
            raise NotInColumnsError("unknown schemas and truncates are proven record by record")
        self._note_types(name for _, name in result.types)
        recount.counts.update(result.counts)
        recount.extra["values_coerced"] += sum(change.coerced for change in result.changes)
        undeclared = (change.has_undeclared and change.row is not None for change in result.changes)
        recount.undeclared += sum(undeclared)
        self._redrives.put_aside(result.bad, batch.seq, recount, self.bad)
        self._events.judged(result.changes, self._numbers)

    def _refuse_another_log(
        self, batch: Batch, at: TopicPartition, messages: Sequence[Message]
    ) -> None:
        if (read := batch.last.get(at)) is None:
            return
        for message in reversed(messages):
            if cast("int", message.offset()) <= read.offset:
                [*refuse_another_log(self._spec.name, batch, [[record_of(message)]])]
                return

    def _refuse_other_types(self, rows: pa.Table) -> None:
        """Refuse a column whose type, as its sink gives it, is not the one that is hashed."""
        columns = self._events.columns
        declared = {**columns.types, **columns.validity, "_timestamp": SENT}
        for name, type_ in declared.items():
            if not _is_alike(rows.schema.field(name).type, type_):
                raise NotInColumnsError(f"column {name} is {rows.schema.field(name).type}")

    def _found(self) -> str:
        columns = self._events.columns
        digest = columns.found()
        # A row of another epoch is none that is expected.
        return (
            f"SELECT _partition, _offset, CASE WHEN _epoch = {columns.epoch} THEN {digest} END "
            "FROM (SELECT batch.* REPLACE (numbers._number AS _partition) FROM batch "
            "LEFT JOIN numbers "
            "ON batch._topic = numbers._topic AND batch._partition = numbers._partition)"
        )

    def _differences(self) -> Iterator[Difference]:
        """Name the rows that differ from an earlier proof, of records that Kafka has deleted."""
        if self._known is None:
            return
        earliest, partitions = self._context.coverage.earliest, self._events.columns.partitions
        about = self._known.about
        for tp, offset, is_due, is_found in self._database.execute(_DIFFERING).fetchall():
            at = partitions[tp] if tp is not None else None
            if at is None or offset >= earliest.get(at, 0):
                continue
            what = f"is not as {about} found it"
            if not (is_due and is_found):
                what = f"is missing: {about} found it" if is_due else f"is new: not in {about}"
            yield Difference("rows", what, at.topic, at.partition, offset)

    def _number(self, query: str) -> int:
        [(number,)] = self._database.execute(query).fetchall()
        return int(number)


def queries_of(
    database: duckdb.DuckDBPyConnection, spec: StreamSpec
) -> FoldQueries | VersionQueries:
    """Return the queries of a stream's mode.

    Raises:
        NotInColumnsError: its mode is folded record by record.
    """
    return VersionQueries(database) if spec.mode == "scd2" else FoldQueries(database, spec)


def _numbers(partitions: Sequence[TopicPartition]) -> pa.Table:
    # No name that a column of the table may have.
    return pa.table(
        {
            "_topic": pa.array([at.topic for at in partitions], pa.string()),
            "_partition": pa.array([at.partition for at in partitions], pa.int32()),
            "_number": pa.array(range(len(partitions)), pa.int32()),
        }
    )


def _refuse_gone(
    context: FoldContext, batches: Sequence[Batch], memory: ProofMemory | None
) -> None:
    """Refuse what is not wholly there, or what somebody has accepted."""
    coverage = context.coverage
    is_gone = not all(map(coverage.covers, batches)) if memory else coverage.is_partial
    if coverage.epoch > 1 or is_gone or coverage.accepted_through or coverage.accepted:
        raise NotInColumnsError("not every record is there, or judged")
    if coverage.adopted is not None:
        raise NotInColumnsError("rows were adopted, which are of no record")
    erased = memory.erased if memory else ()
    kinds = {batch.kind for batch in batches if batch.seq not in erased}
    if memory and "redrive" in kinds:
        raise ProofMemoryError("is of records that were redriven since")
    if others := kinds - _READS - _IDLE:
        raise NotInColumnsError(f"a batch is a {min(others)}")
    ranges = sorted(part for b in batches if b.kind == "ingest" for part in b.ranges if part.span)
    if any(one.at == other.at and other.start < one.end for one, other in pairwise(ranges)):
        raise NotInColumnsError("ranges overlap")


def _is_alike(found: pa.DataType, declared: pa.DataType) -> bool:
    """Tell whether two types of Arrow are one to DuckDB."""
    if pa.types.is_struct(declared):
        return (
            pa.types.is_struct(found)
            and [each.name for each in found] == [each.name for each in declared]
            and all(_is_alike(f.type, d.type) for f, d in zip(found, declared, strict=True))
        )
    if pa.types.is_list(declared):
        is_list = pa.types.is_list(found) or pa.types.is_large_list(found)
        return is_list and _is_alike(found.value_type, declared.value_type)
    if pa.types.is_string(declared):
        return any(is_(found) for is_ in _TEXTS)
    if pa.types.is_binary(declared):
        return any(is_(found) for is_ in _BYTES)
    return bool(found == declared)


_TEXTS: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES: Final = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
