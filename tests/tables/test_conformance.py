"""Each sink keeps what the battery asks for, and the battery notices one that does not."""

from __future__ import annotations

import inspect
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr

from ingestion.declaration.sinks import IcebergSink, KafkaSink, PostgresSink
from ingestion.settings import Settings
from ingestion.sinks.commit_metadata import CommitMetadata
from ingestion.sinks.conformance import Opener, SinkConformance
from ingestion.sinks.delta.table import DeltaSinkTable
from ingestion.sinks.iceberg import table as iceberg
from ingestion.sinks.kafka import table as topic
from ingestion.sinks.postgres import table as postgres_sink
from ingestion.sinks.table import Change, SinkTable, TableDefinition
from ingestion.storage.location import Location
from tests.support.long import IS_LONG
from tests.toys.files_sink import FilesTable, FilesTransaction

if not IS_LONG:
    SinkConformance.kills = 1


class TestFiles(SinkConformance):
    """The toy: files that are linked on commit."""

    @pytest.fixture
    def opened(self, tmp_path: Path) -> Opener:
        """Open a folder."""
        return partial(FilesTable, "orders", tmp_path / "orders")

    def remove(self, table: SinkTable) -> None:
        """Delete the folder."""
        assert isinstance(table, FilesTable)
        shutil.rmtree(table.folder)


class TestDelta(SinkConformance):
    """Delta, by the commits of the engine of one machine."""

    named = ":[]'\"%@-"

    @pytest.fixture
    def opened(self, tmp_path: Path) -> Opener:
        """Open a table of a lake of its own."""
        return partial(DeltaSinkTable, "orders", Location.of(tmp_path / "orders"))

    def remove(self, table: SinkTable) -> None:
        """Delete the folder."""
        assert isinstance(table, DeltaSinkTable)
        table.path.delete_all()


class MarkedTable(DeltaSinkTable):
    """A table whose rows are marked as gone."""

    def create(self, wanted: TableDefinition) -> None:
        """Make it so."""
        super().create(replace(wanted, deletion_vectors=True))


