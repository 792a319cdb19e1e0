"""Debezium's envelopes: each is one change of one database row.

The row of ``c``, ``r`` and ``u`` is ``after``; a ``d`` is itself a delete, so the null value that
follows it only repeats it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.types import ArrayType, DataType, DecimalType, StructField, StructType

from ingestion.declaration.formats import DebeziumOptions
from ingestion.formats import wire_format
from ingestion.formats.coerce import MisfitError
from ingestion.formats.connect.json import ConnectJson, hints
from ingestion.formats.connect.values import Hint, json_value
from ingestion.formats.debezium.envelope import CLOCKS, RowPlan, paths_of, row_of
from ingestion.formats.decoder import BadBytesError, Decode, Decoded, Encoded, by_record
from ingestion.formats.strict_json import parse

REASONS: Final[dict[str, str]] = {
    **wire_format.REASONS,
    "malformed_avro": "the bytes are not what the schema says, or some are left over",
    "malformed_debezium": "no envelope with `op`, and `after` or `before`",
    "unavailable_value": "a column that the database did not send, since it had not changed",
    "truncate": "the whole table was emptied, which a person must apply",
    "not_a_change": "a message of the log that changes no row",
}
_UNITS: Final = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}


def opened(encoded: Encoded) -> Decode:
    """Decode each envelope; columns that a delete's ``before`` lacks come from the Kafka key."""
    options = encoded.options
    assert isinstance(options, DebeziumOptions), "options are of the format's own model"
    if options.encoding == "avro":
        from ingestion.formats.debezium.avro import opened_avro

        return opened_avro(encoded, options)
    return by_record(JsonEnvelopes(encoded.schema, options), encoded)


class JsonEnvelopes:
    """Reads JSON envelopes."""

    def __init__(self, columns: StructType, options: DebeziumOptions) -> None:
        self._columns, self._options = columns, options
        self._paths = paths_of(options)
        self._connect = ConnectJson()
        self._plans: dict[tuple[int, str], RowPlan] = {}
        self._schemas: list[Any] = []

    def __call__(self, raw: bytes, key: bytes | None) -> Decoded:
        """Read one envelope.

        Raises:
            BadBytesError: it belongs in quarantine.
        """
        try:
            schema, envelope = self._split(raw)
        except ValueError as error:
            raise BadBytesError("malformed_debezium", str(error)) from None
        side, row = row_of(envelope)
        if side == "before":
            row = {**self._of_key(key), **{n: v for n, v in row.items() if v is not None}}
        extra = (name for name in row if name not in self._columns.names)
        try:
            return self._plan(schema, side).decoded(row, envelope, extra)
        except MisfitError as error:
            raise BadBytesError("type_mismatch", str(error)) from None

    def _split(self, raw: bytes) -> tuple[Any, Any]:
        return self._connect.split(raw) if self._options.schemas else (None, parse(raw))

    def _of_key(self, key: bytes | None) -> Mapping[str, Any]:
        try:
            found = self._split(key)[1] if key else None
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _plan(self, schema: Any, side: str) -> RowPlan:
        at = (id(schema), side)
        if at not in self._plans:
            self._schemas.append(schema)  # Kept, so that no other gets its id.
            told = hints(schema, side) if self._options.schemas else None
            converts = {c.name: json_value(self._hint(c, told), c.dataType) for c in self._columns}
            self._plans[at] = RowPlan(converts, self._paths, side)
        return self._plans[at]

    def _hint(self, column: StructField, told: Mapping[str, Hint] | None) -> Hint:
        if column.name in self._paths:
            return Hint(unit=CLOCKS.get(self._paths[column.name][-1], 0))
        if told is not None:
            return told.get(column.name, Hint())
        unit = self._options.timestamps
        unit = unit.get(column.name) if isinstance(unit, dict) else unit
        precise = self._options.decimals == "precise"
        return _declared_hint(column.dataType, _UNITS[unit] if unit else 0, precise=precise)


def _declared_hint(type_: DataType, unit: int, *, precise: bool) -> Hint:
    """Return the hint that the declaration gives for values without a schema."""
    if isinstance(type_, ArrayType):
        return Hint(items=_declared_hint(type_.elementType, unit, precise=precise))
    scale = type_.scale if precise and isinstance(type_, DecimalType) else None
    return Hint(unit=unit, days=True, scale=scale)
