"""Keys as Kafka's Java serializers write them: a number's bytes, or the text of a UUID."""

from __future__ import annotations

from uuid import UUID

from oncelake.ingestion.declaration.formats import NumberOptions
from oncelake.ingestion.errors import counted
from oncelake.ingestion.verify.decode import Decode, DecodedRecord, Expected
from oncelake.ingestion.verify.decode.coerce import BadRecordError, utf8


def reading(expected: Expected) -> Decode:
    """Return what reads the one key column."""
    options = expected.options
    size = options.size_bytes if isinstance(options, NumberOptions) else None

    def read(raw: bytes, *_: object) -> DecodedRecord:
        if size is None:
            return DecodedRecord(values=(_canonical(utf8(raw)),))
        if len(raw) != size:
            raise BadRecordError(f"{counted(len(raw), 'byte')}, where a number has {size}")
        unsigned = sum(byte << 8 * at for at, byte in enumerate(reversed(raw)))
        return DecodedRecord(values=(unsigned - (raw[0] >> 7 << 8 * size),))

    return read


def _canonical(text: str) -> str:
    try:
        if str(UUID(text)) == text:
            return text
    except ValueError:
        pass
    raise BadRecordError("no UUID as Java writes it")
