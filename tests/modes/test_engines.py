"""Both engines do the same: one SQL text, one merge, and a commit that can be told from others'."""

from __future__ import annotations

import datetime as dt
import errno
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import SparkSession

from oncelake.ingestion.declaration.spec import fingerprint
from oncelake.ingestion.delta.log import DeltaLog
from oncelake.ingestion.errors import (
    BatchTooLargeError,
    CommitConflictError,
    InvalidSpecError,
    TableBusyError,
)
from oncelake.ingestion.kafka.offsets import Offsets, Range, TopicPartition
from oncelake.ingestion.lake.quarantine import quarantine_rows
from oncelake.ingestion.lake.side_tables import read_back
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.engines import local as local_engine
from oncelake.ingestion.modes.engines.choose import choose_engine
from oncelake.ingestion.modes.engines.engine import Decision, Engine, IncomparableError
from oncelake.ingestion.modes.engines.local import LocalEngine
from oncelake.ingestion.modes.engines.spark import SparkEngine
from oncelake.ingestion.modes.engines.spark_writer import SparkWriter
from oncelake.ingestion.modes.engines.table_writer import ChangeWriter, TableWriter
from oncelake.ingestion.modes.mode import merge_counts
from oncelake.ingestion.modes.upsert import winner_per_key
from oncelake.ingestion.pipeline.counts import count_records, extra_counts
from oncelake.ingestion.pipeline.gaps import _holes_between
from oncelake.ingestion.sinks.delta.table import DeltaSinkTable
from oncelake.ingestion.storage.location import Location, Tag
from oncelake.ingestion.tables.commit_metadata import UNKNOWN, CommitMetadata, app_id
from oncelake.ingestion.tables.format import engine_version
from tests.support.long import twins
from tests.support.world import settings_in
from tests.verify.factories import declared

STREAM = "s"
PLACE = pa.schema(
    [
        ("id", pa.int32()),
        ("at", pa.int32()),
        ("_epoch", pa.int32()),
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_seq", pa.int64()),
    ]
)


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.spark)])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An engine that holds nothing yet."""
    if request.param == "local":
        opened: Any = LocalEngine(STREAM, tmp_path)
    else:
        opened = SparkEngine(request.getfixturevalue("spark"))
    yield opened
    opened.close()


def hold(engine: Any, rows: list[dict[str, Any]], schema: pa.Schema = PLACE) -> None:
    """Give an engine its batch."""
    table = pa.Table.from_pylist(rows, schema=schema)
    if isinstance(engine, LocalEngine):
        engine.hold(table)
    else:
        engine.hold(engine.spark.createDataFrame(table))


def place(id: int, epoch: int, partition: int, offset: int, at: int = 0) -> dict[str, Any]:
    """A record's place, or a row's."""
    return {
        "id": id,
        "at": at,
        "_epoch": epoch,
        "_topic": "t",
        "_partition": partition,
        "_offset": offset,
        "_seq": 1,
    }


def metadata(seq: int = 1) -> CommitMetadata:
    """What a commit says of itself."""
    return CommitMetadata(
        kind="ingest", seq=seq, run_id="me", epoch=1, identity=UNKNOWN, columns="", next=Offsets(),
    )  # fmt: skip


def made_table(folder: Path, *rows: dict[str, Any], seq: int = 0) -> Location:
    """A table that stands at a seq of the stream."""
    stands = CommitProperties(app_transactions=[Transaction(app_id(STREAM), seq)])
    rows_of = pa.Table.from_pylist(list(rows), schema=PLACE)
    write_deltalake(folder, rows_of, commit_properties=stands)
    return Location.of(folder)


def decide(engine: Any, *, has_order: bool) -> Decision:
    """Decide as an upsert does; the rows of the keys are ``before``."""
    line = ("at", "_topic", "_partition", "_offset")[0 if has_order else 1 :]
    newer = sql.is_newer(line, "s", "t", has_order=has_order)
    engine.define(
        "decided",
        "SELECT s.*, CASE WHEN t._offset IS NULL THEN 'inserted' "
        f"WHEN {newer} THEN 'updated' ELSE 'stale' END AS _what "
        'FROM batch s LEFT JOIN "before" t ON s.id = t.id',
        keep=True,
    )
    found = engine.rows("SELECT _what, count(*) AS n FROM decided GROUP BY _what")
    counts = {row["_what"]: row["n"] for row in found}
    return Decision(updated=("updated",), counts=counts, keys=("id",))


def writer_of(engine: Any, path: Location, seq: int = 1) -> TableWriter:
    """Open a table as a run does."""
    if isinstance(engine, SparkEngine):
        return SparkWriter(engine, STREAM, path, DeltaTable(path).version())
    table = DeltaSinkTable(STREAM, path)
    return ChangeWriter(engine, table, keys=("id",), columns=PLACE.names, seq=seq)


def merge(engine: Any, path: Location, made: CommitMetadata, *, has_order: bool = False) -> None:
    """Commit the newer ones of the batch and of the table's rows."""
    with closing(writer_of(engine, path, made.seq)) as writer:
        writer.open_before("SELECT id FROM batch")
        writer.commit(decide(engine, has_order=has_order), made)


