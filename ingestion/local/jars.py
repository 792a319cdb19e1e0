"""Fetch the jars that Spark and the embedded Kafka need, exactly those of ``jars.lock``.

PySpark brings Ivy along; it runs once, here, so that Spark starts later without resolving
anything. ``ivy.xml`` says which jars, ``jars.lock`` what is in them: a jar with another
sha256, a missing jar and a surplus one are all refused, and nothing half-fetched is ever seen.

    python -m oncelake.ingestion.local.jars             fetch what is missing
    python -m oncelake.ingestion.local.jars --s3        fetch what Spark needs for a lake on S3
    python -m oncelake.ingestion.local.jars --tests     fetch what only the tests need
    python -m oncelake.ingestion.local.jars --catalogs  fetch what the tests of catalogs need
    python -m oncelake.ingestion.local.jars --lock      accept what Maven Central has, and lock it
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from oncelake.ingestion.errors import DependencyError, IngestionError, SetupError, counted
from oncelake.ingestion.kafka.java import find_java, pyspark_home
from oncelake.ingestion.local.process import run_and_capture
from oncelake.ingestion.settings import load_settings

CONFIGURATIONS = ("spark", "broker")
STORE_CONFIGURATIONS = ("s3",)
TEST_CONFIGURATIONS = ("registry",)
CATALOG_CONFIGURATIONS = ("catalog",)
CAPTURE_CONFIGURATIONS = ("capture",)

_HERE = Path(__file__).parent
_LOCK = _HERE / "jars.lock"
_OURS = _HERE / "spark_s3.jar"
_TIMEOUT_SECONDS = 900


def fetch(folder: Path, configurations: Iterable[str] = CONFIGURATIONS) -> Iterator[str]:
    """Bring ``folder`` to what the lock file says, and yield one line of progress at a time.

    Does nothing but compare when everything is there already.

    Raises:
        SetupError: a jar is not the one that was locked; a rerun downloads it again.
        DependencyError: a jar could not be fetched.
    """
    locked = locked_jars()
    for conf in configurations:
        expected = {name: sha for name, sha in locked.items() if name.startswith(f"{conf}/")}
        if _sums(folder, conf) == expected:
            yield f"{conf}: {counted(len(expected), 'jar')}, all there"
            continue
        yield f"{conf}: fetching {counted(len(expected), 'jar')} from Maven Central, some minutes"
        with _fetched(folder, conf) as incoming:
            _verify(_sums(incoming, conf), expected, cache=folder / "ivy")
            shutil.rmtree(folder / conf, ignore_errors=True)
            (incoming / conf).rename(folder / conf)
        yield f"{conf}: {counted(len(expected), 'jar')} fetched"


def missing_jars(folder: Path, configurations: tuple[str, ...] = CONFIGURATIONS) -> tuple[str, ...]:
    """List the locked jars that are not in ``folder``, without checking their contents."""
    names = (name for name in locked_jars() if name.startswith(configurations))
    return tuple(name for name in names if not (folder / name).is_file())


def store_jars(folder: Path) -> tuple[Path, ...]:
    """Return what Spark needs for tables on S3, first what is ours.

    None unless all is there.
    """
    if missing_jars(folder, STORE_CONFIGURATIONS):
        return ()
    return (_OURS, *sorted((folder / "s3").resolve().glob("*.jar")))


def lock(folder: Path) -> Iterator[str]:
    """Fetch every jar again and write its checksum to the lock file."""
    lines: list[str] = []
    for conf in (
        *(*CONFIGURATIONS, *STORE_CONFIGURATIONS),
        *(*TEST_CONFIGURATIONS, *CATALOG_CONFIGURATIONS, *CAPTURE_CONFIGURATIONS),
    ):
        with _fetched(folder, conf) as incoming:
            lines += (f"{sha}  {name}\n" for name, sha in _sums(incoming, conf).items())
    _LOCK.write_text("".join(lines))
    yield f"{_LOCK.name}: {counted(len(lines), 'jar')}"


@contextmanager
def _fetched(folder: Path, conf: str) -> Iterator[Path]:
    """Yield a temporary folder beside the final one, with the fetched jars in ``<conf>/``."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="incoming-") as incoming:
        _run_ivy(conf, into=Path(incoming), cache=folder / "ivy")
        yield Path(incoming)


def _run_ivy(conf: str, *, into: Path, cache: Path) -> None:
    pattern = f"{into}/[conf]/[artifact]-[revision](-[classifier]).[ext]"
    command = [find_java(), f"-Divy.default.ivy.user.dir={cache}", "-jar", str(_ivy())]
    command += ["-settings", str(_HERE / "ivysettings.xml"), "-ivy", str(_HERE / "ivy.xml")]
    command += ["-cache", str(cache), "-confs", conf, "-types", "jar", "bundle", "tar.gz"]
    command += ["-retrieve", pattern, "-warn"]
    try:
        ivy = run_and_capture(command, seconds=_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise DependencyError(
            f"Maven Central did not deliver the jars for {conf} within {_TIMEOUT_SECONDS} s. "
            "Next: look at the network, then make setup"
        ) from error
    if ivy.returncode != 0:
        problem = (
            f"the jars for {conf} could not be fetched from Maven Central. "
            "Next: look at the network (or at ivy.xml), then make setup"
        )
        raise DependencyError("\n".join((*_complaints(ivy.stdout + ivy.stderr), problem)))


def _ivy() -> Path:
    found = sorted(pyspark_home().glob("jars/ivy-*.jar"))
    if not found:
        raise SetupError(f"PySpark has no Ivy in {pyspark_home()}. Next: make setup")
    return found[0]


def _complaints(output: str) -> Iterable[str]:
    """Return the lines of Ivy's output that name what is missing and why, each once."""
    telling = re.compile(r": not found|Server access error|FAILED|Exception|timed out")
    lines = (line.strip(" \t:") for line in output.splitlines() if telling.search(line))
    return islice(dict.fromkeys(f"  {line}" for line in lines), 12)


def locked_jars() -> dict[str, str]:
    """Return the sha256 of each jar, by configuration and name."""
    pairs = (line.split("  ", 1) for line in _LOCK.read_text().splitlines())
    return {name: sha for sha, name in pairs}


def _sums(folder: Path, conf: str) -> dict[str, str]:
    return {
        f"{conf}/{jar.name}": hashlib.sha256(jar.read_bytes()).hexdigest()
        for jar in sorted((folder / conf).glob("*.*ar*"))
    }


def _verify(found: dict[str, str], expected: dict[str, str], *, cache: Path) -> None:
    wrong = sorted(name for name, _ in found.items() ^ expected.items())
    if wrong:
        # What Ivy keeps would only be found wrong again.
        shutil.rmtree(cache, ignore_errors=True)
        raise SetupError(
            f"not the jars of {_LOCK.name}: {', '.join(dict.fromkeys(wrong))}. Nothing was "
            "installed. Next: make setup, which downloads them again; if that does not help, "
            "somebody has changed them, or ivy.xml was edited without make lock"
        )


def main(arguments: list[str]) -> int:
    """Run from a shell; the errors end up as one line each."""
    folder = load_settings().jars
    extras = {
        "--s3": STORE_CONFIGURATIONS,
        "--tests": TEST_CONFIGURATIONS,
        "--catalogs": CATALOG_CONFIGURATIONS,
    }
    wanted = extras.get("".join(arguments), CONFIGURATIONS)
    try:
        for line in lock(folder) if arguments == ["--lock"] else fetch(folder, wanted):
            print(line, flush=True)
    except IngestionError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
