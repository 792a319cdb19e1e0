"""Avro's binary encoding, by the specification and nothing else.

It takes no byte on trust: an index beyond its list, a number of too many bits, a boolean that is
neither 0 nor 1, bytes left over are all refused.
"""

from __future__ import annotations

import struct
from typing import Any

from ingestion.verify.decode.avro_schema import Node
from ingestion.verify.decode.strict_json import BadRecordError


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
