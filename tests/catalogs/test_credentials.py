"""Credentials that a catalog lends reach reading and writing, and are renewed before they end.

SeaweedFS lends them in earnest, for a quarter of an hour at least. Where they end sooner, a proxy
before the catalog says so, and another before the store refuses those that have ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from oncelake.ingestion.declaration.sinks import IcebergSink
from oncelake.ingestion.errors import SinkUnavailableError
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.iceberg import catalog as iceberg_catalog
from oncelake.ingestion.sinks.iceberg.catalog import LentFileIO
from oncelake.ingestion.sinks.iceberg.table import IcebergTable, open_table
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.table import TableDefinition
from tests.support.catalogs import NAME, TriedCatalog, only_catalogs
from tests.support.long import only_long
from tests.support.orders import (
    COLUMNS,
    KEYS,
    NOTE,
    STREAM,
    change,
    commit,
    ids,
    last_seq,
    names_in,
)
from tests.support.rest_catalog import SHORTEST_LIFE_SECONDS, seaweedfs
from tests.support.store_proxy import Requests, StoreProxy

pytestmark = only_catalogs
LOADS = r"^GET .*/tables/"


@dataclass(frozen=True)
class Lender:
    """A catalog that lends credentials, and a table in it."""

    table: IcebergTable
    catalog: StoreProxy
    store: StoreProxy

    def live_for(self, seconds: float) -> None:
        """Let what is lent from now on end so soon."""
        self.catalog.lend(seconds, self.store.address)
        self.store.lend(seconds, "")


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory, catalog: TriedCatalog
) -> Iterator[dict[str, str]]:
    """One server a module."""
    if catalog.kind != "seaweedfs":
        pytest.skip("SeaweedFS lends credentials here")
    with seaweedfs(tmp_path_factory.mktemp("lending"), is_lending=True) as properties:
        yield properties


@pytest.fixture
def lender(
    servers: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lender]:
    """A table whose files are reached by nothing but what the catalog lends."""
    with ExitStack() as stack:
        catalog = stack.enter_context(StoreProxy.before(servers["uri"]))
        store = stack.enter_context(StoreProxy.before(servers["s3.endpoint"]))
        for name, value in {**servers, "uri": catalog.address}.items():
            if not name.startswith("s3."):
                variable = name.upper().replace(".", "__").replace("-", "_")
                monkeypatch.setenv(f"PYICEBERG_CATALOG__LENDING__{variable}", value)
        catalog.lend(SHORTEST_LIFE_SECONDS, store.address)
        declared = IcebergSink(table=f"shop.t{time.monotonic_ns()}", catalog="lending")
        table = open_table(STREAM, declared, Settings(), Location.of(tmp_path))
        table.create(TableDefinition(columns=COLUMNS, keys=KEYS))
        table.commit_note(NOTE)
        commit(table, 1, change(1, inserted={1: "a", 2: "b"}))
        yield Lender(table, catalog, store)
        table.drop()


def loads_in(requests: Requests) -> int:
    """Count how often the table was loaded."""
    return sum(request.kind == "GET" and "/tables/" in request.target for request in requests)


def test_what_is_lent_reaches_every_file(lender: Lender, servers: dict[str, str]) -> None:
    """Reading, writing and upkeep need no login of the store's own; each batch asks anew."""
    table = lender.table
    io = table._entry.loaded().io
    assert isinstance(io, LentFileIO)
    assert io.properties["s3.access-key-id"] != servers["s3.access-key-id"]
    with lender.catalog.counted() as requests:
        begun = table.begin(2)
    assert loads_in(requests) == 1

    with closing(begun) as transaction, lender.catalog.counted() as requests:
        assert transaction.rows_of(ids(1)).num_rows == 1
        transaction.commit(change(2, updated={1: "A"}), replace(NOTE, seq=2))

    assert loads_in(requests) == 0
    assert (names_in(table), last_seq(table)) == ({1: "A", 2: "b"}, 2)
    assert len(table.written_files()) > 2


