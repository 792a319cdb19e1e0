"""A file's text about one stream, made a ``StreamSpec``, or problems with their lines.

All problems of a file are reported at once, so what is known only once the fields are right is
looked for among those that are.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from oncelake.ingestion.declaration.fields import NOT_WRITTEN
from oncelake.ingestion.declaration.files.yaml_reader import (
    BadYamlError,
    FieldPath,
    YamlTree,
    read_tree,
)
from oncelake.ingestion.declaration.messages import Problem, problems_in
from oncelake.ingestion.declaration.modes import MODES
from oncelake.ingestion.declaration.names import name_problem, nearest, nearest_allowed
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.settings import project_root

# The fields that decide what the others may say, and those that a field rests on, if not on these.
_SHAPE: Final = frozenset({"schema", "mode", "keys", "sequence_by"})
_OF_VALUE: Final = frozenset({"schema", "value_schema", "explode"})
_OF_TABLE: Final = frozenset(
    {"schema", "mode", "aggregates", "window", "explode", "deletes", "extra_fields"}
)
_RESTS_ON: Final = {
    "topic": frozenset({"topics", "topic_pattern"}),
    "topics": frozenset(),
    "topic_pattern": frozenset(),
    "table_per_topic": frozenset({"topics"}),
    "starting": frozenset({"topic_pattern"}),
    "quarantine_rate": frozenset(),
    "keys": frozenset({"schema", "mode"}),
    "sequence_by": frozenset({"schema", "mode"}),
    "where": _OF_VALUE,
    "select": _OF_VALUE | {"transform"},
    "apply_as_deletes": frozenset({"schema", "mode"}),
    "expectations": _OF_TABLE,
    "maintenance": _OF_TABLE,
}
# Stands for an expectation that is wrong, so that the others keep their numbers.
_HARMLESS: Final = {"type": "expect_table_row_count_to_be_between", "min_value": 0}
_MAX_BYTES: Final = 1_000_000
_AT_LEAST: Final = """write at least
    topic: {name}
    schema: id BIGINT NOT NULL, name STRING
    keys: [id]"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """A file's fields of one stream, before they are known to agree.

    Attributes:
        path: The file.
        name: The stream's name; it may be none that is allowed.
        tree: What is written, and in which lines.
        given: Fields that a person does not write.
        part: The field of the file that gives several streams, and what there gives this one.
        stands_alone: Whether what is wrong with it keeps no other stream of the file back.
        error: Why it cannot be made, where that is known already.
    """

    path: Path
    name: str
    tree: YamlTree
    given: Mapping[str, Any]
    part: tuple[str, str] = ("", "")
    stands_alone: bool = False
    error: InvalidSpecError | None = None

    @property
    def written(self) -> dict[str, Any]:
        """The fields that are written, but for those that must not be."""
        content = self.tree.content
        return {name: each for name, each in content.items() if name not in NOT_WRITTEN}

    def of(self, name: str, content: Mapping[str, Any], part: tuple[str, str]) -> Draft:
        """Return one of several streams that the file declares."""
        tree, given = replace(self.tree, content=content), {"declared_in": self.path.name}
        return replace(self, name=name, tree=tree, given={**self.given, **given}, part=part)

    def spec(self) -> StreamSpec:
        """Make a stream of it.

        Raises:
            InvalidSpecError: one line for each problem, with file, line and field.
        """
        if self.error is not None:
            raise self.error
        content, mistakes = {**self.written, **self.given}, [*self._mistakes()]
        try:
            spec = StreamSpec.model_validate({**content, "name": self.name})
        except ValidationError as error:
            problems = _all_problems(content, self.name, problems_in(error))
            raise _invalid(self.path, [*mistakes, *self._lines_of(problems)]) from None
        if mistakes:
            raise _invalid(self.path, mistakes)
        return spec

    def problem(self, field: FieldPath, text: str) -> InvalidSpecError:
        """Return the error of one field, with its line."""
        return _invalid(self.path, [(self.tree.line_of(field), f"{_dotted(field)}: {text}")])

    def problems(self, error: ValidationError) -> InvalidSpecError:
        """Return what pydantic has found, with lines."""
        return _invalid(self.path, [*self._mistakes(), *self._lines_of(problems_in(error))])

    def _mistakes(self) -> Iterator[tuple[int, str]]:
        """Yield what is there that must not be."""
        tree = self.tree
        for field, line in tree.repeated:
            first = tree.line_of(field)
            yield line, f"{_dotted(field)}: given twice, first in line {first}; remove one"
        for name, text in NOT_WRITTEN.items():
            if name in tree.content:
                yield tree.line_of((name,)), f"{name}: {text}"

    def _lines_of(self, problems: Iterable[Problem]) -> list[tuple[int, str]]:
        return [(self.tree.line_of(one.field), self._line_for(one)) for one in problems]

    def _line_for(self, problem: Problem) -> str:
        known = () if problem.is_missing else self.tree.known_part(problem.field)
        return f"{_dotted(known or problem.field)}: {problem.text}"


def read_draft(path: Path) -> Draft:
    """Read a file.

    Raises:
        InvalidSpecError: it is no YAML, or none of a declaration.
    """
    if problem := file_name_problem(path):
        raise _invalid(path, [(1, problem)])
    try:
        tree = read_tree(_text_of(path))
    except BadYamlError as error:
        raise _invalid(path, [(error.line, error.reason)]) from error
    if not isinstance(tree.content, dict):
        is_empty = tree.content is None
        problem = "the file is empty" if is_empty else "a declaration is a map of keys to values"
        raise _invalid(path, [(1, f"{problem}; {_AT_LEAST.format(name=path.stem)}")])
    return Draft(path=path, name=path.stem, tree=tree, given={})


def file_name_problem(path: Path) -> str | None:
    """Say why a file cannot declare a stream by its name."""
    if path.suffix != ".yaml":
        return f"a stream's file ends in .yaml; rename it to {path.stem}.yaml"
    if problem := name_problem(path.stem):
        return f"{problem}; rename the file, for example to {nearest_allowed(path.stem)}.yaml"
    return None


def shown_path(path: Path) -> str:
    """Write a path as people type it: from the project root, when it lies inside."""
    absolute, root = path.absolute(), project_root()
    return str(absolute.relative_to(root) if absolute.is_relative_to(root) else absolute)


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


def _all_problems(
    content: Mapping[str, Any], name: str, problems: Sequence[Problem]
) -> list[Problem]:
    """Add what is wrong even if each misspelt key, and the mode, is read as the nearest that is."""
    misspelt = {
        str(problem.field[0]): problem.meant
        for problem in problems
        if problem.meant and len(problem.field) == 1 and problem.meant not in content
    }
    read = {misspelt.get(key, key): value for key, value in content.items()}
    mode = str(read.get("mode", "upsert"))
    near = mode if mode in MODES else nearest(mode, MODES)
    # Where none is near, what is wrong by every mode.
    modes = [near] if near else [*MODES]
    by_mode = [
        _problems_of(read | ({"mode": mode} if "mode" in read else {}), name) for mode in modes
    ]
    known = {problem.field for problem in problems}
    more = (one for one in by_mode[0] if one.field not in known)
    written = {meant: key for key, meant in misspelt.items()}
    return [
        *problems,
        *(_as_written(one, written) for one in more if all(one in each for each in by_mode)),
    ]


def _as_written(problem: Problem, written: Mapping[str, str]) -> Problem:
    """Return the problem of a field whose key may be misspelt, at that key."""
    meant, *within = problem.field or ("",)
    if meant not in written:
        return problem
    text = f"as `{meant}`: {problem.text}"
    return replace(problem, field=(written[str(meant)], *within), text=text)


def _problems_of(content: Mapping[str, Any], name: str) -> list[Problem]:
    try:
        StreamSpec.model_validate({**content, "name": name})
    except ValidationError as error:
        problems = problems_in(error)
        return [*problems, *_further_problems(content, name, problems)]
    return []


def _further_problems(
    content: Mapping[str, Any], name: str, problems: Iterable[Problem]
) -> tuple[Problem, ...]:
    """Find what is known only once the fields themselves are right, as far as they are."""
    bad = {field for problem in problems for field in problem.touches}
    good = {key: value for key, value in content.items() if key not in bad}
    parts = _good_parts(content, problems)
    try:
        StreamSpec.model_validate({"schema": "id BIGINT", **good, **parts, "name": name})
    except ValidationError as error:
        known = {problem.field for problem in problems}
        return tuple(
            problem
            for problem in problems_in(error)
            if problem.field not in known
            and not problem.touches & bad - (parts.keys() if len(problem.field) > 1 else set())
            and not any(_RESTS_ON.get(field, _SHAPE) & bad for field in problem.touches)
        )
    return ()


def _good_parts(content: Mapping[str, Any], problems: Iterable[Problem]) -> dict[str, Any]:
    """Return the items of `select` and `expectations` in which nothing is wrong, where some are."""
    bad = {problem.field[:2] for problem in problems if len(problem.field) > 1}
    parts: dict[str, Any] = {}
    if isinstance(of := content.get("select"), dict):
        parts["select"] = {key: sql for key, sql in of.items() if ("select", key) not in bad}
    if isinstance(of := content.get("expectations"), list):
        parts["expectations"] = [
            _HARMLESS if ("expectations", nth) in bad else each for nth, each in enumerate(of)
        ]
    return parts


def _dotted(field: Iterable[str | int]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in field)
    return text.removeprefix(".")


def _invalid(path: Path, problems: Iterable[tuple[int, str]]) -> InvalidSpecError:
    shown = shown_path(path)
    return InvalidSpecError("\n".join(f"{shown}:{line}: {text}" for line, text in sorted(problems)))
