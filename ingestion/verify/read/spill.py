"""The state of a proof, on disk: a topic may have more keys than a machine has memory.

SQLite, in a folder that goes when the proof ends. Everything is read and written in chunks.
"""

from __future__ import annotations

import json
import pickle
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

CHUNK: Final = 10_000
_CACHE_KILOBYTES: Final = 32 * 1024

Value = TypeVar("Value")


class SpillTable(Generic[Value]):
    """Values by key, each of which can be marked as found."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        """Create an empty table; ``name`` is ours, never a user's."""
        self._run = connection.execute
        self._run_many = connection.executemany
        self._name = name
        self._run(
            f"CREATE TABLE {name} (key TEXT PRIMARY KEY, pickled BLOB, found INTEGER) WITHOUT ROWID"
        )

    def put(self, values: Mapping[str, Value]) -> None:
        """Keep values, in place of what is there; they count as not found."""
        rows = ((key, pickle.dumps(values[key], protocol=5)) for key in sorted(values))
        self._run_many(f"INSERT OR REPLACE INTO {self._name} VALUES (?, ?, 0)", rows)

    def get(self, keys: Iterable[str]) -> dict[str, Value]:
        """Return those of these keys that are there."""
        found = self._run(
            f"SELECT key, pickled FROM {self._name} WHERE key IN (SELECT value FROM json_each(?))",
            (json.dumps(sorted(keys)),),
        )
        return {key: pickle.loads(pickled) for key, pickled in found if pickled is not None}

    def remove_where(self, is_gone: Callable[[Value], bool]) -> None:
        """Forget the keys whose values a condition selects."""
        for chunk in self.chunks():
            gone = [(key,) for key, value in chunk.items() if is_gone(value)]
            self._run_many(f"DELETE FROM {self._name} WHERE key = ?", gone)

    def find(self, keys: Iterable[str]) -> set[str]:
        """Mark keys as found, with or without a value; return those that had been found before."""
        wanted = json.dumps(sorted(keys))
        before = self._run(
            f"SELECT key FROM {self._name} WHERE found AND key IN (SELECT value FROM json_each(?))",
            (wanted,),
        ).fetchall()
        self._run(
            f"INSERT INTO {self._name} SELECT value, NULL, 1 FROM json_each(?) WHERE TRUE "
            "ON CONFLICT (key) DO UPDATE SET found = 1",
            (wanted,),
        )
        return {key for (key,) in before}

    def chunks(self, *, unfound: bool = False) -> Iterator[dict[str, Value]]:
        """Yield everything that is kept, or only what was not found."""
        return self._chunks("NOT found" if unfound else "pickled IS NOT NULL")

    def chunks_of(self, prefix: str) -> Iterator[dict[str, Value]]:
        """Yield what is kept by keys that begin with ``prefix``."""
        return self._chunks("key >= ? AND key < ?", prefix, f"{prefix}\U0010ffff")

    def clear(self) -> None:
        """Forget everything."""
        self._run(f"DELETE FROM {self._name}")

    def _chunks(self, condition: str, *values: str) -> Iterator[dict[str, Value]]:
        rows = self._run(
            f"SELECT key, pickled FROM {self._name} WHERE {condition} ORDER BY key", values
        )
        while part := rows.fetchmany(CHUNK):
            yield {key: pickle.loads(pickled) for key, pickled in part}

    def __len__(self) -> int:
        """Count what is kept."""
        counted = self._run(f"SELECT count(*) FROM {self._name} WHERE pickled IS NOT NULL")
        return int(counted.fetchone()[0])


class SpillStore(NamedTuple):
    """Creates tables in one file of SQLite."""

    connection: sqlite3.Connection

    def table(self, name: str) -> SpillTable[Value]:
        """Create an empty table."""
        return SpillTable(self.connection, name)

    @classmethod
    @contextmanager
    def in_folder(cls, folder: Path) -> Iterator[SpillStore]:
        """Open a store below a folder, and remove it when the block ends."""
        folder.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix="verify-", dir=folder) as scratch,
            closing(sqlite3.connect(f"{scratch}/spill", isolation_level=None)) as connection,
        ):
            for pragma in ("journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE"):
                connection.execute(f"PRAGMA {pragma}")
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KILOBYTES}")
            # One transaction for all, never ended: nobody will read this file again.
            connection.execute("BEGIN")
            yield cls(connection)
