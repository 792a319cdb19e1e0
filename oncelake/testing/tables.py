"""Tables under test: how one is made, committed to, and read again to the letter."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

import pyarrow as pa

from oncelake.ingestion.declaration.ddl import system_columns
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.tables.commit_metadata import Identity, Kind
from oncelake.sinks import (
    ROW_COUNTS,
    Change,
    CommitMetadata,
    DeclaredColumn,
    IngestionError,
    Layout,
    SinkPart,
    SinkTable,
    TableDefinition,
    arrow_schema,
    parse_columns,
)
from oncelake.testing.values import MOMENT

Opener = Callable[[], SinkTable]


def make(
    table: SinkTable,
    columns: str = "id INT NOT NULL, name STRING",
    *,
    keys: tuple[str, ...] = ("id",),
) -> None:
    """Make a table of these columns, and those of every table."""
    own = parse_columns(columns)
    table.create(
        TableDefinition(columns=(*own, *system_columns()), keys=keys, description="Of a test")
    )


def begin(opened: Opener) -> None:
    """Make the table, and commit its first note."""
    make(opened())
    opened().commit_note(note(0))


def with_columns(table: SinkTable, columns: Iterable[DeclaredColumn]) -> Layout:
    """Return a table's columns, some of them otherwise, and those that are new behind them."""
    given, found = {column.name: column for column in columns}, table.columns()
    return Layout(
        columns=(*(given.pop(each.name, each) for each in found), *given.values()), found=found
    )


def note(
    seq: int, *, run_id: str = "r", reason: str | None = None, kind: Kind = "ingest"
) -> CommitMetadata:
    """Return the note of a batch, or of another commit."""
    return CommitMetadata(
        kind=kind if seq else "schema",
        seq=seq,
        run_id=run_id,
        epoch=1,
        identity=Identity(cluster_id="c", topic_ids={"t": "i"}, keys=("id",), order=()),
        columns="id INT NOT NULL, name STRING",
        next=Offsets(),
        reason=reason,
    )


def origin(seq: int, offset: int) -> dict[str, Any]:
    """Return what a row has of its record and its batch."""
    place = {"_topic": "t", "_partition": 0, "_offset": offset, "_timestamp": MOMENT}
    return {**place, "_epoch": 1, "_seq": seq}


def keys(*ids: int) -> pa.Table:
    """Return keys, as a look-up takes them."""
    return pa.table({"id": pa.array(ids, pa.int32())})


def change(
    seq: int,
    inserted: Mapping[int, str] | None = None,
    updated: Mapping[int, str] | None = None,
    deleted: tuple[int, ...] = (),
) -> Change:
    """Return a change of rows by their keys and names."""
    schema = arrow_schema((*parse_columns("id INT, name STRING"), *system_columns()))

    def rows(names: Mapping[int, str] | None) -> pa.Table:
        found = [
            {"id": id_, "name": name, **origin(seq, id_)} for id_, name in (names or {}).items()
        ]
        return pa.Table.from_pylist(found, schema)

    return Change(inserted=rows(inserted), updated=rows(updated), deleted=keys(*deleted))


def commit(table: SinkTable, seq: int, *, run_id: str = "r", **rows: Any) -> None:
    """Look up the keys, where that can be done, and commit."""
    given = change(seq, **rows) if rows else None
    with closing(table.begin(seq)) as transaction:
        if given is not None:
            wanted = keys(*given.updated["id"].to_pylist(), *rows.get("deleted", ()))
            # A log finds no row by its key.
            with suppress(NotImplementedError):
                transaction.rows_of(wanted)
        transaction.commit(given, note(seq, run_id=run_id))


def commit_on_and_on(opened: Opener, seq: int) -> None:
    """Commit a row a batch, until the process is killed."""
    while True:
        commit(opened(), seq, inserted={seq: str(seq)})
        seq += 1


@contextmanager
def writing(opened: Opener, seq: int) -> Iterator[BaseProcess]:
    """Let another process commit on and on, which is killed at the end of the block."""
    writer = multiprocessing.get_context("spawn").Process(
        target=commit_on_and_on, args=(opened, seq), daemon=True
    )
    writer.start()
    try:
        yield writer
    finally:
        writer.kill()
        writer.join()


def race(
    opened: Opener, seq: int, who: str, barrier: threading.Barrier, winners: list[str]
) -> None:
    """Commit a row that names the writer, as soon as all are there; or be refused."""
    table = opened()
    barrier.wait(30)
    with suppress(IngestionError):
        commit(table, seq, run_id=who, inserted={seq: who})
        winners.append(who)


