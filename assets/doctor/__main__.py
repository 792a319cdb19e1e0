"""Dagster's part of ``oncelake doctor``: the findings about an instance, as JSON on stdout.

    python -m assets.doctor [STREAM…]

Reads the instance that ``DAGSTER_HOME`` names, and changes nothing in it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import requires

import dagster as dg
from pydantic_core import to_json

from oncelake.assets.doctor.findings import diagnose_dagster, diagnose_version
from oncelake.assets.doctor.instance import read_instance
from oncelake.ingestion.settings import load_settings


def main(streams: Sequence[str]) -> None:
    """Print what is wrong with the instance, of these streams or of all."""
    with dg.DagsterInstance.get() as instance:
        facts = read_instance(instance, os.environ.get("DAGSTER_HOME", ""), load_settings())
    subjects = {*streams, "dagster"}
    version = diagnose_version(dg.__version__, requires("oncelake") or [])
    findings = [
        finding
        for finding in (*diagnose_dagster(facts), *version)
        if not streams or finding.about in subjects
    ]
    sys.stdout.write(to_json({"findings": findings}).decode())


if __name__ == "__main__":
    main(sys.argv[1:])