def test_what_is_lent_is_renewed_before_it_ends(lender: Lender) -> None:
    """A batch takes several lives: it is read, written and committed by credentials that live."""
    lender.live_for(4)
    with closing(lender.table.begin(2)) as transaction, lender.catalog.counted() as requests:
        time.sleep(3)
        assert transaction.rows_of(ids(1, 2)).num_rows == 2
        time.sleep(4.5)
        transaction.commit(change(2, updated={1: "A"}, deleted=[2]), replace(NOTE, seq=2))

    assert loads_in(requests) == 2
    assert (names_in(lender.table), last_seq(lender.table)) == ({1: "A"}, 2)


def test_without_renewal_such_a_batch_fails(
    lender: Lender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the test before this one says something."""
    monkeypatch.setattr(iceberg_catalog, "_LENT", ("nothing",))
    lender.live_for(1)
    with closing(lender.table.begin(2)) as transaction:
        time.sleep(2.5)
        with pytest.raises(SinkUnavailableError):
            transaction.commit(change(2, updated={1: "A"}), replace(NOTE, seq=2))
    assert last_seq(lender.table) == 1


def test_a_batch_that_outlives_what_is_lent_is_told(lender: Lender) -> None:
    """Where the catalog lends what has ended already, the batch ends, and says why."""
    with closing(lender.table.begin(2)) as transaction:
        lender.live_for(-5)
        transaction._table.io._begin -= 10 * SHORTEST_LIFE_SECONDS  # type: ignore[attr-defined]
        with pytest.raises(SinkUnavailableError, match=r"have ended.*Next: let the catalog lend"):
            transaction.commit(change(2, updated={1: "A"}), replace(NOTE, seq=2))

    lender.live_for(60)
    assert (names_in(lender.table), last_seq(lender.table)) == ({1: "a", 2: "b"}, 1)


def test_what_says_no_end_is_renewed_as_the_shortest_that_there_is(
    lender: Lender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unity's live an hour, and do not say so."""
    monkeypatch.setattr(iceberg_catalog, "_ENDS", ("nothing",))
    monkeypatch.setattr(iceberg_catalog, "_LEAST_LIFE_SECONDS", 3.0)
    with closing(lender.table.begin(2)) as transaction, lender.catalog.counted() as requests:
        time.sleep(2.5)
        transaction.commit(change(2, updated={1: "A"}), replace(NOTE, seq=2))

    assert loads_in(requests) == 1
    assert names_in(lender.table) == {1: "A", 2: "b"}


@only_long
def test_credentials_of_a_minute_last_for_a_batch_of_five(lender: Lender) -> None:
    """It reads and writes all the while."""
    lender.live_for(60)
    with closing(lender.table.begin(2)) as transaction, lender.catalog.counted() as requests:
        for _ in range(10):
            time.sleep(30)
            assert next(transaction.read(transaction.files[0], ["id"])).num_rows == 2
        transaction.commit(change(2, updated={1: "A"}), replace(NOTE, seq=2))

    assert 4 <= loads_in(requests) <= 10
    assert names_in(lender.table) == {1: "A", 2: "b"}


def test_a_login_of_ones_own_is_not_renewed(
    catalog: TriedCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session's token that the configuration has ends when it ends."""
    if catalog.properties["type"] != "rest":
        pytest.skip("only REST lends any")
    declared = IcebergSink(table=f"{catalog.namespace}.own", catalog=NAME)
    lake = Location.of(tmp_path)
    open_table(STREAM, declared, Settings(), lake).create(
        TableDefinition(columns=COLUMNS, keys=KEYS)
    )
    variable = f"PYICEBERG_CATALOG__{NAME.upper()}__S3__SESSION_TOKEN"
    monkeypatch.setenv(variable, "own")

    table = open_table(STREAM, declared, Settings(), lake)

    io = table._entry.loaded().io
    assert (type(io), io.properties["s3.session-token"]) == (PyArrowFileIO, "own")
