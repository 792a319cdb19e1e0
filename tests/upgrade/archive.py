"""The archive of a release: a lake as its program wrote it, and the Kafka and PostgreSQL beside it.

It is unpacked where it was made, since Iceberg's metadata names its files by absolute paths. The
embedded Kafka's folder has the cluster's id, the topics' ids and all records at their offsets;
PostgreSQL's database comes back from its dump. ``MANIFEST.json`` says what is in it.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from oncelake.ingestion.local import broker
from oncelake.ingestion.settings import Settings
from tests.support.arrow_source import ArrowSession
from tests.support.postgres import binaries, postgres
from tests.support.world import JARS, World, settings_in

ARCHIVES: Final = Path(__file__).parent / "archives"
# Iceberg's metadata and Kafka's settings name files by their absolute paths, so that each machine
# needs the same; one process at a time has it: see ``alone``.
FOLDER: Final = Path("/tmp/oncelake-upgrade")
MANIFEST: Final = "MANIFEST.json"
_DUMP: Final = "postgres.sql"
# An archive is older than any retention. A transactional id may be forgotten: none is open.
_KEPT_FOR_GOOD: Final = {"log.retention.ms": "-1"}
# Of the broker's folder, what is of the process alone.
_OF_PROCESS: Final = {"lock", "pid", "address", "broker.log"}


@contextmanager
def services() -> Iterator[Settings]:
    """Start Kafka on what is unpacked, and an empty PostgreSQL; they end with the block."""
    with ExitStack() as stack:
        (FOLDER / "logs").mkdir(parents=True, exist_ok=True)
        url = stack.enter_context(postgres(FOLDER / "logs"))
        stack.callback(broker.down, FOLDER / "kafka")
        up = broker.up(FOLDER / "kafka", jars=JARS, tied_to_caller=True, settings=_KEPT_FOR_GOOD)
        more = {"reader": "librdkafka", "merge_engine": "local", "postgres": url}
        yield settings_in(FOLDER, up.address, **more)


@contextmanager
def alone() -> Iterator[None]:
    """Empty the folder, and keep other processes out of it until the block ends."""
    with FOLDER.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        try:
            yield
        finally:
            shutil.rmtree(FOLDER, ignore_errors=True)


@contextmanager
def unpacked(archive: Path) -> Iterator[Settings]:
    """Unpack an archive, and start what is beside its lake."""
    with alone():
        with tarfile.open(archive) as tar:
            tar.extractall(FOLDER, filter="data")
        with services() as settings:
            assert settings.postgres is not None
            # A line with a backslash in front is a command of psql, no SQL.
            lines = (FOLDER / _DUMP).read_text().splitlines()
            script = "\n".join(line for line in lines if not line.startswith("\\"))
            with psycopg.connect(settings.postgres.get_secret_value(), autocommit=True) as server:
                server.execute(script.encode())
            yield settings


def dump(url: str) -> None:
    """Write the database beside the lake."""
    options = ("--inserts", "--no-owner", "--no-privileges")
    command = [str(binaries() / "pg_dump"), *options, url]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (FOLDER / _DUMP).write_text(done.stdout)


def pack(archive: Path, manifest: Mapping[str, Any]) -> None:
    """Write an archive of the folder, whose services have ended."""
    (FOLDER / MANIFEST).write_text(json.dumps(manifest, indent=1))
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        # Whoever asks what is in it reads no further.
        for name in (MANIFEST, _DUMP, "streams", "lake", "state", "kafka"):
            tar.add(FOLDER / name, name, filter=_kept)


def _kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    top, _, name = member.name.partition("/")
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    is_of_process = top == "kafka" and name in _OF_PROCESS
    is_scratch = top == "state" and name in {"dagster", "run.log"}
    is_lock = member.name.startswith("lake/.locks/")
    return None if is_of_process or is_scratch or is_lock else member


def releases() -> list[Path]:
    """List the archives by version, oldest first."""
    return sorted(
        ARCHIVES.glob("*.tar.xz"), key=lambda at: [int(n) for n in version_of(at).split(".")]
    )


def version_of(archive: Path) -> str:
    """Return the version that an archive is named for."""
    return archive.name.removesuffix(".tar.xz")


def manifest_of(archive: Path) -> dict[str, Any]:
    """Read what an archive says of itself."""
    with tarfile.open(archive) as tar:
        first = tar.next()
        assert first is not None
        assert first.name == MANIFEST
        content = tar.extractfile(first)
        assert content is not None
        manifest: dict[str, Any] = json.load(content)
        return manifest


def world_of(stream: str, settings: Settings, session: ArrowSession) -> World:
    """Return a stream of the folder, as its file declares it."""
    declared = json.loads((settings.streams / f"{stream}.yaml").read_text())
    world = World.over(declared["topic"], settings, session)  # type: ignore[arg-type]
    world.declare(**declared)
    return world
