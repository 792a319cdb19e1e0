"""How an audit reads a topic: as it was asked to, and else as ``init`` would propose."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pydantic import ValidationError

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_columns
from oncelake.ingestion.declaration.files.drafts import shown_path
from oncelake.ingestion.declaration.files.loader import load_stream
from oncelake.ingestion.declaration.files.yaml_reader import BadYamlError, read_tree
from oncelake.ingestion.declaration.names import hint, nearest_allowed
from oncelake.ingestion.declaration.rules.stream import JSON_FORMATS
from oncelake.ingestion.declaration.sinks import SINKS
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.operations.audit.foreign_table import ForeignTable
from oncelake.ingestion.operations.init.detect_format import objects_in
from oncelake.ingestion.operations.init.initialize import refuse_existing, write_text
from oncelake.ingestion.operations.init.propose import propose
from oncelake.ingestion.operations.init.sample import TopicSample, read_sample
from oncelake.ingestion.settings import Settings

MODES: Final = ("append", "upsert")
_SAMPLE: Final = 1_000
_WHOLE: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_FRACTIONS: Final = ("DOUBLE", "FLOAT", "DECIMAL")
_LENIENT: Final = (*_WHOLE, *_FRACTIONS, "STRING")
_WORDS: Final = (
    (pa.types.is_integer, "BIGINT"),
    (pa.types.is_floating, "DOUBLE"),
    (pa.types.is_boolean, "BOOLEAN"),
    (pa.types.is_date, "DATE"),
    (pa.types.is_timestamp, "TIMESTAMP"),
    (pa.types.is_string, "STRING"),
    (pa.types.is_large_string, "STRING"),
)
# Holds what any DECIMAL of a table can have been rounded from.
_EXACT: Final = SqlType(word="DECIMAL", precision=38, scale=18)
# What a file of a stream may say of the bytes of records.
_ABOUT_BYTES: Final = (
    *("format", "key_format", "types", "record", "from_headers", "header_format", "from_key"),
)
# What it may say between value and row, and an audit does not evaluate.
_BETWEEN: Final = ("where", "select", "transform", "explode", "value_ddl")


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditRequest:
    """The options of an audit: what is compared, and how.

    Attributes:
        table: As ``open_table`` takes it.
        keys: Columns that identify a row; proposed for an upsert where none are named.
        order: Columns that rank the records of a key; else their offsets do.
        schema: The columns of a value; proposed where it is left out.
        file: A stream's file that says all of this.
        keep: Where to write what was proposed, as such a file.
        since: Only records that Kafka dates this or later are read.
        until: Records before are due; without it, the table's own rows tell which are.
        grace: For how long before the newest record in the table others may be on their way.
        deletes: A condition of Spark SQL that selects the records which delete, beside null values.
        deleted_column: A column of the table that marks deleted rows.
        place: The table's columns that have a record's partition and offset.
        ignore_unreadable: So many records that cannot be read keep the table from no verdict.
    """

    table: str
    topic: str | None = None
    keys: Sequence[str] = ()
    order: Sequence[str] = ()
    schema: str | None = None
    mode: str | None = None
    format: str | None = None
    key_format: str | None = None
    file: Path | None = None
    keep: Path | None = None
    since: dt.datetime | None = None
    until: dt.datetime | None = None
    grace: dt.timedelta = dt.timedelta(minutes=10)
    deletes: str | None = None
    deleted_column: str | None = None
    place: Sequence[str] = ()
    ignore_unreadable: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How records are decoded, and which of their fields are which columns of the table.

    Attributes:
        spec: A declaration that decodes them; it has no order and no condition.
        deletes: A condition of Spark SQL that selects deletes.
        assumed: Fields that no record may have.
        columns: The table's columns by the fields that they are compared with.
        limits: What is not compared, as sentences.
    """

    spec: StreamSpec
    keys: tuple[str, ...]
    order: tuple[str, ...]
    deletes: str | None
    assumed: Sequence[str]
    columns: Mapping[str, str]
    limits: tuple[str, ...]


