"""An index of a table's keys: which rows of which files may have them.

It is a cache on this machine, of sorted runs of entries: a hash of the key, the number of a file,
and a row in it. It only narrows, as the keys in the files decide. What must stay true is that no
row of a file that it knows is left out: so every block has a checksum, and an index that is not as
it was written, or is of another table, other keys or another hash, is thrown away and made anew.
Files that have come to the table are read when keys are looked up; rows of those that have left it
are not asked for. A process that is killed leaves runs that no manifest names.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import uuid
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from math import log
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from oncelake.ingestion.declaration.sql import identifier

if TYPE_CHECKING:
    import duckdb

# Of what this and its runs are; with another, an index is made anew.
_FORMAT: Final = 1
_ENTRY: Final = np.dtype([("hash", "<u8"), ("row", "<u4"), ("low", "<u2"), ("high", "u1")])
# Of each block of entries, its first hash and its checksum.
_HEAD: Final = np.dtype([("hash", "<u8"), ("checksum", "<u4")])
_IN_BLOCK: Final = 256
_BLOCK_BYTES: Final = _IN_BLOCK * _ENTRY.itemsize
# So many entries are in memory at once.
_AT_ONCE: Final = 4 << 20
# So many runs of about a size become one.
_ALIKE: Final = 4
# Behind the last entry of a run, until its last block is whole: of no file.
_FILL: Final = (1 << 24) - 1
_LAST: Final = np.array(((1 << 64) - 1, 0, 0xFFFF, 0xFF), _ENTRY)
# No hash is as high.
_END: Final = 1 << 63
_MANIFEST: Final = "manifest"
Hashes = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]
Entries = npt.NDArray[Any]
# A data file: its path, its bytes, its rows. The first names it, and the others guard that.
Known = tuple[str, int, int]


class DamagedIndexError(ValueError):
    """An index is not as it was written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """A file of entries in the order of their hashes, and behind them the heads of its blocks.

    Attributes:
        name: The file's.
        blocks: How many it has.
        checksum: Of the heads.
        files: The data files of which all rows are in it, by their numbers.
    """

    name: str
    blocks: int
    checksum: int
    files: Mapping[int, Known]

    def rows(self, alive: Collection[Known]) -> int:
        """Count the rows of those of its files that the table has."""
        return sum(file[2] for file in self.files.values() if file in alive)


class _OpenRun:
    """Reads a run."""

    def __init__(self, folder: Path, run: _Run) -> None:
        """Read the heads.

        Raises:
            DamagedIndexError: it is gone, or they or its length are not as they were written.
        """
        try:
            self._file = (folder / run.name).open("rb")
        except FileNotFoundError as error:
            raise DamagedIndexError(run.name) from error
        self._file.seek(run.blocks * _BLOCK_BYTES)
        heads = self._file.read()
        if len(heads) != run.blocks * _HEAD.itemsize or zlib.crc32(heads) != run.checksum:
            self.close()
            raise DamagedIndexError(run.name)
        self.heads = np.frombuffer(heads, _HEAD)

    def close(self) -> None:
        self._file.close()

    def read(self, blocks: Iterable[int]) -> Entries:
        """Read blocks in their order.

        Raises:
            DamagedIndexError: one is not as it was written.
        """
        content, checksums = bytearray(), self.heads["checksum"]
        for number in blocks:
            block = os.pread(self._file.fileno(), _BLOCK_BYTES, number * _BLOCK_BYTES)
            if zlib.crc32(block) != checksums[number]:
                raise DamagedIndexError(self._file.name)
            content += block
        return np.frombuffer(content, _ENTRY)

    def find(self, hashes: Hashes) -> Entries:
        """Return the entries of hashes, which are in their order, each once."""
        firsts = self.heads["hash"]
        begins = np.maximum(np.searchsorted(firsts, hashes, "left") - 1, 0)
        blocks = np.unique(_ranges(begins, np.searchsorted(firsts, hashes, "right")))
        entries = self.read(blocks.tolist())
        of = np.ascontiguousarray(entries["hash"])
        return entries[_ranges(*(np.searchsorted(of, hashes, side) for side in ("left", "right")))]

    def between(self, low: int, high: int) -> Entries:
        """Return the entries from a hash on, below another."""
        firsts = self.heads["hash"]
        begin = max(int(np.searchsorted(firsts, np.uint64(low), "left")) - 1, 0)
        entries = self.read(range(begin, int(np.searchsorted(firsts, np.uint64(high), "left"))))
        return entries[(entries["hash"] >= np.uint64(low)) & (entries["hash"] < np.uint64(high))]


