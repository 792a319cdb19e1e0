"""At Hive's metastore a commit is safe without its lock, and a lock of the dead is released."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadata

from oncelake.ingestion.declaration.sinks import IcebergSink
from oncelake.ingestion.errors import CommitConflictError, SinkUnavailableError, TableBusyError
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.iceberg import catalog as iceberg_catalog
from oncelake.ingestion.sinks.iceberg.table import IcebergTable, open_table
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.table import TableDefinition
from tests.support.catalogs import NAME, TriedCatalog, only_catalogs
from tests.support.orders import COLUMNS, KEYS, NOTE, STREAM, change, commit, last_seq, names_in

pytestmark = only_catalogs
Opener = Callable[[], IcebergTable]


@pytest.fixture
def opened(tmp_path: Path, catalog: TriedCatalog) -> Opener:
    """Open a table of the test's own, which has a batch."""
    if catalog.kind != "hive":
        pytest.skip("only Hive's metastore has locks")
    declared = IcebergSink(table=f"{catalog.namespace}.t{uuid.uuid4().hex[:12]}", catalog=NAME)

    def open_it() -> IcebergTable:
        return open_table(STREAM, declared, Settings(), Location.of(tmp_path))

    table = open_it()
    table.create(TableDefinition(columns=COLUMNS, keys=KEYS))
    table.commit_note(NOTE)
    commit(table, 1, change(1, inserted={1: "a"}))
    return open_it


@contextmanager
def asked(catalog: TriedCatalog) -> Iterator[tuple[Any, Any]]:
    """Speak to the metastore as another client does."""
    with catalog.opened() as other, vars(other)["_client"] as client:
        yield other, client


def lock(table: IcebergTable, catalog: TriedCatalog, agent: str) -> int:
    """Lock a table, and leave the lock."""
    from hive_metastore.ThriftHiveMetastore import Client

    with asked(catalog) as (other, client):
        request = other._create_lock_request(*table._entry.identifier)
        request.agentInfo = agent
        return int(Client.lock(client, request).lockid)


def unlock(table: IcebergTable, catalog: TriedCatalog) -> None:
    """Release every lock of a table."""
    from hive_metastore.ttypes import ShowLocksRequest, UnlockRequest

    with asked(catalog) as (_, client):
        database, name = table._entry.identifier
        for each in client.show_locks(ShowLocksRequest(dbname=database, tablename=name)).locks:
            client.unlock(UnlockRequest(lockid=each.lockid))


def wait_for_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commits look at a lock once more, and no longer."""
    monkeypatch.setenv(f"PYICEBERG_CATALOG__{NAME.upper()}__LOCK_CHECK_RETRIES", "1")


def test_a_lock_that_another_holds_is_named(
    opened: Opener, catalog: TriedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends with 5, leaves nothing behind, and is made when the lock is free."""
    wait_for_no_lock(monkeypatch)
    before = opened().written_files()
    number = lock(opened(), catalog, "another")

    with pytest.raises(TableBusyError, match=rf"held by .* on .* \(lock {number}\)") as failed:
        commit(opened(), 2, change(2, inserted={2: "b"}))

    assert (failed.value.exit_code, names_in(opened())) == (5, {1: "a"})
    assert opened().written_files() == before
    unlock(opened(), catalog)
    commit(opened(), 2, change(2, inserted={2: "b"}))


def test_a_lock_that_a_dead_process_of_ours_left_is_released(
    opened: Opener, catalog: TriedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the time that a metastore gives it, whether or not that cleans up; others' stay."""
    from oncelake.ingestion.sinks.iceberg import hive

    wait_for_no_lock(monkeypatch)
    monkeypatch.setattr(hive, "_LOCK_SECONDS", 1)
    lock(opened(), catalog, hive._OURS)
    with pytest.raises(TableBusyError):
        commit(opened(), 2, change(2, inserted={2: "b"}))
    time.sleep(1.2)

    commit(opened(), 2, change(2, inserted={2: "b"}))

    lock(opened(), catalog, "another")
    time.sleep(1.2)
    with pytest.raises(TableBusyError):
        commit(opened(), 3, change(3, inserted={3: "c"}))
    assert names_in(opened()) == {1: "a", 2: "b"}


@pytest.mark.parametrize("is_guarded", [True, False], ids=["ours", "pyiceberg's own"])
def test_a_writer_that_has_lost_its_lock_replaces_nothing(
    opened: Opener, catalog: TriedCatalog, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """It has read the table, is suspended, and another commits; pyiceberg's client loses that."""
    from hive_metastore.ThriftHiveMetastore import Client as Plain
    from pyiceberg.catalog.hive import HiveCatalog

    from oncelake.ingestion.sinks.iceberg.hive import Client

    write = HiveCatalog._write_metadata

    def suspended(metadata: TableMetadata, *more: Any, **named: Any) -> None:
        monkeypatch.setattr(HiveCatalog, "_write_metadata", staticmethod(write))
        unlock(opened(), catalog)
        commit(opened(), 2, change(2, inserted={2: "theirs"}))
        write(metadata, *more, **named)

    monkeypatch.setattr(HiveCatalog, "_write_metadata", staticmethod(suspended))
    if not is_guarded:
        alter = Plain.alter_table_with_environment_context
        monkeypatch.setattr(Client, alter.__name__, alter)
    with suppress(CommitConflictError):
        commit(opened(), 2, change(2, inserted={3: "late"}))

    assert last_seq(opened()) == 2
    assert names_in(opened()) == {1: "a", **({2: "theirs"} if is_guarded else {3: "late"})}


def test_a_metastore_that_does_not_answer_is_waited_for_no_longer_than_a_minute(
    opened: Opener, catalog: TriedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client has no time-out by itself; here it is shorter."""
    monkeypatch.setattr(iceberg_catalog, "_REQUEST_SECONDS", (5.0, 1.0))
    begin = time.monotonic()
    with (
        catalog.fault("stall", of="", times=None),
        pytest.raises(SinkUnavailableError, match="read timeout") as failed,
    ):
        opened().log().last_seq(STREAM)

    assert (failed.value.exit_code, time.monotonic() - begin < 20) == (5, True)
    assert names_in(opened()) == {1: "a"}
