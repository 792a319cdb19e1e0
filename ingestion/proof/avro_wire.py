"""Avro's schemas and its binary encoding, by the specification and nothing else.

It takes no byte on trust: an index beyond its list, a number of too many bits, a boolean that is
neither 0 nor 1, bytes left over are all refused.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any, Final

from ingestion.proof.registry import Written
from ingestion.proof.strict_json import BadRecordError

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


def parsed(schema: Written) -> Node:
    """Read a schema, and those that it refers to.

    Raises:
        BadRecordError: it is none, or one that contains itself.
    """
    parse = _Parse()
    try:
        for text in schema.references.values():
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


class Wire:
    """A payload, read from its start."""

    def __init__(self, payload: bytes) -> None:
        """Take the bytes."""
        self._payload, self._at = payload, 0

    def expect_end(self) -> None:
        """Refuse bytes that are left over."""
        if self._at != len(self._payload):
            raise BadRecordError(f"{len(self._payload) - self._at} bytes are left over")

    def read(self, node: Node) -> Any:
        """Read one value; of a union, the number of its branch beside it."""
        return getattr(self, f"_{node.word}")(node)

    def _null(self, _: Node) -> None:
        return None

    def _boolean(self, _: Node) -> bool:
        return bool(self._index(2, self._take(1)[0]))

    def _int(self, _: Node) -> int:
        return self._number(32)

    def _long(self, _: Node) -> int:
        return self._number(64)

    def _float(self, _: Node) -> float:
        return float(struct.unpack("<f", self._take(4))[0])

    def _double(self, _: Node) -> float:
        return float(struct.unpack("<d", self._take(8))[0])

    def _bytes(self, _: Node) -> bytes:
        return self._take(self._number(64))

    def _string(self, _: Node) -> str:
        return self._text()

    def _fixed(self, node: Node) -> bytes:
        return self._take(node.size)

    def _enum(self, node: Node) -> str:
        return node.symbols[self._index(len(node.symbols), self._number(32))]

    def _union(self, node: Node) -> tuple[int, Any] | None:
        at = self._index(len(node.branches), self._number(64))
        value = self.read(node.branches[at])
        return None if node.branches[at].word == "null" else (at, value)

    def _record(self, node: Node) -> dict[str, Any]:
        return {name: self.read(each) for name, each in node.fields.items()}

    def _array(self, node: Node) -> list[Any]:
        return [value for _, value in self._blocks(node)]

    def _map(self, node: Node) -> dict[str, Any]:
        return dict(self._blocks(node))

    def _blocks(self, node: Node) -> list[tuple[str, Any]]:
        assert node.items is not None, "lists and maps say what they hold"
        found: list[tuple[str, Any]] = []
        while count := self._number(64):
            if count < 0:
                count = -count
                self._number(64)
            for _ in range(count):
                name = self._text() if node.word == "map" else ""
                found.append((name, self.read(node.items)))
        return found

    def _text(self) -> str:
        try:
            return self._take(self._number(64)).decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadRecordError(f"no UTF-8: {error}") from None

    def _number(self, bits: int) -> int:
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        if value >> bits:
            raise BadRecordError(f"a number of more than {bits} bits")
        return (value >> 1) ^ -(value & 1)

    def _take(self, count: int) -> bytes:
        if not 0 <= count <= len(self._payload) - self._at:
            raise BadRecordError("the bytes end too early")
        self._at += count
        return self._payload[self._at - count : self._at]

    @staticmethod
    def _index(limit: int, found: int) -> int:
        if not 0 <= found < limit:
            raise BadRecordError(f"{found} is beyond {limit}")
        return found
