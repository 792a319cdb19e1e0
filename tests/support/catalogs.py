"""Iceberg catalogs under test: each by a real server, and what tests do to the way there."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch
from urllib.parse import urlsplit

import psycopg
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from sqlalchemy.dialects.postgresql.base import PGDialect

from tests.support.metastore import ThriftProxy, metastore, skip_without_thrift
from tests.support.postgres import postgres
from tests.support.rest_catalog import seaweedfs, servlet
from tests.support.store import environment_of_store, make_bucket, moto
from tests.support.store_proxy import Fault, Request, Requests, StoreProxy

# Which are tried: `make catalogs` names them all, `make world-rest` the one of a person.
TRIED = tuple(os.environ.get("CATALOGS", "sqlite seaweedfs").split())
# What `make test` leaves to `make catalogs`.
only_catalogs = pytest.mark.skipif("CATALOGS" not in os.environ, reason="left to make catalogs")
# What the network does to a request that the server never hears of, and to one that it carries out.
BEFORE: Final[tuple[Fault, ...]] = ("error", "bad_gateway", "slow_down", "reset")
BEHIND: Final[tuple[Fault, ...]] = (
    *("late_error", "gateway_timeout", "lost_answer", "hung_up", "twice"),
)
# The requests that commit to a table of a REST catalog.
_COMMIT: Final = r"^POST .*/namespaces/[^/]+/tables/[^/]+$"
# How long a lock of the metastore lives here; less than a client waits for one.
HIVE_LOCK_SECONDS: Final = 6
# Types as Hive 2 knows them.
HIVE2: Final = "hive.hive2-compatible"
# The variable that has the properties of a person's own catalog, as JSON.
YOURS: Final = "CATALOG_OF_YOURS"
# The name in pyiceberg's configuration that streams of tests declare.
NAME = "tests"


def first_or_all(*params: Fault) -> list[Any]:
    """Return parameters of a test, of which `make test` tries the first."""
    first, *more = params
    return [first, *(pytest.param(each, marks=only_catalogs) for each in more)]


@dataclass(frozen=True, kw_only=True)
class TriedCatalog:
    """A catalog, and a namespace of its own in it.

    Attributes:
        kind: One of ``TRIED``.
        properties: What pyiceberg is told of it.
        commit: The requests that commit to a table, as a ``StoreProxy`` names them.
        requests_of_a_refusal: How many of those there are where a commit is refused; it takes none
            to see that the table has changed.
        faults: What can happen to a commit.
        retries: Whether its client itself asks again where no answer comes.
        proxy: Passes its requests on, where they are of HTTP or Thrift.
    """

    kind: str
    properties: dict[str, str]
    commit: str = ""
    requests_of_a_refusal: int = 1
    faults: tuple[Fault, ...] = (*BEFORE, *BEHIND, "delay", "stall")
    retries: bool = False
    proxy: StoreProxy | ThriftProxy | None = None
    namespace: str = field(default_factory=lambda: f"oncelake_{uuid.uuid4().hex[:12]}")

    def environment(self) -> dict[str, str]:
        """Return the variables that tell pyiceberg of it."""
        names = {
            name: name.upper().replace(".", "__").replace("-", "_") for name in self.properties
        }
        return {
            f"PYICEBERG_CATALOG__{NAME.upper()}__{names[name]}": value
            for name, value in self.properties.items()
        }

    @contextmanager
    def opened(self) -> Iterator[Catalog]:
        """Speak to it as somebody else does."""
        with closing(load_catalog(NAME, **self.properties)) as catalog:
            yield catalog

    @contextmanager
    def table(self, name: str) -> Iterator[Table]:
        """Load a table of its namespace as somebody else does, who may change it in the block."""
        with self.opened() as catalog:
            yield catalog.load_table(f"{self.namespace}.{name}")

    def sink(self, table: str) -> dict[str, Any]:
        """Return what a stream declares whose rows are in a table of the namespace."""
        return {"iceberg": {"table": f"{self.namespace}.{table}", "catalog": NAME}}

    def clear(self) -> None:
        """Remove the namespace, and what is in it."""
        with self.opened() as catalog:
            if not catalog.namespace_exists(self.namespace):
                return
            for name in catalog.list_tables(self.namespace):
                try:
                    catalog.purge_table(name)
                except (NoSuchTableError, NotImplementedError):
                    catalog.drop_table(name)
            catalog.drop_namespace(self.namespace)

    @contextmanager
    def fault(self, fault: Fault, **how: Any) -> Iterator[Requests]:
        """Let this happen to the commits of the block; by default to the first."""
        if self.proxy is None:
            pytest.skip("no proxy can stand before it")
        with self.proxy.fault(fault, **{"of": self.commit, "times": 1, **how}) as requests:
            yield requests

    @contextmanager
    def watched(self) -> Iterator[Requests]:
        """Collect the requests of the block; there are none where it does not speak HTTP."""
        if self.proxy is None:
            yield Requests(list)
            return
        with self.proxy.counted() as requests:
            yield requests

    def commits_in(self, requests: Requests) -> list[Request]:
        """Choose those that commit."""
        return [each for each in requests if re.search(self.commit, f"{each.kind} {each.target}")]

    @contextmanager
    def away(self) -> Iterator[None]:
        """Let nobody reach it while the block runs."""
        if self.proxy is None:
            pytest.skip("no proxy can stand before it")
        with self.proxy.fault("reset"):
            yield

    @contextmanager
    def through_a_proxy(self, uri: str = "uri") -> Iterator[TriedCatalog]:
        """Lead its requests through a proxy, in which faults happen."""
        server = urlsplit(self.properties[uri])
        with StoreProxy.before(server._replace(path="", query="").geturl()) as proxy:
            address = f"{proxy.address}{server.path}".rstrip("/")
            properties = {**self.properties, uri: address}
            yield replace(self, properties=properties, proxy=proxy)


class SqlOfPostgres(TriedCatalog):
    """One whose commits are transactions: what happens to them happens in the driver."""

    @contextmanager
    def fault(self, fault: Fault, **how: Any) -> Iterator[Requests]:
        """End the session before the first commit to a table, or when the server has done it."""
        met, commit, commit_table = list[Request](), PGDialect.do_commit, SqlCatalog.commit_table
        given = {"kind": "COMMIT", "target": "", "headers": {}, "status": 0}

        def fail(dialect: PGDialect, connection: Any) -> None:
            met.append(Request(**given))
            if fault in BEHIND:
                commit(dialect, connection)
            connection.dbapi_connection.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")

        def commit_and_fail(*of_table: Any) -> Any:
            if met and how.get("times", 1) is not None:
                return commit_table(*of_table)
            with patch.object(PGDialect, "do_commit", fail):
                return commit_table(*of_table)

        with patch.object(SqlCatalog, "commit_table", commit_and_fail):
            yield Requests(lambda: met)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Let no connection be made while the block runs."""
        refusal = psycopg.OperationalError("connection refused")
        with patch.object(psycopg, "connect", side_effect=refusal):
            yield


