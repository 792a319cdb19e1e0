"""YAML as plain values that remember their lines.

A declaration is plain scalars, lists and maps. Whatever else YAML can say (tags that build
objects, aliases that unfold without end) is refused here, by line; a repeated key is noted.
"""

from __future__ import annotations

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
    """The text is not YAML, or more than plain values.

    Attributes:
        line: Where, counted from 1.
        reason: What is wrong, and what to write instead.
    """

    def __init__(self, line: int, reason: str) -> None:
        """Take the place and the reason."""
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
        return self.lines[self.known_part(path)] if self.known_part(path) else 1

    def known_part(self, path: FieldPath) -> FieldPath:
        """Return the longest beginning of a path that the document holds."""
        while path and path not in self.lines:
            path = path[:-1]
        return path


def read_tree(text: str) -> YamlTree:
    """Read one YAML document.

    Raises:
        BadYamlError: the text cannot be read as plain values.
    """
    try:
        node = YAML(typ="rt", pure=True).compose(text)
        plain = _Plain()
        content = None if node is None else plain.value_of(node, ())
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise BadYamlError(line, f"not YAML: {reason}") from error
    except YAMLError as error:
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        reason = getattr(error, "reason", None) or str(error).splitlines()[0]
        raise BadYamlError(line, f"not YAML: {reason}") from error
    except RecursionError as error:
        raise BadYamlError(1, "values are nested too deeply, or hold themselves") from error
    return YamlTree(content=content, lines=plain.lines, repeated=tuple(plain.repeated))


class _Plain:
    """Turns nodes into plain values, and notes their lines."""

    def __init__(self) -> None:
        self.lines: dict[FieldPath, int] = {}
        self.repeated: list[tuple[FieldPath, int]] = []
        self._scalars = YAML(typ="safe", pure=True).constructor
        self._count = 0

    def value_of(self, node: Node, path: FieldPath) -> Any:
        self._count += 1
        if self._count > _MAX_VALUES:
            raise BadYamlError(
                _line(node), f"more than {_MAX_VALUES} values; aliases count each time"
            )
        if isinstance(node, MappingNode) and node.tag in _COLLECTIONS:
            return self._map(node, path)
        if isinstance(node, SequenceNode) and node.tag in _COLLECTIONS:
            return [self._item(each, (*path, at)) for at, each in enumerate(node.value)]
        if isinstance(node, ScalarNode):
            return self._scalar(node)
        raise _tagged(node)

    def _map(self, node: MappingNode, path: FieldPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode) or key.tag not in _KEYS:
                raise BadYamlError(
                    _line(key), "a key must be plain text; quote it, or write it out"
                )
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

    def _scalar(self, node: ScalarNode) -> Any:
        if node.tag in _TEXT:
            return _text(node)
        try:
            if node.tag == f"{_TAG}null":
                return None
            if node.tag == f"{_TAG}bool":
                return self._scalars.construct_yaml_bool(node)
            if node.tag == f"{_TAG}int":
                return int(self._scalars.construct_yaml_int(node))
            if node.tag == f"{_TAG}float":
                return float(self._scalars.construct_yaml_float(node))
        except (ValueError, KeyError) as error:
            raise BadYamlError(_line(node), f"{node.value!r} is not of {_name(node)}") from error
        raise _tagged(node)


def _text(node: ScalarNode) -> str:
    if any("\ud800" <= character <= "\udfff" for character in node.value):
        raise BadYamlError(_line(node), "half a character (a surrogate); write it in full")
    return str(node.value)


def _tagged(node: Node) -> BadYamlError:
    return BadYamlError(_line(node), f"{_name(node)} is not allowed; write a plain value")


def _name(node: Node) -> str:
    return f"the tag {str(node.tag).replace(_TAG, '!!')}"


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1
