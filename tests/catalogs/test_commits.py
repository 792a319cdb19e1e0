"""A commit is made once, on exactly the table that it was begun on, in any catalog."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg import table as pyiceberg
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.table import Table

from oncelake.ingestion.declaration.sinks import IcebergSink
from oncelake.ingestion.errors import (
    CommitConflictError,
    DependencyError,
    IngestionError,
    MissingRightError,
    RefusedError,
    SinkUnavailableError,
    TableBusyError,
)
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.iceberg.catalog import IDEMPOTENCY_KEY
from oncelake.ingestion.sinks.iceberg.table import IcebergTable, open_table
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.table import TableDefinition, Transaction
from tests.support.catalogs import NAME, TriedCatalog, only_catalogs
from tests.support.orders import (
    COLUMNS,
    KEYS,
    NOTE,
    STREAM,
    change,
    commit,
    last_seq,
    names_in,
    rows,
)

Opener = Callable[[], IcebergTable]


@pytest.fixture
def opened(tmp_path: Path, catalog: TriedCatalog) -> Opener:
    """Open a table of the test's own, which has its first note."""
    declared = IcebergSink(table=f"{catalog.namespace}.t{uuid.uuid4().hex[:12]}", catalog=NAME)

    def open_it() -> IcebergTable:
        return open_table(STREAM, declared, Settings(), Location.of(tmp_path))

    table = open_it()
    table.create(TableDefinition(columns=COLUMNS, keys=KEYS, description="what was ordered"))
    table.commit_note(NOTE)
    return open_it


def others(opened: Opener, catalog: TriedCatalog) -> Table:
    """Load the table as somebody else does, who reads it."""
    with catalog.table(opened()._entry.identifier[-1]) as table:
        return table


def test_a_late_writer_is_refused(opened: Opener) -> None:
    """What it wrote is in no snapshot, and its files are gone."""
    commit(opened(), 1, change(1, inserted={1: "a"}))
    late = opened().begin(2)
    commit(opened(), 2, change(2, updated={1: "A"}))
    before = opened().written_files()

    with closing(late), pytest.raises(CommitConflictError, match="seq 2 as its last"):
        late.commit(change(2, inserted={2: "late"}), replace(NOTE, seq=2))

    assert (names_in(opened()), last_seq(opened())) == ({1: "A"}, 2)
    assert opened().written_files() == before


def test_of_several_writers_at_once_one_commits(opened: Opener) -> None:
    """All begin on the same state; nothing is lost of the one that wins."""
    for seq in range(1, 5):
        winners = race(seq, [opened().begin(seq) for _ in range(4)])
        assert [names_in(opened())[seq]] == winners
    assert len(names_in(opened())) == last_seq(opened()) == 4


