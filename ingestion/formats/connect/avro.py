"""Kafka Connect's types in Avro: an Avro type with a ``connect.name``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.types import DataType, DateType, DecimalType, TimestampNTZType, TimestampType

from ingestion.formats.coerce import Convert, Source, exact, unscaled
from ingestion.formats.connect.values import json_value

_TICKS: Final = {
    "io.debezium.time.Timestamp": 10**3,
    "io.debezium.time.MicroTimestamp": 10**6,
    "io.debezium.time.NanoTimestamp": 10**9,
}
_DECIMAL: Final = "io.debezium.data.VariableScaleDecimal"
_DATE: Final = "io.debezium.time.Date"
_ZONED: Final = "io.debezium.time.ZonedTimestamp"


def connect_type(word: str, found: Mapping[str, Any], target: DataType) -> Convert | None:
    """Return the conversion of a type with a ``connect.name``, if it has a known one."""
    name = found.get("connect.name")
    if word == "record" and name == _DECIMAL and isinstance(target, DecimalType):
        convert = exact(Source("decimal"), target)
        return lambda value: convert(
            unscaled(int.from_bytes(value["value"], signed=True), value["scale"])
        )
    if word == "int" and name == _DATE and isinstance(target, DateType):
        return exact(Source("date"), target)
    if word == "string" and name == _ZONED and isinstance(target, TimestampType):
        return json_value(None, target)
    if word == "long" and name in _TICKS and isinstance(target, TimestampType | TimestampNTZType):
        zoned = isinstance(target, TimestampType)
        return exact(Source("timestamp" if zoned else "local_timestamp", _TICKS[name]), target)
    return None
