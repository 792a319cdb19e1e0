"""Avro's schemas, by the specification and nothing else."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from ingestion.kafka.schema_registry import WriterSchema
from ingestion.verify.decode.strict_json import BadRecordError

_PRIMITIVES: Final = (*("null", "boolean", "int", "long", "float", "double", "bytes", "string"),)


@dataclass(kw_only=True, slots=True)
class Node:
    """One type of a schema; the others are reached from it."""

    word: str
    logical: str = ""
    connect: str = ""
    precision: int = 0
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    branches: tuple[Node, ...] = ()
    items: Node | None = None
    fields: dict[str, Node] = field(default_factory=dict)


def parsed(schema: WriterSchema) -> Node:
    """Read a schema, and those that it refers to.

    Raises:
        BadRecordError: it is none, or one that contains itself.
    """
    parse = _Parse()
    try:
        for _, text in schema.references:
            parse.node(json.loads(text), "")
        return parse.node(json.loads(schema.text), "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadRecordError(f"the schema cannot be understood: {error!r}") from None


class _Parse:
    """Reads types, and remembers those with names."""

    def __init__(self) -> None:
        self._named: dict[str, Node] = {}
        self._open: set[str] = set()

    def node(self, given: Any, space: str) -> Node:
        if isinstance(given, list):
            return Node(word="union", branches=tuple(self.node(each, space) for each in given))
        if isinstance(given, str):
            return Node(word=given) if given in _PRIMITIVES else self._known(given, space)
        word = given["type"]
        if not isinstance(word, str):
            return self.node(word, space)
        if word in {"record", "error", "enum", "fixed"}:
            return self._new(given, space)
        if word in {"array", "map"}:
            return Node(
                word=word, items=self.node(given["items" if word == "array" else "values"], space)
            )
        if word not in _PRIMITIVES:
            return self._known(word, space)
        return Node(word=word, **_logical(given))

    def _known(self, name: str, space: str) -> Node:
        full = name if "." in name or not space else f"{space}.{name}"
        if full in self._open:
            raise ValueError(f"{full} contains itself")
        return self._named[full] if full in self._named else self._named[name]

    def _new(self, given: dict[str, Any], space: str) -> Node:
        name = given["name"]
        space = name.rpartition(".")[0] if "." in name else given.get("namespace", space)
        full = name if "." in name or not space else f"{space}.{name}"
        word = "record" if given["type"] == "error" else given["type"]
        self._open.add(full)
        node = Node(
            word=word,
            size=given.get("size", 0),
            symbols=tuple(given.get("symbols", ())),
            fields={f["name"]: self.node(f["type"], space) for f in given.get("fields", ())},
            **_logical(given),
        )
        self._open.discard(full)
        self._named[full] = node
        return node


def _logical(given: dict[str, Any]) -> dict[str, Any]:
    numbers = {name: int(given.get(name, 0)) for name in ("precision", "scale")}
    names = {"logical": given.get("logicalType", ""), "connect": given.get("connect.name", "")}
    return {**names, **numbers}
