"""Make the archive of classes that the engine's JVM starts from, by runs that really do the work.

A run of a hundred records spends most of its time on loading classes. Java writes down at its exit
which ones a process needed; so an embedded Kafka is filled, read twice and thrown away, once for
each Java and set of jars. Set-up never fails for it: runs work without.

    python -m oncelake.ingestion.operations.archive_classes  makes it, where none is there
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oncelake.ingestion.errors import IngestionError
from oncelake.ingestion.local.class_archive import (
    archive_key,
    has_archive,
    install_archive,
    remove_archives,
)
from oncelake.ingestion.local.process import file_lock, run_and_capture
from oncelake.ingestion.settings import Settings, load_settings

_SLOWEST_SECONDS: Final = 600
_DRAFT: Final = "classes.jsa"
_NOT_ARCHIVED: Final = "classes: not archived; runs work without, but start more slowly"
_FLAGS: Final = '-Xlog:disable "-XX:ArchiveClassesAtExit={draft}"'

_TOPIC: Final = "classes"
_SCHEMA: Final = (
    "id BIGINT NOT NULL, name STRING, at TIMESTAMP, day DATE, price DECIMAL(10, 2), share DOUBLE, "
    "is_open BOOLEAN, tags ARRAY<STRING>, place STRUCT<x: INT, y: INT>"
)
_RECORD: Final = (
    b'{"id": %d, "name": "a", "at": "2026-01-01T00:00:00.5Z", "day": "2026-01-01", "price": "1.5", '
    b'"share": 0.5, "is_open": true, "tags": ["a", "b"], "place": {"x": 1, "y": 2}}'
)


def archive_classes(jars: Path) -> Iterator[str]:
    """Make the archive unless there is one that fits, and yield one line of progress at a time.

    Where none can be made, a line says why, and the next set-up does not try again.
    """
    try:
        with file_lock(jars / "classes.lock"):
            key = archive_key(jars, [_FLAGS])
            if not has_archive(jars, key):
                yield "classes: running a small stream, a minute or two, so that runs start sooner"
                remove_archives(jars)
                yield from _make(jars, key)
    except (IngestionError, OSError, subprocess.SubprocessError) as error:
        yield f"{_NOT_ARCHIVED} ({error})"


def _make(jars: Path, key: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=jars, prefix="incoming-") as name:
        archive = Path(name) / _DRAFT
        problem = _run_elsewhere(Path(name), jars)
        if problem or not archive.exists():
            yield (
                f"{_NOT_ARCHIVED} ({problem or 'Java wrote none'}). "
                f"Next, to try again: rm {jars}/classes-*.jsa, make setup"
            )
            # Not the draft: a JVM that was given up may be writing it.
            archive = Path(name) / "none"
            archive.touch()
        install_archive(jars, key, archive)
        if archive.name == _DRAFT:
            yield "classes: archived"


def _run_elsewhere(folder: Path, jars: Path) -> str:
    """Run a stream in a process of its own; return why that failed, and nothing if it did not."""
    # Whatever a person has set is meant for their own Kafka and lake.
    ours = {name: text for name, text in os.environ.items() if not name.startswith("ONCELAKE_")}
    try:
        done = run_and_capture(
            [
                sys.executable,
                "-m",
                "oncelake.ingestion.operations.archive_classes",
                str(folder),
                str(jars),
            ],
            env=ours,
            seconds=_SLOWEST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {_SLOWEST_SECONDS} s"
    return (done.stderr.strip().splitlines() or ["it died"])[-1] if done.returncode else ""


def _run_in_folder(folder: Path, jars: Path) -> None:
    """Read a topic twice, and have the JVM write its archive into ``folder`` when it ends."""
    from oncelake.ingestion.local import broker

    settings = Settings(
        kafka=broker.up(folder / "kafka", jars=jars, tied_to_caller=True).address,
        lake=folder / "lake",
        state=folder / "state",
        jars=jars,
        spark_driver_memory="1g",
        spark_java_options=_FLAGS.format(draft=folder / _DRAFT),
    )
    _run_twice(settings)
    _end_jvm()
    broker.down(folder / "kafka")


def _run_twice(settings: Settings) -> None:
    """Insert rows and quarantine a record; then insert, update and delete rows."""
    from oncelake.ingestion.declaration.spec import StreamSpec
    from oncelake.ingestion.local.produce import create, produce
    from oncelake.ingestion.operations.run import Run
    from oncelake.ingestion.pipeline.spark.session import start_session

    spec = StreamSpec.model_validate(
        {"name": _TOPIC, "topic": _TOPIC, "schema": _SCHEMA, "keys": ["id"]}
    )
    create(settings, _TOPIC, partitions=2)
    for run_id, messages in (
        ("first", [*_messages(range(20)), _Message(key=b"{}", value=b"no JSON")]),
        ("second", [*_messages(range(10, 30)), _Message(key=b'{"id": 1}', value=None)]),
    ):
        produce(settings, _TOPIC, messages)
        Run(
            spec=spec,
            settings=settings,
            spark=lambda backlog: start_session(settings, backlog=backlog),
            run_id=run_id,
        ).execute()


def _end_jvm() -> None:
    """Stop Spark and wait until its JVM is gone, which otherwise outlives us by seconds."""
    from pyspark import SparkContext

    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    assert context is not None, "no session"
    assert gateway is not None, "a session without a JVM"
    context.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    if gateway.proc.wait(_SLOWEST_SECONDS):
        sys.exit("the JVM died while it wrote the archive")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Message:
    key: bytes
    value: bytes | None
    timestamp_ms: int = 1_767_225_600_000


def _messages(ids: Iterable[int]) -> Iterator[_Message]:
    for number in ids:
        yield _Message(key=b'{"id": %d}' % number, value=_RECORD % number)


if __name__ == "__main__":
    if sys.argv[1:]:
        _run_in_folder(*map(Path, sys.argv[1:]))
    else:
        for line in archive_classes(load_settings().jars):
            print(line, flush=True)
