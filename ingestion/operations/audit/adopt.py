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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import duckdb
import pyarrow as pa

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_columns
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.sql import identifier, literal
from oncelake.ingestion.errors import ForeignTableError, InvalidSpecError, counted, no_table_yet
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.offsets import Offsets, Range, TopicPartition
from oncelake.ingestion.lake.ledger import LedgerRow, put_rows
from oncelake.ingestion.lake.lock import held
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.operations.history.rewind import moment_of
from oncelake.ingestion.pipeline.schema.create_table import definition_of, opening_note
from oncelake.ingestion.pipeline.schema.evolve import commit_columns
from oncelake.ingestion.recovery.heal import known_rows
from oncelake.ingestion.recovery.position import refuse_replaced, stray_files
from oncelake.ingestion.recovery.schema_diff import SchemaChange, column_changes
from oncelake.ingestion.recovery.snapshot import read_snapshot
from oncelake.ingestion.recovery.standing import end_half_done, heal_stream
from oncelake.ingestion.recovery.start import offset_problems, unable_to_adopt
from oncelake.ingestion.recovery.topics import identity_of, resolve_topics
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.storage.processes import scratch_of_this_process, sweep_scratch
from oncelake.ingestion.tables.commit_metadata import UNKNOWN, Identity, ranges_at
from oncelake.ingestion.tables.table import SinkTable
from oncelake.ingestion.verify.certificate import digest_of, digest_rows
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
        found: What the note keeps: version, rows, digest, the columns that it is of, and notices.
        starting: The offset of the first record of each partition that counts.
        changes: What the table's columns get.
        notices: What a person should know, and nothing is wrong with.
        problems: Why it is refused, a sentence each.
        identity: Of the topics that the offsets are of; unknown of one that was adopted before.
        row: The ledger's, once it was adopted.
    """

    stream: str
    table: str
    found: Mapping[str, Any]
    starting: Offsets
    changes: tuple[SchemaChange, ...] = ()
    notices: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    identity: Identity = UNKNOWN
    row: LedgerRow | None = None


def plan_adoption(
    spec: StreamSpec, settings: Settings, *, starting: str, place: Sequence[str] | None = None
) -> Adoption:
    """Plan what ``adopt_table`` would do now; changes nothing.

    Args:
        starting: JSON of offsets by partition, or by topic and partition; or a moment.
        place: The columns that show a record's partition and offset, or none; by default those that
            are called so.

    Raises:
        InvalidSpecError: there is no table, it has no row, or an argument is none of these.
        RefusedError: nothing tells where the table stands, or its settings break the guarantee.
    """
    stream = resolve_topics(Stream(spec=spec, settings=settings))
    return _adopted_before(stream) or _plan(stream, starting, place)


def adopt_table(
    spec: StreamSpec,
    settings: Settings,
    *,
    starting: str,
    reason: str,
    run_id: str,
    place: Sequence[str] | None = None,
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
            heal_stream(spec, stream.paths)
            return done
        plan = _plan(stream, starting, place)
        if plan.problems:
            raise ForeignTableError(
                spec.name,
                f"{plan.table} cannot be adopted so: {'; '.join(plan.problems)}.",
                remedy="the same command without --apply shows the plan; correct what it names",
            )
        return _apply(stream, plan, reason=reason, run_id=run_id)


def _apply(stream: Stream, plan: Adoption, *, reason: str, run_id: str) -> Adoption:
    """Commit our columns and the first note, behind the version that was read."""
    spec, paths, begin = stream.spec, stream.paths, plan.starting
    scratch, columns = scratch_of_this_process(stream.settings.state), plan.found["columns"]

    def keeps_rows(rows: Iterable[pa.RecordBatch]) -> bool:
        buckets = digest_rows(rows, parse_columns(", ".join(columns)), spec.keys, scratch)
        return digest_of(buckets) == (plan.found["rows"], plan.found["digest"])

    paths.table.create(definition_of(spec, keeps_rows=keeps_rows))
    hit(Failpoint.TABLE_CREATED)
    note = opening_note(spec, plan.identity, begin, run_id=run_id)
    note = replace(note, kind="adopt", ranges=ranges_at(begin), reason=reason, adopted=plan.found)
    commit = commit_columns(spec, paths, note, plan.changes, version=plan.found["version"])
    hit(Failpoint.DECIDED)
    row = LedgerRow.of(commit, paths.table.log().table_id())
    put_rows(paths, row)
    return replace(plan, row=row)


def _adopted_before(stream: Stream) -> Adoption | None:
    """Return what became of a table that is the stream's by now; ``None`` of somebody else's."""
    spec, paths = stream.spec, stream.paths
    snapshot = read_snapshot(paths)
    table, problem = snapshot.table, ""
    refuse_replaced(paths, snapshot.ledger.rows, table.table_id if table else None)
    if table is None:
        raise stray_files(paths) if snapshot.has_stray_files else no_table_yet(spec.name)
    if table.settings_error is not None:
        raise table.settings_error
    rows = known_rows(snapshot) if table.seq is not None else ()
    if table.seq is None and table.is_empty:
        problem = "has no row, so there is nothing to adopt: the first run takes it"
    elif table.seq is not None and not (rows and rows[0].adopted):
        problem = "is this stream's already, and was not adopted"
    if problem:
        raise InvalidSpecError(
            f"{spec.name}: {paths.table.where} {problem}. Next: oncelake run {spec.name}"
        )
    if not rows:
        return None
    begin = {each.range.topic_partition: each.range.start for each in rows[0].ranges}
    return Adoption(
        stream=spec.name,
        table=paths.table.where,
        found=rows[0].adopted or {},
        notices=tuple((rows[0].adopted or {}).get("notices", ())),
        starting=Offsets(begin),
        row=rows[0],
    )


def _plan(stream: Stream, starting: str, place: Sequence[str] | None) -> Adoption:
    """Read the table, and compare it with the declaration and the topic."""
    spec, table, kafka = stream.spec, stream.paths.table, stream.kafka
    version, topics = table.log().newest_version, kafka.topics(spec.name, spec.subscribed)
    begin = _starting_offsets(spec, kafka, topics.partitions, starting)
    changes = [*column_changes(spec, stream.paths, is_ours=False)]
    changes = [each for each in changes if each.effect != "nothing"]
    problems = [*unable_to_adopt(spec), *offset_problems(kafka, topics.partitions, begin)]
    problems += [
        f"{each.field} {each.what}{f' ({each.remedy})' if each.remedy else ''}"
        for each in changes
        if each.effect != "evolve"
    ]
    scratch, notices = scratch_of_this_process(stream.settings.state), list[str]()
    sweep_scratch(stream.settings.state)
    scan = partial(table.scan, version=None if version < 0 else version)
    columns = _digestible(spec, table)
    read = scan([each.name for each in columns])
    # First: a table that keeps no versions is compared with it, before it is taken.
    count, digest = digest_of(digest_rows(read, columns, spec.keys, scratch))
    if not problems:
        with database_in(scratch) as database:
            rows = _Rows(spec, table.columns(), scan, database, place=place)
            problems += rows.key_problems()
            problems += rows.join_problems(kafka, begin, notices)
    found = {"version": version, "rows": count, "digest": digest, "notices": notices}
    return Adoption(
        stream=spec.name,
        table=table.where,
        found={**found, "columns": [each.as_ddl() for each in columns]},
        starting=begin,
        changes=tuple(each for each in changes if each.effect == "evolve"),
        notices=tuple(notices),
        problems=tuple(problems),
        identity=identity_of(spec, topics),
    )


def _digestible(spec: StreamSpec, table: SinkTable) -> list[DeclaredColumn]:
    """Return the columns that are declared as they are; the text of a VARIANT varies."""
    declared = {each.name: spec.sink.kind.stored_type(each.type) for each in spec.table_columns}
    known = (each for each in table.columns() if declared.get(each.name) == each.type)
    return [each for each in known if not each.type.contains("VARIANT")]


def _starting_offsets(
    spec: StreamSpec, kafka: Kafka, partitions: Sequence[TopicPartition], text: str
) -> Offsets:
    """Read the offsets, or find those of a moment."""
    if (moment := moment_of(text)) is not None:
        return kafka.first_since(partitions, moment)
    try:
        offsets = json.loads(text)
        if not {*spec.subscribed} & {*offsets}:
            offsets = {spec.subscribed[0]: offsets}
        return Offsets.from_json(json.dumps(offsets))
    except (ValueError, TypeError) as error:
        raise InvalidSpecError(
            f"{spec.name}: --starting {text!r} is neither offsets nor a moment. Next: write JSON "
            'such as {"0": 200, "1": 180}, by topic where there are several, or a moment with its '
            "zone such as 2026-11-22T10:00Z"
        ) from error


class _Rows:
    """The keys of a table's rows, and the places that they show, in a database."""

    def __init__(
        self,
        spec: StreamSpec,
        columns: Sequence[DeclaredColumn],
        scan: Callable[[Sequence[str]], Iterable[pa.RecordBatch]],
        database: duckdb.DuckDBPyConnection,
        *,
        place: Sequence[str] | None,
    ) -> None:
        """Load them."""
        self._spec, self._database = spec, database
        types = {column.name: column.type.word for column in columns}
        self._place = _place_columns(types, place)
        self._own = [name for name in ("_epoch", "_seq") if name in types]
        names = dict.fromkeys([*spec.keys, *self._own, *filter(None, self._place)])
        for part in tables_of(scan([*names]), _ROWS_AT_ONCE) if names else ():
            database.register("part", part)
            database.execute("CREATE TABLE IF NOT EXISTS found AS FROM part LIMIT 0")
            database.execute("INSERT INTO found FROM part")

    def key_problems(self) -> Iterator[str]:
        """Say which keys have several rows, and how many rows have none, or are of batches."""
        keys, all_ = self._spec.keys, self._all
        for name in self._own:
            if all_(f"SELECT count({name}) FROM found") != [(0,)]:
                yield f"{name} has values, so rows of it are another stream's"
        if not keys:
            return
        names = ", ".join(map(identifier, keys))
        is_null = " OR ".join(f"{identifier(name)} IS NULL" for name in keys)
        [(nulls,)] = all_(f"SELECT count(*) FROM found WHERE {is_null}")
        if nulls:
            yield f"{counted(nulls, 'row lacks', 'rows lack')} the key, so that no record finds it"
        doubled = f"SELECT {names}, count(*) AS n FROM found WHERE NOT ({is_null}) "
        doubled += f"GROUP BY {names} HAVING count(*) > 1"
        [(count, rows)] = all_(f"SELECT count(*), sum(n) FROM ({doubled})")
        if count:
            shown = all_(f"{doubled} ORDER BY {names} LIMIT {_SHOWN}")
            pairs = (zip(keys, row, strict=False) for row in shown)
            these = ", ".join(f"({', '.join(f'{n}={v}' for n, v in pair)})" for pair in pairs)
            more = ", …" if count > len(shown) else ""
            keys_have = counted(count, "key has", "keys have")
            yield f"{keys_have} several rows, {rows:,} in all: {these}{more}"

    def join_problems(self, kafka: Kafka, begin: Offsets, notices: list[str]) -> Iterator[str]:
        """Compare where to begin with the offsets that the rows show."""
        if not self._place[0]:
            notices.append("no column shows offsets, so where the rows end was not compared")
            return
        reached, earliest = self._reached(), kafka.earliest(begin)
        for at in sorted(reached.keys() - begin.keys()):
            place = f"offset {reached[at]} of {at}, which does not exist"
            yield f"rows show {place}: name other columns by --offset-columns, or none"
        for at, start in begin.items():
            if (last := reached.get(at)) is None:
                notices.append(f"no row shows an offset of {at}, so it was not compared")
                continue
            due, shown = max(last + 1, earliest[at]), f"{at}: the rows reach offset {last}"
            if due > last + 1:
                notices.append(f"{shown}, and Kafka no longer holds [{last + 1}, {due})")
            between = Range(topic=at.topic, partition=at.partition, start=due, end=max(due, start))
            if start <= last:
                yield f"{shown}, so {start} was loaded: begin at {due}"
            elif left := next(kafka.messages_in([between]), None):
                yield f"{shown}, so the record at {left.offset()} would be lost: begin at {due}"

    def _reached(self) -> dict[TopicPartition, int]:
        """Return the last offset that the rows show of each partition."""
        partition, offset, topic = self._place
        topics = self._spec.subscribed
        if not topic and len(topics) > 1:
            return {}
        of, *place = identifier(topic) if topic else literal(topics[0]), partition, offset
        number, last = map(identifier, place)
        known = f"WHERE {of} IS NOT NULL AND {number} IS NOT NULL AND {last} IS NOT NULL"
        rows = self._all(f"SELECT {of}, {number}, max({last}) FROM found {known} GROUP BY ALL")
        return {TopicPartition(name, at): reached for name, at, reached in rows}

    def _all(self, query: str) -> list[Any]:
        return self._database.execute(query).fetchall()


def _place_columns(types: Mapping[str, str], named: Sequence[str] | None) -> tuple[str, str, str]:
    """Return the columns of partition, offset and topic; empty where there is none.

    Loaders call them by one word before these: `__offset`, `_hoodie_kafka_source_offset`.
    """
    if named:
        if len(named) != 2 or any(types.get(name) not in _WHOLE for name in named):
            is_no = f"--offset-columns {','.join(named)}: not two columns of whole numbers"
            raise InvalidSpecError(f"{is_no}. Next: name those of partition and offset, or none")
        return named[0], named[1], ""
    others = {name.lower(): name for name in types}
    shown = [each for each in types if _OFFSET.search(each) and types[each] in _WHOLE]
    for name in shown if named is None else ():
        pair = (_OFFSET.sub(word, name).lower() for word in ("partition", "topic"))
        partition, topic = (others.get(each, "") for each in pair)
        if types.get(partition) in _WHOLE:
            return partition, name, topic
    return "", "", ""