def race(seq: int, begun: Sequence[Transaction]) -> list[str]:
    """Commit a row of each transaction at once; return the names of those that are told so."""
    barrier, winners = threading.Barrier(len(begun)), list[str]()

    def commit_one(number: int) -> None:
        with closing(begun[number]) as transaction, suppress(CommitConflictError):
            row = change(seq, inserted={seq: str(number)})
            barrier.wait(60)
            transaction.commit(row, replace(NOTE, seq=seq))
            winners.append(str(number))

    threads = [threading.Thread(target=commit_one, args=(at,)) for at in range(len(begun))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return winners


def test_a_commit_that_meets_another_is_not_made_again_on_top_of_it(
    opened: Opener, catalog: TriedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by pyiceberg either, whose own transactions are, however often the table lets it try."""
    commit(opened(), 1, change(1, inserted={1: "a"}))
    name = opened()._entry.identifier[-1]
    with catalog.table(name) as table:
        table.transaction().set_properties({"commit.retry.num-retries": "4"}).commit_transaction()
    with catalog.table(name) as theirs, catalog.table(name) as stale:
        begun = opened().begin(2)
        theirs.append(rows({8: "first"}, seq=0).cast(theirs.schema().as_arrow()))
        # This is what must not happen to us, and the library does it.
        stale.append(rows({9: "second"}, seq=0).cast(stale.schema().as_arrow()))
    head = others(opened, catalog).metadata

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the commit went through pyiceberg's own transaction")

    monkeypatch.setattr(pyiceberg.Transaction, "commit_transaction", refuse)
    monkeypatch.setattr(Table, "_do_commit", refuse)
    with catalog.watched() as requests, closing(begun), pytest.raises(TableBusyError):
        begun.commit(change(2, inserted={2: "b"}), replace(NOTE, seq=2))

    assert len(catalog.commits_in(requests)) == catalog.requests_of_a_refusal
    assert others(opened, catalog).metadata == head
    assert names_in(opened()) == {1: "a", 8: "first", 9: "second"}


def test_each_commit_has_a_key_of_its_own(opened: Opener, catalog: TriedCatalog) -> None:
    """A UUID of version 7, by which a server of REST knows a request that comes twice."""
    if catalog.properties["type"] != "rest":
        pytest.skip("it is a header of REST")
    with catalog.watched() as requests:
        for seq in (1, 2):
            commit(opened(), seq, change(seq, inserted={seq: "a"}))

    sent = [request.headers.get(IDEMPOTENCY_KEY.lower()) for request in requests]
    keys = [uuid.UUID(each) for each in sent if each is not None]
    assert len(keys) == len(set(keys)) == len(catalog.commits_in(requests)) == 2
    assert {key.version for key in keys} == {7}


@pytest.mark.parametrize(
    ("refusal", "error", "message"),
    [
        (ForbiddenError("not yours"), MissingRightError, "refuses us: not yours.*Next: grant"),
        (NotImplementedError("none here"), RefusedError, "does not do that: none here.*Next: take"),
    ],
    ids=["forbidden", "not offered"],
)
def test_a_namespace_that_is_there_needs_nobody_who_may_make_one(
    opened: Opener,
    catalog: TriedCatalog,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Exception,
    error: type[IngestionError],
    message: str,
) -> None:
    """Where it is not there, the run is refused what it needs, by name."""
    with catalog.opened() as other:
        kind = type(other)

    def refuse(*_: object, **__: object) -> None:
        raise refusal

    monkeypatch.setattr(kind, "create_namespace", refuse)
    wanted = TableDefinition(columns=COLUMNS, keys=KEYS)
    table = opened()

    table.create(wanted)

    table._entry.identifier = (f"{catalog.namespace}_not", "there")
    with pytest.raises(error, match=message):
        table.create(wanted)


@only_catalogs
def test_a_catalog_that_is_away_is_named(opened: Opener, catalog: TriedCatalog) -> None:
    """Whoever looks, begins, or commits is told, exits with 5, and finds all when it is back."""
    commit(opened(), 1, change(1, inserted={1: "a"}))
    begun = opened().begin(2)
    with catalog.away():
        with pytest.raises(SinkUnavailableError, match="does not answer as it should") as failed:
            opened().log().last_seq(STREAM)
        assert (failed.value.exit_code, "secret" in str(failed.value)) == (5, False)
        with pytest.raises(SinkUnavailableError):
            opened().begin(2)
        with closing(begun), pytest.raises(DependencyError):
            begun.commit(change(2, inserted={2: "b"}), replace(NOTE, seq=2))
        with pytest.raises(SinkUnavailableError):
            opened().create(TableDefinition(columns=COLUMNS, keys=KEYS))

    assert (names_in(opened()), last_seq(opened())) == ({1: "a"}, 1)
    commit(opened(), 2, change(2, inserted={2: "b"}))


@only_catalogs
def test_an_answer_that_is_none_of_a_catalog_is_named(
    opened: Opener, catalog: TriedCatalog
) -> None:
    """Such as the page of a gateway, with 200."""
    if catalog.proxy is None or catalog.properties["type"] != "rest":
        pytest.skip("it is no server of REST behind a proxy")
    with catalog.proxy.fault("page"), pytest.raises(SinkUnavailableError):
        opened().log().last_seq(STREAM)


@only_catalogs
def test_who_may_not_commit_changes_nothing(opened: Opener, catalog: TriedCatalog) -> None:
    """A commit that the catalog forbids leaves no file, and is made by one who may."""
    if catalog.proxy is None:
        pytest.skip("no proxy can stand before it")
    commit(opened(), 1, change(1, inserted={1: "a"}))
    before = opened().written_files()
    with catalog.fault("denied", times=None), pytest.raises((DependencyError, RefusedError)):
        commit(opened(), 2, change(2, updated={1: "A"}))

    assert (names_in(opened()), last_seq(opened())) == ({1: "a"}, 1)
    if catalog.properties["type"] == "rest":
        assert opened().written_files() == before
    commit(opened(), 2, change(2, updated={1: "A"}))


@only_catalogs
def test_a_store_that_refuses_the_login_is_named(
    opened: Opener, catalog: TriedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog lets it in, and the files are another's."""
    if catalog.kind != "seaweedfs":
        pytest.skip("SeaweedFS checks signatures")
    commit(opened(), 1, change(1, inserted={1: "a"}))
    with monkeypatch.context() as patch:
        patch.setenv(f"PYICEBERG_CATALOG__{NAME.upper()}__S3__SECRET_ACCESS_KEY", "another")
        wrong = open_like(opened())
        refusal = r"catalog or store refuses us.*docs/catalogs"
        with pytest.raises(MissingRightError, match=refusal), wrong.translate_read_errors():
            names_in(wrong)
        with pytest.raises(MissingRightError, match=refusal):
            commit(wrong, 2, change(2, inserted={2: "b"}))

    assert (names_in(opened()), last_seq(opened())) == ({1: "a"}, 1)


def open_like(table: IcebergTable) -> IcebergTable:
    """Open the same table by the configuration of now."""
    declared = IcebergSink(table=table._entry.name, catalog=NAME)
    return open_table(STREAM, declared, Settings(), Location.of("/nowhere"))