def append(engine: Any, path: Location, made: CommitMetadata) -> None:
    """Commit the rows of the batch beside those that are there."""
    engine.define("decided", "SELECT *, 'inserted' AS _what FROM batch")
    with closing(writer_of(engine, path, made.seq)) as writer:
        writer.commit(Decision(counts={"inserted": len(engine.rows("FROM batch"))}), made)


def counts_of(path: Location) -> Mapping[str, int]:
    """What the newest commit of ours says that it did."""
    commit, _ = DeltaLog(path).since_our_newest(STREAM)
    assert commit is not None
    return merge_counts(commit)


@pytest.mark.parametrize("sink", ["iceberg", "postgres", "kafka"])
def test_a_cluster_writes_delta_tables_alone(tmp_path: Path, sink: str) -> None:
    """What an executor on another host decodes does not reach the process that writes the rest."""
    settings = settings_in(tmp_path, "kafka:9092", spark_master="spark://master:7077")
    other = Stream(spec=declared(sink=sink, sequence_by=()), settings=settings)

    assert choose_engine(Stream(spec=declared(), settings=settings))[0] == "spark"
    with pytest.raises(InvalidSpecError, match=rf"s: `sink: {sink}`.*ONCELAKE_SPARK_MASTER=local"):
        choose_engine(other)


def test_what_cannot_be_cut_has_a_remedy_without_spark(tmp_path: Path) -> None:
    """Spark merges into Delta tables alone, and those never come to hear of it."""
    engine = LocalEngine(STREAM, tmp_path)
    engine._size_bytes = local_engine.LARGEST_BATCH_BYTES + 1

    with pytest.raises(BatchTooLargeError) as refused:
        next(engine.parts([Range(topic="t", partition=0, start=7, end=8)]))

    engine.close()
    assert "smaller records" in refused.value.remedy
    assert "ONCELAKE_MERGE_ENGINE" not in str(refused.value)


@pytest.mark.parametrize("turned", [False, True], ids=["as sent", "turned around"])
def test_the_winner_does_not_depend_on_the_order_of_arrival(engine: Engine, turned: bool) -> None:
    """Ties of the declared order go by topic, partition and offset."""
    rows = [place(1, 1, 0, 7, 5), place(1, 1, 1, 2, 5), place(1, 1, 1, 9, 4), place(2, 1, 0, 1, 1)]
    hold(engine, rows[::-1] if turned else rows)
    engine.define("good", "SELECT * FROM batch")
    target: Any = type("Target", (), {"engine": engine, "spec": declared(keys="id")})

    winners = engine.rows(winner_per_key(target, "DESC"))

    found = sorted((row["id"], row["at"], row["_partition"], row["_offset"]) for row in winners)
    assert found == [(1, 5, 1, 2), (2, 1, 0, 1)]


