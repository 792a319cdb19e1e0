"""What every run needs of this machine: Java, jars, folders to write in, and room there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ingestion.errors import SetupError
from ingestion.kafka.java import find_java
from ingestion.local.jars import missing_jars
from ingestion.operations.doctor.finding import Finding
from ingestion.settings import Settings

_JAVAS = range(17, 22)
_LEAST_FREE_BYTES = 2**30
_PATIENCE_SECONDS = 30
_ABOUT = "machine"


@dataclass(frozen=True, kw_only=True, slots=True)
class Folder:
    """A folder that runs write in.

    Attributes:
        name: What it is for.
        path: The folder; where it is not there yet, it will be made.
        is_writable: Whether it, or the nearest folder above it, can be written in.
        free_bytes: Room on its volume.
    """

    name: str
    path: Path
    is_writable: bool
    free_bytes: int

    @classmethod
    def of(cls, name: str, path: Path) -> Folder:
        """Look at a folder."""
        there = next(at for at in (path, *path.parents) if at.exists())
        return cls(
            name=name,
            path=path,
            is_writable=there.is_dir() and os.access(there, os.W_OK | os.X_OK),
            free_bytes=shutil.disk_usage(there).free,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What a machine has of what runs need.

    Attributes:
        java: What ``java -version`` said, or why it could not be asked.
        java_version: Its major version; ``None`` when there is no Java that answers.
        missing_jars: Jars of the lock file that are not there.
        places: The folders that runs write in.
    """

    java: str
    java_version: int | None
    missing_jars: tuple[str, ...]
    places: tuple[Folder, ...]


def read_machine(settings: Settings, dagster_home: Path | None) -> Machine:
    """Gather what a machine has; asks Java, which takes a moment."""
    java, version = _java()
    places = {"the lake": settings.lake, "the state folder": settings.state}
    if dagster_home is not None:
        places["Dagster's home"] = dagster_home
    return Machine(
        java=java,
        java_version=version,
        missing_jars=missing_jars(settings.jars),
        places=tuple(Folder.of(name, path) for name, path in places.items()),
    )


def diagnose_machine(machine: Machine) -> Iterator[Finding]:
    """Say what runs need and this machine does not have."""
    if machine.java_version not in _JAVAS:
        yield Finding(
            about=_ABOUT,
            what="Spark needs Java 17 to 21, and this is not it",
            evidence=machine.java,
            command="install a JDK, version 17 or 21, and point JAVA_HOME to it",
        )
    if machine.missing_jars:
        yield Finding(
            about=_ABOUT,
            what="jars are not there",
            evidence=f"{len(machine.missing_jars)}: {', '.join(machine.missing_jars[:5])}",
            command="make setup",
        )
    for place in machine.places:
        yield from _ailments_of(place)


def _ailments_of(place: Folder) -> Iterator[Finding]:
    if not place.is_writable:
        yield Finding(
            about=_ABOUT,
            what=f"{place.name} cannot be written in",
            evidence=str(place.path),
            command=f"ls -ld {place.path}",
        )
    if place.free_bytes < _LEAST_FREE_BYTES:
        yield Finding(
            about=_ABOUT,
            what=f"{place.name} is on a volume that is almost full",
            evidence=f"{place.free_bytes / 2**20:,.0f} MiB free at {place.path}",
            command=f"df -h {place.path}",
        )


def _java() -> tuple[str, int | None]:
    try:
        asked = subprocess.run(
            [find_java(), "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_SECONDS,
        )
    except (SetupError, OSError, subprocess.TimeoutExpired) as error:
        return str(error), None
    said = (asked.stderr or asked.stdout).strip()
    found = re.search(r'version "(\d+)', said)
    return (said.splitlines() or ["no answer"])[0], int(found[1]) if found else None