def _write_run(folder: Path, parts: Iterable[Entries], files: Mapping[int, Known]) -> _Run:
    """Write entries, of which each part has higher hashes than the one before."""
    name, heads, rest = f"{uuid.uuid4().hex}.run", bytearray(), np.empty(0, _ENTRY)
    with (folder / name).open("wb") as file:
        for entries in parts:
            # Of runs, which are in order, a stable sort takes an eighth of the time.
            order = np.argsort(np.ascontiguousarray(entries["hash"]), kind="stable")
            rest = _put_blocks(file, heads, np.concatenate([rest, entries.take(order)]))
        _put_blocks(file, heads, np.append(rest, np.full(-len(rest) % _IN_BLOCK, _LAST)))
        file.write(heads)
    blocks = len(heads) // _HEAD.itemsize
    return _Run(name=name, blocks=blocks, checksum=zlib.crc32(heads), files=files)


def _put_blocks(file: IO[bytes], heads: bytearray, entries: Entries) -> Entries:
    """Write the blocks that are whole, and return the entries behind them."""
    whole = len(entries) // _IN_BLOCK * _IN_BLOCK
    for begin in range(0, whole, _IN_BLOCK):
        block = entries[begin : begin + _IN_BLOCK]
        content = block.tobytes()
        heads += struct.pack("<QI", int(block["hash"][0]), zlib.crc32(content))
        file.write(content)
    return entries[whole:]


