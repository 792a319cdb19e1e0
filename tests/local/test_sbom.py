"""The bill of materials lists what the lock files lock."""

from __future__ import annotations

import json
import re
from typing import Any

from bench.sbom import as_json, bill_of_materials
from oncelake.ingestion.local.jars import locked_jars
from tests.support.world import JARS, ROOT


def test_every_locked_package_and_jar_is_listed_with_its_checksum() -> None:
    """Twice the same: the packages of the lock, its jars for Spark and Kafka, and PySpark's own."""
    found = bill_of_materials(ROOT, JARS)

    listed = {each["bom-ref"]: each for each in found["components"]}
    packages = re.findall(r"^([\w.-]+==[^\s;]+)", (ROOT / "requirements.lock").read_text(), re.M)
    assert {f"pkg:pypi/{each.replace('==', '@')}" for each in packages} <= listed.keys()
    for jar, sha256 in locked_jars().items():
        if not jar.startswith(("registry/", "catalog/", "capture/")):
            assert listed[jar]["hashes"] == [{"alg": "SHA-256", "content": sha256}]
            assert re.fullmatch(r"pkg:maven/[\w.-]+/[\w.-]+@[\w.-]+", listed[jar]["purl"])
    assert any(ref.startswith("pyspark/spark-core_") for ref in listed)
    assert len(listed) == len(found["components"])
    assert bill_of_materials(ROOT, JARS) == found


def test_the_stored_bill_agrees_with_the_lock_files() -> None:
    """Whoever changes a lock file writes it again; licences are known where a package is there."""
    found, stored = (
        bill_of_materials(ROOT, JARS),
        json.loads((ROOT / "oncelake.cdx.json").read_text()),
    )

    assert _without_licences(stored) == _without_licences(found), "Next: make sbom"


def test_what_an_installation_does_not_have_is_marked() -> None:
    """Of the tests' packages nobody is warned who installs the wheel."""
    components = json.loads((ROOT / "oncelake.cdx.json").read_text())["components"]
    packages = {
        each["name"]: each["scope"] for each in components if each["bom-ref"].startswith("pkg:")
    }

    assert {packages[name] for name in ("pyspark", "py4j", "confluent-kafka")} == {"required"}
    assert {packages[name] for name in ("dagster", "pyiceberg", "psycopg")} == {"optional"}
    assert {packages[name] for name in ("moto", "ruff", "mkdocs", "werkzeug")} == {"excluded"}
    assert {each["scope"] for each in components if "broker/" in each["bom-ref"]} == {"optional"}


def test_the_bill_is_a_line_a_component() -> None:
    """A diff of it shows what was added, removed and changed."""
    text = (ROOT / "oncelake.cdx.json").read_text()

    assert text == as_json(json.loads(text))
    lines = [line for line in text.splitlines() if line.startswith('    {"type": "library"')]
    assert len(lines) == len(json.loads(text)["components"])


def test_jars_and_packages_have_their_licences() -> None:
    """All but the packages of other systems, one without a statement, and PySpark's own jars."""
    listed = json.loads((ROOT / "oncelake.cdx.json").read_text())["components"]
    lacking = {
        each["name"]
        for each in listed
        if "licenses" not in each and not each["bom-ref"].startswith("pyspark/")
    }

    assert lacking == {"httpx2-jsfetch", "pyreadline3", "pywin32", "pyruhvro"}


def _without_licences(bill: dict[str, Any]) -> dict[str, Any]:
    components = [{**each, "licenses": None} for each in bill["components"]]
    return {**bill, "components": components, "serialNumber": None}