def plan_reading(request: AuditRequest, table: ForeignTable, settings: Settings) -> Reading:
    """Decide how the topic is read for a table.

    Raises:
        InvalidSpecError: an option is wrong, or the topic cannot be understood without one.
        DependencyError: Kafka or the schema registry does not answer.
    """
    if request.keep and (request.schema or request.file):
        raise InvalidSpecError(
            "--keep writes what is proposed. Next: leave out --schema and --file"
        )
    if len(request.place) not in (0, 2):
        raise InvalidSpecError(
            f"--offset-columns {','.join(request.place)}: not two names. Next: write the column of "
            "the partition and that of the offset, as kafka_partition,kafka_offset"
        )
    fields = _fields_of_file(request.file) if request.file else _fields(request, table, settings)
    try:
        columns = parse_columns(fields["schema"])
    except ValueError as error:
        raise InvalidSpecError(
            f"--schema: {error}. Next: write columns of Spark DDL, as 'id BIGINT, at TIMESTAMP'"
        ) from error
    names = [column.name for column in columns]
    keys = tuple(_named("--keys", each, names) for each in fields["keys"])
    order = tuple(_named("--order", each, [*names, "_timestamp"]) for each in fields["order"])
    if fields["mode"] == "upsert" and not keys:
        raise InvalidSpecError(
            f"{request.table}: nothing identifies a row. Next: name its columns with --keys, or "
            "say --mode append, if each record is a row of its own"
        )
    spec = _spec_of(fields, columns, keys)
    any_json = [column.name for column in columns if column.type.contains("VARIANT")]
    pairs = _pairs([name for name in names if name not in any_json], table.schema.names)
    for key in keys:
        if key not in pairs:
            problem = f"{table.where} has no such column"
            raise unknown_column("--keys", key, table.schema.names, problem)
    return Reading(
        spec=spec,
        keys=keys,
        order=order,
        deletes=request.deletes or fields.get("apply_as_deletes"),
        assumed=fields.get("assumed", ()),
        columns=pairs,
        limits=(*_limits(names, any_json, pairs, table), *fields.get("limits", ())),
    )


def _spec_of(
    fields: Mapping[str, Any], columns: Sequence[DeclaredColumn], keys: tuple[str, ...]
) -> StreamSpec:
    """Return a declaration that decodes the records; only an upsert needs its keys."""
    is_upsert = fields["mode"] == "upsert"
    required = {*keys} if is_upsert else set[str]()
    more = {name: fields[name] for name in _ABOUT_BYTES if fields.get(name)}
    given = {
        "name": nearest_allowed(fields["topic"]),
        "topic": fields["topic"],
        "schema": ", ".join(replace(c, nullable=c.name not in required).as_ddl() for c in columns),
        "mode": fields["mode"],
        **more,
        **({"keys": keys} if is_upsert else {"tombstones": "ignore"}),
    }
    try:
        return StreamSpec.model_validate(given)
    except ValidationError as error:
        problems = "; ".join(dict.fromkeys(each["msg"] for each in error.errors()))
        raise InvalidSpecError(
            f"the topic cannot be read so: {problems.removeprefix('Value error, ')}. Next: correct "
            "--schema, --keys, --format or --key-format"
        ) from error


def _fields_of_file(file: Path) -> dict[str, Any]:
    spec, where = load_stream(file), shown_path(file)
    if between := [name for name in _BETWEEN if getattr(spec, name)]:
        raise InvalidSpecError(
            f"{where}: an audit does not evaluate {', '.join(between)}. Next: audit the columns of "
            "the value alone, by --topic, --schema and --keys"
        )
    if spec.mode not in MODES or spec.topic is None:
        raise InvalidSpecError(
            f"{where}: an audit takes one `topic`, and `mode: append` or `upsert`. Next: say "
            "--topic and --mode, without --file"
        )
    said = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return {**said, "mode": spec.mode, "keys": spec.keys, "order": spec.sequence_by}


def _fields(request: AuditRequest, table: ForeignTable, settings: Settings) -> dict[str, Any]:
    """Return the fields of a declaration, by the options and, without a schema, by a sample."""
    if request.topic is None:
        raise InvalidSpecError("nothing says which topic. Next: --topic NAME, or --file FILE")
    if request.schema:
        asked = {"format": request.format, "key_format": request.key_format}
        return {
            **{name: _format(text) for name, text in asked.items() if text},
            "topic": request.topic,
            "schema": request.schema,
            "keys": request.keys,
            "order": request.order,
            "mode": request.mode or ("upsert" if request.keys else "append"),
        }
    if request.format or request.key_format:
        raise InvalidSpecError(
            "a format says nothing of the columns. Next: name them with --schema, too, or "
            "leave out --format and --key-format, to have all of it proposed"
        )
    return _propose(request, request.topic, table, settings)


def _format(text: str) -> Any:
    """Return a format as a file declares it: its name, or a map with its options."""
    try:
        return read_tree(text).content
    except BadYamlError as error:
        raise InvalidSpecError(
            f"{text!r} is no format: {error}. Next: write its name, or {{type: …}} with its options"
        ) from None


def _propose(
    request: AuditRequest, topic: str, table: ForeignTable, settings: Settings
) -> dict[str, Any]:
    """Let ``init`` propose a declaration, and take the types that the table compares with."""
    if request.keep:
        refuse_existing(request.keep)
    sample = read_sample(topic, _SAMPLE, settings)
    proposal = propose(nearest_allowed(topic), sample, settings)
    fields = proposal.fields
    # A field whose name no table can have is none of its columns.
    renamed, _ = fields.pop("select", {}), fields.pop("value_schema", None)
    columns = [each for each in parse_columns(fields["schema"]) if each.name not in renamed]
    assumed: list[str] = []
    format_ = fields["format"]
    if (format_ if isinstance(format_, str) else format_["type"]) in JSON_FORMATS:
        columns, assumed = _as_compared(columns, table, sample)
        numbers_and_texts = [c.name for c in columns if c.type.word in _LENIENT]
        proposal.add("types", dict.fromkeys(numbers_and_texts, "lenient"))
    proposal.add("schema", ", ".join(column.as_ddl() for column in columns))
    mode = request.mode or ("upsert" if request.keys else fields.pop("mode", "upsert"))
    proposed = fields.pop("keys", ()) if mode == "upsert" else ()
    if request.keep:
        proposal.add("mode", mode)
        proposal.add("keys", [*(request.keys or proposed)])
        request.keep.write_text(write_text(proposal, sample), encoding="utf-8")
    chosen = {"mode": mode, "keys": request.keys or proposed, "order": request.order}
    chosen["assumed"] = assumed
    if (condition := fields.pop("apply_as_deletes", None)) and not request.deletes:
        # Whether the table's tool took it for one, only its owner knows.
        limit = f'records with {condition} are rows like others; --deletes "{condition}" if not'
        chosen["limits"] = (limit,)
    return {**fields, **chosen}