BY_OFFSET = {
    "later offset": ((1, 0, 5), (1, 0, 4), True),
    "the same": ((1, 0, 4), (1, 0, 4), False),
    "later epoch": ((2, 0, 0), (1, 0, 9), True),
    "later epoch, other partition": ((2, 1, 0), (1, 0, 9), True),
    "earlier epoch": ((1, 0, 9), (2, 1, 0), False),
}
BY_COLUMN = {
    "later": ((1, 1, 0, 5), (1, 0, 9, 4), True),
    "earlier": ((1, 0, 9, 4), (1, 1, 0, 5), False),
    "a tie goes by place": ((1, 1, 0, 5), (1, 0, 5, 5), True),
    "the same": ((1, 0, 7, 5), (1, 0, 7, 5), False),
    "later epoch": ((2, 0, 0, 1), (1, 0, 9, 9), True),
    "earlier epoch": ((1, 0, 9, 9), (2, 0, 0, 1), False),
}


@pytest.mark.parametrize(
    ("one", "other", "newer"),
    [*BY_OFFSET.values(), *BY_COLUMN.values()],
    ids=[*BY_OFFSET, *BY_COLUMN],
)
@pytest.mark.parametrize(
    "engine",
    ["local", *twins(pytest.param("spark", marks=pytest.mark.spark))],
    indirect=True,
)
def test_a_newer_record_wins_and_no_other(
    engine: Engine, tmp_path: Path, one: tuple[int, ...], other: tuple[int, ...], newer: bool
) -> None:
    """An epoch beats the declared order, and that the place; the merge and queries agree."""
    has_order = len(one) == 4
    path = made_table(tmp_path / "table", place(1, *other))
    hold(engine, [place(1, *one), place(2, *one)])
    engine.open_table("t", path)

    merge(engine, path, metadata(), has_order=has_order)

    line = ("at", "_topic", "_partition", "_offset")[0 if has_order else 1 :]
    asked = sql.is_newer(line, "s", "t", has_order=has_order)
    engine.open_table("before", path, 0)
    rows = engine.rows(
        f'SELECT s.id, {asked} AS newer FROM batch s LEFT JOIN "before" t ON s.id = t.id '
        "ORDER BY s.id"
    )
    assert [row["newer"] for row in rows] == [newer, True]
    assert counts_of(path) == {"inserted": 1, "updated": int(newer), "deleted": 0}


