"""What every run needs of this machine: Java, jars, folders to write in, and room there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ingestion.errors import SetupError
from ingestion.kafka.java import find_java
from ingestion.local.jars import missing_jars
from ingestion.operations.doctor import findings
from ingestion.operations.doctor.findings import Finding
from ingestion.settings import Settings

_JAVAS = range(17, 22)
_LEAST_FREE_BYTES = 2**30
_PATIENCE_SECONDS = 30
_ABOUT = "machine"


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
        """Look at a folder."""
        there = next(at for at in (path, *path.parents) if at.exists())
        return cls(
            name=name,
            path=path,
            is_writable=there.is_dir() and os.access(there, os.W_OK | os.X_OK),
            free_bytes=shutil.disk_usage(there).free,
        )


def examine_machine(settings: Settings, dagster_home: Path | None) -> Iterator[Finding]:
    """Say what runs need and this machine does not have; asks Java, which takes a moment."""
    folders = {"the lake": settings.lake, "the state folder": settings.state}
    if dagster_home is not None:
        folders["Dagster's home"] = dagster_home
    return diagnose_machine(
        java=_java(),
        missing=missing_jars(settings.jars),
        folders=[Folder.of(name, path) for name, path in folders.items()],
    )


def diagnose_machine(
    *, java: tuple[str, int | None], missing: Sequence[str], folders: Sequence[Folder]
) -> Iterator[Finding]:
    """Say what is wrong with a machine whose ``java -version`` gave this answer, and this major."""
    answer, version = java
    if version not in _JAVAS:
        yield findings.UNFIT_JAVA.of(_ABOUT, answer)
    if missing:
        yield findings.MISSING_JARS.of(_ABOUT, f"{len(missing)}: {', '.join(missing[:5])}")
    for folder in folders:
        facts = {"folder": folder.name, "path": folder.path}
        if not folder.is_writable:
            yield findings.UNWRITABLE_FOLDER.of(_ABOUT, str(folder.path), **facts)
        if folder.free_bytes < _LEAST_FREE_BYTES:
            free = f"{folder.free_bytes / 2**20:,.0f} MiB free at {folder.path}"
            yield findings.FULL_VOLUME.of(_ABOUT, free, **facts)


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
