"""Which format the values of a sample have, and which columns they would fill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn

from oncelake.ingestion.declaration.derived import NO_TYPE
from oncelake.ingestion.declaration.names import name_trouble
from oncelake.ingestion.errors import InvalidSpecError, counted
from oncelake.ingestion.formats import avro, json_schema
from oncelake.ingestion.formats.avro.types import fields, is_record, record_in
from oncelake.ingestion.formats.decoder import BadBytesError
from oncelake.ingestion.formats.schema_columns import Types, avro_types, connect_types, row_fields
from oncelake.ingestion.formats.wire_format import HEADER_BYTES, id_headers, schema_id_of
from oncelake.ingestion.kafka.schema_registry import WriterSchema, registry_of
from oncelake.ingestion.operations.init.json_types import (
    DEBEZIUM,
    Guess,
    guess_columns,
    is_storable,
    parse,
)
from oncelake.ingestion.operations.init.sample import SampledRecord, TopicSample
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


def detect_format(sample: TopicSample, settings: Settings) -> Detected:
    """Find out the format.

    Raises:
        InvalidSpecError: no one format fits; says what was found and what to write instead.
        DependencyError: the schema registry does not answer.
    """
    records = [each for each in sample.records if each.value is not None]
    values = [each.value for each in records if each.value is not None]
    if not values:
        _refuse(sample, "every value is null", "sample more of them with --sample")
    kinds = Counter(map(_kind_of_record, records))
    (kind, count), *_ = kinds.most_common()
    if count < _SHARE * len(values):
        found = ", ".join(f"{kind} ({number:,})" for kind, number in kinds.most_common())
        _refuse(sample, f"there are {found}: no format fits all", _by_hand(sample, "raw", "BINARY"))
    if kind == _FRAMED:
        return _framed([each for each in values if _kind(each) == kind], sample, settings)
    if kind == _OBJECT:
        are = counted(len(values), "value is a JSON object", "values are JSON objects")
        found = f"{count:,} of {are}"
        return _json([parse(each) for each in values if _kind(each) == kind], found)
    remedy = _by_hand(sample, "raw", "BINARY")
    if kind == _IN_HEADER:
        remedy = f"declare the format by hand (docs/formats.md, Ids in headers), or {remedy}"
    elif kind != _BYTES:
        remedy = f"{_by_hand(sample, 'string', 'STRING')}{_as_csv(sample.topic, values)}"
    return _refuse(sample, f"the values are {kind}", remedy)


def writer_schemas(raws: Iterable[bytes | None], settings: Settings) -> dict[int, WriterSchema]:
    """Return the registry's schemas of framed bytes, the newest first; none without a registry."""
    ids = Counter(number for raw in raws if (number := schema_id_of(raw)) is not None)
    if not ids or not settings.schema_registry:
        return {}
    found = registry_of(settings).schemas(number for number, _ in ids.most_common(_MOST_IDS))
    return {number: found[number] for number in sorted(found, reverse=True)}


