"""Which format the values of a sample have, and which columns they would fill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, NoReturn

from oncelake.ingestion.declaration.derived import NO_TYPE
from oncelake.ingestion.declaration.names import name_trouble
from oncelake.ingestion.declaration.parts import FormatSpec
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.errors import InvalidSpecError, counted
from oncelake.ingestion.formats import avro, json_schema, protobuf
from oncelake.ingestion.formats.decoder import BadBytesError
from oncelake.ingestion.formats.registry.columns import Types, column_types, embedded_types
from oncelake.ingestion.formats.registry.wire_format import HEADER_BYTES, id_headers, schema_id_of
from oncelake.ingestion.kafka.schema_registry import WriterSchema, registry_of
from oncelake.ingestion.operations.init.json_types import (
    DEBEZIUM,
    Guess,
    guess_columns,
    is_storable,
    parse,
)
from oncelake.ingestion.operations.init.sample import TopicSample
from oncelake.ingestion.settings import Settings, variable

# Most of a batch must be good, or its run stops.
_SHARE: Final = 0.8
_OBJECT, _OTHER_JSON, _FRAMED = "JSON objects", "JSON that is no object", "framed by a schema id"
_TEXT, _BYTES = "text that is no JSON", "bytes that are no text"
_IN_HEADER: Final = "payloads whose schema id is in a header"
_RAW: Final = "{{topic: {topic}, format: {format}, schema: value {type} NOT NULL, mode: append}}"
_DELIMITERS: Final = (",", ";", "\t", "|")
_WHOLE: Final = dict.fromkeys(("TINYINT", "SMALLINT", "INT"), "BIGINT")
# Each is a request. Bytes that only look framed have a random one in every record.
_MOST_IDS: Final = 100
# What a registry calls its schemas, and the format of their records.
FORMATS_OF_SCHEMAS: Final = {"AVRO": "avro", "JSON": "json_schema", "PROTOBUF": "protobuf"}
_NAMES: Final = {
    "AVRO": avro.record_name,
    "JSON": json_schema.title,
    "PROTOBUF": protobuf.full_name,
}
_DEBEZIUM_IN_AVRO: Final = {"encoding": "avro"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Detected:
    """The format of a sample.

    Attributes:
        type: The format's name.
        why: Why it is proposed.
        columns: What is proposed for each field of the records.
        options: The format's options.
        record: The record type that is meant, in a topic of several.
    """

    type: str
    why: str
    columns: Mapping[str, Guess]
    options: Mapping[str, Any] = field(default_factory=dict)
    record: str | None = None

    @property
    def lenient(self) -> dict[str, str]:
        """The columns some of whose values are written as another type, as ``types`` has them."""
        return {name: "lenient" for name, guess in self.columns.items() if guess.is_lenient}

    def declared(self, **more: Any) -> Any:
        """Return what a declaration says of the format, with more options."""
        options = {**self.options, **more}
        return {"type": self.type, **options} if options else self.type


def detect_format(sample: TopicSample, settings: Settings) -> Detected:
    """Find out the format.

    Raises:
        InvalidSpecError: no one format fits; says what was found and what to write instead.
        DependencyError: the schema registry does not answer.
    """
    raws = ((each.value, each.headers) for each in sample.records)
    values = [(_kind(value, headers), value) for value, headers in raws if value is not None]
    if not values:
        _refuse(sample, "every value is null", "sample more of them with --sample")
    kinds = Counter(kind for kind, _ in values)
    (kind, count), *_ = kinds.most_common()
    if count < _SHARE * len(values):
        found = ", ".join(f"{kind} ({number:,})" for kind, number in kinds.most_common())
        _refuse(sample, f"there are {found}: no format fits all", _by_hand(sample, "raw", "BINARY"))
    of_kind = [value for each, value in values if each == kind]
    if kind == _FRAMED:
        return _framed(of_kind, sample, settings)
    if kind == _OBJECT:
        are = counted(len(values), "value is a JSON object", "values are JSON objects")
        return _json([*map(parse, of_kind)], f"{count:,} of {are}")
    remedy = _by_hand(sample, "raw", "BINARY")
    if kind == _IN_HEADER:
        remedy = f"declare the format by hand (docs/formats.md, Ids in headers), or {remedy}"
    elif kind != _BYTES:
        remedy = f"{_by_hand(sample, 'string', 'STRING')}{_as_csv(sample.topic, of_kind)}"
    return _refuse(sample, f"the values are {kind}", remedy)


def writer_schemas(raws: Iterable[bytes | None], settings: Settings) -> dict[int, WriterSchema]:
    """Return the registry's schemas of framed bytes, the newest first; none without a registry."""
    ids = Counter(number for raw in raws if (number := schema_id_of(raw)) is not None)
    if not ids or not settings.schema_registry:
        return {}
    found = registry_of(settings).schemas(number for number, _ in ids.most_common(_MOST_IDS))
    return {number: protobuf.prepared(found[number]) for number in sorted(found, reverse=True)}


