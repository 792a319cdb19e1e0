"""Avro's single-object encoding, and the fingerprint by which it names a schema.

By the specification of Avro: Parsing Canonical Form, and CRC-64-AVRO of its UTF-8.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from avro.constants import PRIMITIVE_TYPES, VALID_TYPES

from oncelake.ingestion.verify.decode import Decode, DecodedRecord
from oncelake.ingestion.verify.decode.coerce import BadRecordError

_EMPTY: Final = 0xC15D213AA4D7A795
_PARTS: Final = ("symbols", "items", "values", "size")


def reading(reader: Callable[[bytes], Decode]) -> Decode:
    """Return what reads a marker, a fingerprint, and the payload by the schema that it names."""

    def read(raw: bytes, *_: object) -> DecodedRecord:
        if len(raw) < 10 or raw[:2] != b"\xc3\x01":
            raise BadRecordError("no marker and fingerprint in front")
        return reader(raw[2:10])(raw[10:])

    return read


def fingerprint(text: str) -> bytes:
    """Return the fingerprint of a schema, as it is in front of a payload."""
    number = _EMPTY
    for byte in _canonical(json.loads(text), "").encode():
        number ^= byte
        for _ in range(8):
            number = number >> 1 ^ (_EMPTY if number & 1 else 0)
    return number.to_bytes(8, "little")


def _canonical(node: Any, space: str) -> str:
    """Write a schema in Parsing Canonical Form, within a namespace."""
    if isinstance(node, list):
        return f"[{','.join(_canonical(branch, space) for branch in node)}]"
    if isinstance(node, str):
        is_full = node in PRIMITIVE_TYPES or "." in node or not space
        return _text(node if is_full else f"{space}.{node}")
    type_ = node["type"]
    if not isinstance(type_, str) or type_ in PRIMITIVE_TYPES or type_ not in VALID_TYPES:
        return _canonical(type_, space)
    parts = {}
    if "name" in node:
        name, own = node["name"], node.get("namespace", space)
        full = name if "." in name or not own else f"{own}.{name}"
        space = full.rpartition(".")[0]
        parts["name"] = _text(full)
    parts["type"] = _text(type_)
    if "fields" in node:
        fields = ((_text(f["name"]), _canonical(f["type"], space)) for f in node["fields"])
        written = (f'{{"name":{name},"type":{form}}}' for name, form in fields)
        parts["fields"] = f"[{','.join(written)}]"
    for part in _PARTS:
        if part in node:
            is_type = part in ("items", "values")
            parts[part] = _canonical(node[part], space) if is_type else _text(node[part])
    return "{" + ",".join(f'"{part}":{text}' for part, text in parts.items()) + "}"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