@contextmanager
def served(kind: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[TriedCatalog]:
    """Start what serves a catalog, or skip the test where that cannot be had."""
    with _SERVERS[kind](folder, request) as catalog:
        try:
            yield catalog
        finally:
            catalog.clear()


@contextmanager
def _sqlite(folder: Path, request: pytest.FixtureRequest) -> Iterator[TriedCatalog]:
    """Take a file for a catalog, as a person may; no fault can happen on the way to it."""
    del request
    yield TriedCatalog(
        kind="sqlite",
        properties={
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db?timeout=60",
            "warehouse": f"file://{folder}/warehouse",
        },
        requests_of_a_refusal=0,
        faults=(),
    )


@contextmanager
def _seaweedfs(folder: Path, request: pytest.FixtureRequest) -> Iterator[TriedCatalog]:
    del request
    with ExitStack() as stack:
        properties = stack.enter_context(seaweedfs(folder))
        plain = TriedCatalog(kind="seaweedfs", properties=properties, commit=_COMMIT)
        yield stack.enter_context(plain.through_a_proxy())


@contextmanager
def _servlet(folder: Path, request: pytest.FixtureRequest) -> Iterator[TriedCatalog]:
    del request
    with servlet(folder) as properties:
        plain = TriedCatalog(kind="servlet", properties=properties, commit=_COMMIT)
        with plain.through_a_proxy() as proxied:
            yield proxied


@contextmanager
def _postgres(folder: Path, request: pytest.FixtureRequest) -> Iterator[TriedCatalog]:
    """Start pyiceberg's own catalog in a database of PostgreSQL; files are in moto's S3."""
    database = f"c{uuid.uuid4().hex[:12]}"
    with ExitStack() as stack:
        server = stack.enter_context(postgres(folder))
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {database}")
        store = stack.enter_context(moto(_made(folder / "store")))
        uri = urlsplit(server)._replace(scheme="postgresql+psycopg", path=database).geturl()
        files = {"warehouse": f"s3://{make_bucket(store)}/warehouse", **_login(store)}
        yield SqlOfPostgres(
            kind="postgres",
            properties={"type": "sql", "uri": uri, **files},
            requests_of_a_refusal=0,
            faults=("reset", "lost_answer"),
        )


@contextmanager
def _glue(folder: Path, request: pytest.FixtureRequest) -> Iterator[TriedCatalog]:
    """Start moto's Glue, which compares versions (``moto_server.py``), and its S3."""
    del request
    with ExitStack() as stack:
        server = stack.enter_context(moto(_made(folder / "store")))
        login = environment_of_store(server)
        plain = TriedCatalog(
            kind="glue",
            properties={
                "type": "glue",
                "warehouse": f"s3://{make_bucket(server)}/warehouse",
                "glue.endpoint": server,
                "glue.region": login["AWS_REGION"],
                "glue.access-key-id": login["AWS_ACCESS_KEY_ID"],
                "glue.secret-access-key": login["AWS_SECRET_ACCESS_KEY"],
                **_login(server),
            },
            commit=r"^POST / .*\.UpdateTable$",
            requests_of_a_refusal=0,
            # Its client waits for an answer for a minute, ten times.
            faults=(*BEFORE, *BEHIND, "delay"),
            retries=True,
        )
        yield stack.enter_context(plain.through_a_proxy("glue.endpoint"))


def _login(store: str) -> dict[str, str]:
    """Return pyiceberg's properties of a store."""
    login = environment_of_store(store)
    return {
        "s3.endpoint": store,
        "s3.region": login["AWS_REGION"],
        "s3.access-key-id": login["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": login["AWS_SECRET_ACCESS_KEY"],
    }


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@contextmanager
def _hive(folder: Path, request: pytest.FixtureRequest) -> Iterator[TriedCatalog]:
    """Start Hive's metastore, whose tables lie in the folder; locks of the dead end soon."""
    del request
    skip_without_thrift()
    with ExitStack() as stack:
        server = stack.enter_context(metastore(folder, lock_seconds=HIVE_LOCK_SECONDS))
        proxy = stack.enter_context(ThriftProxy.before(urlsplit(server).port or 0))
        files = {"warehouse": f"file://{folder}/warehouse", HIVE2: "true"}
        # Who waits for a lock renews it by asking again, which must be before it ends.
        waits = {"lock-check-max-wait-time": "2", "lock-check-retries": "8"}
        yield TriedCatalog(
            kind="hive",
            properties={"type": "hive", "uri": proxy.address, **files, **waits},
            commit="^CALL alter_table_with_environment_context$",
            requests_of_a_refusal=0,
            faults=("reset", "error", "lost_answer", "hung_up", "late_error", "delay"),
            proxy=proxy,
        )


@contextmanager
def _yours(folder: Path, request: pytest.FixtureRequest) -> Iterator[TriedCatalog]:
    """Take the catalog of a person, whose properties ``make world-rest`` hands over."""
    del folder, request
    properties = {name: str(value) for name, value in json.loads(os.environ[YOURS]).items()}
    plain = TriedCatalog(kind="yours", properties=properties, commit=_COMMIT)
    if properties.get("rest.sigv4-enabled", "").lower() == "true":
        # What a proxy passes on is signed for the proxy.
        yield replace(plain, faults=())
        return
    with plain.through_a_proxy() as proxied:
        yield proxied


_SERVERS: dict[str, Callable[[Path, pytest.FixtureRequest], Any]] = {
    "sqlite": _sqlite,
    "seaweedfs": _seaweedfs,
    "servlet": _servlet,
    "postgres": _postgres,
    "glue": _glue,
    "hive": _hive,
    "yours": _yours,
}
