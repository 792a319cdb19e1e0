"""JSON from Kafka Connect's converter, with or without a schema next to the payload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ingestion.formats.connect.values import Hint
from ingestion.formats.strict_json import parse

_SPLIT: Final = b',"payload":'
_MOST_SCHEMAS: Final = 100
_UNITS: Final = {
    "org.apache.kafka.connect.data.Timestamp": 10**3,
    "io.debezium.time.Timestamp": 10**3,
    "io.debezium.time.MicroTimestamp": 10**6,
    "io.debezium.time.NanoTimestamp": 10**9,
}
_DAYS: Final = ("org.apache.kafka.connect.data.Date", "io.debezium.time.Date")
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"


class ConnectJson:
    """Splits documents into schema and payload; parses each schema once, not once per record."""

    def __init__(self) -> None:
        self._known: dict[bytes, Any] = {}

    def split(self, raw: bytes) -> tuple[Any, Any]:
        """Return schema and payload.

        Raises:
            ValueError: one is missing, or the bytes are not JSON.
        """
        front, found, rest = raw.partition(_SPLIT)
        if found and front in self._known and rest.endswith(b"}"):
            return self._known[front], parse(rest[:-1])
        whole = parse(raw)
        if type(whole) is not dict or whole.keys() != {"schema", "payload"}:
            raise ValueError("no object of `schema` and `payload`")
        self._remember(front, whole["schema"])
        return whole["schema"], whole["payload"]

    def _remember(self, front: bytes, schema: Any) -> None:
        """Cache the schema by the bytes before the payload, if they contain nothing else."""
        if len(self._known) >= _MOST_SCHEMAS:
            return
        try:
            is_all = parse(front + b"}") == {"schema": schema}
        except ValueError:
            return
        if is_all:
            self._known[front] = schema


def hints(schema: Any, *path: str) -> Mapping[str, Hint]:
    """Return the hints of a schema for the fields of a struct inside it, by name."""
    for name in path:
        schema = next((each for each in _fields(schema) if each.get("field") == name), None)
    return {str(each.get("field")): hint(each) for each in _fields(schema)}


def hint(schema: Mapping[str, Any]) -> Hint:
    """Return what a field's schema says of its values."""
    name = schema.get("name")
    items = schema.get("items")
    if name == _DECIMAL:
        return Hint(scale=int(schema.get("parameters", {}).get("scale", 0)))
    return Hint(
        unit=_UNITS.get(str(name), 0),
        days=name in _DAYS,
        items=hint(items) if isinstance(items, dict) else None,
    )


def _fields(schema: Any) -> list[Mapping[str, Any]]:
    found = schema.get("fields") if isinstance(schema, dict) else None
    return [each for each in found or () if isinstance(each, dict)]