def rows_in(table: SinkTable) -> dict[int, str]:
    """Return the rows by key; a key that is there twice fails."""
    found = [row for batch in table.scan(["id", "name"]) for row in batch.to_pylist()]
    assert len({row["id"] for row in found}) == len(found), "a key is there twice"
    return {row["id"]: row["name"] for row in found}


def scanned(table: SinkTable, like: pa.Schema) -> pa.Table:
    """Return all rows."""
    return pa.Table.from_batches(table.scan(like.names)).select(like.names)


def scanned_rows(table: SinkTable, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return some columns of all rows, sorted."""
    found = [row for batch in table.scan(names) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: [(row[name] is not None, row[name]) for name in names])


def past_of(opened: Opener) -> list[tuple[CommitMetadata, list[int]]]:
    """Return the note of each commit, and its counts, oldest first, as the log tells them."""
    commits = [each for each in opened().log().newest_first() if each.metadata]
    texts = [text for *_, text in opened().notes(10**9) if text]
    found = [
        (each.metadata, [each.metrics.get(name, 0) for name in ROW_COUNTS])
        for each in reversed(commits)
        if each.metadata
    ]
    assert texts == [metadata.to_json() for metadata, _ in found], "a note is there, and is not"
    return found


class Books:
    """What a table must have after each attempt: rows, and of each commit its note and counts."""

    def __init__(self, opened: Opener) -> None:
        """Make the table, with its first note."""
        self._opened, self.rows = opened, dict[int, str]()
        begin(opened)
        self.past: list[tuple[CommitMetadata, list[int]]] = [(note(0), [0, 0, 0])]

    @property
    def seq(self) -> int:
        """The seq of the next commit."""
        return len(self.past)

    def take(self, metadata: CommitMetadata, given: Change | None = None) -> None:
        """Expect what a commit does."""
        counts = list(given.counts.values()) if given else [0, 0, 0]
        self.past.append((metadata, counts))
        if given is None:
            return
        for rows in (given.inserted, given.updated):
            self.rows.update(zip(rows["id"].to_pylist(), rows["name"].to_pylist(), strict=True))
        for id_ in given.deleted["id"].to_pylist():
            del self.rows[id_]

    def is_done(self, metadata: CommitMetadata, given: Change | None, why: object) -> bool:
        """Tell whether an attempt was made, which is there as a whole or not at all."""
        last = opened_seq(self._opened)
        assert last in {self.seq - 1, self.seq}, why
        is_done = last == self.seq
        if is_done:
            self.take(metadata, given)
        self.check(why)
        return is_done

    def check(self, why: object = "") -> None:
        """Compare rows, notes and counts with what is expected."""
        assert rows_in(self._opened()) == self.rows, why
        assert past_of(self._opened) == self.past, why


def opened_seq(opened: Opener) -> int | None:
    """Return the last seq of the table."""
    return opened().log().last_seq("orders")


class Place:
    """Where a table is, and who opens it: ``partial(open_table, stream, part, …)``."""

    def __init__(self, opened: Opener) -> None:
        """Take it apart."""
        assert isinstance(opened, partial), "`opened` is a `partial` of `open_table`, or alike"
        self._opened = opened
        self._stream = opened.args[0]
        parts = [given for given in opened.args if isinstance(given, SinkPart)]
        self.part = parts[0] if parts else None

    def of_stream(self, stream: str) -> Opener:
        """Return what opens the table of the same name as that of another stream."""
        named = self.named(self._name) if self._has_name else self._opened
        return partial(named.func, stream, *named.args[1:])

    def named(self, name: str) -> partial[SinkTable]:
        """Return what opens a table of another name."""
        assert self.part is not None, "`opened` is a `partial` of `open_table`, with its part"
        part = self.part.model_copy(update={"table": name})
        given = (part if each is self.part else each for each in self._opened.args)
        return partial(self._opened.func, *given)

    @property
    def beside(self) -> Opener:
        """Return what opens the table that takes the place of this one."""
        assert self.part is not None, "`opened` is a `partial` of `open_table`, with its part"
        beside = self.part.beside(self._stream)
        return partial(
            self._opened.func,
            *(beside if each is self.part else each for each in self._opened.args),
        )

    @property
    def _has_name(self) -> bool:
        return self.part is not None and "table" in type(self.part).model_fields

    @property
    def _name(self) -> str:
        assert self.part is not None
        return self.part.table_of(self._stream)
