"""With an index of its keys a table gets the same rows as without one."""

from __future__ import annotations

import errno
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

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
from tests.support.long import IS_LONG
from tests.support.long import twins as twins_of_time

STREAM = "orders"
OURS = "_offset BIGINT, _seq BIGINT"
Key = tuple[Any, ...]


@pytest.fixture(autouse=True)
def _of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of a table of any size asks the index."""
    monkeypatch.setattr(transaction, "ROWS_PER_KEY", 0)


class Twins:
    """Two tables that get the same batches; the first has an index."""

    def __init__(self, folder: Path, keys: str = "id BIGINT NOT NULL") -> None:
        """Make them."""
        self._open(folder, keys)
        columns = parse_columns(f"{keys}, name STRING, {OURS}")
        for table in self.tables:
            table.create(
                TableDefinition(columns=columns, keys=tuple(self.keys), deletion_vectors=True)
            )
            table.commit_note(note(0))

    @classmethod
    def opened(cls, folder: Path, seq: int) -> Twins:
        """Open those that are there."""
        twins = cls.__new__(cls)
        twins._open(folder, "id BIGINT")
        twins.seq = seq
        return twins

    def _open(self, folder: Path, keys: str) -> None:
        self.index, self.seq = folder / "keys", 0
        self.keys = [column.name for column in parse_columns(keys)]
        self.tables = [
            DeltaSinkTable(STREAM, Location.of(folder / name / STREAM), index=index)
            for name, index in (("with", self.index), ("without", None))
        ]

    def use(self, index: Path) -> None:
        """Let the first table have its index in another folder."""
        self.index = index
        self.tables[0] = DeltaSinkTable(STREAM, self.tables[0].path, index=index)

    def rows(self, names: Mapping[Key, str]) -> pa.Table:
        """Return rows of keys and names."""
        values = [
            {**dict(zip(self.keys, key, strict=True)), "name": name, "_offset": n, "_seq": self.seq}
            for n, (key, name) in enumerate(names.items())
        ]
        schema = pa.schema(read_delta(self.tables[0].path).schema().to_arrow())
        return pa.Table.from_pylist(values, schema)

    def find(self, table: DeltaSinkTable, keys: pa.Table) -> list[dict[str, Any]]:
        """Look keys up, for some columns and for all."""
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
                str(row)
                for batch in scan_rows(table.path, [*self.keys, "name"])
                for row in batch.to_pylist()
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


@pytest.mark.parametrize("seed", [0, *twins_of_time(1, 2, 3)])
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

    twins.upsert(dict.fromkeys(some(2500), "first"))
    acts = [compacted, rewound, widened, overwritten, merged_small]
    for turn in range(12):
        if turn % 2:
            dice.choice(acts)(twins)
        gone = some(dice.randrange(40))
        twins.upsert({key: f"{turn}" for key in some(60) if key not in gone}, [*{*gone}])

        twins.read()


def test_what_only_another_host_has_written_is_found(tmp_path: Path) -> None:
    """Two machines take turns, each with an index of its own; neither tells the other."""
    twins, other = Twins(tmp_path), tmp_path / "other"
    for turn in range(8):
        twins.use(other if turn % 3 == 2 else tmp_path / "keys")
        twins.upsert({(n,): f"{turn}" for n in range(turn, turn + 30)}, [(turn - 1,)])

        twins.read()
    assert (other / "manifest").exists()


def test_an_index_of_another_table_is_not_used(tmp_path: Path) -> None:
    """A folder that another table of the same keys has filled is begun anew."""
    others, twins = Twins(tmp_path / "others"), Twins(tmp_path)
    others.upsert({(n,): "theirs" for n in range(0, 100, 2)})
    others.upsert({(1,): "theirs"})
    twins.use(others.index)
    twins.upsert({(n,): "ours" for n in range(100)})

    twins.upsert({(n,): "again" for n in range(100)})

    assert len(twins.read()) == 100
    assert manifest(twins)["of"]["table"] == str(read_delta(twins.tables[0].path).metadata().id)


@pytest.mark.parametrize("what", ["duckdb.__version__", f"{key_index.__name__}._FORMAT"])
def test_an_index_of_other_hashes_is_not_used(
    twins: Twins, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Another version has made them: the index is made anew."""
    hashes = key_index.hash_keys
    with monkeypatch.context() as patch:
        patch.setattr(what, "0")
        patch.setattr(transaction, "hash_keys", lambda *given: hashes(*given) ^ np.uint64(1))
        twins.find(twins.tables[0], twins.rows({(1,): ""}).select(["id"]))
    before = manifest(twins)["of"]

    twins.upsert({(n,): "again" for n in range(0, 9000, 100)})

    assert manifest(twins)["of"] != before
    assert len(twins.read()) == 9000


def test_an_index_of_other_keys_is_not_used(twins: Twins) -> None:
    """Rows are looked up by other columns: the index is made anew."""
    twins.upsert({(5,): "alone"})

    for name, ids in (("alone", [5]), ("nobody", [])):
        with closing(twins.tables[0].begin(twins.seq + 1)) as begun:
            found = begun.rows_of(pa.table({"name": [name]}), ["id"])
        assert found["id"].to_pylist() == ids
    assert manifest(twins)["of"]["keys"] == [["name", "string"]]


