"""Dagster's part of ``oncelake doctor``: one JSON document about the instance, on stdout.

    python -m assets.doctor [STREAM…]

Reads the instance that ``DAGSTER_HOME`` names, and changes nothing in it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

import dagster as dg

from assets.doctor.findings import diagnose_dagster
from assets.doctor.instance import read_instance
from ingestion.settings import load_settings


def main(streams: Sequence[str]) -> None:
    """Print what is wrong with the instance, of these streams or of all."""
    with dg.DagsterInstance.get() as instance:
        facts = read_instance(instance, os.environ.get("DAGSTER_HOME", ""), load_settings())
    wanted = {*streams, "dagster"}
    found = [each for each in diagnose_dagster(facts) if not streams or each.about in wanted]
    sys.stdout.write(json.dumps({"findings": [each.document() for each in found]}))


if __name__ == "__main__":
    main(sys.argv[1:])