class TestDeltaWithVectors(TestDelta):
    """Delta, whose rows are marked in vectors, also the last ones of their files."""

    @pytest.fixture
    def opened(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opener:
        """Open a table of a lake of its own."""
        monkeypatch.setattr("ingestion.sinks.delta.transaction._MOST_GONE", 1.0)
        return partial(MarkedTable, "orders", Location.of(tmp_path / "orders"))


class TestIceberg(SinkConformance):
    """Iceberg, in its catalog on SQLite."""

    named = " ,;:{}()[]='\"%@-"

    @pytest.fixture
    def opened(self, tmp_path: Path) -> Opener:
        """Open a table of a lake of its own."""
        settings, lake = Settings(lake=tmp_path), Location.of(tmp_path)
        return partial(iceberg.open_table, "orders", IcebergSink(), settings, lake)


class TestPostgres(SinkConformance):
    """PostgreSQL, on a server of the tests' own."""

    @pytest.fixture
    def opened(self, postgres_address: str, tmp_path: Path) -> Opener:
        """Open a table of its own name."""
        sink = PostgresSink(table=f"public.t{uuid.uuid4().hex[:12]}")
        settings = Settings(postgres=SecretStr(postgres_address), lake=tmp_path)
        lake = Location.of(tmp_path)
        return partial(postgres_sink.open_table, "orders", sink, settings, lake)


@pytest.mark.kafka
class TestTopic(SinkConformance):
    """A topic, at a broker of the tests' own."""

    @pytest.fixture
    def opened(self, kafka_address: str, tmp_path: Path) -> Opener:
        """Open a topic of its own name."""
        sink = KafkaSink(topic=f"t{uuid.uuid4().hex[:12]}")
        settings = Settings(kafka=kafka_address, lake=tmp_path, state=tmp_path)
        lake = Location.of(tmp_path)
        return partial(topic.open_table, "orders", sink, settings, lake)

    def remove(self, table: SinkTable) -> None:
        """Delete the topic; its notes stay."""
        name = table.where.split()[1]
        admin = AdminClient({"bootstrap.servers": table.uri.split("/")[2]})
        admin.delete_topics([name])[name].result(10)
        while table.log().exists:
            pass


@pytest.mark.kafka
class TestAvroTopic:
    """The same in Avro: what does not depend on the format is not tried again."""

    types, named = SinkConformance.types, ""
    test_rows_and_note_come_together = SinkConformance.test_rows_and_note_come_together
    test_every_type_comes_back_as_it_was = SinkConformance.test_every_type_comes_back_as_it_was

    @pytest.fixture
    def opened(self, kafka_address: str, registry_address: str, tmp_path: Path) -> Opener:
        """Open a topic of its own name."""
        sink = KafkaSink(topic=f"t{uuid.uuid4().hex[:12]}", format="avro")
        settings = Settings(kafka=kafka_address, schema_registry=registry_address, state=tmp_path)
        return partial(topic.open_table, "orders", sink, settings, Location.of(tmp_path))


class _Overwrites(FilesTable):
    def publish(self, rows: pa.Table, version: int) -> None:
        os.replace(self.prepare(rows), self.folder / f"{version:08d}.arrow")


class _Buggy(FilesTable):
    transaction: type[FilesTransaction]

    def begin(self, seq: int) -> FilesTransaction:
        return self.transaction(self, seq)


def _with(transaction: type[FilesTransaction]) -> type[FilesTable]:
    return type(f"_With{transaction.__name__}", (_Buggy,), {"transaction": transaction})


class _NoteWithoutRows(FilesTransaction):
    def commit(self, change: Change | None, metadata: CommitMetadata) -> None:
        super().commit(None, metadata)


class _Doubles(FilesTransaction):
    def after(self, change: Change) -> pa.Table:
        rows = super().after(change)
        return pa.concat_tables([rows, change.inserted.cast(rows.schema)])


class _ForgetsDeletes(FilesTransaction):
    def after(self, change: Change) -> pa.Table:
        nothing = change.deleted.slice(0, 0)
        given = Change(inserted=change.inserted, updated=change.updated, deleted=nothing)
        return super().after(given)


class _AddsUpdates(FilesTransaction):
    def after(self, change: Change) -> pa.Table:
        new = pa.concat_tables([change.inserted, change.updated])
        given = Change(inserted=new, updated=new.slice(0, 0), deleted=change.deleted)
        return super().after(given)


class _Rebases(FilesTransaction):
    def commit(self, change: Change | None, metadata: CommitMetadata) -> None:
        self.version = self.table.versions()[0]
        self.before = self.table.read(self.version)
        super().commit(change, metadata)


class _TakesAnySeq(FilesTransaction):
    def __init__(self, table: FilesTable, seq: int) -> None:
        super().__init__(table, table.versions()[0])
        self.seq = seq


class _TakesAnyTable(FilesTransaction):
    def __init__(self, table: FilesTable, seq: int) -> None:
        table.known_id = None
        super().__init__(table, seq)


class _CutsNotes(FilesTransaction):
    def written(self, metadata: CommitMetadata) -> str:
        return super().written(metadata)[:65_536]


class _RoundsTime(FilesTransaction):
    def after(self, change: Change) -> pa.Table:
        rows = super().after(change)
        coarse = pa.schema(
            [
                field.with_type(pa.timestamp("ms", field.type.tz))
                if pa.types.is_timestamp(field.type)
                else field
                for field in rows.schema
            ]
        )
        return rows.cast(coarse, safe=False).cast(rows.schema)


class _SwallowsTheEnd(FilesTransaction):
    def commit(self, change: Change | None, metadata: CommitMetadata) -> None:
        rows = change.inserted if change else None
        short = rows.slice(0, max(0, rows.num_rows - 1)) if rows is not None else None
        if change is not None and short is not None:
            change = Change(inserted=short, updated=change.updated, deleted=change.deleted)
        super().commit(change, metadata)


class _ForgetsItsId(FilesTable):
    def create(self, *given: Any, **named: Any) -> None:
        for file in self.folder.glob("*.arrow"):
            file.unlink()
        super().create(*given, **named)


BUGS = {
    "commits over another": _Overwrites,
    "note without rows": _with(_NoteWithoutRows),
    "a retry that doubles": _with(_Doubles),
    "deletes are forgotten": _with(_ForgetsDeletes),
    "updates are added": _with(_AddsUpdates),
    "stale rebase": _with(_Rebases),
    "any seq is taken": _with(_TakesAnySeq),
    "any table is taken": _with(_TakesAnyTable),
    "long notes are cut": _with(_CutsNotes),
    "moments are rounded": _with(_RoundsTime),
    "a failed row is swallowed": _with(_SwallowsTheEnd),
    "made anew each time": _ForgetsItsId,
}


# What a step that fails has opened is left to be collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_noticed(bug: str, tmp_path: Path) -> None:
    """At least one test of the battery fails for a sink that breaks a promise."""
    folders = (tmp_path / str(number) for number in range(100))

    noticed = [
        name for name, promise in _promises() if _fails(promise, _opener(BUGS[bug], next(folders)))
    ]

    assert noticed


def _promises() -> Iterator[tuple[str, Callable[..., None]]]:
    for name, promise in inspect.getmembers(SinkConformance, inspect.isfunction):
        # A class that was made on the fly is unknown to another process.
        if name.startswith("test_") and "killed" not in name:
            yield name, promise


def _opener(table: type[FilesTable], folder: Path) -> Callable[[], SinkTable]:
    return partial(table, "orders", folder / "orders")


def _fails(promise: Callable[..., None], opened: Opener) -> bool:
    try:
        promise(TestFiles(), opened)
    except (AssertionError, pytest.fail.Exception):
        return True
    except Exception:  # noqa: BLE001 (a sink that breaks in another way is noticed, too)
        return True
    return False
