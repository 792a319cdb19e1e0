"""The formats of keys ``short``, ``int``, ``long`` and ``uuid``, as Kafka's Java serializers write.

A number has its bytes, the highest first; a UUID is its text.
"""

from __future__ import annotations

import re
from typing import Final

from oncelake.ingestion.declaration.formats import NumberOptions
from oncelake.ingestion.errors import counted
from oncelake.ingestion.formats.decoder import BadBytesError, Decode, Decoded, Encoded, by_record

REASONS: Final[dict[str, str]] = {
    "malformed_key": "the Kafka key is not as its `key_format` says",
}
_UUID: Final = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def opened(encoded: Encoded) -> Decode:
    """Read the one key column."""
    options = encoded.options
    if not isinstance(options, NumberOptions):
        return by_record(_uuid, encoded)
    size = options.size_bytes

    def number(raw: bytes) -> Decoded:
        if len(raw) != size:
            raise BadBytesError("malformed_key", f"{counted(len(raw), 'byte')}, not {size}")
        return Decoded([int.from_bytes(raw, signed=True)])

    return by_record(number, encoded)


def _uuid(raw: bytes) -> Decoded:
    if not _UUID.fullmatch(raw):
        raise BadBytesError("malformed_key", f"no UUID in lower case: {raw[:40]!r}")
    return Decoded([raw.decode()])
