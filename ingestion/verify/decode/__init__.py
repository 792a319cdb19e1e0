"""How a proof reads bytes: one file a format, none of which shares code with the engine's.

A format without a row here cannot be proven; ``verify`` says so. Bytes that belong in quarantine,
and schemas by which nothing can be read, raise ``BadRecordError`` everywhere in this package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final, cast

from ingestion.declaration.ddl import DeclaredColumn
from ingestion.declaration.formats import Options
from ingestion.declaration.parts import ExtraFields, FormatSpec
from ingestion.settings import Settings
from ingestion.verify.decode.coerce import UnprovableError
from ingestion.verify.read.record import Row

_FORMATS: Final[Mapping[str, str]] = {
    "json": "ingestion.verify.decode.json",
    "avro": "ingestion.verify.decode.avro",
    "json_schema": "ingestion.verify.decode.json",
    "protobuf": "ingestion.verify.decode.protobuf",
    "csv": "ingestion.verify.decode.csv",
    "string": "ingestion.verify.decode.raw",
    "raw": "ingestion.verify.decode.raw",
    "debezium": "ingestion.verify.decode.debezium",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What bytes should hold: a value, or a Kafka key, which may be a bare value."""

    columns: Sequence[DeclaredColumn]
    options: Options
    settings: Settings | None
    extra_fields: ExtraFields = "ignore"
    is_key: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedRecord:
    """One value a column, as delta-rs hands them out, and whether the row is gone."""

    values: Row
    is_delete: bool = False


Decode = Callable[[bytes], DecodedRecord]


class DecodeWithKey:
    """Reads values that may leave out what their Kafka key says."""

    def __call__(self, raw: bytes, key: bytes | None = None) -> DecodedRecord:
        """Decode one value."""
        raise NotImplementedError


def reading(format_spec: FormatSpec, expected: Expected) -> Decode:
    """Return what reads bytes of a format.

    Raises:
        UnprovableError: this proof knows nothing of the format, or of a type.
    """
    if format_spec.type not in _FORMATS:
        raise UnprovableError(f"{format_spec.type} is not provable")
    module = import_module(_FORMATS[format_spec.type])
    return cast("Decode", module.reading(expected))
