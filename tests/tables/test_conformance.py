"""Each sink keeps what the battery asks for, and the battery notices one that does not."""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr

from oncelake.ingestion.declaration.partitions import parse_partition
from oncelake.ingestion.declaration.sinks import SINKS, IcebergSink, KafkaSink, PostgresSink
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.delta.table import DeltaSinkTable
from oncelake.ingestion.sinks.iceberg import table as iceberg
from oncelake.ingestion.sinks.iceberg.catalog import CatalogEntry
from oncelake.ingestion.sinks.kafka import table as topic
from oncelake.ingestion.sinks.postgres import table as postgres_sink
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.table import SinkTable, TableDefinition
from oncelake.testing import Opener, SinkConformance
from tests.support.long import IS_LONG, only_long

if not IS_LONG:
    SinkConformance.kills = 1


class TestDelta(SinkConformance):
    """Delta, by the commits of the engine of one machine."""

    kind = SINKS["delta"]
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

    steps, steps_of_others = 10, 0

    @pytest.fixture
    def opened(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opener:
        """Open a table of a lake of its own."""
        monkeypatch.setattr("oncelake.ingestion.sinks.delta.writer.MOST_MARKED", 1.0)
        return partial(MarkedTable, "orders", Location.of(tmp_path / "orders"))


class TestIceberg(SinkConformance):
    """Iceberg, in its catalog on SQLite."""

    kind = SINKS["iceberg"]
    # A step of its client takes long.
    steps, steps_of_others = 10, 0
    named = " ,;:{}()[]='\"%@-"

    @pytest.fixture
    def opened(self, tmp_path: Path) -> Opener:
        """Open a table of a lake of its own."""
        settings, lake = Settings(lake=tmp_path), Location.of(tmp_path)
        return partial(iceberg.open_table, "orders", IcebergSink(), settings, lake)


class MarkedIceberg(iceberg.IcebergTable):
    """A table whose rows are marked as gone."""

    def create(self, wanted: TableDefinition) -> None:
        """Make it so."""
        super().create(replace(wanted, deletion_vectors=True))


def open_marked(
    stream: str, sink: IcebergSink, settings: Settings, lake: Location
) -> iceberg.IcebergTable:
    """Open it."""
    del settings
    return MarkedIceberg(CatalogEntry.of(stream, sink, lake))


@only_long
class TestIcebergWithMarks(TestIceberg):
    """Iceberg, whose rows are marked by position deletes, also the last ones of their files."""

    @pytest.fixture
    def opened(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opener:
        """Open a table of a lake of its own."""
        monkeypatch.setattr("oncelake.ingestion.sinks.iceberg.files.MOST_MARKED", 1.0)
        return partial(open_marked, "orders", IcebergSink(), Settings(), Location.of(tmp_path))


class DividedTable(iceberg.IcebergTable):
    """A sorted table in which every update moves its row to another partition."""

    def create(self, wanted: TableDefinition) -> None:
        """Make it so; nothing renames or drops the columns of every table."""
        fields = map(parse_partition, ("bucket(2, _offset)", "_seq"))
        by = {"partitions": tuple(fields), "sort_by": ("_timestamp", "_offset")}
        super().create(replace(wanted, **by))


def open_divided(
    stream: str, sink: IcebergSink, settings: Settings, lake: Location
) -> DividedTable:
    """Open such a table."""
    del settings
    return DividedTable(CatalogEntry.of(stream, sink, lake))


@only_long
class TestPartitionedIceberg(TestIceberg):
    """Iceberg, whose rows are divided by more than their keys."""

    @pytest.fixture
    def opened(self, tmp_path: Path) -> Opener:
        """Open a table of a lake of its own."""
        return partial(open_divided, "orders", IcebergSink(), Settings(), Location.of(tmp_path))


class TestPostgres(SinkConformance):
    """PostgreSQL, on a server of the tests' own."""

    kind = SINKS["postgres"]
    is_on_disk = False
    steps_of_others = 0

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

    kind = SINKS["kafka"]
    # A commit takes half a second, and a broker's answer may take long.
    steps, seconds = 12, 180

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

    kind = SINKS["kafka"]
    types, named, seconds = SinkConformance.types, "", TestTopic.seconds
    kept_types, values_of = SinkConformance.kept_types, SinkConformance.values_of
    test_rows_and_note_come_together = SinkConformance.test_rows_and_note_come_together
    test_every_type_comes_back_as_it_was = SinkConformance.test_every_type_comes_back_as_it_was

    @pytest.fixture
    def opened(self, kafka_address: str, registry_address: str, tmp_path: Path) -> Opener:
        """Open a topic of its own name."""
        sink = KafkaSink(topic=f"t{uuid.uuid4().hex[:12]}", format="avro")
        settings = Settings(kafka=kafka_address, schema_registry=registry_address, state=tmp_path)
        return partial(topic.open_table, "orders", sink, settings, Location.of(tmp_path))
