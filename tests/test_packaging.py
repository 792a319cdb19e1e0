"""What is installed with the engine is what it imports, and no more than it says."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.support.world import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Which extra a folder, or a module, may need beside the engine's own packages.
OF_EXTRAS = {
    "ingestion/kafka/glue.py": "glue",
    "ingestion/sinks/iceberg": "iceberg",
    "ingestion/sinks/iceberg/hive.py": "hive",
    "ingestion/sinks/postgres": "postgres",
    "ingestion/sinks/delta/catalogs/glue.py": "glue",
    "ingestion/sinks/delta/catalogs/hive.py": "iceberg hive",
    "ingestion/operations/telemetry": "observability",
    "ingestion/operations/audit": "iceberg postgres",
    "ingestion/pipeline/gate/expectations.py": "dagster",
    "ingestion/cli/demo": "demo",
    "resources": "dagster",
    "assets": "dagster",
}
# What a package cannot be without, and so brings along for certain.
PARTS = {
    "py4j": "pyspark",
    "pydantic_core": "pydantic",
    "dagster_shared": "dagster",
    "packaging": "dagster",
    "mmh3": "pyiceberg",
    "sqlalchemy": "pyiceberg",
    "requests": "pyiceberg",
    "httpx": "confluent-kafka",
    "prometheus_client": "opentelemetry-exporter-prometheus",
}


def packages_of(*extras: str) -> set[str]:
    """Return the names of packages that are installed with extras."""
    optional = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in optional[extra])]
    return {re.split(r"[\[<>=!~ ]", line)[0].lower().replace("_", "-") for line in lines}


def imported_by(file: Path) -> Iterator[str]:
    """Name the top-level modules that a file imports, wherever it does so."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("folder", ["ingestion", "resources", "assets"])
def test_every_import_is_of_a_package_that_is_declared(folder: str) -> None:
    """What another package happens to bring along goes with that one."""
    named, undeclared = packages_distributions(), set()
    for file in (ROOT / folder).rglob("*.py"):
        where = file.relative_to(ROOT).as_posix()
        extras = " ".join(extra for at, extra in OF_EXTRAS.items() if where.startswith(at))
        declared = packages_of(*extras.split())
        for module in {*imported_by(file)} - sys.stdlib_module_names - {"oncelake", "google"}:
            names = [PARTS[module]] if module in PARTS else named.get(module, [])
            brought_by = {name.lower().replace("_", "-") for name in names}
            if not brought_by & declared:
                undeclared.add((where, module))
    assert undeclared == set()
