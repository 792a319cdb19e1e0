"""One declaration: a YAML file, read so that every mistake has a line and a remedy."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from ingestion.errors import InvalidSpecError
from ingestion.names import nearest_allowed, problem_with
from ingestion.settings import project_root
from ingestion.spec import StreamSpec
from ingestion.spec_problems import Problem, problems_in
from ingestion.yaml_tree import BadYamlError, YamlTree, read_tree

_MAX_BYTES: Final = 1_000_000
_AT_LEAST: Final = """write at least
    topic: {name}
    schema: id BIGINT NOT NULL, name STRING
    keys: [id]"""


def load_stream(path: Path) -> StreamSpec:
    """Read one declaration.

    Raises:
        InvalidSpecError: the file is broken; one line for each problem, with file, line, field
            and what to write instead.
    """
    name = path.stem
    if problem := file_name_problem(path):
        raise _invalid(path, [(1, problem)])
    try:
        tree = read_tree(_text_of(path))
    except BadYamlError as error:
        raise _invalid(path, [(error.line, error.reason)]) from error
    if tree.content is None:
        raise _invalid(path, [(1, f"the file is empty; {_AT_LEAST.format(name=name)}")])
    if not isinstance(tree.content, dict):
        problem = f"a declaration is a map of keys to values; {_AT_LEAST.format(name=name)}"
        raise _invalid(path, [(1, problem)])
    return _stream(path, name, tree)


def file_name_problem(path: Path) -> str | None:
    """Say why no stream can live in a file of that name, and how to rename it; None if one can."""
    if path.suffix != ".yaml":
        return f"a stream's file ends in .yaml; rename it to {path.stem}.yaml"
    if problem := problem_with(path.stem):
        return f"{problem}; rename the file, for example to {nearest_allowed(path.stem)}.yaml"
    return None


def _text_of(path: Path) -> str:
    try:
        if not path.resolve().is_relative_to(path.parent.resolve()):
            raise BadYamlError(1, "the file is a link out of its folder; put the file itself here")
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadYamlError(1, "this is not a file")
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadYamlError(1, f"the file cannot be read: {reason}") from error
    if len(content) > _MAX_BYTES:
        raise BadYamlError(1, f"the file is larger than {_MAX_BYTES:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadYamlError(line, "the text is not UTF-8; save the file as UTF-8") from error


def _stream(path: Path, name: str, tree: YamlTree) -> StreamSpec:
    content = dict(tree.content)
    found = [
        (line, f"{_dotted(field)}: given twice, first in line {tree.line_of(field)}; remove one")
        for field, line in tree.repeated
    ]
    if "name" in content:
        del content["name"]
        found.append((tree.line_of(("name",)), "name: the file's name is the stream's; remove it"))
    try:
        spec = StreamSpec.model_validate({**content, "name": name})
    except ValidationError as error:
        problems = problems_in(error)
        problems += _further_problems(content, name, problems)
        found += [(tree.line_of(each.field), _line_for(each, tree)) for each in problems]
        raise _invalid(path, found) from None
    if found:
        raise _invalid(path, found)
    return spec


def _further_problems(
    content: Mapping[str, Any], name: str, problems: Iterable[Problem]
) -> tuple[Problem, ...]:
    """Find what is known only once the fields themselves are right, as far as they are."""
    bad = {field for problem in problems for field in problem.touches}
    good = {key: value for key, value in content.items() if key not in bad}
    try:
        StreamSpec.model_validate({"schema": "id BIGINT", **good, "name": name})
    except ValidationError as error:
        rests_on_bad = bad & {"schema", "mode", "keys", "sequence_by"}
        seen = {problem.field for problem in problems}
        return tuple(
            problem
            for problem in problems_in(error)
            if problem.field not in seen
            and not problem.touches & bad
            and (not rests_on_bad or problem.touches <= {"topic", "topics"})
            and not (problem.touches == {"topic"} and "topics" in bad)
        )
    return ()


def _line_for(problem: Problem, tree: YamlTree) -> str:
    field = problem.field
    if not problem.is_missing:
        field = tree.known_part(field) or field
    return f"{_dotted(field)}: {problem.text}"


def _dotted(field: Iterable[str | int]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in field)
    return text.removeprefix(".")


def _invalid(path: Path, problems: Iterable[tuple[int, str]]) -> InvalidSpecError:
    shown = shown_path(path)
    return InvalidSpecError("\n".join(f"{shown}:{line}: {text}" for line, text in sorted(problems)))


def shown_path(path: Path) -> str:
    """Write a path as people type it: from the project root, when it lies inside."""
    absolute, root = path.absolute(), project_root()
    return str(absolute.relative_to(root) if absolute.is_relative_to(root) else absolute)
