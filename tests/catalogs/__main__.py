"""Tries a REST catalog of one's own: python -m tests.catalogs --catalog prod [--uri https://…].

What held is written, by name, to build/world-rest.md, to keep. No property of the catalog is in it.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

from pyiceberg.utils.config import Config

from oncelake.ingestion.settings import variables_of
from tests.support.catalogs import YOURS
from tests.support.world import ROOT

_RESULT = ROOT / "build" / "world-rest.md"


def main() -> int:
    """Run the suite against the catalog, and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--catalog", default="default")
    parser.add_argument("--uri")
    parser.add_argument("tests", nargs="*", default=["tests/catalogs"])
    given = parser.parse_args()
    os.environ.update(variables_of("PYICEBERG_"))
    properties = {**(Config().get_catalog_config(given.catalog) or {}), "type": "rest"}
    if given.uri:
        properties["uri"] = given.uri
    if "uri" not in properties:
        print(
            f"world-rest: catalog {given.catalog} has no uri. Next: make world-rest URI=https://…"
        )
        return 2
    _RESULT.parent.mkdir(exist_ok=True)
    report = _RESULT.with_suffix(".xml")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not kafka", f"--junitxml={report}"]
    environment = {**os.environ, "CATALOGS": "yours", YOURS: json.dumps(properties)}
    ended = subprocess.run([*command, *given.tests], cwd=ROOT, env=environment, check=False)
    if report.exists():
        _RESULT.write_text(_result_of(report, urlsplit(str(properties["uri"])).hostname or ""))
        report.unlink()
        print(_RESULT.read_text())
        print(f"world-rest: this is kept in {_RESULT}")
    return ended.returncode


def _result_of(report: Path, host: str) -> str:
    cases = ElementTree.parse(report).getroot().iter("testcase")
    rows = [
        (case.attrib["name"].removeprefix("test_").replace("[yours", "["), _outcome(case))
        for case in cases
    ]
    held = sum(outcome == "held" for _, outcome in rows)
    today = dt.datetime.now(dt.UTC).date()
    libraries = f"Oncelake {version('oncelake')}, pyiceberg {version('pyiceberg')}"
    lines = [f"# An Iceberg REST catalog at {host}, {today}", ""]
    lines += [f"{libraries}: {held} of {len(rows)} held.", "", "| promise | outcome |", "|---|---|"]
    lines += [f"| {name.removesuffix('[]').replace('_', ' ')} | {what} |" for name, what in rows]
    return "\n".join([*lines, ""])


def _outcome(case: ElementTree.Element) -> str:
    for kind, word in (
        ("failure", "did not hold"),
        ("error", "did not hold"),
        ("skipped", "skipped"),
    ):
        if (found := case.find(kind)) is not None:
            said = (found.get("message") or "").splitlines()[:1]
            return f"{word}: {said[0]}" if said and kind == "skipped" else word
    return "held"


if __name__ == "__main__":
    sys.exit(main())
