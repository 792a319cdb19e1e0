"""Debezium's envelopes in Avro, by this proof's own reader of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ingestion.declaration.formats import DebeziumOptions
from ingestion.declaration.parts import ExtraFields
from ingestion.declaration.types import Declared
from ingestion.proof import typed
from ingestion.proof.avro_schema import Node, parsed
from ingestion.proof.avro_wire import Wire
from ingestion.proof.formats import Said
from ingestion.proof.formats.avro import fit
from ingestion.proof.formats.debezium import bare, refuse_unknown, row_of, values
from ingestion.proof.formats.framed import ReadPayload
from ingestion.proof.registry import Written
from ingestion.proof.scalars import Read
from ingestion.proof.strict_json import BadRecordError

_CLOCKS: Final = {"ts_ms": 10**3, "ts_us": 10**6, "ts_ns": 10**9}
_NOWHERE: Final = Node(word="null")


class AvroEnvelopes:
    """Makes what reads the envelopes of one schema."""

    def __init__(
        self, wanted: Mapping[str, Declared], options: DebeziumOptions, extra: ExtraFields
    ) -> None:
        """Take what they should hold, and which columns are the envelope's own."""
        self._wanted, self._columns, self._extra = wanted, options.columns, extra

    def __call__(self, schema: Written) -> ReadPayload:
        """Open one schema.

        Raises:
            BadRecordError: it is none of an envelope.
        """
        root = parsed(schema)
        if not {"op", "before", "after"} <= root.fields.keys():
            raise BadRecordError("no schema of an envelope")
        sides = {side: self._readers(root, side) for side in ("before", "after")}

        def read(payload: bytes) -> Said:
            wire = Wire(payload)
            envelope = {name: bare(value) for name, value in wire.read(root).items()}
            wire.expect_end()
            row = row_of(envelope)
            is_delete = envelope["op"] == "d"
            if self._extra == "reject" and not is_delete:
                refuse_unknown(row, self._wanted)
            readers = sides["before" if is_delete else "after"]
            found = values(readers, self._columns, row, envelope, is_delete=is_delete)
            return Said(values=found, is_delete=is_delete)

        return read

    def _readers(self, root: Node, side: str) -> dict[str, Read]:
        row = _inside(root.fields[side]).fields
        found: dict[str, Read] = {}
        for name, type_ in self._wanted.items():
            path = self._columns.get(name)
            node = _at(root, path) if path else row.get(name, _NOWHERE)
            last = (path or "").rpartition(".")[2]
            if node is _NOWHERE:
                found[name] = _nothing
            elif last in _CLOCKS and type_.word == "TIMESTAMP":
                found[name] = _clock(type_, _CLOCKS[last])
            else:
                found[name] = fit(node, type_)
        return found


def _inside(node: Node) -> Node:
    return next((each for each in node.branches if each.word == "record"), node)


def _at(node: Node, path: str) -> Node:
    for name in path.split("."):
        node = _inside(node).fields.get(name, _NOWHERE)
    # The envelope's own fields are taken without the number of their branch.
    others = [each for each in node.branches if each.word != "null"]
    return others[0] if "." not in path and len(others) == 1 else node


def _nothing(_: Any) -> None:
    return None


def _clock(type_: Declared, ticks: int) -> Read:
    read = typed.moment(type_, ticks, zoned=True) or _nothing
    return lambda value: read(bare(value))
