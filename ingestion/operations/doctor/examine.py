"""The doctor's round: the machine, each stream, Dagster; none keeps it from the next.

Gathering changes nothing and takes no lock, so a doctor may be called while runs go on. What cannot
be found out is a finding, too: unknown is not healthy.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.declaration.sinks import IcebergSink
from oncelake.ingestion.errors import MissingRightError, SetupError, SinkUnavailableError
from oncelake.ingestion.kafka.java import find_java
from oncelake.ingestion.lake.ledger import known_paths, written_seqs
from oncelake.ingestion.lake.lock import Holder, holder_of
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.local.jars import missing_jars
from oncelake.ingestion.local.process import run_and_capture
from oncelake.ingestion.operations.doctor import findings as kinds
from oncelake.ingestion.operations.doctor.catalog import examine_catalog, examine_entry
from oncelake.ingestion.operations.doctor.findings import Finding
from oncelake.ingestion.operations.failure import Failure
from oncelake.ingestion.operations.status.status import StatusReader, StreamStatus, costly_merges
from oncelake.ingestion.recovery.heal import unknown_seqs
from oncelake.ingestion.recovery.snapshot import read_snapshot
from oncelake.ingestion.settings import Settings, project_root
from oncelake.ingestion.storage.lease import read_lease
from oncelake.ingestion.storage.processes import is_running, process_locking

_DAGSTER_MODULE = "oncelake.assets.doctor"
_IDLE_MODULE = "oncelake.assets.doctor.idle"
_DAGSTER_SECONDS = 120
# Whoever asks for the status waits for it.
_IDLE_SECONDS = 30
_OLDEST_JAVA = 17
_JAVA_SECONDS = 30
_LEAST_FREE_BYTES = 2**30
# What a status meets where the catalog of an Iceberg table does not answer, or does not let us.
_OF_A_CATALOG = (SinkUnavailableError.__name__, MissingRightError.__name__)
_FINDINGS = TypeAdapter(dict[str, tuple[Finding, ...]])


def examine(
    settings: Settings,
    streams: Sequence[DeclaredStream],
    *,
    are_all: bool,
    tell: Callable[[str], None],
) -> list[Finding]:
    """Examine everything; return what is wrong before what is only noteworthy.

    Args:
        are_all: Whether no other is declared; what belongs to none of them is then an orphan.
        tell: Called with a line about what is looked at next.
    """
    tell("looking at this machine…")
    findings = list(examine_machine(settings, _dagster_home()))
    names, reader = [stream.name for stream in streams], StatusReader(settings)
    for stream in streams:
        tell(f"{stream.name}: looking at its table, its ledger, its lock, and Kafka…")
        findings += _examine_stream(stream, settings, reader)
    if are_all:
        for kind in ("checkpoints", "keys"):
            findings += orphans(settings.state / kind, set(names))
    tell("asking Dagster…")
    findings += _examine_dagster([] if are_all else names)
    return sorted(dict.fromkeys(findings), key=lambda finding: not finding.exit_code)


def find_idle(statuses: Sequence[StreamStatus]) -> tuple[Finding, ...]:
    """Say which of these streams Dagster starts no runs of; without a Dagster here, nothing."""
    home = _dagster_home()
    if home is None or not _is_used(home):
        return ()
    question, folder = [_DAGSTER_MODULE, *(status.stream for status in statuses)], _files_of(home)
    if folder is not None:
        runs = {status.stream: status.run_ids for status in statuses if status.is_sensed}
        question = [_IDLE_MODULE, str(folder), json.dumps(runs)]
    idle = (kinds.SENSOR_OFF.what, kinds.NO_DAEMON.what)
    findings = _ask_dagster(home, question, _IDLE_SECONDS)
    return tuple(finding for finding in findings if finding.what in idle)


def _examine_stream(
    stream: DeclaredStream, settings: Settings, reader: StatusReader
) -> list[Finding]:
    status = reader.read_status(stream)
    findings = [*_examine_sink(stream, settings)]
    # What the status has met already is told once, in its words; of a catalog, in the catalog's.
    known = _OF_A_CATALOG if any(finding.exit_code for finding in findings) else ()
    failures, leftovers = [*status.problems], list[Finding]()
    try:
        paths = known_paths(stream.name, settings, stream.sink)
        leftovers += examine_leftovers(stream.name, paths)
    except Exception as error:  # noqa: BLE001 (what cannot be found out is a finding, too)
        failures.append(Failure.of(error, stream=stream.name, debug=True))
    findings += [_finding_of(failure) for failure in failures if failure.type not in known]
    if status.retention is not None and status.retention.is_low:
        findings.append(kinds.LOW_RETENTION.of(stream.name, str(status.retention)))
    return findings + leftovers


def _examine_sink(stream: DeclaredStream, settings: Settings) -> Iterator[Finding]:
    try:
        sink = stream.sink.declared if stream.sink else None
        if isinstance(sink, IcebergSink):
            yield from examine_catalog(stream.name, sink, settings)
        if stream.sink and (catalog := stream.sink.catalog):
            yield from examine_entry(catalog, known_paths(stream.name, settings, stream.sink))
    except Exception as error:  # noqa: BLE001 (what cannot be found out is a finding, too)
        yield _finding_of(Failure.of(error, stream=stream.name, debug=True))


def _finding_of(failure: Failure) -> Finding:
    """Take over what a run would meet."""
    problem, _, following = failure.message.partition(" Next: ")
    status = f"oncelake status {failure.stream or ''}".rstrip()
    facts = {"problem": problem, "remedy": failure.remedy or following or status}
    if failure.type in ("DependencyError", "KafkaSettingsError"):
        return kinds.SILENT_KAFKA.of("kafka", failure.type, **facts)
    about = failure.stream or "streams"
    # It is printed behind its stream.
    facts["problem"] = problem.removeprefix(f"{about}: ")
    return kinds.FAILING_RUN.of(about, failure.type, **facts)


def _dagster_home() -> Path | None:
    """Return the folder of Dagster's instance: as the environment says, else the project's."""
    given = os.environ.get("DAGSTER_HOME")
    if given:
        return Path(given)
    return project_root() if (project_root() / ".dagster").is_dir() else None


def _is_used(home: Path) -> bool:
    """Tell whether Dagster has stored anything yet; to ask it takes seconds, and makes its files.

    Where its settings name a database, or cannot be read, only Dagster knows.
    """
    folder = _files_of(home)
    return folder is None or (folder / "history" / "runs.db").exists() or not home.is_dir()


def _files_of(home: Path) -> Path | None:
    """Return the folder of Dagster's files; ``None`` where only Dagster knows what it stores."""
    file = home / "dagster.yaml"
    try:
        settings = (YAML(typ="safe").load(file) or {}) if file.exists() else {}
    except (YAMLError, OSError):
        return None
    match settings:
        case {"storage": {"sqlite": {"base_dir": str(folder)}}}:
            return project_root() / folder
        case {"storage": _} | {"run_storage": _} | {"schedule_storage": _}:
            return None
        case _:
            return home


