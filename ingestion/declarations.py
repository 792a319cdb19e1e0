"""The declared streams: the files of one folder.

A broken file never takes another down: it is listed with its error, and whoever asked for all
of them decides what to do about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from ingestion.errors import InvalidSpecError
from ingestion.json_schema import json_schema
from ingestion.names import nearest_allowed
from ingestion.per_topic import BadNamesError, each_topic
from ingestion.spec import StreamSpec
from ingestion.stream_file import file_name_problem, load_stream, shown_path

__all__ = ["Declared", "find_stream", "json_schema", "load_stream", "load_streams"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """One file of the streams' folder: a stream, or what is wrong with it.

    Attributes:
        name: The stream's name; one like it, and unique, where the file's own is not allowed.
        path: The file.
        spec: The stream; None when the file is broken.
        error: Everything that is wrong with the file; None when nothing is.
    """

    name: str
    path: Path
    spec: StreamSpec | None
    error: InvalidSpecError | None


def load_streams(folder: Path) -> tuple[Declared, ...]:
    """Read every declaration of a folder, the broken ones too; none when there is no folder.

    Raises:
        InvalidSpecError: ``folder`` is something else than a folder.
    """
    files = _files_in(folder)
    taken = {path.stem for path in files if file_name_problem(path) is None}
    found = []
    for path in files:
        is_named_well = file_name_problem(path) is None
        name = path.stem if is_named_well else nearest_allowed(path.stem, taken)
        taken.add(name)
        found += _declared(name, path, taken - {name})
    return tuple(sorted(found, key=lambda declared: declared.name))


def find_stream(folder: Path, name: str) -> StreamSpec:
    """Read the declaration of one stream; the other files may be broken.

    Raises:
        InvalidSpecError: there is no such stream, or its file is broken.
    """
    by_name = {each.name: each for each in load_streams(folder)}
    if name in by_name:
        return _sound(by_name[name])
    near = get_close_matches(name, by_name, n=1)
    if near:
        hint = f"did you mean `{near[0]}`?"
    elif by_name:
        hint = f"there are: {', '.join(by_name)}"
    else:
        hint = f"declare it in {shown_path(folder)}/<stream>.yaml"
    raise InvalidSpecError(f"no stream is called {name!r} in {shown_path(folder)}; {hint}")


def _sound(found: Declared) -> StreamSpec:
    if found.spec is None:
        raise found.error or InvalidSpecError(str(found.path))
    return found.spec


def _declared(name: str, path: Path, others: set[str]) -> list[Declared]:
    """Read one file: a stream, one for each of its topics, or what is wrong with it."""
    try:
        streams = each_topic(load_stream(path), others)
    except InvalidSpecError as error:
        return [Declared(name=name, path=path, spec=None, error=error)]
    except BadNamesError as error:
        wrong = InvalidSpecError(f"{shown_path(path)}: topics: {error}")
        return [Declared(name=name, path=path, spec=None, error=wrong)]
    return [Declared(name=each.name, path=path, spec=each, error=None) for each in streams]


def _files_in(folder: Path) -> list[Path]:
    """List the declarations, `.yml` before `.yaml` so that the right one of a pair wins."""
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise InvalidSpecError(f"{shown_path(folder)} is not a folder; correct ONCELAKE_STREAMS")
    return sorted(
        (
            path
            for path in folder.iterdir()
            if path.suffix.lower() in {".yaml", ".yml"} and not path.name.startswith(".")
        ),
        key=lambda path: (path.stem, path.suffix == ".yaml", path.name),
    )