class KeyIndex:
    """The index of one table, in a folder of its own."""

    def __init__(self, folder: Path, table_id: str, keys: Sequence[tuple[str, str]]) -> None:
        """Read what is there, if it is of the same; else begin anew.

        Args:
            folder: Where it is.
            table_id: The table's.
            keys: The key columns, and their types.
        """
        import duckdb

        self._folder, self.keys = folder, [name for name, _ in keys]
        # DuckDB's next version may make other hashes.
        of = {"format": _FORMAT, "duckdb": duckdb.__version__, "table": table_id, "keys": keys}
        self._of = json.loads(json.dumps(of))
        self._runs = self._read()

    def _read(self) -> list[_Run]:
        """Return the runs that the manifest names, if it is as it was written."""
        try:
            checksum, text = (self._folder / _MANIFEST).read_text().split("\n", 1)
            read = json.loads(text)
        except (OSError, ValueError):
            return []
        if checksum != str(zlib.crc32(text.encode())) or read["of"] != self._of:
            return []
        return [
            _Run(**{**run, "files": {int(n): tuple(file) for n, file in run["files"].items()}})
            for run in read["runs"]
        ]

    def update(self, files: Collection[Known], hashes_of: Callable[[Known], Hashes]) -> None:
        """Add files that have come to the table, and put runs of about a size together.

        Raises:
            DamagedIndexError: a run is not as it was written.
        """
        before, alive = self._runs, {*files}
        known = {file: number for run in before for number, file in run.files.items()}
        new = [file for file in files if file not in known]
        numbered = enumerate(new, max(known.values(), default=-1) + 1)
        parts = iter((np.cumsum([file[2] for file in new]) // _AT_ONCE).tolist())
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            for _, part in groupby(numbered, lambda _: next(parts)):
                added = dict(part)
                entries = [_entries_of(hashes_of(file), number) for number, file in added.items()]
                self._replace([], _write_run(self._folder, [np.concatenate(entries)], added))
            while runs := _mergeable(self._runs, alive):
                self._replace(runs, self._merged(runs, alive))
        except OSError:
            # What did not get whole on a disk that is full must not stay there.
            self._sweep()
            raise

    def _merged(self, runs: Sequence[_Run], alive: Collection[Known]) -> _Run:
        """Write the entries of some runs to one, without those of files that are gone."""
        files = {n: file for run in runs for n, file in run.files.items() if file in alive}
        numbers = np.array([*files], np.int64)

        def parts() -> Iterator[Entries]:
            firsts = np.sort(np.concatenate([run.heads["hash"] for run in opened]))
            bounds = firsts[:: _AT_ONCE // _IN_BLOCK][1:].tolist()
            for low, high in pairwise([0, *bounds, _END]):
                entries = np.concatenate([run.between(low, high) for run in opened])
                yield entries[np.isin(_numbers_of(entries), numbers)]

        with ExitStack() as stack:
            opened = [stack.enter_context(closing(_OpenRun(self._folder, run))) for run in runs]
            return _write_run(self._folder, parts() if files else (), files)

    def _replace(self, runs: Sequence[_Run], by: _Run) -> None:
        """Name the runs by a manifest."""
        self._runs = [*(run for run in self._runs if run not in runs), by]
        text = json.dumps({"of": self._of, "runs": [asdict(run) for run in self._runs]})
        new = self._folder / f"{uuid.uuid4().hex}.new"
        new.write_text(f"{zlib.crc32(text.encode())}\n{text}")
        new.replace(self._folder / _MANIFEST)
        self._sweep()

    def _sweep(self) -> None:
        """Delete what no manifest names."""
        named = {_MANIFEST, *(run.name for run in self._runs)}
        for file in self._folder.iterdir():
            if file.name not in named:
                file.unlink(missing_ok=True)

    def find(self, hashes: Hashes) -> Iterator[tuple[Known, Rows]]:
        """Yield the files that have rows of any of the hashes, and their rows, in order.

        Raises:
            DamagedIndexError: a run is not as it was written.
        """
        hashes, parts = np.unique(hashes), [np.empty(0, _ENTRY)]
        for run in self._runs:
            with closing(_OpenRun(self._folder, run)) as opened:
                parts.append(opened.find(hashes))
        entries = np.concatenate(parts)
        numbers = _numbers_of(entries)
        files = {number: file for run in self._runs for number, file in run.files.items()}
        order = np.lexsort([entries["row"], numbers])
        for group in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
            if len(group) and (file := files.get(int(numbers[group[0]]))):
                yield file, entries["row"][group].astype(np.int64)

    def forget(self) -> None:
        """Throw it away."""
        self._runs = []
        shutil.rmtree(self._folder, ignore_errors=True)


def hash_keys(connection: duckdb.DuckDBPyConnection, keys: pa.Table) -> Hashes:
    """Return a hash of each key: the same for all that DuckDB's join takes for equal."""
    numbered = connection.from_arrow(keys.append_column("_row", pa.arange(0, len(keys))))
    names = ", ".join(map(identifier, keys.column_names))
    found = numbered.project(f"_row, hash({names}) AS _hash").to_arrow_table()
    hashes = np.empty(len(keys), np.uint64)
    hashes[found.column("_row").to_numpy()] = found.column("_hash").to_numpy() >> np.uint64(1)
    return hashes


def _mergeable(runs: Sequence[_Run], alive: Collection[Known]) -> list[_Run]:
    """Return runs that are to be one: of about a size, or one that is of gone files mostly."""
    by_size = defaultdict[int, list[_Run]](list)
    for run in runs:
        rows = run.rows(alive)
        if 2 * rows < run.rows(run.files.values()):
            return [run]
        by_size[int(log(max(rows, 1), _ALIKE))].append(run)
    return next((group for group in by_size.values() if len(group) >= _ALIKE), [])


def _entries_of(hashes: Hashes, number: int) -> Entries:
    if number >= _FILL:
        raise DamagedIndexError("it has no number for another file")
    entries = np.empty(len(hashes), _ENTRY)
    entries["hash"], entries["row"] = hashes, np.arange(len(hashes))
    entries["low"], entries["high"] = number & 0xFFFF, number >> 16
    return entries


def _numbers_of(entries: Entries) -> npt.NDArray[np.int64]:
    """Return the numbers of the entries' files."""
    numbers: Rows = entries["low"] | entries["high"].astype(np.int64) << 16
    return numbers


def _ranges(begins: Rows, ends: Rows) -> Rows:
    """Return the numbers of all ranges, one after the other."""
    lengths = ends - begins
    moved = begins - (np.cumsum(lengths) - lengths)
    found: Rows = np.arange(lengths.sum()) + np.repeat(moved, lengths)
    return found
