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
from ingestion.operations.doctor.findings import (
    FULL_VOLUME,
    MISSING_JARS,
    UNFIT_JAVA,
    UNWRITABLE_FOLDER,
    Finding,
)
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
    """

    java: str
    java_version: int | None
    missing_jars: tuple[str, ...]
    folders: tuple[Folder, ...]


def read_machine(settings: Settings, dagster_home: Path | None) -> Machine:
    """Gather what a machine has; asks Java, which takes a moment."""
    java, version = _java()
    folders = {"the lake": settings.lake, "the state folder": settings.state}
    if dagster_home is not None:
        folders["Dagster's home"] = dagster_home
    return Machine(
        java=java,
        java_version=version,
        missing_jars=missing_jars(settings.jars),
        folders=tuple(Folder.of(name, path) for name, path in folders.items()),
    )


def diagnose_machine(machine: Machine) -> Iterator[Finding]:
    """Say what runs need and this machine does not have."""
    if machine.java_version not in _JAVAS:
        yield UNFIT_JAVA.of(_ABOUT, machine.java)
    if missing := machine.missing_jars:
        yield MISSING_JARS.of(_ABOUT, f"{len(missing)}: {', '.join(missing[:5])}")
    for folder in machine.folders:
        facts = {"folder": folder.name, "path": folder.path}
        if not folder.is_writable:
            yield UNWRITABLE_FOLDER.of(_ABOUT, str(folder.path), **facts)
        if folder.free_bytes < _LEAST_FREE_BYTES:
            free = f"{folder.free_bytes / 2**20:,.0f} MiB free at {folder.path}"
            yield FULL_VOLUME.of(_ABOUT, free, **facts)


def _java() -> tuple[str, int | None]:
    try:
        answer = subprocess.run(
            [find_java(), "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_SECONDS,
        )
    except (SetupError, OSError, subprocess.TimeoutExpired) as error:
        return str(error), None
    text = (answer.stderr or answer.stdout).strip()
    version = re.search(r'version "(\d+)', text)
    return (text.splitlines() or ["no answer"])[0], int(version[1]) if version else None
