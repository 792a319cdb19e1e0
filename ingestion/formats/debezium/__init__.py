"""Debezium's envelopes: each is one change of one database row.

The row of ``c``, ``r`` and ``u`` is ``after``; a ``d`` is itself a delete, so the null value that
follows it only repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark.sql.types import ArrayType, DataType, DecimalType, StructType

from ingestion.declaration.formats import DebeziumOptions
from ingestion.formats import wire_format
from ingestion.formats.coerce import Convert, MisfitError
from ingestion.formats.connect.json import ConnectJson, hints
from ingestion.formats.connect.values import Hint, json_value
from ingestion.formats.debezium.envelope import CLOCKS, at_path, row_of, value_of
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

Row = Callable[[Mapping[str, Any], bool], list[Any]]


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
        self._connect = ConnectJson()
        self._plans: dict[tuple[int, str], EnvelopePlan] = {}
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
        plan = self._plan(schema, side)
        try:
            return Decoded(plan.row(row, envelope), plan.extra(row), side == "before")
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

    def _plan(self, schema: Any, side: str) -> EnvelopePlan:
        at = (id(schema), side)
        if at not in self._plans:
            self._schemas.append(schema)  # Kept, so that no other gets its id.
            told = hints(schema, side) if self._options.schemas else None
            self._plans[at] = EnvelopePlan(
                self._columns, self._options, told, is_delete=side == "before"
            )
        return self._plans[at]


class EnvelopePlan:
    """Converts the rows of one schema to the declared columns."""

    def __init__(
        self,
        columns: StructType,
        options: DebeziumOptions,
        told: Mapping[str, Hint] | None,
        *,
        is_delete: bool,
    ) -> None:
        self._is_delete = is_delete
        self._paths = {name: path.split(".") for name, path in options.columns.items()}
        self._names = frozenset(columns.names)
        self._converts: list[tuple[str, Convert]] = [
            (each.name, json_value(self._hint(each.name, each.dataType, options, told),
                                   each.dataType))
            for each in columns
        ]  # fmt: skip

    def row(self, row: Mapping[str, Any], envelope: Mapping[str, Any]) -> list[Any]:
        """Return one value per column.

        Raises:
            BadBytesError: the database did not send a value.
            MisfitError: a column cannot hold a value.
        """
        return [self._value(name, row, envelope, convert) for name, convert in self._converts]

    def extra(self, row: Mapping[str, Any]) -> list[str] | None:
        """Return the names that no column has."""
        return None if self._is_delete else [name for name in row if name not in self._names]

    def _hint(
        self,
        name: str,
        type_: DataType,
        options: DebeziumOptions,
        told: Mapping[str, Hint] | None,
    ) -> Hint:
        if name in self._paths:
            return Hint(unit=CLOCKS.get(self._paths[name][-1], 0))
        if told is not None:
            return told.get(name, Hint())
        unit = options.timestamps
        unit = unit.get(name) if isinstance(unit, dict) else unit
        precise = options.decimals == "precise"
        return _declared_hint(type_, _UNITS[unit] if unit else 0, precise=precise)

    def _value(
        self, name: str, row: Mapping[str, Any], envelope: Mapping[str, Any], convert: Convert
    ) -> Any:
        path = self._paths.get(name)
        value = at_path(envelope, path) if path else row.get(name)
        return value_of(name, value, convert, of_row=not path, is_delete=self._is_delete)


def _declared_hint(type_: DataType, unit: int, *, precise: bool) -> Hint:
    """Return the hint that the declaration gives for values without a schema."""
    if isinstance(type_, ArrayType):
        return Hint(items=_declared_hint(type_.elementType, unit, precise=precise))
    scale = type_.scale if precise and isinstance(type_, DecimalType) else None
    return Hint(unit=unit, days=True, scale=scale)
