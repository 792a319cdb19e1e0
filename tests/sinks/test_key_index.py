"""With an index of its keys a table gets the same rows as without one, whatever befalls the index."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from oncelake.ingestion.declaration.ddl import parse_columns
from oncelake.ingestion.delta import excerpts, key_index
from oncelake.ingestion.delta.files import read_delta, scan_rows
from oncelake.ingestion.sinks.delta import transaction
from oncelake.ingestion.sinks.delta.compaction import compact
from oncelake.ingestion.sinks.delta.table import DeltaSinkTable
from oncelake.ingestion.sinks.delta.transaction import DeltaTransaction
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.table import Change, Layout, TableDefinition
from tests.sinks.test_delta_transaction import KEYS, note

STREAM = "orders"
OURS = "_offset BIGINT, _seq BIGINT"
Key = tuple[Any, ...]


@pytest.fixture(autouse=True)
def _of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of a table of any size asks the index."""
    monkeypatch.setattr(transaction, "ROWS_IN_PAGE", 0)


class Twins:
    """Two tables that get the same batches; the first has an index."""

    def __init__(self, folder: Path, keys: str = "id BIGINT NOT NULL") -> None:
        self.index, self.seq = folder / "keys", 0
        self.keys = [column.name for column in parse_columns(keys)]
        columns = parse_columns(f"{keys}, name STRING, {OURS}")
        definition = TableDefinition(columns=columns, keys=tuple(self.keys), deletion_vectors=True)
        self.tables = [
            DeltaSinkTable(STREAM, Location.of(folder / name / STREAM), index=index)
            for name, index in (("with", self.index), ("without", None))
        ]
        for table in self.tables:
            table.create(definition)
            table.commit_note(note(0))

    def schema(self) -> pa.Schema:
        return pa.schema(read_delta(self.tables[0].path).schema().to_arrow())

    def rows(self, names: Mapping[Key, str]) -> pa.Table:
        values = [
            {**dict(zip(self.keys, key, strict=True)), "name": name, "_offset": n, "_seq": self.seq}
            for n, (key, name) in enumerate(names.items())
        ]
        return pa.Table.from_pylist(values, self.schema())

    def find(self, table: DeltaSinkTable, keys: pa.Table) -> list[dict[str, Any]]:
        with closing(table.begin(self.seq + 1)) as begun:
            few = begun.rows_of(keys, [*self.keys, "_offset"]).to_pylist()
        with closing(table.begin(self.seq + 1)) as begun:
            found = begun.rows_of(keys).to_pylist()
        assert sorted(map(str, few)) == sorted(
            str({name: row[name] for name in (*self.keys, "_offset")}) for row in found
        )
        return sorted(found, key=str)

    def upsert(self, names: Mapping[Key, str], deleted: list[Key] | None = None) -> None:
        """Look the keys up, and commit what is new, changed and gone, in both."""
        keys = self.rows(names | dict.fromkeys(deleted or (), "")).select(self.keys)
        found = [self.find(table, keys) for table in self.tables]
        assert found[0] == found[1]
        self.seq += 1
        there = {tuple(row[name] for name in self.keys) for row in found[0]}
        change = Change(
            inserted=self.rows({key: name for key, name in names.items() if key not in there}),
            updated=self.rows({key: name for key, name in names.items() if key in there}),
            deleted=self.rows(dict.fromkeys([k for k in deleted or () if k in there], "")).select(
                self.keys
            ),
        )
        for table in self.tables:
            with closing(table.begin(self.seq)) as begun:
                begun.rows_of(keys, [*self.keys, "_offset"])
                begun.commit(change, note(self.seq, keys=tuple(self.keys)))
            table.seal()

    def read(self) -> list[Any]:
        """Return the rows, which both have."""
        found = [
            sorted(
                (
                    str(row)
                    for batch in scan_rows(table.path, [*self.keys, "name"])
                    for row in batch.to_pylist()
                )
            )
            for table in self.tables
        ]
        assert found[0] == found[1]
        assert len({*found[0]}) == len(found[0])
        return found[0]


@pytest.fixture
def twins(tmp_path: Path) -> Twins:
    """Two tables of some thousand rows, in three files."""
    found = Twins(tmp_path)
    for start in (0, 3000, 6000):
        found.upsert({(n,): "first" for n in range(start, start + 3000)})
    return found


