"""The archive of classes from which the engine's JVM starts: parsed and verified once, at set-up.

Java takes an archive only with the Java, the class path and the jars that it was made with, and
otherwise starts without it. A whole one can therefore always be offered; one that was cut off would
crash the JVM, so its name ends with its size.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from oncelake.ingestion.kafka.java import find_java, pyspark_home

# An archive that does not fit is nobody's concern; Java would report it on standard output.
_SILENTLY = ("-Xshare:auto", "-Xlog:cds*=off", "-Xlog:class+path=off")


def class_path(jars: Path) -> tuple[Path, ...]:
    """Return what the engine adds to Spark's own class path.

    Resolved, so that folders that link to the same jars can use the same archive.
    """
    return tuple(sorted((jars / "spark").resolve().glob("*.jar")))


def archive_options(jars: Path) -> tuple[str, ...]:
    """Return the options of a JVM that starts from the archive; none when set-up made none."""
    archives = (archive for archive in _whole_archives(jars) if archive.stat().st_size)
    archive = next(archives, None)
    return (*_SILENTLY, f'"-XX:SharedArchiveFile={archive}"') if archive else ()


def archive_key(jars: Path, flags: Iterable[str]) -> str:
    """Return what tells archives apart: the Java, the jars as they lie there, the JVM's flags.

    Raises:
        SetupError: there is no Java.
    """
    java = subprocess.run([find_java(), "-version"], capture_output=True, check=True).stderr
    key = hashlib.sha256(java)
    spark_home = Path(os.environ.get("SPARK_HOME") or pyspark_home())
    for jar in (*sorted(spark_home.glob("jars/*.jar")), *class_path(jars)):
        at = jar.stat()
        # Java compares these as well: the same jar, fetched again, is another.
        key.update(f"{jar}\0{at.st_size}\0{at.st_mtime_ns}\n".encode())
    key.update("\n".join(flags).encode())
    return key.hexdigest()[:12]


def has_archive(jars: Path, key: str) -> bool:
    """Tell whether set-up made the archive of this key, or noted that it could not."""
    return any(_whole_archives(jars, key))


def remove_archives(jars: Path) -> None:
    """Remove every archive; a JVM that runs keeps its own."""
    for archive in jars.glob("classes-*.jsa"):
        archive.unlink(missing_ok=True)


def install_archive(jars: Path, key: str, draft: Path) -> Path:
    """Move a finished archive to its place, on the same volume; an empty one notes a failure."""
    with draft.open("rb") as written:
        os.fsync(written.fileno())
    return draft.rename(jars / f"classes-{key}-{draft.stat().st_size}.jsa")


def _whole_archives(jars: Path, key: str = "*") -> Iterator[Path]:
    for archive in sorted(jars.resolve().glob(f"classes-{key}-*.jsa")):
        if archive.stem.endswith(f"-{archive.stat().st_size}"):
            yield archive
