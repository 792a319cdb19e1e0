"""What ``oncelake new`` writes, from templates: a project, or a component for one of ``dg``."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Final

from oncelake.ingestion.declaration.spec import json_schema
from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.tables.format import engine_version

TEMPLATES: Final = Path(__file__).parent / "templates"


def write_project(target: Path) -> None:
    """Write a folder for streams with what Dagster, git and CI need; refuse one that is there.

    Raises:
        InvalidSpecError: it is there, or cannot be written.
    """
    _write("project", target)
    schema = json.dumps(json_schema(), indent=2, ensure_ascii=False)
    (target / "assets" / "stream.schema.json").write_text(f"{schema}\n", encoding="utf-8")


def write_component(target: Path) -> None:
    """Write the component's file and its empty folder of streams; raises as the project does."""
    _write("component", target)


def find_defs(start: Path) -> Path | None:
    """Return the folder of definitions of the project of ``dg`` that a folder is in, if it is."""
    for folder in (start, *start.parents):
        for defs in _defs_named_in(folder / "pyproject.toml"):
            if defs.is_dir():
                return defs
    return None


def _defs_named_in(file: Path) -> Iterator[Path]:
    stated = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    match stated:
        case {"tool": {"dg": {"project": {"root_module": str(root), **more}}}}:
            module = str(more.get("defs_module", f"{root}.defs")).replace(".", "/")
            yield from (file.parent / "src" / module, file.parent / module)


def _write(template: str, target: Path) -> None:
    words = {"name": target.name, "version": engine_version()}

    def fill(source: str, at: str) -> None:
        text = Path(source).read_text(encoding="utf-8")
        Path(at).write_text(Template(text).safe_substitute(words), encoding="utf-8")

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(TEMPLATES / template, target, copy_function=fill)
    except FileExistsError:
        problem = f"{target} is there already, and is left as it is"
        raise InvalidSpecError(f"{problem}. Next: oncelake new with another name") from None
    except OSError as error:
        problem = f"{target} cannot be written: {error.strerror}"
        raise InvalidSpecError(f"{problem}. Next: go to a folder that is yours") from error
