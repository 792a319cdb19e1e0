"""Record what Debezium says of a PostgreSQL that is started for it, and what the tables hold then.

    python -m tests.captures.record [altered]

It needs PostgreSQL 15 (`pg_config` says where), a JDK and Maven Central, and replaces the recording
that `tests/formats/test_capture.py` replays, or with a word that of `test_altered_tables.py`.
`before.sql` and `after.sql` are what happens to the tables.
"""

from __future__ import annotations

import gzip
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oncelake.ingestion.kafka.java import find_java
from oncelake.ingestion.local.jars import CAPTURE_CONFIGURATIONS, fetch
from oncelake.ingestion.settings import load_settings

HERE = Path(__file__).parent
TABLES = ("everything", "partial", "emptied")
EVENTS = ("with_schemas", "without")
_USER = "capture"
_SLOWEST_SECONDS = 120
# PostgreSQL refuses to run as root.
_PLAIN_USER: dict[str, Any] = {"user": "nobody", "extra_groups": ()} if os.geteuid() == 0 else {}

# How values that JSON would not say exactly are written; everything else is its own text.
_AS_JSON = {
    "bytea": "translate(encode({0}, 'base64'), E'\\n', '')",
    "timestamp without time zone": "to_json({0})",
    "timestamp with time zone": "to_json({0})",
    "character": "to_json({0})",
    "ARRAY": "to_json({0}::text[])",
}


@dataclass(frozen=True, kw_only=True)
class Postgres:
    """A server of this script's own."""

    programs: Path
    folder: Path
    port: int

    def run(self, program: str, *arguments: str) -> str:
        """Run one of PostgreSQL's programs, and return what it says."""
        done = subprocess.run(
            [str(self.programs / program), *arguments],
            cwd=self.folder,
            env={"PGTZ": "UTC", "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
            encoding="utf-8",
            timeout=_SLOWEST_SECONDS,
            **_PLAIN_USER,
        )
        return done.stdout

    def sql(self, *arguments: str) -> str:
        """Run psql, and return the bare rows."""
        server = ["-h", "127.0.0.1", "-p", str(self.port), "-U", _USER, "-d", "postgres"]
        return self.run("psql", "-XqAt", "-v", "ON_ERROR_STOP=1", *server, *arguments)

    def execute(self, script: Path) -> None:
        """Run a file of SQL."""
        copy = self.folder / script.name
        shutil.copy(script, copy)
        self.sql("-f", str(copy))

    def rows(self, table: str) -> str:
        """Return the rows of a table by its key, as lines of JSON that lose nothing."""
        columns = self.sql(
            "-F", "|", "-c",
            "SELECT column_name, data_type FROM information_schema.columns "
            f"WHERE table_name = '{table}' ORDER BY ordinal_position",
        ).splitlines()  # fmt: skip
        values = (
            f"'{name}', " + _AS_JSON.get(type_, "{0}::text").format(name)
            for name, type_ in (column.split("|") for column in columns)
        )
        return self.sql(
            "-c", f"SELECT json_build_object({', '.join(values)}) FROM {table} t ORDER BY t"
        )


@contextmanager
def postgres(folder: Path) -> Iterator[Postgres]:
    """Start a server on loopback, and stop it in the end."""
    found = subprocess.run(["pg_config", "--bindir"], capture_output=True, check=True, text=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = Postgres(programs=Path(found.stdout.strip()), folder=folder, port=port)
    data = str(folder / "data")
    server.run("initdb", "-D", data, "-U", _USER, "-A", "trust", "-E", "UTF8", "--no-sync")
    options = (
        f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c wal_level=logical -c fsync=off"
    )
    server.run("pg_ctl", "start", "-D", data, "-l", str(folder / "log"), "-w", "-o", options)
    try:
        yield server
    finally:
        server.run("pg_ctl", "stop", "-D", data, "-m", "immediate")


def record(server: Postgres, story: Path, into: Path) -> None:
    """Follow the server's log while the story is told."""
    jars = load_settings().jars
    for line in fetch(jars, CAPTURE_CONFIGURATIONS):
        print(line, flush=True)
    classes = str(jars / CAPTURE_CONFIGURATIONS[0] / "*")
    command = [find_java(), "-cp", classes, str(HERE / "Capture.java"), str(server.port), str(into)]
    server.execute(story / "before.sql")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as connector:
        try:
            assert connector.stdout
            if connector.stdout.readline().strip() != "snapshot":
                raise SystemExit("the connector came to no end of its snapshot")
            server.execute(story / "after.sql")
            if connector.wait(_SLOWEST_SECONDS):
                raise SystemExit("the connector failed")
        finally:
            connector.kill()


def main(*words: str) -> None:
    """Replace a recording."""
    story = HERE.joinpath(*words)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if _PLAIN_USER:
            shutil.chown(folder, _PLAIN_USER["user"])
        with postgres(folder) as server:
            record(server, story, folder)
            names = EVENTS[:1] if words else EVENTS
            texts = {name: (folder / f"{name}.jsonl").read_text("utf-8") for name in names}
            texts |= {table: server.rows(table) for table in _tables(server, *words)}
    for name, text in texts.items():
        lines, packed = text.count("\n"), gzip.compress(text.encode(), mtime=0)
        (story / f"{name}.jsonl.gz").write_bytes(packed)
        print(f"{name}: {lines} lines, {len(packed)} bytes", flush=True)


def _tables(server: Postgres, *words: str) -> Sequence[str]:
    """Return the tables whose rows are kept."""
    if not words:
        return TABLES
    found = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'phase'"
    return server.sql("-c", found).splitlines()


if __name__ == "__main__":
    main(*sys.argv[1:])
