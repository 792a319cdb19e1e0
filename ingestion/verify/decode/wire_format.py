"""Confluent's wire format, read again: a zero, four bytes of schema id, the payload."""

from __future__ import annotations

from collections.abc import Callable

from ingestion.verify.decode import DecodedRecord, Expected
from ingestion.verify.decode.strict_json import BadRecordError, UnknownSchemaError
from ingestion.verify.registry import RegisteredSchema, SchemaSource

ReadPayload = Callable[[bytes], DecodedRecord]
Open = Callable[[RegisteredSchema], ReadPayload]


class ReadFramed:
    """Reads records that name their schema; one schema is opened once."""

    def __init__(self, expected: Expected, type_: str, opened: Open) -> None:
        """Take what the bytes should hold, the type of their schemas, and what reads by one.

        Raises:
            InvalidSpecError: no registry is known.
        """
        self._schemas = SchemaSource(expected.settings)
        self._type, self._open = type_, opened
        self._readers: dict[int, ReadPayload] = {}

    def __call__(self, raw: bytes) -> DecodedRecord:
        """Read one record.

        Raises:
            BadRecordError: it belongs in quarantine.
            UnknownSchemaError: it did, if the registry did not know its schema then, either.
            DependencyError: the registry does not answer.
        """
        if len(raw) < 5 or raw[0] != 0:
            raise BadRecordError("no schema id in front")
        number = int.from_bytes(raw[1:5])
        read = self._readers.get(number)
        if read is None:
            read = self._readers[number] = self._opened(number)
        try:
            return read(raw[5:])
        except BadRecordError as error:
            raise BadRecordError(f"schema id {number}: {error}") from None

    def _opened(self, number: int) -> ReadPayload:
        schema = self._schemas(number)
        if schema is None:
            raise UnknownSchemaError(f"the registry does not know schema id {number}")
        if schema.type != self._type:
            raise BadRecordError(f"schema id {number} is {schema.type}, not {self._type}")
        return self._open(schema)
