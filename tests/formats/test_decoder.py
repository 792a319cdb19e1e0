"""The seam of formats: whatever a format makes of a record, the others of its batch are read."""

from __future__ import annotations

import pyarrow as pa
import pytest

from oncelake.ingestion.declaration.formats import FORMATS
from oncelake.ingestion.formats.decoder import Decoded, Encoded, by_record
from tests.support.decoding import decoded, row_type

ENCODED = Encoded(
    schema=row_type("name STRING"),
    is_key=False,
    options=FORMATS["json"].options(),
    extra_fields="ignore",
)


@pytest.mark.parametrize("made", ["\ud800", b"\xff", 5, [1]], ids=ascii)
@pytest.mark.parametrize("part", ["row", "extra"])
def test_what_arrow_does_not_take_is_bad_alone(made: object, part: str) -> None:
    """Half a character in a name, or bytes that are no text, cost one record and not its batch."""

    def read(raw: bytes) -> Decoded:
        value = made if raw == b"bad" else raw.decode()
        return Decoded([value]) if part == "row" else Decoded(["a"], [value])  # type: ignore[list-item]

    good, bad, other = decoded(by_record(read, ENCODED), [b"a", b"bad", b"b"])

    assert (good["reason"], other["reason"]) == (None, None)
    assert bad["reason"] == "undecodable"
    assert bad["row"] is None


class OfALibraryError(Exception):
    """As libraries have them: no ``ValueError``, and no other that one would foresee."""


def test_an_error_that_nobody_foresaw_is_bad_alone() -> None:
    """Whatever a library raises, the record waits in quarantine."""

    def read(raw: bytes) -> Decoded:
        if raw == b"bad":
            raise OfALibraryError("no")
        return Decoded([raw.decode()])

    found = by_record(read, ENCODED)(pa.array([b"a", b"bad"], pa.binary()))

    assert found.field("reason").to_pylist() == [None, "undecodable"]
    assert found.field("detail").to_pylist() == [None, "OfALibraryError: no"]
