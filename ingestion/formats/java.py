"""``short``, ``int``, ``long`` and ``uuid``: keys and headers as Kafka's Java serializers write.

A number has its bytes, the highest first; a UUID is its text.
"""

from __future__ import annotations

import re
from typing import Final

from oncelake.ingestion.declaration.formats import NumberOptions, Options
from oncelake.ingestion.errors import counted
from oncelake.ingestion.formats.decoder import (
    BadBytesError,
    Decode,
    Decoded,
    Encoded,
    Read,
    by_record,
)

REASONS: Final[dict[str, str]] = {
    "malformed_key": "the Kafka key is not as its `key_format` says",
}
_UUID: Final = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def opened(encoded: Encoded) -> Decode:
    """Read the one key column."""
    return by_record(reader(encoded.options), encoded)


def reader(options: Options) -> Read:
    """Return what reads one number, or UUID."""
    if not isinstance(options, NumberOptions):
        return _uuid
    size = options.size_bytes

    def number(raw: bytes) -> Decoded:
        if len(raw) != size:
            raise BadBytesError("malformed_key", f"{counted(len(raw), 'byte')}, not {size}")
        return Decoded([int.from_bytes(raw, signed=True)])

    return number


def _uuid(raw: bytes) -> Decoded:
    if not _UUID.fullmatch(raw):
        raise BadBytesError("malformed_key", f"no UUID in lower case: {raw[:40]!r}")
    return Decoded([raw.decode()])