def _examine_dagster(streams: Sequence[str]) -> tuple[Finding, ...]:
    """Let Dagster's side examine itself, for these streams or all; the engine runs without it."""
    home = _dagster_home()
    if home is None:
        where = f"DAGSTER_HOME is not set, and {project_root()} holds no .dagster"
        return (kinds.NO_DAGSTER.of("dagster", where),)
    if not _is_used(home):
        return (kinds.NO_DAGSTER.of("dagster", f"Dagster has stored nothing yet for {home}"),)
    return _ask_dagster(home, [_DAGSTER_MODULE, *streams], _DAGSTER_SECONDS)


def _ask_dagster(home: Path, question: Sequence[str], seconds: float) -> tuple[Finding, ...]:
    try:
        answer = run_and_capture(
            [sys.executable, "-m", *question],
            # Relative folders in dagster.yaml mean the working directory, as they do in `make ui`.
            cwd=project_root(),
            env={**os.environ, "DAGSTER_HOME": str(home)},
            seconds=seconds,
        )
    except subprocess.TimeoutExpired:
        why = f"no answer within {seconds} s"
    else:
        if answer.returncode == 0:
            return _FINDINGS.validate_json(answer.stdout)["findings"]
        why = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
    command = f"{sys.executable} -m {_DAGSTER_MODULE}"
    return (kinds.UNREADABLE_DAGSTER.of("dagster", why, home=home, command=command),)


@dataclass(frozen=True, kw_only=True, slots=True)
class Folder:
    """A folder that runs write in, by what it is for; where it is not there yet, it will be made.

    Attributes:
        is_writable: Whether it, or the nearest folder above it, can be written in.
    """

    name: str
    path: Path
    is_writable: bool
    free_bytes: int

    @classmethod
    def of(cls, name: str, path: Path) -> Folder:
        """Examine a folder."""
        there = next(at for at in (path, *path.parents) if at.exists())
        return cls(
            name=name,
            path=path,
            is_writable=there.is_dir() and os.access(there, os.W_OK | os.X_OK),
            free_bytes=shutil.disk_usage(there).free,
        )


def examine_machine(settings: Settings, dagster_home: Path | None) -> Iterator[Finding]:
    """Say what runs need and this machine does not have; asks Java, which takes a moment."""
    folders = {"the state folder": settings.state}
    if isinstance(settings.lake, Path):
        folders["the lake"] = settings.lake
    if dagster_home is not None:
        folders["Dagster's home"] = dagster_home
    needed: tuple[str, ...] = () if settings.reader == "librdkafka" else ("spark",)
    if settings.kafka.address is None:
        needed += ("broker",)
    if missing := missing_jars(settings.jars, needed):
        can_fetch = settings.maven != "off" and Folder.of("jars", settings.jars).is_writable
        kind = kinds.JARS_TO_FETCH if can_fetch else kinds.MISSING_JARS
        yield kind.of("machine", f"{len(missing)}: {', '.join(missing[:5])}")
    yield from diagnose_machine(
        java=_java() if "spark" in needed else None,
        folders=[Folder.of(name, path) for name, path in folders.items()],
    )