@pytest.mark.spark
def test_early_days_narrow_a_merge_down(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A literal range of key columns, by which Spark skips files, begins before the year 1000."""
    monkeypatch.setattr("oncelake.ingestion.modes.engines.spark_writer._PRUNE_FROM_FILES", 0)
    first, last = dt.date(1, 1, 1), dt.date(9999, 12, 31)
    schema = PLACE.set(0, pa.field("id", pa.date32()))
    folder = tmp_path / "table"
    there = [{**place(1, 1, 0, 4), "id": day} for day in (first, last)]
    write_deltalake(folder, pa.Table.from_pylist(there, schema=schema))
    with closing(SparkEngine(spark)) as engine:
        hold(engine, [{**place(1, 1, 0, 5), "id": first}], schema)
        writer = writer_of(engine, Location.of(folder))
        writer.open_before("SELECT id FROM batch")
        decision = decide(engine, has_order=False)
        writer.commit(replace(decision, key_ranges={"id": (first, first)}), metadata())

    assert counts_of(Location.of(folder)) == {"inserted": 0, "updated": 1, "deleted": 0}


@pytest.mark.parametrize(
    ("type_", "key"),
    [
        (pa.decimal128(20, 0), Decimal("12345678901234567891")),
        (pa.decimal128(18, 4), Decimal("12345678901234.5677")),
        (pa.timestamp("us", "UTC"), dt.datetime(9999, 6, 5, 12, 34, 56, 789123, dt.UTC)),
    ],
)
def test_a_row_is_found_whatever_statistics_say_of_its_key(
    tmp_path: Path, type_: pa.DataType, key: object
) -> None:
    """delta-rs keeps none of these exactly, in a table that somebody else has made as well."""
    schema = PLACE.set(0, pa.field("id", type_))
    there = pa.Table.from_pylist([{**place(1, 1, 0, 4), "id": key}], schema=schema)
    write_deltalake(tmp_path / "table", there)
    path = Location.of(tmp_path / "table")
    with closing(LocalEngine(STREAM, tmp_path)) as engine:
        hold(engine, [{**place(1, 1, 0, 5), "id": key}], schema)
        merge(engine, path, metadata(0))

    assert counts_of(path) == {"inserted": 0, "updated": 1, "deleted": 0}


def test_two_partitions_without_an_order_are_incomparable(engine: Engine, tmp_path: Path) -> None:
    """Asking which is newer ends the statement, and nothing is written."""
    path = made_table(tmp_path / "table", place(1, 1, 1, 4))
    hold(engine, [place(1, 1, 0, 5)])
    engine.open_table("t", path)
    asked = sql.is_newer(("_topic", "_partition", "_offset"), "s", "t", has_order=False)

    with pytest.raises(IncomparableError):
        engine.rows(f"SELECT {asked} AS newer FROM batch s JOIN t ON s.id = t.id")
    with pytest.raises(IncomparableError):
        merge(engine, path, metadata())

    assert DeltaTable(path).version() == 0


def test_a_merge_that_changes_nothing_is_a_commit(engine: Engine, tmp_path: Path) -> None:
    """The offsets move with it, so it must be in the log."""
    path = made_table(tmp_path / "table", place(1, 1, 0, 9), seq=6)
    hold(engine, [place(1, 1, 0, 4)])

    merge(engine, path, metadata(7))

    assert DeltaTable(path).transaction_version(app_id(STREAM)) == 7
    commit, _ = DeltaLog(path).since_our_newest(STREAM)
    assert commit is not None
    assert commit.metadata == metadata(7)
    assert merge_counts(commit) == {"inserted": 0, "updated": 0, "deleted": 0}


def test_a_seq_that_is_there_is_not_committed_again(tmp_path: Path) -> None:
    """delta-rs would take the same txn twice, so it is looked for; nor is one left out."""
    path, engine = made_table(tmp_path / "table", seq=2), LocalEngine(STREAM, tmp_path)
    hold(engine, [place(1, 1, 0, 4)])
    append(engine, path, metadata(3))

    for seq in (2, 3, 5):
        with pytest.raises(CommitConflictError, match="holds seq 3 as its last, so that seq"):
            append(engine, path, replace(metadata(seq), run_id="another"))

    assert DeltaTable(path).to_pyarrow_table().num_rows == 1
    engine.close()


def test_a_commit_whose_answer_is_lost_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a disk raises behind a commit that is in the log passes; before one, it does not."""
    path, engine = made_table(tmp_path / "table", seq=2), LocalEngine(STREAM, tmp_path)
    hold(engine, [place(1, 1, 0, 4)])
    create = Location.create

    def loses_the_answer(self: Location, content: bytes) -> Tag:
        create(self, content)
        raise OSError(errno.EIO, "no answer")

    with monkeypatch.context() as patch:
        patch.setattr(Location, "create", loses_the_answer)
        append(engine, path, metadata(3))
    assert DeltaTable(path).transaction_version(app_id(STREAM)) == 3
    assert DeltaTable(path).to_pyarrow_table().num_rows == 1

    def fails(self: Location, content: bytes) -> Tag:
        raise OSError(errno.ENOSPC, "refused")

    files = set(path.files())
    with monkeypatch.context() as patch:
        patch.setattr(Location, "create", fails)
        with pytest.raises(OSError, match="refused"):
            append(engine, path, metadata(4))
    assert set(path.files()) == files
    engine.close()


@pytest.mark.parametrize("way", ["compacts", "appends", "asks for more"])
def test_a_commit_that_gets_in_between_is_looked_at_again(tmp_path: Path, way: str) -> None:
    """Where others have put files together, ours is made on what they left; else it ends."""
    path, engine = made_table(tmp_path / "table", place(1, 1, 0, 3)), LocalEngine(STREAM, tmp_path)
    write_deltalake(path.path, pa.Table.from_pylist([place(2, 1, 0, 0)], PLACE), mode="append")
    hold(engine, [place(1, 1, 0, 4), place(3, 1, 0, 5)])
    table = DeltaSinkTable(STREAM, path)
    writer = ChangeWriter(engine, table, keys=("id",), columns=PLACE.names, seq=1)
    writer.open_before("SELECT id FROM batch")

    if way == "compacts":
        DeltaTable(path).optimize.compact()
        writer.commit(decide(engine, has_order=False), metadata())
        rows = DeltaTable(path).to_pyarrow_table().to_pylist()
        assert {row["id"]: row["_offset"] for row in rows} == {1: 4, 2: 0, 3: 5}
    else:
        if way == "appends":
            more = pa.Table.from_pylist([place(9, 1, 0, 0)], schema=PLACE)
            write_deltalake(path.path, more, mode="append")
        else:
            DeltaTable(path).alter.add_constraint({"positive": "id > 0"})
        before = DeltaTable(path).to_pyarrow_table().num_rows
        with pytest.raises(TableBusyError, match="run the same command again"):
            writer.commit(decide(engine, has_order=False), metadata())
        assert DeltaTable(path).to_pyarrow_table().num_rows == before
    engine.close()


BATCH = pa.schema(
    [
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", tz="UTC")),
        ("_index", pa.int32()),
        ("id", pa.int32()),
        ("_disposition", pa.string()),
        ("_extra", pa.list_(pa.string())),
        ("_bytes", pa.int32()),
        ("_reason", pa.string()),
        ("_detail", pa.string()),
        ("_key", pa.binary()),
        ("_value", pa.binary()),
        ("_digest", pa.int64()),
        ("_left_to", pa.string()),
        ("_record", pa.string()),
        ("_unavailable", pa.list_(pa.string())),
        ("_coerced", pa.list_(pa.string())),
        ("_is_shared", pa.bool_()),
        ("_headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
NOW = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def validated(partition: int, offset: int, disposition: str = "row", **more: Any) -> dict[str, Any]:
    """A record as validation leaves it."""
    empty: dict[str, Any] = dict.fromkeys(BATCH.names)
    return {
        **empty,
        "_topic": "t",
        "_partition": partition,
        "_offset": offset,
        "_timestamp": NOW,
        "_index": 0,
        "id": offset,
        "_disposition": disposition,
        "_bytes": 10,
        **more,
    }


def test_a_batch_is_counted_by_disposition_and_partition(engine: Engine) -> None:
    """Records, not rows, where an array gives many; undeclared names by how many have them."""
    hold(
        engine,
        [
            validated(0, 3, _extra=["x", "y"], _digest=3),
            validated(0, 4, _extra=["x"], _digest=4),
            validated(0, 4, _index=1, _digest=4),
            validated(0, 5, "quarantined", _extra=["x"], _digest=-5),
            validated(1, 7, "overlap", _digest=7),
        ],
        BATCH,
    )

    counts = count_records(engine)

    assert dict(counts.dispositions) == {"row": 3, "quarantined": 1, "overlap": 1}
    assert (counts.read, counts.good, counts.exploded, counts.good_bytes) == (4, 3, 1, 30)
    first, second = (counts.partitions[TopicPartition("t", at)] for at in (0, 1))
    assert (first.records, first.first, first.last, first.offset_sum) == (3, 3, 5, 12)
    assert (first.last_ms, first.last_digest) == (1_704_067_200_000, -5)
    assert (second.records, second.overlap) == (1, 1)
    assert extra_counts(engine, counts) == {
        "extra_fields": 2,
        "extra_fields.x": 2,
        "extra_fields.y": 1,
    }


def test_every_missing_offset_is_found(engine: Engine) -> None:
    """At either end, in the middle, and in no partition that is full."""
    hold(engine, [validated(0, at) for at in (2, 3, 6)] + [validated(1, 0)], BATCH)
    planned = [
        Range(topic="t", partition=0, start=0, end=9),
        Range(topic="t", partition=1, start=0, end=1),
    ]

    holes = _holes_between(engine, planned, count_records(engine))

    assert [(hole.partition, hole.start, hole.end) for hole in holes] == [
        (0, 0, 2),
        (0, 4, 6),
        (0, 7, 9),
    ]


def test_a_quarantined_record_keeps_its_bytes_and_all_that_says_why(
    engine: Engine, tmp_path: Path
) -> None:
    """Types are those of the side table, by any engine; a schema's id comes from the detail."""
    large, file = b"x" * 3_000_000, Location.of(tmp_path / "quarantine" / "a.parquet")
    details = ("schema id 42: it's bad", "schema id 99999999999: too large", "x schema id 7:", None)
    bad = [
        validated(
            0, at, "quarantined", _value=large, _headers=[{"key": "h", "value": b"\x00"}],
            _reason="malformed_json", _detail=detail,
        )
        for at, detail in enumerate(details)
    ]  # fmt: skip
    hold(engine, [*bad, validated(0, 9)], BATCH)
    spec = declared()

    engine.write_parquet(quarantine_rows(metadata(3), spec), file)

    written, content = read_back(file), file.read()
    assert (written.path, written.rows, written.size) == ("a.parquet", 4, len(content))
    assert written.checksum == zlib.crc32(content)
    assert {*file.parent.files()} <= {"a.parquet", ".a.parquet.crc"}
    columns = pq.read_table(file.path)
    assert dict(zip(columns.schema.names, map(str, columns.schema.types), strict=True)) == {
        "_topic": "string",
        "_partition": "int32",
        "_offset": "int64",
        "_timestamp": "timestamp[us, tz=UTC]",
        "_seq": "int64",
        "key": "binary",
        "value": "binary",
        "headers": "list<element: struct<key: string, value: binary>>",
        "reason": "string",
        "detail": "string",
        "redriven_seq": "int64",
        "schema_id": "int32",
        "engine_version": "string",
        "run_id": "string",
        "declaration": "string",
        "removed": "string",
    }
    found = sorted(columns.to_pylist(), key=lambda row: row["_offset"])
    assert [row["schema_id"] for row in found] == [42, None, None, None]
    assert {(row["_seq"], row["run_id"], row["redriven_seq"]) for row in found} == {(3, "me", None)}
    assert {row["engine_version"] for row in found} == {engine_version()}
    assert {row["declaration"] for row in found} == {fingerprint(spec)}
    assert all(row["value"] == large for row in found)
    assert found[0]["headers"] == [{"key": "h", "value": b"\x00"}]


@pytest.mark.parametrize("names", [["a", "b"], ["a", "a", None]], ids=["all", "some"])
def test_texts_of_a_table_that_was_rewritten_are_compared(
    tmp_path: Path, names: list[str | None]
) -> None:
    """What delta-rs has updated or deleted from, Arrow cannot compare with its statistics."""
    table = pa.table({"name": pa.array(names, pa.string()), "n": pa.array(range(len(names)))})
    write_deltalake(str(tmp_path / "t"), table)
    DeltaTable(str(tmp_path / "t")).update(updates={"n": "n + 1"})

    with closing(LocalEngine("s", tmp_path)) as engine:
        engine.open_table("there", Location.of(tmp_path / "t"))
        found = engine.rows("SELECT n FROM there WHERE name IN ('a', 'c') ORDER BY n LIMIT 1")

    assert found == [{"n": 1}]