def flipped(file: Path, dice: random.Random) -> None:
    """Flip a bit."""
    content = bytearray(file.read_bytes())
    content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    file.write_bytes(content)


def cut(file: Path, dice: random.Random) -> None:
    """Cut a file short."""
    file.write_bytes(file.read_bytes()[: dice.randrange(file.stat().st_size)])


def swapped(file: Path, dice: random.Random) -> None:
    """Take another file's content."""
    file.write_bytes(dice.choice(sorted(file.parent.iterdir())).read_bytes())


def without_blocks(file: Path, dice: random.Random) -> None:
    """Let zeros stand where some blocks did not reach the disk."""
    for run in file.parent.glob("*.run"):
        content = bytearray(run.read_bytes())
        begin = dice.randrange(len(content) // 2)
        end = min(begin + 20_000, len(content) * 9 // 10)
        content[begin:end] = bytes(end - begin)
        run.write_bytes(content)


def with_other_heads(file: Path, dice: random.Random) -> None:
    """Let blocks be said to begin with another hash."""
    for run in file.parent.glob("*.run"):
        content = bytearray(run.read_bytes())
        blocks = len(content) // (key_index._BLOCK_BYTES + key_index._HEAD.itemsize)
        heads = content[blocks * key_index._BLOCK_BYTES :]
        for head in range(dice.randrange(3), blocks, 3):
            heads[head * key_index._HEAD.itemsize + 7] ^= 1 << 6
        content[blocks * key_index._BLOCK_BYTES :] = heads
        run.write_bytes(content)


@pytest.mark.parametrize(
    "harm",
    [flipped, cut, swapped, without_blocks, with_other_heads],
    ids=lambda harm: harm.__name__,
)
@pytest.mark.parametrize("seed", [0, *twins_of_time(1, 2)])
def test_a_damaged_index_is_made_anew(
    twins: Twins, harm: Callable[[Path, random.Random], None], seed: int
) -> None:
    """What a disk, or a power cut, has left of it is not believed."""
    dice = random.Random(seed)
    keys = [(dice.randrange(9500),) for _ in range(4000)]
    twins.upsert(dict.fromkeys(keys, "before"))
    twins.find(twins.tables[0], twins.rows({(1,): ""}).select(["id"]))
    harm(dice.choice(sorted(twins.index.iterdir())), dice)

    twins.upsert(dict.fromkeys(keys, "after"), [(9501,)])

    assert len(twins.read()) == len({*keys, *((n,) for n in range(9000))})


@pytest.mark.parametrize("name", ["manifest", "*.run"])
def test_an_index_that_lacks_a_file_is_made_anew(twins: Twins, name: str) -> None:
    """Somebody has deleted it."""
    twins.find(twins.tables[0], twins.rows({(1,): ""}).select(["id"]))
    for file in twins.index.glob(name):
        file.unlink()

    twins.upsert({(n,): "again" for n in range(0, 9000, 10)})

    assert len(twins.read()) == 9000


def test_an_index_that_cannot_be_written_is_done_without(
    twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk is full: the files are searched, and the batch is the same."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(key_index, "_write_run", full)

    twins.upsert({(5,): "again", (9001,): "new"}, [(6,)])

    assert len(twins.read()) == 9000


@pytest.mark.parametrize("values", [1, 7])
def test_keys_of_one_hash_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: int
) -> None:
    """The index only narrows: where all keys collide, the files' own keys decide."""

    def weak(connection: Any, keys: pa.Table) -> key_index.Hashes:
        return key_index_hash(connection, keys) % np.uint64(values)

    key_index_hash = key_index.hash_keys
    monkeypatch.setattr(transaction, "hash_keys", weak)
    only_by_index(monkeypatch)
    twins = Twins(tmp_path)
    for start in (0, 300):
        twins.upsert({(n,): "first" for n in range(start, start + 500)})

    twins.upsert({(n,): "second" for n in range(0, 900, 40)}, [(n,) for n in range(1, 800, 80)])

    # 800 to 880 by forties are new.
    assert len(twins.read()) == 800 + 3 - 10


def test_rows_of_other_keys_are_noticed(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that names them, whatever its checksums say, is made anew."""
    monkeypatch.setattr(
        key_index,
        "_entries_of",
        lambda hashes, number, of=key_index._entries_of: of(hashes[::-1], number),
    )
    twins.find(twins.tables[0], twins.rows({(1,): ""}).select(["id"]))
    monkeypatch.undo()
    monkeypatch.setattr(transaction, "ROWS_PER_KEY", 0)

    twins.upsert({(n,): "again" for n in range(0, 9000, 50)})

    assert len(twins.read()) == 9000


def test_an_index_that_does_not_get_whole_is_removed(
    twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk is full: what it got of it is freed again."""

    def full(file: Any, *_: object) -> None:
        file.write(b"begun")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(key_index, "_put_blocks", full)

    twins.upsert({(5,): "again"})

    assert {*twins.index.iterdir()} <= {twins.index / "manifest"}


def test_a_data_file_that_is_gone_costs_no_index(twins: Twins) -> None:
    """The error is the data file's."""
    keys = twins.rows({(1,): ""}).select(["id"])
    twins.find(twins.tables[0], keys)
    before = known_files(twins)
    for turn in range(2):
        twins.upsert({(n,): "new" for n in range(turn, 9000, 900)})
    table = twins.tables[0]
    with closing(table.begin(twins.seq + 1)) as begun:
        (table.path.path / begun.files[-1].path).unlink()

    with closing(table.begin(twins.seq + 1)) as begun, pytest.raises(duckdb.IOException):
        begun.rows_of(twins.rows({(0,): "", (1,): ""}).select(["id"]), ["id"])

    assert {*before} <= {*known_files(twins)}


@pytest.mark.parametrize(("cost", "count"), [(20, 1), (60, 0)])
def test_the_index_is_asked_where_that_costs_less(
    twins: Twins, monkeypatch: pytest.MonkeyPatch, cost: int, count: int
) -> None:
    """For few keys, each in a file of many rows, and not for many after these."""
    asked, by_index = list[int](), DeltaTransaction._find_by_index

    def counted(self: DeltaTransaction, index: Any, keys: pa.Table, *more: Any) -> Any:
        asked.append(len(keys))
        return by_index(self, index, keys, *more)

    monkeypatch.setattr(transaction, "ROWS_PER_KEY", cost)
    monkeypatch.setattr(DeltaTransaction, "_find_by_index", counted)
    with closing(twins.tables[0].begin(twins.seq + 1)) as begun:
        for keys in (1, 400):
            rows = twins.rows({(n,): "" for n in range(keys)}).select(["id"])
            assert len(begun.rows_of(rows, ["id"])) == keys

    assert asked == [1] * count


def test_an_index_has_sixteen_bytes_a_row_at_most_and_few_runs(twins: Twins) -> None:
    """However many batches come, and files go."""
    for turn in range(21):
        twins.upsert({(n,): f"{turn}" for n in range(turn * 100, turn * 100 + 600)})
        if turn % 10 == 9:
            compacted(twins)
    twins.upsert({(0,): "last"})

    runs, rows = (
        manifest(twins)["runs"],
        sum(f.rows for f in twins.tables[0].begin(twins.seq + 1).files),
    )
    assert len(runs) <= 12
    # A run's last block is filled up.
    size = sum(file.stat().st_size for file in twins.index.glob("*.run"))
    assert size <= 2 * 16 * rows + len(runs) * 4096
    assert {file.name for file in twins.index.iterdir()} == {"manifest", *(r["name"] for r in runs)}


def test_new_files_can_be_read_by_a_few_rows(twins: Twins) -> None:
    """Those of a batch, of upkeep and of an alter; without an index they are as they were."""
    twins.upsert({(n,): "again" for n in range(2000)})
    plain = twins.tables[1]
    for file in plain.begin(twins.seq + 1).files:
        metadata = pq.read_metadata(plain.path.path / file.path)
        assert not metadata.row_group(0).column(0).has_offset_index

    for act in (twins.read, lambda: compacted(twins), lambda: widened(twins)):
        act()
        for file in twins.tables[0].begin(twins.seq + 1).files:
            column = excerpts._column(twins.tables[0].path.path / file.path, file.size_bytes, "id")
            assert column is not None
            firsts = column[1][0].pages[:, 2]
            assert np.diff(firsts).max(initial=0) <= excerpts.ROWS_IN_PAGE


# Makes the index again and again.
_BUILDS = """
import sys, shutil
from pathlib import Path
from oncelake.ingestion.sinks.delta import transaction
from tests.sinks import test_key_index as it
transaction.ROWS_PER_KEY = 0
it.key_index._AT_ONCE = 1000
twins = it.Twins.opened(Path(sys.argv[1]), int(sys.argv[2]))
keys = twins.rows({(1,): ""}).select(["id"])
print("begun", flush=True)
while True:
    twins.tables[0].begin(twins.seq + 1).rows_of(keys, ["id"])
    shutil.rmtree(twins.index)
"""


def test_a_run_that_is_killed_while_it_writes_the_index_leaves_it_usable(twins: Twins) -> None:
    """Killed again and again, at any moment: the next finds every row, and cleans up."""
    dice = random.Random(1)
    for turn in range(12 if IS_LONG else 4):
        command = [sys.executable, "-c", _BUILDS, str(twins.index.parent), str(twins.seq)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(dice.random() * 0.1)
            process.kill()

        twins.upsert({(n,): f"{turn}" for n in range(turn, 9000, 300)}, [(turn + 1,)])

        twins.read()
        runs = {run["name"] for run in manifest(twins)["runs"]}
        assert {file.name for file in twins.index.iterdir()} == {"manifest", *runs}


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
