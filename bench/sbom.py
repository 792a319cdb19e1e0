"""What the product is made of, as a bill of materials (CycloneDX), from the lock files.

python -m bench.sbom FILE

Every Python package of ``requirements.lock``, those of the tests included, and every jar that
``make setup-s3`` fetches, with its sha256 and its licences, and those jars that PySpark brings
along, of whose licences its folder ``licenses`` tells. What only a clone needs has the scope
``excluded``; what an extra installs, or a JVM fetches when it first needs it, ``optional``. The
same locks give the same file, but for the licences of packages that are for other systems.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bench.dist import project_version
from oncelake.ingestion.kafka.java import pyspark_home
from oncelake.ingestion.local.jars import CONFIGURATIONS, STORE_CONFIGURATIONS, locked_jars
from oncelake.ingestion.settings import load_settings

_PACKAGE: Final = re.compile(r"^([\w.-]+)==([^\s;]+)(?: ; ([^\\\n]+?))? ?\\?$", re.MULTILINE)
# The extras with which a clone is built, tested and shown.
_CLONES: Final = ("demo", "dev", "docs")
_JAR: Final = re.compile(r"(.+?)-(\d.*)\.jar")
_NAMESPACE: Final = uuid.UUID("5e0c62f4-6a3a-4f0e-9a53-0c6b7a7f2c55")


def bill_of_materials(root: Path, jars: Path) -> dict[str, Any]:
    """Return the document of the locks in a checkout, whose jars are in a folder."""
    components = [
        *_packages((root / "requirements.lock").read_text(), root),
        *_locked_jars(jars),
        *_jars_of_pyspark(),
    ]
    components.sort(key=lambda each: str(each["bom-ref"]))
    name = f"pkg:pypi/oncelake@{project_version()}"
    content = json.dumps([name, components])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, content)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "oncelake",
                "name": "oncelake",
                "version": project_version(),
                "purl": name,
            }
        },
        "components": components,
    }


def as_json(bill: dict[str, Any]) -> str:
    """Return a bill with a component a line, so that its diff can be read."""
    around = json.dumps({**bill, "components": []}, indent=2)
    lines = ",\n".join(f"    {json.dumps(each)}" for each in bill["components"])
    return around.replace('"components": []', f'"components": [\n{lines}\n  ]') + "\n"


def _packages(lock: str, root: Path) -> Iterator[dict[str, Any]]:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].items()
    required = _needed(project["dependencies"])
    optional = _needed(each for name, needs in extras if name not in _CLONES for each in needs)
    for name, version, where in _PACKAGE.findall(lock):
        only = [{"name": "oncelake:installed-where", "value": where}] if where else []
        package = _library(name, version, f"pkg:pypi/{name}@{version}")
        scope = "required" if name in required else "optional" if name in optional else "excluded"
        more = {"properties": only} if only else {}
        yield {**package, "scope": scope} | more | _licences_of_package(name)


def _needed(requirements: Iterable[str]) -> set[str]:
    """Return the packages that some requirements need, and those need in turn, on any system."""
    found, waiting = set[tuple[str, str]](), [*map(Requirement, requirements)]
    while waiting:
        package = waiting.pop()
        for at in ((canonicalize_name(package.name), extra) for extra in ("", *package.extras)):
            if at not in found:
                found.add(at)
                waiting += _requirements_of(*at)
    return {name for name, _ in found}


def _requirements_of(name: str, extra: str) -> Iterator[Requirement]:
    """Yield what an installed package requires, or what one of its extras adds."""
    with suppress(PackageNotFoundError):
        for each in map(Requirement, requires(name) or ()):
            is_of_extra = "extra ==" in str(each.marker)
            if is_of_extra == bool(extra) and (
                not (is_of_extra and each.marker) or each.marker.evaluate({"extra": extra})
            ):
                yield each


def _licences_of_package(name: str) -> dict[str, Any]:
    """Return what an installed package says of its licence: an expression, else in words."""
    try:
        about = metadata(name)
    except PackageNotFoundError:
        return {}
    if expression := about["License-Expression"]:
        return {"licenses": [{"expression": expression}]}
    classifiers = about.get_all("Classifier") or []
    words = [each.split(" :: ")[-1] for each in classifiers if each.startswith("License :: ")]
    # A text of several lines is the licence itself.
    stated = (about["License"] or "").strip().splitlines()
    return _licences(words or stated[:1])


def _locked_jars(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the jars of the product; Ivy's cache says which group each is of."""
    groups = {path.name: path.parts[-4:-2] for path in (folder / "ivy").glob("*/*/*s/*.jar")}
    for place, sha256 in locked_jars().items():
        configuration, _, file = place.partition("/")
        if configuration in (*CONFIGURATIONS, *STORE_CONFIGURATIONS):
            if file not in groups:
                problem = f"sbom: {folder / 'ivy'} has no {file}, whose licence is read there"
                sys.exit(f"{problem}. Next: remove {folder}, and make sbom")
            group, name = groups[file]
            version = file.removeprefix(f"{name}-").removesuffix(".jar")
            jar = _library(name, version, f"pkg:maven/{group}/{name}@{version}", place)
            hashes = [{"alg": "SHA-256", "content": sha256}]
            described = folder / "ivy" / group / name / f"ivy-{version}.xml"
            stated = (each.get("name", "") for each in ET.parse(described).iter("license"))
            more = {"group": group, "scope": "optional", "hashes": hashes}
            yield jar | more | _licences(stated)


def _licences(names: Iterable[str]) -> dict[str, Any]:
    found = [{"license": {"name": name}} for name in dict.fromkeys(filter(None, names))]
    return {"licenses": found} if found else {}


def _jars_of_pyspark() -> Iterator[dict[str, Any]]:
    for path in sorted(pyspark_home().glob("jars/*.jar")):
        found = _JAR.fullmatch(path.name)
        name, version = found.groups() if found else (path.stem, "")
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        jar = _library(name, version, None, f"pyspark/{path.name}")
        yield {**jar, "hashes": [{"alg": "SHA-256", "content": sha256}]}


def _library(name: str, version: str, purl: str | None, place: str = "") -> dict[str, Any]:
    described = {"type": "library", "bom-ref": place or purl, "name": name, "version": version}
    return described | ({"purl": purl} if purl else {})


def main() -> None:
    """Write the document to the file that is named."""
    target = Path(sys.argv[1])
    found = bill_of_materials(Path(__file__).parents[1], load_settings().jars)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(as_json(found))
    print(f"{target}: {len(found['components']):,} packages and jars")


if __name__ == "__main__":
    main()
