"""How a proof reads bytes: one file a format, none of which shares code with the engine's.

A format without a row here cannot be proven; ``verify`` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final, Protocol, cast

from ingestion.declaration.ddl import DeclaredColumn
from ingestion.declaration.formats import Options
from ingestion.declaration.parts import ExtraFields, FormatSpec
from ingestion.proof.record import Row
from ingestion.proof.values import UnprovableError
from ingestion.settings import Settings

_FORMATS: Final[Mapping[str, str]] = {
    "json": "ingestion.proof.formats.json",
    "avro": "ingestion.proof.formats.avro",
    "json_schema": "ingestion.proof.formats.json_schema",
    "protobuf": "ingestion.proof.formats.protobuf",
    "csv": "ingestion.proof.formats.csv",
    "string": "ingestion.proof.formats.raw",
    "raw": "ingestion.proof.formats.raw",
    "debezium": "ingestion.proof.formats.debezium",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What bytes should hold.

    Attributes:
        columns: The declared columns, or of a key the key columns.
        is_key: Whether the bytes are a Kafka key, which may be a bare value.
        options: What the declaration says beside the format's name.
        extra_fields: What to do with fields that no column names.
        settings: Where a schema registry is.
    """

    columns: Sequence[DeclaredColumn]
    is_key: bool
    options: Options
    extra_fields: ExtraFields
    settings: Settings | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """What good bytes say.

    Attributes:
        values: One value a column, as delta-rs hands them out.
        is_delete: Whether they say by themselves that the row is gone.
    """

    values: Row
    is_delete: bool = False


class Read(Protocol):
    """Reads the bytes of one record."""

    def __call__(self, raw: bytes) -> Said:
        """Read them.

        Raises:
            BadRecordError: they belong in quarantine.
        """
        ...


class ReadBoth:
    """Reads the bytes of records whose Kafka key may say what they leave out."""

    def __call__(self, raw: bytes) -> Said:
        """Read them without a key."""
        return self.both(raw, None)

    def both(self, raw: bytes, key: bytes | None) -> Said:
        """Read them.

        Raises:
            BadRecordError: they belong in quarantine.
        """
        raise NotImplementedError


def reading(format_spec: FormatSpec, expected: Expected) -> Read:
    """Return what reads bytes of a format.

    Raises:
        UnprovableError: this proof knows nothing of the format, or of a type.
    """
    if format_spec.type not in _FORMATS:
        raise UnprovableError(f"{format_spec.type} is not provable")
    module = import_module(_FORMATS[format_spec.type])
    return cast("Read", module.reading(expected))