def manifest(twins: Twins) -> dict[str, Any]:
    """Return what the index says of itself."""
    read: dict[str, Any] = json.loads((twins.index / "manifest").read_text().split("\n", 1)[1])
    return read


def known_files(twins: Twins) -> list[str]:
    """Return the data files that the index knows."""
    return [file[0] for run in manifest(twins)["runs"] for file in run["files"].values()]


def only_by_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no file be searched as a whole where there is an index."""
    search = DeltaTransaction._search

    def refused(self: DeltaTransaction, keys: pa.Table, numbers: list[int], columns: Any) -> Any:
        assert self._index is None or not numbers
        return search(self, keys, numbers, columns)

    monkeypatch.setattr(DeltaTransaction, "_search", refused)


@pytest.mark.parametrize("type_", KEYS)
def test_a_key_of_any_type_is_found_by_its_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_: str
) -> None:
    """Alone, and as one of two key columns; updates, deletes and keys that are not there."""
    only_by_index(monkeypatch)
    values = [value for value in KEYS[type_] if value is not None]
    for by, wrapped in (("", lambda v: (v,)), (", part INT NOT NULL", lambda v: (v, 7))):
        twins = Twins(tmp_path / str(len(by)), f"id {type_} NOT NULL{by}")
        for value in values:
            twins.upsert({wrapped(value): "new"})
        twins.upsert({wrapped(value): "old" for value in values})

        twins.upsert({wrapped(value): "last" for value in values[:-1]}, [wrapped(values[-1])])

        assert len(twins.read()) == len(values) - 1
        assert known_files(twins)


@pytest.mark.parametrize("seed", range(4))
def test_random_batches_come_to_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Between upkeep, a rewind, other columns, and what delta-rs appends, rewrites and deletes."""
    only_by_index(monkeypatch)
    monkeypatch.setattr(key_index, "_AT_ONCE", 600)
    monkeypatch.setattr("oncelake.ingestion.sinks.files._ROWS_IN_GROUP", 700)
    dice, twins = random.Random(seed), Twins(tmp_path, "id BIGINT NOT NULL, kind STRING NOT NULL")

    def some(count: int) -> list[Key]:
        return [(dice.randrange(3000), dice.choice("ab")) for _ in range(count)]

    twins.upsert({key: "first" for key in some(2500)})
    acts = [compacted, rewound, widened, overwritten, merged_small]
    for turn in range(14):
        if turn % 2:
            dice.choice(acts)(twins)
        gone = some(dice.randrange(40))
        twins.upsert({key: f"{turn}" for key in some(60) if key not in gone}, [*{*gone}])

        twins.read()


def compacted(twins: Twins) -> None:
    """Let upkeep put files together."""
    for table in twins.tables:
        compact(table.path, target_bytes=1 << 20)
        table.seal()


def rewound(twins: Twins) -> None:
    """Set the tables back by two batches, and forward by one."""
    for back in (2, 1):
        for table in twins.tables:
            commits = [each for each in table.log().newest_first() if each.metadata is not None]
            if len(commits) > back:
                table.restore(commits[back].version, replace(note(twins.seq + 1), kind="rewind"))
                table.seal()
                is_done = True
            else:
                is_done = False
        twins.seq += is_done


def widened(twins: Twins) -> None:
    """Give the tables a column more, or, once, a wider type, for which all files are rewritten."""
    more = f"c{twins.seq}"
    for table in twins.tables:
        found = table.columns()
        wanted = [*found, *parse_columns(f"{more} INT")]
        begun = table.begin(twins.seq + 1)
        begun.reshape(Layout(columns=wanted, found=found), note(twins.seq + 1))
        table.seal()
    twins.seq += 1


def overwritten(twins: Twins) -> None:
    """Let delta-rs merge rows into the tables, which writes files anew."""
    for table in twins.tables:
        opened = DeltaTable(table.path.path)
        source = pa.table({"id": pa.array(range(0, 3000, 7))})
        opened.merge(source, "s.id = t.id", source_alias="s", target_alias="t").when_matched_update(
            {"name": "'by delta-rs'"}
        ).execute()


def merged_small(twins: Twins) -> None:
    """Let delta-rs put small files together."""
    for table in twins.tables:
        DeltaTable(table.path.path).optimize.compact()