def _as_compared(
    columns: Sequence[DeclaredColumn], table: ForeignTable, sample: TopicSample
) -> tuple[list[DeclaredColumn], list[str]]:
    """Return columns of JSON that lose nothing which the table's can have, and which are assumed.

    What the sample showed may be narrower than what other records hold. Of a column of the table
    that no value was seen for, older records may have some.
    """
    types = {each.name: _type_of(each.type) for each in table.schema}
    types |= dict.fromkeys(table.casts, _EXACT)
    pairs = _pairs([column.name for column in columns], [*types])
    values = [each.value for each in sample.records]
    objects = [*objects_in(values, "json")]
    compared = []
    for column in columns:
        if column.type.word == "VARIANT" and _has_containers(column.name, objects):
            compared.append(column)
            continue
        word, stored = column.type.word, types.get(pairs.get(column.name, ""))
        type_ = SqlType(word="BIGINT") if word in _WHOLE else column.type
        is_number = word in (*_WHOLE, *_FRACTIONS)
        is_wider = stored and (stored.word in _FRACTIONS if is_number else stored.word == "STRING")
        if stored and (is_wider or (is_number and stored.word == "STRING")):
            type_ = type_ if column.type.parts else stored
        compared.append(replace(column, type=type_))
    names = {name.casefold(): name for each in objects for name in each}
    assumed = {
        names.get(name.casefold(), name): type_
        for name, type_ in types.items()
        if type_ and name not in {*pairs.values()}
        # Only such names can be declared.
        if not (name.startswith("_") or SINKS["delta"].refused_name(name, type_))
    }
    compared += [
        DeclaredColumn(name=name, type=type_, nullable=True, comment="")
        for name, type_ in assumed.items()
    ]
    return compared, [*assumed]


def _has_containers(name: str, objects: Iterable[Mapping[str, Any]]) -> bool:
    """Tell whether a field has lists or objects, which no text of the table is compared with."""
    return any(isinstance(each.get(name), dict | list) for each in objects)


def _type_of(stored: pa.DataType) -> SqlType | None:
    """Return the type by which a value of JSON becomes one of a table's column."""
    if pa.types.is_decimal(stored):
        return _EXACT
    words = (word for is_of, word in _WORDS if is_of(stored))
    return next((SqlType(word=word) for word in words), None)


def _named(option: str, name: str, names: Sequence[str]) -> str:
    """Return the field that an option names, in whatever case."""
    if name in names:
        return name
    found = [each for each in names if each.casefold() == name.casefold()]
    if len(found) != 1:
        raise unknown_column(option, name, names, "the records have no such field")
    return found[0]


def unknown_column(option: str, name: str, names: Sequence[str], problem: str) -> InvalidSpecError:
    """Return the error of an option that names a column which is not there."""
    meant = hint(name, names) or f"; there are: {', '.join(names)}."
    return InvalidSpecError(f"{option} {name}: {problem}{meant} Next: correct {option}")


def _pairs(names: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    """Return the table's column of each field that has one: of its name, else in another case."""
    by_case = Counter(name.casefold() for name in columns)
    # A column that a field is called exactly like is of no other field.
    other = {
        each.casefold(): each
        for each in columns
        if by_case[each.casefold()] == 1 and each not in names
    }
    pairs = {name: name if name in columns else other.get(name.casefold()) for name in names}
    return {name: column for name, column in pairs.items() if column is not None}


def _limits(
    names: Sequence[str], any_json: Sequence[str], pairs: Mapping[str, str], table: ForeignTable
) -> Iterator[str]:
    of_json = _pairs(any_json, table.schema.names)
    known = {*pairs, *of_json, *table.incomparable}
    if absent := [name for name in names if name not in known]:
        yield f"the table has no column for {', '.join(absent)}"
    if of_json:
        yield f"values of any type are not compared: {', '.join(of_json)}"
    compared = {*pairs.values(), *of_json.values()}
    if besides := [name for name in table.schema.names if name not in compared]:
        yield f"records have no value for {', '.join(besides)}"
    if table.incomparable:
        yield f"the types of {', '.join(table.incomparable)} cannot be compared"
