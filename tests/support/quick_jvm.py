"""The options of a JVM that starts quickly and need not last: for every Spark that tests start.

Compiled by C1 only, it warms up in a third of the time; and from an archive of the classes that a
run needs, parsed and verified once, it starts in half of it. The archive is made by a real run,
when it is missing; a JVM that finds it unfit goes without.

    python -m tests.support.quick_jvm KAFKA_ADDRESS     makes it
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pyspark
from pyspark import SparkContext

from ingestion.kafka.java import find_java
from ingestion.pipeline.session import start_session
from tests.support.world import JARS, ROOT, World, row, settings_in

_C1_ONLY = "-XX:TieredStopAtLevel=1"
_QUICK = f"{_C1_ONLY} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"
_SLOWEST_SECONDS = 300


def quick_jvm(kafka_address: str) -> str:
    """Return the options, after making the archive where there is none for this Java and jars."""
    archive = _archive()
    # Of several workers, one makes it; JVMs of the others do without until it is there.
    with (JARS / "quick.lock").open("w") as lock, suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not archive.exists():
            subprocess.run(
                [sys.executable, "-m", "tests.support.quick_jvm", kafka_address],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
                timeout=_SLOWEST_SECONDS,
            )
    return f"{_QUICK} -XX:SharedArchiveFile={archive}"


def lasting(options: str) -> str:
    """Return the same for a JVM of many minutes, which is worth compiling well."""
    return options.replace(_C1_ONLY, "").strip()


def _archive() -> Path:
    """Return where the archive lies: another one for another Java, or for jars in another place.

    Java takes an archive only with the class path that it was made with.
    """
    said = subprocess.run([find_java(), "-version"], capture_output=True, check=True).stderr
    jars = sorted((JARS / "spark").glob("*.jar"))
    path = "".join(f"{at}{at.stat().st_size}" for at in (*jars, Path(pyspark.__file__)))
    key = hashlib.sha256(said + path.encode())
    return JARS / f"quick-{key.hexdigest()[:12]}.jsa"


def _make(kafka_address: str, archive: Path) -> None:
    """Run a stream twice, and have the JVM write down at its exit which classes that took."""
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / archive.name
        options = f"{_QUICK} -XX:ArchiveClassesAtExit={draft}"
        settings = settings_in(Path(folder), kafka_address, spark_java_options=options)
        spark = start_session(settings)
        with World.made(settings, spark) as world:
            world.send(row(1, "a"), row(1, "b"), b"bad")
            world.run()
            world.send(row(1, "c"), row(2, "d"))
            world.send(None, id=2)
            world.run()
        spark.stop()
        gateway = SparkContext._gateway
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(_SLOWEST_SECONDS)
        shutil.copy(draft, archive.with_suffix(".new"))
        archive.with_suffix(".new").replace(archive)


if __name__ == "__main__":
    _make(sys.argv[1], _archive())
