"""The same format, read a second time, by the proof."""

from __future__ import annotations

from oncelake.ingestion.verify.decode import Decode, DecodedRecord, Expected
from oncelake.ingestion.verify.decode.coerce import BadRecordError


def reading(expected: Expected) -> Decode:
    """Return what reads pairs into some columns."""

    def read(raw: bytes, *_: object) -> DecodedRecord:
        try:
            pairs = dict(pair.split("=") for pair in raw.decode().split(";"))
        except ValueError as error:
            raise BadRecordError("no list of pairs") from error
        return DecodedRecord(
            values=tuple(
                pairs.get(column.name)
                if column.type.word == "STRING" or column.name not in pairs
                else int(pairs[column.name])
                for column in expected.columns
            )
        )

    return read
