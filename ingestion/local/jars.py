"""Fetch the jars that Spark and the embedded Kafka need, exactly those of ``jars.lock``.

PySpark brings Ivy along; it runs once, here, so that Spark starts later without resolving
anything. ``ivy.xml`` says which jars, ``jars.lock`` what is in them: a jar with another
sha256, a missing jar and a surplus one are all refused, and nothing half-fetched is ever seen.
What is about to start a JVM calls ``require_jars``, which fetches those that it lacks.

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
import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from oncelake.ingestion.errors import DependencyError, IngestionError, SetupError, counted
from oncelake.ingestion.kafka.java import find_java, pyspark_home
from oncelake.ingestion.local.process import file_lock, is_locked
from oncelake.ingestion.settings import Settings, load_settings

CONFIGURATIONS = ("spark", "broker")
STORE_CONFIGURATIONS = ("s3",)
TEST_CONFIGURATIONS = ("registry",)
CATALOG_CONFIGURATIONS = ("catalog",)
CAPTURE_CONFIGURATIONS = ("capture",)

_HERE = Path(__file__).parent
_LOCK = _HERE / "jars.lock"
_OURS = _HERE / "spark_s3.jar"
_TIMEOUT_SECONDS = 900
_CENTRAL = "Maven Central"
_FETCHED: Final = re.compile(r"\[SUCCESSFUL ] [^#]*#(\S+)!")


def require_jars(settings: Settings, *configurations: str) -> None:
    """Fetch what a JVM is about to need and is not there, and tell of it on stderr.

    Raises:
        SetupError: they may not be fetched, or kept.
        DependencyError: a jar could not be fetched.
    """
    if missing_jars(settings.jars, configurations):
        for line in fetch(settings.jars, configurations, maven=settings.maven):
            print(line, file=sys.stderr, flush=True)


def fetch(
    folder: Path, configurations: Iterable[str] = CONFIGURATIONS, *, maven: str | None = None
) -> Iterator[str]:
    """Bring ``folder`` to what the lock file says, and yield one line of progress at a time.

    Does nothing but compare when everything is there already.

    Args:
        maven: URL of the repository to fetch from instead of Maven Central; with ``off`` nothing
            is fetched.

    Raises:
        SetupError: a jar is not the one that was locked; a rerun downloads it again. Or it is
            missing, and may not be fetched, or the folder cannot be written in.
        DependencyError: a jar could not be fetched.
    """
    for conf in configurations:
        expected = {name: sha for name, sha in locked_jars().items() if name.startswith(f"{conf}/")}
        jars = counted(len(expected), "jar")
        if _sums(folder, conf) != expected:
            if _is_being_fetched(folder, conf, maven):
                yield f"{conf}: another process fetches jars into {folder}, waiting for it"
            with file_lock(folder / "fetch.lock"):
                # Another process may have fetched them meanwhile.
                if _sums(folder, conf) != expected:
                    yield f"{conf}: fetching {jars} from {maven or _CENTRAL}, some minutes"
                    yield from _install(folder, conf, expected, maven=maven)
        yield f"{conf}: {jars}, all there"


def _is_being_fetched(folder: Path, conf: str, maven: str | None) -> bool:
    """Refuse to fetch where that cannot end well; else tell whether another process does it."""
    if maven == "off":
        raise SetupError(
            f"the jars of {conf} in {folder} are not those of {_LOCK.name}, and "
            "ONCELAKE_MAVEN=off. Next: copy them there, or name a repository (docs/offline.md)"
        )
    find_java()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return is_locked(folder / "fetch.lock")
    except OSError as error:
        raise SetupError(
            f"the jars of {conf} are to be fetched into {folder}, which is not possible: "
            f"{error.strerror}. Next: oncelake jars, as somebody who may; or set ONCELAKE_JARS"
        ) from error


def _install(
    folder: Path, conf: str, expected: dict[str, str], *, maven: str | None
) -> Iterator[str]:
    # The lock is ours: whoever left these was killed.
    for left in folder.glob("incoming-jars-*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="incoming-jars-") as incoming:
        for number, jar in enumerate(
            _run_ivy(conf, Path(incoming), folder / "ivy", maven=maven), 1
        ):
            yield f"{conf}: {number} of {len(expected)}, {jar}"
        _verify(_sums(Path(incoming), conf), expected, cache=folder / "ivy")
        shutil.rmtree(folder / conf, ignore_errors=True)
        Path(incoming, conf).rename(folder / conf)


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
        with tempfile.TemporaryDirectory(dir=folder, prefix="incoming-") as incoming:
            yield from _run_ivy(conf, Path(incoming), folder / "ivy")
            lines += (f"{sha}  {name}\n" for name, sha in _sums(Path(incoming), conf).items())
    _LOCK.write_text("".join(lines))
    yield f"{_LOCK.name}: {counted(len(lines), 'jar')}"


def _run_ivy(conf: str, into: Path, cache: Path, *, maven: str | None = None) -> Iterator[str]:
    """Fetch the jars of a configuration, and yield the name of each that was downloaded."""
    pattern = f"{into}/[conf]/[artifact]-[revision](-[classifier]).[ext]"
    command = [find_java(), f"-Divy.default.ivy.user.dir={cache}"]
    command += [f"-Doncelake.maven={maven}", "-Doncelake.resolver=mirror"] if maven else []
    command += ["-jar", str(_ivy()), "-settings", str(_HERE / "ivysettings.xml")]
    command += ["-ivy", str(_HERE / "ivy.xml"), "-cache", str(cache), "-confs", conf]
    command += ["-types", "jar", "bundle", "tar.gz", "-retrieve", pattern]
    output: list[str] = []
    out, both = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(command, stdout=out, stderr=both, text=True) as ivy:
        watch = threading.Timer(_TIMEOUT_SECONDS, ivy.kill)
        watch.start()
        try:
            for line in ivy.stdout or ():
                output.append(line)
                if found := _FETCHED.search(line):
                    yield found[1].replace(";", " ")
        finally:
            watch.cancel()
            ivy.kill()
    if ivy.returncode != 0:
        problem = (
            f"the jars of {conf} could not be fetched from {maven or _CENTRAL}. Next: look at the "
            "network, then oncelake jars; without a network, docs/offline.md"
        )
        raise DependencyError("\n".join((*_complaints(output), problem)))


def _ivy() -> Path:
    found = sorted(pyspark_home().glob("jars/ivy-*.jar"))
    if not found:
        raise SetupError(f"PySpark has no Ivy in {pyspark_home()}. Next: make setup")
    return found[0]


def _complaints(output: Iterable[str]) -> Iterable[str]:
    """Return the lines of Ivy's output that name what is missing and why, each once."""
    telling = re.compile(r": not found|Server access error|FAILED|Exception|timed out")
    lines = (line.strip(" \t\n:") for line in output if telling.search(line))
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
            "installed. Next: oncelake jars, which downloads them again; if that does not help, "
            "somebody has changed them, or ivy.xml was edited without make lock"
        )


def main(arguments: list[str]) -> int:
    """Run from a shell; the errors end up as one line each."""
    settings = load_settings()
    extras = {
        "--s3": STORE_CONFIGURATIONS,
        "--tests": TEST_CONFIGURATIONS,
        "--catalogs": CATALOG_CONFIGURATIONS,
    }
    wanted = extras.get("".join(arguments), CONFIGURATIONS)
    fetched = fetch(settings.jars, wanted, maven=settings.maven)
    try:
        for line in lock(settings.jars) if arguments == ["--lock"] else fetched:
            print(line, flush=True)
    except IngestionError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
