"""The plan of a stream: what each stage before the commit takes of the declaration.

It is compiled once a run, and again when a schema that comes with the records has changed the
columns. A stage takes its own part, so that this page shows which field reaches which stage. What
only a batch tells (the registry's schemas of its ids, the offsets that the table has, the table's
constraints) is no part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final, TypeVar, cast

from pyspark.sql.types import StructField, StructType

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.formats import FORMATS, Header
from oncelake.ingestion.declaration.modes import EXTRA_COLUMN, TIME_COLUMN, Mode
from oncelake.ingestion.declaration.parts import TombstonePolicy, Unavailable, Window
from oncelake.ingestion.declaration.routes import Route
from oncelake.ingestion.declaration.rules.stream import JSON_FORMATS
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.sql import asks_for
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.formats.decoder import Encoded, decoded_struct
from oncelake.ingestion.formats.decoding import Decoding
from oncelake.ingestion.formats.route import ELSEWHERE, UNROUTED, plan_routing
from oncelake.ingestion.pipeline.schema.types import row_type, type_of_columns

# The column with the keys of null values, and of no others.
TOMBSTONE_KEY: Final = "_tombstone_key"
# The columns of what decoding found whose names in validation are others.
_FINDINGS: Final = {
    "reason": "_wrong",
    "detail": "_wrong_detail",
    "is_delete": "_says_delete",
    "kept": EXTRA_COLUMN,
}
# Types whose values have any length.
_HAVE_LENGTH: Final = ("STRING", "VARCHAR", "BINARY")
_Part = TypeVar("_Part")


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodePlan:
    """How the bytes of records become typed columns, but for the schemas of a registry.

    Attributes:
        value: How values are decoded, with their headers and keys, and which of them are.
        tombstone_key: How the Kafka keys of null values are, where these delete.
        explode: The array of which each element is a row.
        reads_ids: Whether the ids of a registry's schemas are read from the records first.
    """

    value: Decoding
    tombstone_key: Decoding | None
    explode: str | None
    reads_ids: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class _EventsPlan:
    """What of the rows between decoding and the decision depends on the declaration.

    Attributes:
        findings: The fields of what decoding found, by the columns that they are in validation.
        is_transformed: Whether the row is computed from the value.
        moved_by: Columns of a value that make the key, where an update may move its row.
        record: The record types that are meant; none where any is.
        required_value_columns: Columns that a value may not leave out, but for key and order.
        leaves_by_where: Whether what ``where`` leaves out deletes the row of its key.
        leaves_by_route: Whether a change of a row whose route is another table's does.
    """

    explode: str | None
    findings: Mapping[str, str]
    is_transformed: bool
    leaves_by_route: bool
    leaves_by_where: bool
    moved_by: tuple[str, ...]
    record: tuple[str, ...]
    required_value_columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsPlan(_EventsPlan):
    """How values become rows: ``where`` and ``select``, or a function.

    Attributes:
        name: The stream's, for errors.
        asked: The value's columns as statements read them, one an element where exploded.
        row: The table's columns as statements make them.
        made: Those of the table that are not as decoding gave them, which fits already.
        record_names: What statements may read of the record.
        origin: Columns by which a row is found again behind a function.
        transform: The name of the function.
        leaving_columns: Columns of a row that leaves by ``where``.
        ignore_null_updates: Whether a row stays where ``where`` does not say.
    """

    name: str
    asked: tuple[DeclaredColumn, ...]
    row: tuple[DeclaredColumn, ...]
    made: tuple[DeclaredColumn, ...]
    record_names: tuple[str, ...]
    origin: tuple[str, ...]
    where: str | None
    select: Mapping[str, str]
    transform: str | None
    leaving_columns: tuple[str, ...]
    ignore_null_updates: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgePlan(_EventsPlan):
    """What the rules of a batch are written from.

    Attributes:
        not_own: Reasons of records that are no business of this stream.
        needed: Columns that may not be null: of key and order, and those that are required.
        never_null: Columns without which a record belongs to no row.
        measured_keys: Columns of the key that the sink does not take of any length.
        longest_key: How many bytes of these it takes together.
        why_tombstones_wait: The reason of a null value that waits in quarantine.
        tombstone_columns: The columns that a null value has by its Kafka key and its headers.
        unavailable: What becomes of a column that a record leaves out.
        movable: Columns that a row takes along to another key.
        settles_moves: Whether it is looked up which row a move takes.
        routed_by: The column that has a row's route, where the row before a move may tell its own.
        is_made_of_time: Whether ``where``, ``select`` or the function may read the record's time.
        is_selected_by_time: Whether ``where`` or the function may.
    """

    types: Mapping[str, SqlType]
    keys: tuple[str, ...]
    sequence_by: tuple[str, ...]
    needed: tuple[str, ...]
    never_null: tuple[str, ...]
    measured_keys: tuple[str, ...]
    longest_key: int
    window: Window | None
    apply_as_deletes: str | None
    write_mode: Mode
    deletes: str
    tombstone_policy: TombstonePolicy
    why_tombstones_wait: str
    tombstone_columns: tuple[str, ...]
    unavailable: Unavailable | None
    movable: tuple[str, ...]
    settles_moves: bool
    route: Route | None
    not_own: tuple[str, ...]
    routed_by: str | None
    is_made_of_time: bool
    is_selected_by_time: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamPlan:
    """A declaration, compiled: a part for each stage."""

    decode: DecodePlan
    rows: RowsPlan
    judge: JudgePlan


def compile_plan(spec: StreamSpec) -> StreamPlan:
    """Compile a declaration whose columns Spark understands; see ``refuse_bad_condition``."""
    decode = _decode_plan(spec)
    found = (name for name in decoded_struct(decode.value.encoded).names if name != "row")
    findings = {_FINDINGS.get(name, f"_{name}"): name for name in found}
    rows, judge = _rows_plan(spec, findings), _judge_plan(spec, findings)
    return StreamPlan(decode=decode, rows=rows, judge=judge)


def _decode_plan(spec: StreamSpec) -> DecodePlan:
    declared = row_type(spec.ddl)
    given = [*declared, *(row_type(spec.value_ddl) if spec.value_ddl else ())]
    schema = _struct(given, (column.name for column in spec.value_columns))
    options, of_key, route = spec.format.options, spec.key_format, spec.route
    whole, kept = spec.whole_columns, spec.keys if spec.unavailable == "keep" else ()
    encoded = _part(
        Encoded, spec, schema=schema, is_key=False, options=options, whole=whole, keys=kept
    )
    lenient = spec.lenient.intersection(spec.key_columns if of_key.type in JSON_FORMATS else ())
    encode_key = partial(
        Encoded, is_key=True, options=of_key.options, extra_fields="ignore", lenient=lenient
    )
    decode_key = partial(Decoding, module=FORMATS[of_key.type].module)
    key = tombstone_key = None
    if spec.from_key:
        encoded_key = encode_key(schema=_struct(schema, spec.key_columns))
        key = decode_key(encoded=encoded_key, column="_key")
    headers = {n: Header(h, spec.header_format.get(n)) for n, h in spec.from_headers.items()}
    if spec.tombstone_policy == "delete":
        of_tombstones = {n: h for n, h in headers.items() if n in spec.tombstone_columns}
        # Among columns of values and the table.
        columns = _struct([*schema, *declared], (*spec.key_columns, *of_tombstones))
        tombstone_key = decode_key(
            encoded=encode_key(schema=columns), column=TOMBSTONE_KEY, headers=of_tombstones
        )
    module = FORMATS[spec.format.type].module
    routing = plan_routing(route, encoded, type_of_columns(route.columns)) if route else None
    value = Decoding(
        module=module, encoded=encoded, column="_value", headers=headers, key=key, routing=routing
    )
    reads_ids = options.uses_registry or of_key.options.uses_registry
    return _part(DecodePlan, spec, value=value, tombstone_key=tombstone_key, reads_ids=reads_ids)


def _struct(given: Iterable[StructField], names: Iterable[str]) -> StructType:
    """Return the fields of some names, of those that share one the last."""
    fields = {each.name: each for each in given}
    return StructType([fields[name] for name in names])


def _rows_plan(spec: StreamSpec, findings: Mapping[str, str]) -> RowsPlan:
    asked, row = spec.in_statements(spec.exploded_columns), spec.in_statements(spec.columns)
    given = {column.name: column.type for column in spec.exploded_columns}
    computed = spec.types if spec.transform else spec.select
    made = (c for c in spec.columns if c.name in computed or given[c.name] != c.type)
    return _part(RowsPlan, spec, findings=findings, asked=(*asked,), row=(*row,), made=(*made,))


def _judge_plan(spec: StreamSpec, findings: Mapping[str, str]) -> JudgePlan:
    required = (column.name for column in spec.columns if not column.nullable)
    longest_key = spec.sink.kind.longest_key
    measured = [name for name in spec.keys if spec.types[name].word in _HAVE_LENGTH]
    why = "tombstone_quarantined" if spec.tombstones_have_an_order else "tombstone_without_order"
    why = why if spec.tombstones_have_a_key else "tombstone_without_key"
    others = [ELSEWHERE] if spec.route else []
    others += [UNROUTED] if spec.route and spec.route.of_unrouted == "ignore" else []
    texts = (spec.where, *spec.select.values()) if TIME_COLUMN in spec.record_names else (None,)
    by_where, *by_select = [asks_for(TIME_COLUMN, text) for text in texts]
    by_time = by_where or spec.transform is not None
    return _part(
        JudgePlan,
        spec,
        findings=findings,
        needed=tuple(dict.fromkeys((*spec.never_null, *spec.sequence_by, *required))),
        measured_keys=tuple(measured) if longest_key else (),
        longest_key=longest_key,
        why_tombstones_wait=why if spec.write_mode.has_deletes else "unexpected_tombstone",
        not_own=(*others,),
        is_made_of_time=by_time or any(by_select),
        is_selected_by_time=by_time,
    )


def _part(part: type[_Part], spec: StreamSpec, **made: Any) -> _Part:
    """Make a part of what is given, and what the declaration has by the names of its fields."""
    names = [field.name for field in fields(cast("Any", part)) if field.name not in made]
    return part(**{name: getattr(spec, name) for name in names if hasattr(spec, name)}, **made)