def objects_in(raws: Iterable[bytes | None], type_: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects among some bytes; with ``json_schema`` behind their frames."""
    for raw in raws:
        if raw is None:
            continue
        with suppress(BadBytesError):
            found = parse(raw[HEADER_BYTES:] if type_ == "json_schema" else raw)
            if type(found) is dict:
                yield found


def _kind(raw: bytes, headers: Iterable[tuple[str, bytes | None]]) -> str:
    """Tell the kind of a value; JSON is JSON, wherever the id of its schema is."""
    kind = _FRAMED
    if schema_id_of(raw) is None:
        try:
            return _OBJECT if type(parse(raw)) is dict else _OTHER_JSON
        except BadBytesError as error:
            kind = _BYTES if error.reason == "invalid_utf8" or b"\0" in raw else _TEXT
    return _IN_HEADER if {name for name, _ in headers} & {*id_headers(is_key=False)} else kind


def _json(objects: Sequence[dict[str, Any]], found: str) -> Detected:
    """Tell events of Debezium from plain objects."""
    payloads = [each["payload"] for each in objects if each.keys() == {"schema", "payload"}]
    with_schemas = sum(map(_is_envelope, payloads))
    if with_schemas >= _SHARE * len(objects):
        schemas = [each["schema"] for each in reversed(objects) if "schema" in each]
        columns = _columns(map(embedded_types, schemas))
        why = f"{found} with a schema beside a change of Debezium; the types are that schema's"
        return Detected(type="debezium", why=why, columns=columns, options={"schemas": True})
    envelopes = [each for each in objects if _is_envelope(each)]
    sides = (each.get("after") or each.get("before") for each in envelopes)
    rows = [row for row in sides if type(row) is dict]
    # MongoDB's rows are texts.
    if not rows or len(envelopes) < _SHARE * len(objects):
        return Detected(type="json", why=found, columns=guess_columns(objects))
    columns = guess_columns(rows, DEBEZIUM)
    why = f"{found} of Debezium (`op`, `before`, `after`), without schemas, so that a number may "
    why += "stand for a date or a time: see its options in docs/debezium.md"
    return Detected(type="debezium", why=why, columns=columns)


def _is_envelope(value: Any) -> bool:
    names = value.keys() if type(value) is dict else ()
    return "op" in names and bool({"before", "after", "source"} & set(names))


def _columns(newest_first: Iterable[Types]) -> dict[str, Guess]:
    """Propose columns for the fields of schemas, in the order and with the types of the newest."""
    types: dict[str, SqlType | None] = {}
    for each in newest_first:
        types = {**types, **each, **types}
    return {name: _guess_of(name, type_) for name, type_ in types.items()}


def _guess_of(name: str, type_: SqlType | None) -> Guess:
    """Propose a column for a field, a whole number as BIGINT, which all fit."""
    if trouble := name_trouble(name):
        return Guess(None, trouble)
    is_held = type_ is not None and is_storable(type_)
    return Guess(type_.with_words(_WHOLE)) if type_ and is_held else Guess(None, NO_TYPE)


def _framed(values: Sequence[bytes], sample: TopicSample, settings: Settings) -> Detected:
    if not settings.schema_registry:
        name = variable("schema_registry")
        problem = (
            f"values begin with a schema id ({schema_id_of(values[-1])}), and {name} is not set"
        )
        _refuse(sample, problem, f"set {name} to the registry's address, and run the same command")
    schemas = writer_schemas(values, settings)
    type_, why = _type_of_schemas(values, schemas, sample, settings)
    schemas = {number: each for number, each in schemas.items() if each.type == type_}
    names = [*_full_names(values, schemas)]
    (record, *others) = Counter(filter(None, names)).most_common() or [("", 0)]
    if others:
        values = [raw for raw, name in zip(values, names, strict=True) if name == record[0]]
    ids = {*map(schema_id_of, values)}
    own = [each for number, each in schemas.items() if number in ids]
    if type_ == "JSON":
        columns = guess_columns(objects_in(values, "json_schema"))
        found = Detected(type="json_schema", why=why, columns=columns)
    else:
        found = _described(own, [*filter(None, record[:1])], sample, why)
    if not others:
        return found
    told = ", ".join(f"{name} ({number:,})" for name, number in others)
    are = counted(record[1], "is a record", "are records")
    why = f"{found.why}; {are} of type {record[0]}, and others are filtered: {told}"
    return replace(found, why=f"{why}; a stream of its own may read each", record=record[0])


def _type_of_schemas(
    values: Sequence[bytes],
    schemas: dict[int, WriterSchema],
    sample: TopicSample,
    settings: Settings,
) -> tuple[str, str]:
    """Return the type of the schemas of most values, and how many have one."""
    ids = map(schema_id_of, values)
    types = Counter(schemas[number].type for number in ids if number in schemas)
    (type_, count), *_ = types.most_common() or [("", 0)]
    if count < _SHARE * len(values):
        at = f"the registry at {settings.schema_registry}"
        of = counted(len(values), "value")
        problem = f"{at} knows the schema ids of only {types.total():,} of {of}"
        if types.total() >= _SHARE * len(values):
            problem = f"the schemas are of several types: {', '.join(types)}"
        _refuse(sample, problem, _by_hand(sample, "raw", "BINARY"))
    have = counted(len(values), "value has", "values have")
    return type_, f"{count:,} of {have} an id of a schema of {type_} in the registry"


def _full_names(
    values: Iterable[bytes], schemas: Mapping[int, WriterSchema]
) -> Iterator[str | None]:
    """Yield the full name of the record type of each value, where it has one."""
    naming = cache(lambda number: _NAMES[schemas[number].type](schemas[number]))
    for raw in values:
        name = None
        with suppress(BadBytesError, KeyError):
            name = naming(schema_id_of(raw))(raw[HEADER_BYTES:])
        yield name


def _described(
    schemas: Sequence[WriterSchema], names: Sequence[str], sample: TopicSample, why: str
) -> Detected:
    """Propose the columns of the newest schema, and those that only older ones have."""
    format_ = FormatSpec(type=FORMATS_OF_SCHEMAS[schemas[0].type])
    types = [*_types_of(schemas, format_, names)]
    why += f"; the types are those of schema {schemas[0].id}"
    if types and {"op", "before", "after"} <= types[0].keys():
        format_ = FormatSpec.model_validate({"type": "debezium", **_DEBEZIUM_IN_AVRO})
        types = [*_types_of(schemas, format_, names)]
        why += ", which is Debezium's (`op`, `before`, `after`)"
    if not any(types):
        problem = f"schema {schemas[0].id} is no record that can be read"
        _refuse(sample, problem, _by_hand(sample, "raw", "BINARY"))
    options = _DEBEZIUM_IN_AVRO if format_.type == "debezium" else {}
    return Detected(type=format_.type, why=why, columns=_columns(types), options=options)


def _types_of(
    schemas: Iterable[WriterSchema], format_: FormatSpec, names: Sequence[str]
) -> Iterator[Types]:
    """Yield the types of the fields by each schema that can be used."""
    for each in schemas:
        with suppress(BadBytesError):
            yield column_types(each, format_, names)


def _by_hand(sample: TopicSample, format_: str, type_: str) -> str:
    declared = _RAW.format(topic=sample.topic, format=format_, type=type_)
    return f"declare them by hand; a stream's file that keeps them unchanged is {declared}"


def _as_csv(topic: str, values: Sequence[bytes]) -> str:
    """Return a declaration of the same as CSV, if each text has as many separators."""
    for delimiter in _DELIMITERS:
        fields = {value.count(delimiter.encode()) + 1 for value in values}
        if len(fields) == 1 and fields != {1}:
            of_csv = "csv" if delimiter == "," else f'{{type: csv, delimiter: "{delimiter}"}}'
            columns = ", ".join(f"c{number} STRING" for number in range(1, fields.pop() + 1))
            file = f'{{topic: {topic}, format: {of_csv}, schema: "{columns}", mode: append}}'
            return f"; or, with names and types of your own, as lines of CSV: {file}"
    return ""


def _refuse(sample: TopicSample, problem: str, remedy: str) -> NoReturn:
    read = f"of {counted(len(sample.records), 'sampled record')}"
    raise InvalidSpecError(f"topic {sample.topic!r}: {read}, {problem}. Next: {remedy}")
