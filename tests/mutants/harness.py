"""One planted bug at a time, in a copy of the project: do the tests that should notice it fail?"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.mutants.plan import Mutant, mutated
from tests.support.world import ROOT

COPIED = (
    "oncelake",
    "ingestion",
    "assets",
    "resources",
    "tests",
    "docs",
    "pyproject.toml",
    "dagster.yaml",
)
LINKED = (".venv", ".jars")
TIMEOUT_SECONDS = 900
# All tests of the list together.
_BASELINE_SECONDS = 7_200

# A mutant must be wrong, not broken: these say that the edited code cannot run at all.
_BROKEN = re.compile(
    r"(ImportError|ModuleNotFoundError|SyntaxError|IndentationError|NameError|UnboundLocalError"
    r"|AttributeError|TypeError|fixture|Permission denied)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What became of a planted bug.

    Attributes:
        verdict: ``killed`` by a test, ``survived`` them all, or ``broken``: it proves nothing.
        by: The test that failed, or that was broken.
        evidence: The first line of what it said.
        seconds: How long it took.
    """

    verdict: str
    by: str = ""
    evidence: str = ""
    seconds: float = 0.0


@contextmanager
def copied_project() -> Iterator[Path]:
    """Copy the project to a folder of its own, with the environment linked to it."""
    with TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder)
        skipped = shutil.ignore_patterns("__pycache__")
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=skipped)
            else:
                shutil.copy2(ROOT / name, copy / name)
        for name in LINKED:
            (copy / name).symlink_to((ROOT / name).resolve())
        yield copy


def check_baseline(copy: Path, tests: Iterable[str]) -> Result:
    """Run tests on the copy as it is, in one go: they must all pass, and so it ``survived``."""
    return _pytest(copy, *tests, timeout=_BASELINE_SECONDS)


def try_mutant(mutant: Mutant, copy: Path) -> Result:
    """Plant a bug in the copy, run its tests until one fails, and take the bug out again."""
    texts = mutated(mutant, copy)
    honest = {name: (copy / name).read_text("utf-8") for name in texts}
    began = time.monotonic()
    try:
        _write(copy, texts)
        result = _verdict(mutant, copy, texts)
    finally:
        _write(copy, honest)
    return replace(result, seconds=round(time.monotonic() - began, 1))


def _verdict(mutant: Mutant, copy: Path, files: Iterable[str]) -> Result:
    modules = ", ".join(name.removesuffix(".py").replace("/", ".") for name in files)
    imported = _python(copy, "-c", f"import {modules}")
    if imported.returncode:
        last = imported.stderr.strip().splitlines()[-1]
        return Result(verdict="broken", by="import", evidence=last)
    return _pytest(copy, *mutant.tests)


def _pytest(copy: Path, *tests: str, timeout: int = TIMEOUT_SECONDS) -> Result:
    report = copy / "report.xml"
    report.unlink(missing_ok=True)
    options = ("-x", "-q", "-p", "no:cacheprovider", f"--junitxml={report}")
    try:
        done = _python(copy, "-m", "pytest", *options, *tests, timeout=timeout)
    except subprocess.TimeoutExpired:
        said = f"not done after {timeout} s"
        return Result(verdict="broken", by="pytest", evidence=said)
    if done.returncode == 0:
        return Result(verdict="survived")
    return _failure(report, done.stdout)


def _failure(report: Path, said: str) -> Result:
    """Read which test failed, and whether it judged the code or could not run it."""
    for case in ET.parse(report).iter("testcase") if report.exists() else ():
        for kind in ("failure", "error"):
            found = case.find(kind)
            if found is not None:
                message = (found.get("message") or "").strip()
                first = message.splitlines()[0] if message else ""
                is_broken = kind == "error" or _BROKEN.match(_type_of(first)) is not None
                verdict = "broken" if is_broken else "killed"
                return Result(verdict=verdict, by=case.get("name", ""), evidence=first)
    return Result(verdict="broken", by="pytest", evidence=said.strip()[-200:])


def _type_of(message: str) -> str:
    """Return the class of the exception that a message begins with."""
    return message.partition(":")[0].rpartition(".")[2]


def _python(
    copy: Path, *words: str, timeout: int = TIMEOUT_SECONDS
) -> subprocess.CompletedProcess[str]:
    # A bug may be noticed only by a test that ``make test`` leaves to ``make test-long``.
    more = {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "LONG": "1"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=copy,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


def _write(copy: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (copy / name).write_text(text, "utf-8")