def diagnose_machine(
    *, java: tuple[str, int | None] | None, folders: Sequence[Folder]
) -> Iterator[Finding]:
    """Say what is wrong with a machine.

    Args:
        java: What ``java -version`` answered, and the major version; none where no run needs it.
        folders: Those that runs write in.
    """
    if java and (java[1] is None or java[1] < _OLDEST_JAVA):
        yield kinds.UNFIT_JAVA.of("machine", java[0])
    for folder in folders:
        facts = {"folder": folder.name, "path": folder.path}
        if not folder.is_writable:
            yield kinds.UNWRITABLE_FOLDER.of("machine", str(folder.path), **facts)
        if folder.free_bytes < _LEAST_FREE_BYTES:
            free = f"{folder.free_bytes / 2**20:,.0f} MiB free at {folder.path}"
            yield kinds.FULL_VOLUME.of("machine", free, **facts)


def _java() -> tuple[str, int | None]:
    try:
        answer = run_and_capture([find_java(), "-version"], seconds=_JAVA_SECONDS)
    except (SetupError, OSError, subprocess.TimeoutExpired) as error:
        return str(error), None
    text = (answer.stderr or answer.stdout).strip()
    version = re.search(r'version "(\d+)', text)
    return (text.splitlines() or ["no answer"])[0], int(version[1]) if version else None


def examine_leftovers(stream: str, paths: StreamPaths) -> Iterator[Finding]:
    """Say what lies around of a stream, and what puts it right: nearly always the next run.

    Needs neither Spark nor Kafka. While somebody holds the stream, nothing else is a leftover.
    """
    if holder := holder_of(paths):
        yield _finding_of_holder(stream, paths, holder)
        return
    snapshot = read_snapshot(paths)
    if snapshot.table:
        seq = snapshot.table.seq or 0
        recorded = {row.seq for row in snapshot.rows} - {row.seq for row in snapshot.ledger.copied}
        unknown = unknown_seqs(snapshot)
        if seqs := set(range(1, seq + 1)) - recorded - set(unknown):
            yield kinds.UNRECORDED_COMMITS.of(stream, f"seq {written_seqs(seqs)}")
        if unknown:
            yield kinds.UNKNOWN_BATCHES.of(stream, f"seq {written_seqs(unknown)}")
    for evidence in costly_merges(paths, paths.table.log()):
        yield kinds.COSTLY_MERGES.of(stream, evidence)
    folders = paths.checkpoints.iterdir() if paths.checkpoints.is_dir() else ()
    generations = sorted((at for at in folders if at.name.isdigit()), key=lambda at: int(at.name))
    if len(generations) > 1:
        yield kinds.OLD_GENERATIONS.of(stream, ", ".join(map(str, generations)))


def orphans(caches: Path, declared: set[str]) -> Iterator[Finding]:
    """Say which checkpoints, or indexes, belong to no declared stream."""
    for folder in sorted(caches.iterdir()) if caches.is_dir() else ():
        if folder.is_dir() and folder.name not in declared:
            yield kinds.ORPHANED_CACHE.of(folder.name, str(folder), path=folder)


def _finding_of_holder(stream: str, paths: StreamPaths, holder: Holder) -> Finding:
    evidence = f"run {holder.run_id}, pid {holder.pid} on {holder.host}, since {holder.since}"
    is_alive = _is_alive(holder)
    if is_alive is None:
        return kinds.RUN_ELSEWHERE.of(stream, evidence)
    if is_alive:
        return kinds.RUN_UNDER_WAY.of(stream, evidence)
    pid = _locking_pid(paths)
    release = f"kill {pid}" if pid else "find the java process of that run, and kill it"
    evidence += f"; process {pid or 'unknown'} has the lock"
    return kinds.DEAD_HOLDER.of(stream, evidence, release=release)


def _locking_pid(paths: StreamPaths) -> int | None:
    """Return a process that may still commit: it has the lock, or is in the lease and lives."""
    if paths.lease is None:
        return process_locking(paths.lock.path)
    lease = read_lease(paths.lease)
    return next((worker.pid for worker in lease.living()), None) if lease else None


def _is_alive(holder: Holder) -> bool | None:
    """Tell whether the holder's driver runs; ``None`` on another machine."""
    if holder.host != socket.gethostname():
        return None
    try:
        since = datetime.fromisoformat(holder.since).timestamp()
    except ValueError:
        return None
    return is_running(holder.pid, since=since)