def objects_in(raws: Iterable[bytes | None], type_: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects among some bytes; with ``json_schema`` behind their frames."""
    for raw in raws:
        if raw is None:
            continue
        with suppress(BadBytesError):
            found = parse(raw[HEADER_BYTES:] if type_ == "json_schema" else raw)
            if type(found) is dict:
                yield found


def avro_root(schema: WriterSchema) -> Any:
    """Return the type of a schema of Avro, with all names expanded; ``None`` if it is unusable."""
    with suppress(BadBytesError):
        return avro.parsed(schema)[1]
    return None


def _kind_of_record(record: SampledRecord) -> str:
    """Tell the kind of a value; JSON is JSON, wherever the id of its schema is."""
    assert record.value is not None, "asked of values"
    kind = _kind(record.value)
    is_elsewhere = {name for name, _ in record.headers} & {*id_headers(is_key=False)}
    return _IN_HEADER if is_elsewhere and kind not in (_OBJECT, _OTHER_JSON) else kind


def _kind(raw: bytes) -> str:
    if schema_id_of(raw) is not None:
        return _FRAMED
    try:
        return _OBJECT if type(parse(raw)) is dict else _OTHER_JSON
    except BadBytesError as error:
        return _BYTES if error.reason == "invalid_utf8" or b"\0" in raw else _TEXT


def _json(objects: Sequence[dict[str, Any]], found: str) -> Detected:
    """Tell events of Debezium from plain objects."""
    payloads = [each["payload"] for each in objects if each.keys() == {"schema", "payload"}]
    with_schemas = sum(map(_is_envelope, payloads))
    if with_schemas >= _SHARE * len(objects):
        schemas = [each["schema"] for each in reversed(objects) if "schema" in each]
        columns = _merged(_guesses(connect_types(row_fields(each))) for each in schemas)
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


def _guesses(types: Types) -> dict[str, Guess]:
    """Propose columns for the fields of a schema, whole numbers as BIGINT, which they all fit."""
    guesses = {}
    for name, type_ in types.items():
        trouble = name_trouble(name)
        is_held = type_ is not None and is_storable(type_)
        guess = type_.with_words(_WHOLE) if type_ is not None and is_held else None
        guesses[name] = Guess(None, trouble) if trouble else Guess(guess, "" if guess else NO_TYPE)
    return guesses


def _framed(values: Sequence[bytes], sample: TopicSample, settings: Settings) -> Detected:
    if not settings.schema_registry:
        name = variable("schema_registry")
        problem = (
            f"values begin with a schema id ({schema_id_of(values[-1])}), and {name} is not set"
        )
        _refuse(sample, problem, f"set {name} to the registry's address, and run the same command")
    schemas = writer_schemas(values, settings)
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
    why = f"{count:,} of {have} an id of a schema of {type_} in the registry"
    own = {number: each for number, each in schemas.items() if each.type == type_}
    own, record, others = _of_one_type(own, values)
    if type_ == "AVRO":
        newest = next(iter(own.values()))
        found = _avro([*own.values()], sample, f"{why}; the types are those of schema {newest.id}")
        return replace(found, why=found.why + others, record=record)
    if type_ == "JSON":
        columns = guess_columns(
            objects_in((raw for raw in values if schema_id_of(raw) in own), "json_schema")
        )
        return Detected(type="json_schema", why=why + others, columns=columns, record=record)
    remedy = "declare `format: protobuf` and the columns by hand: docs/formats.md#protobuf"
    return _refuse(sample, f"the schemas are of {type_}, of which no columns are proposed", remedy)


def _of_one_type(
    schemas: Mapping[int, WriterSchema], values: Sequence[bytes]
) -> tuple[dict[int, WriterSchema], str | None, str]:
    """Return the schemas of the record type that most values have, its name, and the others."""
    names = {number: record_type(each) for number, each in schemas.items()}
    types = Counter(name for raw in values if (name := names.get(schema_id_of(raw) or 0)))
    if len(types) < 2:
        return dict(schemas), None, ""
    ((record, count), *others) = types.most_common()
    own = {number: each for number, each in schemas.items() if names[number] == record}
    told = ", ".join(f"{name} ({number:,})" for name, number in others)
    are = counted(count, "is a record", "are records")
    why = f"; {are} of type {record}, and others are filtered: {told}"
    return own, record, f"{why}; a stream of its own may read each"


def record_type(schema: WriterSchema) -> str | None:
    """Return the full name of the records that a schema describes, if it has one."""
    name = {"AVRO": avro.record_name, "JSON": json_schema.title}.get(schema.type)
    return name(schema)(b"") if name else None


def _avro(schemas: Sequence[WriterSchema], sample: TopicSample, why: str) -> Detected:
    """Propose the columns of the newest schema, and those that only older ones have."""
    roots = [root for root in map(avro_root, schemas) if root is not None and is_record(root)]
    if not roots:
        problem = f"schema {schemas[0].id} is no record that can be read"
        _refuse(sample, problem, _by_hand(sample, "raw", "BINARY"))
    if {"op", "before", "after"} <= fields(roots[0]).keys():
        rows = (record_in(fields(root).get("after")) for root in roots)
        columns = _merged(_guesses(avro_types(row)) for row in rows if row is not None)
        options = {"encoding": "avro"}
        why += ", which is Debezium's (`op`, `before`, `after`)"
        return Detected(type="debezium", why=why, columns=columns, options=options)
    return Detected(
        type="avro", why=why, columns=_merged(_guesses(avro_types(root)) for root in roots)
    )


def _merged(newest_first: Iterable[Mapping[str, Guess]]) -> dict[str, Guess]:
    merged: dict[str, Guess] = {}
    for each in newest_first:
        merged = {**merged, **{name: guess for name, guess in each.items() if name not in merged}}
    return merged


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
