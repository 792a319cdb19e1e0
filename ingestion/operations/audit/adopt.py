"""``oncelake adopt-table``: a table that another loader has filled becomes a stream's.

    the table and the declaration → columns, keys, digest → the offsets to begin at, against the
         topic and against those that the rows show → the plan → with ``--apply``, under the lock:
         one commit of our columns and the first note → ledger

Our columns are null in the rows that are there: no record is known to have made them, and each
record from the stated offsets on wins over them. The note keeps how many they were, and a digest of
them. Killed before its commit, an adoption has changed no row; behind it, whoever heals ends it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import duckdb

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.sql import identifier
from oncelake.ingestion.errors import ForeignTableError, InvalidSpecError, counted, no_table_yet
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.offsets import Offsets, Range, TopicPartition
from oncelake.ingestion.lake.ledger import LedgerRow, put_rows
from oncelake.ingestion.lake.lock import held
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.operations.history.rewind import moment_of
from oncelake.ingestion.pipeline.schema.create_table import definition_of
from oncelake.ingestion.pipeline.schema.evolve import commit_columns
from oncelake.ingestion.recovery.position import refuse_replaced
from oncelake.ingestion.recovery.schema_diff import SchemaChange, column_changes
from oncelake.ingestion.recovery.snapshot import read_snapshot
from oncelake.ingestion.recovery.standing import end_half_done, heal_stream
from oncelake.ingestion.recovery.start import offset_problems
from oncelake.ingestion.recovery.topics import identity_of, resolve_topics
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.storage.processes import scratch_of_this_process, sweep_scratch
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, ranges_at
from oncelake.ingestion.tables.table import SinkTable
from oncelake.ingestion.verify.certificate import digest_of
from oncelake.ingestion.verify.columns.events import database_in
from oncelake.ingestion.verify.columns.memory import tables_of

_ROWS_AT_ONCE: Final = 100_000
_SHOWN: Final = 3
_OFFSET: Final = re.compile("offset$", re.IGNORECASE)
_WHOLE: Final = ("INT", "BIGINT", "SMALLINT")


@dataclass(frozen=True, kw_only=True, slots=True)
class Adoption:
    """The plan of an adoption, or what became of it.

    Attributes:
        found: What the note keeps: version, rows, digest, and the columns that it is of.
        starting: The offset of the first record of each partition that counts.
        changes: What the table's columns get.
        notices: What a person should know, and nothing is wrong with.
        problems: Why it is refused, a sentence each.
        row: The ledger's, once it was adopted.
    """

    stream: str
    table: str
    found: Mapping[str, Any]
    starting: Offsets
    changes: tuple[SchemaChange, ...] = ()
    notices: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    row: LedgerRow | None = None


def plan_adoption(spec: StreamSpec, settings: Settings, *, starting: str) -> Adoption:
    """Plan what ``adopt_table`` would do now; changes nothing.

    Args:
        starting: JSON of offsets by partition, or by topic and partition; or a moment.

    Raises:
        InvalidSpecError: there is no table, it has no row, or ``starting`` is neither.
        RefusedError: nothing tells where the table stands, or its settings break the guarantee.
    """
    stream = resolve_topics(Stream(spec=spec, settings=settings))
    if done := _adopted_before(stream):
        return done
    return _plan(stream, starting)


def adopt_table(
    spec: StreamSpec, settings: Settings, *, starting: str, reason: str, run_id: str
) -> Adoption:
    """Adopt the table, as it is planned under the stream's lock; done before, only say so.

    Raises:
        InvalidSpecError: see ``plan_adoption``; or no reason is given.
        RefusedError: the plan has problems; says which.
        StreamLockedError: a run holds the stream.
        TableBusyError: somebody else changed the table meanwhile. Nothing was changed.
    """
    if not reason.strip():
        raise InvalidSpecError(f"{spec.name}: say why, in --reason; it is kept in the first note")
    stream = Stream(spec=spec, settings=settings)
    with held(stream.paths, run_id):
        stream = resolve_topics(stream)
        end_half_done(stream.paths)
        if done := _adopted_before(stream):
            return done
        plan = _plan(stream, starting)
        if plan.problems:
            raise ForeignTableError(
                spec.name,
                f"{plan.table} cannot be adopted so: {'; '.join(plan.problems)}.",
                remedy=f"oncelake adopt-table {spec.name} shows the plan; correct what it names",
            )
        return _apply(stream, plan, reason=reason, run_id=run_id)


def _apply(stream: Stream, plan: Adoption, *, reason: str, run_id: str) -> Adoption:
    """Commit our columns and the first note, behind the version that was read."""
    spec, paths = stream.spec, stream.paths
    topics = stream.kafka.topics(spec.name, spec.subscribed)
    paths.table.create(definition_of(spec, keeps_rows=True))
    hit(Failpoint.TABLE_CREATED)
    metadata = CommitMetadata(
        kind="adopt",
        seq=0,
        run_id=run_id,
        epoch=1,
        identity=identity_of(spec, topics),
        columns=spec.ddl,
        next=plan.starting,
        ranges=ranges_at(plan.starting),
        reason=reason,
        adopted=plan.found,
    )
    version = plan.found["version"]
    commit = commit_columns(spec, paths, metadata, plan.changes, version=version)
    hit(Failpoint.DECIDED)
    row = LedgerRow.of(commit, paths.table.log().table_id())
    put_rows(paths, row)
    return _of_row(stream, row)


def _adopted_before(stream: Stream) -> Adoption | None:
    """Return what became of a table that is the stream's by now; ``None`` of somebody else's."""
    spec, paths = stream.spec, stream.paths
    snapshot = read_snapshot(paths)
    table = snapshot.table
    refuse_replaced(paths, snapshot.ledger.rows, table.table_id if table else None)
    if table is None:
        raise no_table_yet(spec.name)
    if table.settings_error is not None:
        raise table.settings_error
    if table.seq is None and table.is_empty:
        raise InvalidSpecError(
            f"{spec.name}: {paths.table.where} has no row, so there is nothing to adopt: the first "
            f"run takes it. Next: oncelake run {spec.name}"
        )
    if table.seq is None:
        return None
    rows = heal_stream(spec, paths).rows
    if not rows or rows[0].adopted is None:
        raise InvalidSpecError(
            f"{spec.name}: {paths.table.where} is this stream's already, and was not adopted. "
            f"Next: oncelake status {spec.name}"
        )
    return _of_row(stream, rows[0])


def _of_row(stream: Stream, row: LedgerRow) -> Adoption:
    assert row.adopted is not None
    return Adoption(
        stream=stream.name,
        table=stream.paths.table.where,
        found=row.adopted,
        starting=Offsets({each.range.topic_partition: each.range.start for each in row.ranges}),
        row=row,
    )


def _plan(stream: Stream, starting: str) -> Adoption:
    spec, paths, kafka = stream.spec, stream.paths, stream.kafka
    table, version = paths.table, paths.table.log().newest_version
    partitions = kafka.topics(spec.name, spec.subscribed).partitions
    begin = _starting_offsets(spec, kafka, partitions, starting)
    changes = tuple(column_changes(spec, paths, is_ours=False))
    notices, rows = list[str](), _Rows(spec, table, stream.settings, version)
    refused = [*_unable(spec), *_column_problems(changes), *rows.seq_problems()]
    refused += offset_problems(kafka, partitions, begin)
    if not refused:
        refused += rows.key_problems()
        joins = list(rows.joins(kafka, begin))
        refused += [what for what, is_wrong in joins if is_wrong]
        notices += [what for what, is_wrong in joins if not is_wrong]
    return Adoption(
        stream=spec.name,
        table=table.where,
        found=rows.found(),
        starting=begin,
        changes=tuple(each for each in changes if each.effect != "nothing"),
        notices=tuple(notices),
        problems=tuple(refused),
    )


def _starting_offsets(
    spec: StreamSpec, kafka: Kafka, partitions: Sequence[TopicPartition], text: str
) -> Offsets:
    """Read the offsets, or find those of a moment."""
    if (moment := moment_of(text)) is not None:
        return kafka.first_since(partitions, moment)
    try:
        offsets = json.loads(text)
        if len(spec.subscribed) == 1 and not any(isinstance(v, dict) for v in offsets.values()):
            offsets = {spec.subscribed[0]: offsets}
        return Offsets.from_json(json.dumps(offsets))
    except (ValueError, AttributeError) as error:
        raise InvalidSpecError(
            f"{spec.name}: --starting {text!r} is neither offsets nor a moment. Next: write JSON "
            'such as {"0": 200, "1": 180}, by topic where there are several, or a moment with its '
            "zone such as 2026-11-22T10:00Z"
        ) from error


def _unable(spec: StreamSpec) -> Iterator[str]:
    """Say what of a declaration asks of a row what no row of others tells."""
    if spec.is_log:
        yield f"`sink: {spec.sink.name}` has no rows that can be looked up"
    if spec.mode not in ("upsert", "append", "insert_only"):
        yield f"`mode: {spec.mode}` makes rows of all records of a key, and these are not known"
    if spec.deletes == "soft":
        yield "`deletes: soft` marks each row, and the rows that are there have no mark"
    if spec.ignore_null_updates or spec.unavailable == "keep" or spec.settles_moves:
        yield "updates that leave columns out, or move rows, take what older records have said"


def _column_problems(changes: Iterable[SchemaChange]) -> Iterator[str]:
    for each in changes:
        if each.effect not in ("nothing", "evolve"):
            yield f"{each.field} {each.what}{f' ({each.remedy})' if each.remedy else ''}"


class _Rows:
    """The rows of a table as of a version, read where something is asked of them."""

    def __init__(
        self, spec: StreamSpec, table: SinkTable, settings: Settings, version: int
    ) -> None:
        self._spec, self._table = spec, table
        declared = {each.name: spec.sink.kind.stored_type(each.type) for each in spec.table_columns}
        self._columns = [
            column
            for column in table.columns()
            # The text of a VARIANT is not the same everywhere.
            if declared.get(column.name) == column.type and not column.type.contains("VARIANT")
        ]
        self._scratch, self._version = scratch_of_this_process(settings.state), version
        sweep_scratch(settings.state)

    def found(self) -> dict[str, Any]:
        """Return what the note keeps of them."""
        names = [column.name for column in self._columns]
        rows = self._table.scan(names, self._readable)
        count, digest = digest_of(rows, self._columns, self._spec.keys, self._scratch)
        columns = [column.as_ddl() for column in self._columns]
        return {"version": self._version, "rows": count, "digest": digest, "columns": columns}

    @property
    def _readable(self) -> int | None:
        return None if self._version < 0 else self._version

    def seq_problems(self) -> Iterator[str]:
        """Say that rows are of batches: of a table that is, or was, another stream's."""
        names = [n for n in ("_epoch", "_seq") if n in {c.name for c in self._table.columns()}]
        rows = self._table.scan(names, self._readable) if names else ()
        if any(column.null_count < len(column) for batch in rows for column in batch.columns):
            yield f"{' and '.join(names)} have values, so rows of it are another stream's"

    def key_problems(self) -> Iterator[str]:
        """Say which keys have several rows, and how many rows have none."""
        if not (keys := self._spec.keys):
            return
        names = ", ".join(map(identifier, keys))
        is_null = " OR ".join(f"{identifier(name)} IS NULL" for name in keys)
        with self._loaded(keys) as database:
            [(nulls,)] = _all(database, f"SELECT count(*) FROM found WHERE {is_null}")
            of_key = f"SELECT {names}, count(*) AS rows FROM found WHERE NOT ({is_null})"
            database.execute(
                f"CREATE TABLE doubled AS {of_key} GROUP BY {names} HAVING count(*) > 1"
            )
            [(count, rows)] = _all(database, "SELECT count(*), sum(rows) FROM doubled")
            shown = _all(database, f"FROM doubled ORDER BY ALL LIMIT {_SHOWN}")
        if nulls:
            yield f"{counted(nulls, 'row lacks', 'rows lack')} the key, so that no record finds it"
        if count:
            pairs = (zip(keys, row, strict=False) for row in shown)
            these = ", ".join(f"({', '.join(f'{n}={v}' for n, v in pair)})" for pair in pairs)
            more = ", …" if count > len(shown) else ""
            yield f"{counted(count, 'key has', 'keys have')} {rows:,} rows together: {these}{more}"

    def joins(self, kafka: Kafka, begin: Offsets) -> Iterator[tuple[str, bool]]:
        """Compare where to begin with the offsets that the rows show; say whether that is wrong."""
        columns = self._place_columns()
        if columns is None:
            yield "no column shows a record's offset: where the rows end was not compared", False
            return
        reached = self._reached(columns)
        earliest = kafka.earliest(begin)
        for at, start in begin.items():
            shown = f"{columns[1]} of partition {at.partition}"
            if (last := reached.get(at)) is None:
                yield f"{shown} has no value: where its rows end was not compared", False
                continue
            due = max(last + 1, earliest[at])
            if earliest[at] > last + 1:
                yield f"{at}: Kafka no longer holds [{last + 1}, {earliest[at]})", False
            if start <= last:
                yield f"{at}: {start} was loaded, as {shown} reaches {last}; begin at {due}", True
            elif left := _record_in(kafka, at, due, start):
                yield (
                    f"{at}: {shown} ends with {last}, so {left} would be lost; begin at {due}",
                    True,
                )

    def _place_columns(self) -> tuple[str, str, str | None] | None:
        """Return the columns of partition and offset, and of the topic where there is one.

        Loaders call them by one word before these: `__offset`, `_hoodie_kafka_source_offset`.
        """
        types = {column.name: column.type.word for column in self._table.columns()}
        for name in (n for n in types if _OFFSET.search(n) and types[n] in _WHOLE):
            others = {n.lower(): n for n in types}
            partition, topic = (
                others.get(_OFFSET.sub(word, name).lower()) for word in ("partition", "topic")
            )
            if partition and types[partition] in _WHOLE:
                return partition, name, topic
        return None

    def _reached(self, columns: tuple[str, str, str | None]) -> dict[TopicPartition, int]:
        """Return the last offset that the rows show of each partition."""
        topics = self._spec.subscribed
        partition, offset, topic = columns
        if topic is None and len(topics) > 1:
            return {}
        of = identifier(topic) if topic else f"'{topics[0]}'"
        with self._loaded([name for name in columns if name]) as database:
            rows = _all(
                database,
                f"SELECT {of}, {identifier(partition)}, max({identifier(offset)}) FROM found "
                f"WHERE {identifier(offset)} IS NOT NULL GROUP BY ALL",
            )
        return {TopicPartition(name, number): last for name, number, last in rows}

    @contextmanager
    def _loaded(self, names: Sequence[str]) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open a database in which ``found`` has some columns of the rows."""
        with database_in(self._scratch) as database:
            is_made = False
            for part in tables_of(self._table.scan(names, self._readable), _ROWS_AT_ONCE):
                database.register("part", part)
                made = "INSERT INTO found" if is_made else "CREATE TABLE found AS"
                database.execute(f"{made} FROM part")
                database.unregister("part")
                is_made = True
            yield database


def _all(database: duckdb.DuckDBPyConnection, query: str) -> list[Any]:
    return database.execute(query).fetchall()


def _record_in(kafka: Kafka, at: TopicPartition, start: int, end: int) -> str:
    """Name the first record of a range; empty where there is none, as between transactions."""
    messages = kafka.messages_in(
        [Range(topic=at.topic, partition=at.partition, start=start, end=end)]
    )
    first = next(messages, None)
    return f"the record at {first.offset()}" if first else ""
