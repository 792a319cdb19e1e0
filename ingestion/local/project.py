"""What ``oncelake new`` writes, from templates: a project, or a component for one of ``dg``."""

from __future__ import annotations

import json
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import suppress
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
        InvalidSpecError: it is there, or cannot be written; then nothing of it is left behind.
    """
    schema = json.dumps(json_schema(), indent=2, ensure_ascii=False)
    _write({**_filled("project", target.name), "assets/stream.schema.json": f"{schema}\n"}, target)


def write_component(target: Path) -> None:
    """Write the component's file and its empty folder of streams; raises as the project does."""
    _write(_filled("component", target.name), target)


def find_defs(start: Path) -> Path | None:
    """Return the folder of definitions of the project of ``dg`` that a folder is in, if it is."""
    for folder in (start, *start.parents):
        for defs in _defs_named_in(folder):
            if defs.is_dir():
                return defs
    return None


def _defs_named_in(folder: Path) -> Iterator[Path]:
    for name in ("dg.toml", "pyproject.toml"):
        # A file that is missing, or no TOML, makes no project of dg.
        with suppress(OSError, ValueError):
            match tomllib.loads((folder / name).read_text(encoding="utf-8")):
                case {"tool": {"dg": {"project": {"root_module": str(root), **more}}}} | {
                    "project": {"root_module": str(root), **more}
                }:
                    module = str(more.get("defs_module", f"{root}.defs")).replace(".", "/")
                    yield from (folder / "src" / module, folder / module)


def _filled(template: str, name: str) -> dict[str, str]:
    """Return the texts of a template's files, by their paths, with the names filled in."""
    folder, words = TEMPLATES / template, {"name": name, "version": engine_version()}
    return {
        str(file.relative_to(folder)): Template(file.read_text("utf-8")).safe_substitute(words)
        for file in folder.rglob("*")
        if file.is_file()
    }


def _write(texts: dict[str, str], target: Path) -> None:
    if target.exists() or target.is_symlink():
        problem = f"{target} is there already, and is left as it is"
        raise InvalidSpecError(f"{problem}. Next: oncelake new with another name")
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
            for name, text in texts.items():
                path = Path(folder, target.name, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            Path(folder, target.name).rename(target)
    except OSError as error:
        problem = f"{target} cannot be written: {error.strerror}"
        raise InvalidSpecError(f"{problem}. Next: go to a folder that is yours") from error
