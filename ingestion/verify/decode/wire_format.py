"""Confluent's wire format, read again: a zero, four bytes of schema id, the payload."""

from __future__ import annotations

from collections.abc import Callable

from ingestion.kafka.schema_registry import WriterSchema, fresh_registry
from ingestion.verify.decode import DecodedRecord, Expected
from ingestion.verify.decode.strict_json import BadRecordError, UnknownSchemaError

ReadPayload = Callable[[bytes], DecodedRecord]


class ReadFramed:
    """Reads records that name their schema; each schema is requested and compiled once."""

    def __init__(
        self, expected: Expected, type_: str, compile_schema: Callable[[WriterSchema], ReadPayload]
    ) -> None:
        assert expected.settings is not None, "only settings say where the registry is"
        self._registry = fresh_registry(expected.settings)
        self._type, self._compile = type_, compile_schema
        self._readers: dict[int, ReadPayload] = {}

    def __call__(self, raw: bytes) -> DecodedRecord:
        """Read one record.

        Raises:
            UnknownSchemaError: it belongs in quarantine if its schema was unknown then, too.
            DependencyError: the registry does not answer.
        """
        if len(raw) < 5 or raw[0] != 0:
            raise BadRecordError("no schema id in front")
        number = int.from_bytes(raw[1:5])
        if number not in self._readers:
            self._readers[number] = self._reader(number)
        try:
            return self._readers[number](raw[5:])
        except UnknownSchemaError:
            raise
        except BadRecordError as error:
            raise BadRecordError(f"schema id {number}: {error}") from None

    def _reader(self, number: int) -> ReadPayload:
        schema = self._registry.schemas([number]).get(number)
        if schema is None:
            return _refuse(UnknownSchemaError, f"the registry does not know schema id {number}")
        if schema.type != self._type:
            return _refuse(BadRecordError, f"it is {schema.type}, not {self._type}")
        try:
            return self._compile(schema)
        except BadRecordError as error:
            return _refuse(BadRecordError, str(error))


def _refuse(error: type[BadRecordError], reason: str) -> ReadPayload:
    def read(payload: bytes) -> DecodedRecord:
        raise error(reason)

    return read
