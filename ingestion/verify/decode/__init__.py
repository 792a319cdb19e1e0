"""How a proof reads bytes: one file a format, none of which shares code with the engine's.

A format without a row here cannot be proven; ``verify`` says so. Bytes that belong in quarantine,
and schemas by which nothing can be read, raise ``BadRecordError`` everywhere in this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final, cast
from uuid import UUID

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.formats import JsonKeyOptions, Options
from oncelake.ingestion.declaration.parts import ExtraFields, FormatSpec
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.kafka.schema_registry import SchemaId, WriterSchema, fresh_registry
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.decode import glue_frame
from oncelake.ingestion.verify.decode.coerce import (
    BadRecordError,
    Path,
    TruncateError,
    UnknownSchemaError,
    UnprovableError,
)
from oncelake.ingestion.verify.read.record import Row

_FORMATS: Final[Mapping[str, str]] = {
    "json": "oncelake.ingestion.verify.decode.json",
    "avro": "oncelake.ingestion.verify.decode.avro",
    "json_schema": "oncelake.ingestion.verify.decode.json",
    "protobuf": "oncelake.ingestion.verify.decode.protobuf",
    "csv": "oncelake.ingestion.verify.decode.csv",
    "string": "oncelake.ingestion.verify.decode.raw",
    "raw": "oncelake.ingestion.verify.decode.raw",
    "debezium": "oncelake.ingestion.verify.decode.debezium",
    **dict.fromkeys(("short", "int", "long", "uuid"), "oncelake.ingestion.verify.decode.java"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """The expected content of bytes: a value, or a Kafka key, which may be a bare value.

    Attributes:
        lenient: Columns that take a number in quotes or, as text, a number or a boolean.
        record: The record types that are meant, by name; none where any is.
        moved_by: Columns by which an update shows that its row had another key before.
        keeps_json: Whether fields that are kept are text, numbers as they are written.
        is_elsewhere: Whether they are changes of rows that another table has: deletes in this one.
        whole: Columns of which a STRUCT must have every field of a record's.
        given: Names of columns that headers and key give, which a value may have, too.
    """

    columns: Sequence[DeclaredColumn]
    options: Options
    settings: Settings | None
    extra_fields: ExtraFields = "ignore"
    is_key: bool = False
    lenient: frozenset[str] = frozenset()
    record: Sequence[str] = ()
    moved_by: Sequence[str] = ()
    keeps_json: bool = False
    is_elsewhere: bool = False
    whole: frozenset[str] = frozenset()
    given: frozenset[str] = frozenset()

    @property
    def row(self) -> SqlType:
        """The columns as one type."""
        return SqlType(word="STRUCT", parts={each.name: each.type for each in self.columns})

    def checked(self, record: DecodedRecord, undeclared: Iterable[Path]) -> DecodedRecord:
        """Refuse a record for fields that it waits for, or note that it has some; no delete."""
        paths = [path for path in undeclared if path[0] not in self.given or path[1:]]
        if record.is_delete or not paths:
            return record
        if self.extra_fields == "reject" or any(
            path[1:] and path[0] in self.whole for path in paths
        ):
            raise BadRecordError(f"fields that no column names: {sorted(paths)}")
        return replace(record, has_undeclared=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedRecord:
    """One value a column, as delta-rs returns them, and whether the row is gone.

    Attributes:
        left_out: Columns that the record leaves out because they have not changed.
        moved_from: What could be read of the key that the row had before, if it was another.
        ended: The delete of the row before an update, if the update gives it another key.
        coerced: How many values were of another type than their lenient column.
        record: Full name of its record type, where it is none of those that are declared.
        is_other: Whether it is of another type than the declaration names.
        extra: The fields that no column names, where they are kept.
        tells_nothing: Whether it is a delete without any value of its row.
        is_gone: Whether it is a delete wherever its row is, and not in this table alone.
        moves: Whether it is the delete of a row that gets another key, or that row under it.
        has_undeclared: Whether its schema has fields that no column names, where that is known.
    """

    values: Row
    is_delete: bool = False
    left_out: frozenset[str] = frozenset()
    moved_from: Mapping[str, Any] | None = None
    ended: DecodedRecord | None = None
    coerced: int = 0
    record: str | None = None
    is_other: bool = False
    extra: str | None = None
    tells_nothing: bool = False
    is_gone: bool = False
    moves: bool = False
    has_undeclared: bool = False


# Of one record: names and values.
Headers = Sequence[tuple[str, bytes | None]]


# Names the record type of the bytes behind a schema's id, where their format has names.
Name = Callable[[bytes], str | None]
# Whether bytes of a header are all that a format's payloads have behind the schema's id.
IsWhole = Callable[[bytes], bool]
# The header of Confluent's serializers that has a schema's id.
ID_HEADER: Final = "__{}_schema_id"
# Those of Apicurio's and Cloudera's, or what else says which schema it is.
OTHER_ID_HEADERS: Final = (
    *("{}.schema.version.id", "apicurio.{}.globalId", "apicurio.{}.contentId"),
    *("apicurio.{}.contentHash", "apicurio.{}.artifactId"),
)
# Reads a value, or the bytes behind a schema's id; most ignore the Kafka key and the headers that
# come after it.
Decode = Callable[..., DecodedRecord]


def reading(format_spec: FormatSpec, expected: Expected) -> Decode:
    """Return what reads bytes of a format."""
    if format_spec.type not in _FORMATS:
        raise UnprovableError(f"{format_spec.type} is not provable")
    module = _FORMATS[format_spec.type]
    if isinstance(expected.options, JsonKeyOptions) and expected.options.schemas:
        module = _FORMATS["debezium"]
    return cast("Decode", import_module(module).reading(expected))


class ReadFramed:
    """Reads Confluent's wire format: a zero, four bytes of schema id, the payload.

    What is before the payload may be in a header, or a one and a GUID of 16 bytes there. Each
    schema is requested and compiled once.
    """

    def __init__(
        self,
        expected: Expected,
        type_: str,
        compile_schema: Callable[[WriterSchema], Decode],
        name: Callable[[WriterSchema], Name],
        is_whole: IsWhole = lambda rest: not rest,
    ) -> None:
        assert expected.settings is not None, "only settings say where the registry is"
        self._registry = fresh_registry(expected.settings)
        self._type, self._compile, self._name = type_, compile_schema, name
        self._in_glue = expected.settings.in_glue
        self._is_key, self._wanted = expected.is_key, expected.record
        part = "key" if expected.is_key else "value"
        self._id_header, self._is_whole = ID_HEADER.format(part), is_whole
        self._other_headers = {each.format(part) for each in OTHER_ID_HEADERS}
        self._readers: dict[SchemaId, Decode] = {}

    def __call__(
        self, raw: bytes, key: bytes | None = None, headers: Headers = ()
    ) -> DecodedRecord:
        """Read one record.

        Raises:
            TruncateError: it says that the source was emptied.
            UnknownSchemaError: it belongs in quarantine if its schema was unknown then, too.
            DependencyError: the registry does not answer.
        """
        number, payload = self._split(raw, headers)
        if number not in self._readers:
            self._readers[number] = self._reader(number)
        try:
            return self._readers[number](payload, key, headers)
        except (TruncateError, UnknownSchemaError):
            raise
        except BadRecordError as error:
            raise BadRecordError(f"schema id {number}: {error}") from None

    def _split(self, raw: bytes, headers: Headers) -> tuple[SchemaId, bytes]:
        if self._in_glue:
            # No serializer puts an id of Glue's into a header.
            return glue_frame.split(raw)
        values = [value or b"" for name, value in headers if name == self._id_header]
        if values:
            size = {b"\0": 5, b"\1": 17}.get(values[-1][:1], 0)
            start, rest = values[-1][1:size], values[-1][size:]
            if not size or len(start) < size - 1 or not self._is_whole(rest):
                raise BadRecordError("a header that is no schema id as Confluent writes it")
            number = int.from_bytes(start) if size == 5 else UUID(bytes=start)
            return number, rest + raw
        if not self._other_headers.isdisjoint(name for name, _ in headers):
            raise BadRecordError("its schema id is in a header")
        if len(raw) < 5 or raw[0] != 0:
            raise BadRecordError("no schema id in front")
        return int.from_bytes(raw[1:5]), raw[5:]

    def _reader(self, number: SchemaId) -> Decode:
        schema = self._registry.schemas([number]).get(number)
        if schema is None:
            return _refuse(UnknownSchemaError, f"the registry does not know schema id {number}")
        if schema.type != self._type:
            return _refuse(BadRecordError, f"it is {schema.type}, not {self._type}")
        if schema.problem:
            return _refuse(UnknownSchemaError, f"schema id {number}: {schema.problem}")
        if self._is_key:
            return self._compiled(schema)
        try:
            return self._of_types(self._name(schema), self._compiled(schema))
        except BadRecordError as error:
            return _refuse(BadRecordError, str(error))

    def _compiled(self, schema: WriterSchema) -> Decode:
        try:
            return self._compile(schema)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            return _refuse(BadRecordError, str(error))

    def _of_types(self, name: Name, decode: Decode) -> Decode:
        """Read no more than the name of a record that is of another type than the declared ones."""
        wanted = self._wanted

        def read(payload: bytes, *more: Any) -> DecodedRecord:
            record = name(payload)
            if not wanted:
                return replace(decode(payload, *more), record=record)
            if record is None or record in wanted:
                return decode(payload, *more)
            return DecodedRecord(values=(), is_other=True, record=record)

        return read


def _refuse(error: type[BadRecordError], reason: str) -> Decode:
    def read(payload: bytes, *more: Any) -> DecodedRecord:
        raise error(reason)

    return read
