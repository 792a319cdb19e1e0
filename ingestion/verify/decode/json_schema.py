"""JSON behind the id of a JSON Schema."""

from __future__ import annotations

from ingestion.verify.decode import Expected, json
from ingestion.verify.decode.wire_format import ReadFramed


def reading(expected: Expected) -> ReadFramed:
    """Return what reads one framed JSON document.

    Raises:
        UnprovableError: a type that this proof knows nothing of.
    """
    read = json.reading(expected)
    return ReadFramed(expected, "JSON", lambda schema: read)
