"""YAML as plain values that remember their lines.

A declaration is plain scalars, lists and maps. Whatever else YAML can say (tags that build
objects, aliases that unfold without end) is refused here, by line; a repeated key is noted. The
nodes are read before ruamel makes values of them: loaded values no longer tell a repeated key, a
merge, or a date that a person wrote as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

FieldPath: TypeAlias = tuple[str | int, ...]

_MAX_VALUES: Final = 10_000
_TAG: Final = "tag:yaml.org,2002:"
# A date stays as it is written: no field of a declaration is a moment in time.
_TEXT: Final = (f"{_TAG}str", f"{_TAG}timestamp")
# A partition is a number; as a key it is kept as it was written.
_KEYS: Final = (*_TEXT, f"{_TAG}int")
_COLLECTIONS: Final = (f"{_TAG}map", f"{_TAG}seq")


class BadYamlError(ValueError):
    """The text is not YAML, or more than plain values; ``line`` counts from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


@dataclass(frozen=True, kw_only=True, slots=True)
class YamlTree:
    """Plain values, and where each stands.

    Attributes:
        content: The document; None when it is empty.
        lines: The line, from 1, of every key and of every item of a list.
        repeated: Keys given again, and the line of each; the first value was taken.
    """

    content: Any
    lines: Mapping[FieldPath, int]
    repeated: tuple[tuple[FieldPath, int], ...]

    def line_of(self, path: FieldPath) -> int:
        """Return the line of a field, or of the nearest part around it that is there."""
        return self.lines.get(self.known_part(path), 1)

    def known_part(self, path: FieldPath) -> FieldPath:
        """Return the longest beginning of a path that the document holds."""
        while path and path not in self.lines:
            path = path[:-1]
        return path


# What the parser says of the commonest mistakes, and what to do instead.
_INDENT: Final = "the indentation differs; begin the lines of one map or list in the same column"
_ADVICE: Final = {
    "'\\t' that cannot start any token": "a tab stands here; write spaces",
    "mapping values are not allowed here": "a value has a `: ` in it; put the value in quotes",
    "could not find expected ':'": "a line without `key:`; indent it, if it belongs to the value "
    "above it",
    "expected <block end>": _INDENT,
    "expected '<document start>'": _INDENT,
}
# A line that begins as a key does: that it stands where none can is a matter of its indentation.
_KEY: Final = re.compile(r"\s*(- +)?[\w.-]+ *$")


def read_tree(text: str) -> YamlTree:
    """Read one YAML document of plain values; anything else is a ``BadYamlError``."""
    plain = _PlainValues()
    try:
        node = YAML(typ="rt", pure=True).compose(text)
        content = None if node is None else plain.value_of(node, ())
    except MarkedYAMLError as error:
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        # The parser misses a key's colon only behind it.
        is_behind = error.context_mark and "expected ':'" in reason
        mark = error.context_mark if is_behind else error.problem_mark or error.context_mark
        better = next((says for words, says in _ADVICE.items() if words in reason), reason)
        line, column = (mark.line, mark.column) if mark else (0, 0)
        if "mapping values" in reason and _KEY.match(text.split("\n")[line][:column]):
            better = _INDENT
        raise BadYamlError(line + 1, f"not YAML: {better}") from error
    except YAMLError as error:
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        reason = getattr(error, "reason", None) or str(error).splitlines()[0]
        raise BadYamlError(line, f"not YAML: {reason}") from error
    except RecursionError as error:
        raise BadYamlError(1, "values are nested too deeply, or hold themselves") from error
    return YamlTree(content=content, lines=plain.lines, repeated=tuple(plain.repeated))


class _PlainValues:
    """Turns nodes into plain values, and notes their lines."""

    def __init__(self) -> None:
        self.lines: dict[FieldPath, int] = {}
        self.repeated: list[tuple[FieldPath, int]] = []
        self._count = 0
        scalars = YAML(typ="safe", pure=True).constructor
        self._of_tag = {
            f"{_TAG}null": lambda _: None,
            f"{_TAG}bool": scalars.construct_yaml_bool,
            f"{_TAG}int": lambda node: _of_64_bits(scalars.construct_yaml_int(node)),
            f"{_TAG}float": lambda node: float(scalars.construct_yaml_float(node)),
            **dict.fromkeys(_TEXT, _text),
        }

    def value_of(self, node: Node, path: FieldPath) -> Any:
        self._count += 1
        if self._count > _MAX_VALUES:
            raise _refused(node, f"more than {_MAX_VALUES} values; aliases count each time")
        if isinstance(node, MappingNode) and node.tag in _COLLECTIONS:
            return self._map(node, path)
        if isinstance(node, SequenceNode) and node.tag in _COLLECTIONS:
            return [self._item(item, (*path, at)) for at, item in enumerate(node.value)]
        name = f"the tag {str(node.tag).replace(_TAG, '!!')}"
        if not isinstance(node, ScalarNode) or node.tag not in self._of_tag:
            raise _refused(node, f"{name} is not allowed; write a plain value")
        try:
            return self._of_tag[node.tag](node)
        except (ValueError, KeyError) as error:
            if isinstance(error, BadYamlError):
                raise
            raise _refused(node, f"{node.value!r:.100} is not of {name}") from error

    def _map(self, node: MappingNode, path: FieldPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode) or key.tag not in _KEYS:
                raise _refused(key, "a key must be plain text; quote it, or write it out")
            here = (*path, _text(key))
            if key.value in values:
                self.repeated.append((here, _line(key)))
                continue
            self.lines[here] = _line(key)
            values[key.value] = self.value_of(value, here)
        return values

    def _item(self, node: Node, path: FieldPath) -> Any:
        self.lines[path] = _line(node)
        return self.value_of(node, path)


def _of_64_bits(number: int) -> int:
    """Return a number as it is; those of many digits cannot even be written in a message."""
    if not -(2**63) <= number < 2**63:
        raise ValueError(number.bit_length())
    return int(number)


def _text(node: ScalarNode) -> str:
    if any("\ud800" <= character <= "\udfff" for character in node.value):
        raise _refused(node, "half a character (a surrogate); write it in full")
    return str(node.value)


def _refused(node: Node, reason: str) -> BadYamlError:
    return BadYamlError(_line(node), reason)


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1
