"""The declaration of one stream: a topic (or topics) into one table.

Whatever can be known to be wrong is refused here, when the file is loaded, and not in the middle of
a run. ``ingestion.declaration.files.loader`` reads the files; the JSON Schema comes from here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from pydantic import model_validator

from oncelake.ingestion.declaration.aggregates import aggregate_columns, aggregate_rule
from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_columns
from oncelake.ingestion.declaration.derived import as_ddl, united
from oncelake.ingestion.declaration.fields import NOT_WRITTEN, Declaration
from oncelake.ingestion.declaration.modes import (
    COORDINATES,
    CURRENT,
    DELETED_COLUMN,
    EXTRA_COLUMN,
    INDEX_COLUMN,
    MODES,
    VALID_FROM,
    VALID_TO,
    Mode,
)
from oncelake.ingestion.declaration.parts import FormatSpec, KeyFormatSpec
from oncelake.ingestion.declaration.routes import OF_THE_FILE, RoutedFile
from oncelake.ingestion.declaration.rules.modes import mode_violations
from oncelake.ingestion.declaration.rules.sinks import sink_violations
from oncelake.ingestion.declaration.rules.stream import column_violations, rule_violations
from oncelake.ingestion.declaration.rules.violations import RuleViolationsError
from oncelake.ingestion.declaration.types import SqlType

# Fields that decide nothing about a single record. One that is added later counts until named.
ABOUT_RUNS: Final = frozenset(
    {
        *("name", "declared_in", "description", "owners", "group", "tags"),
        *("topic", "topics", "topic_pattern", "table_per_topic", "starting"),
        *("table", "discover"),
        # What these come to are columns.
        *("schema_from", "overrides", "exclude", "renamed_from"),
        *("max_offsets_per_trigger", "gaps", "schema_change", "delivery"),
        *("rewind_window_days", "quarantine_rate", "deletion_vectors"),
        *("partition_by", "sort_by", "cluster_by"),
        *("freshness_minutes", "expectations", "verify", "schedule"),
        # A rule that quarantines is a constraint, which each commit keeps.
        *("expect", "guard", "publish"),
        *("sensor", "sensor_seconds"),
        *("backfill_from", "follow", "maintenance", "retention_warning"),
    }
)
# Fields that decide whether a STRUCT follows a newer schema, or its record waits.
FOLLOWING: Final = ("on_new_field", "on_wider_type")
# Fields that the table itself has: in its columns, its keys and its rule.
_IN_THE_TABLE: Final = frozenset(
    {
        *("ddl", "mode", "keys", "sequence_by", "aggregates", "window"),
        *("deletes", "ignore_null_updates", "explode", "track"),
    }
)
# Fields that decide which columns the table has, by mode and in any.
_SHAPING: Final[Mapping[str, frozenset[str]]] = {
    "aggregate": frozenset({"schema", "mode", "keys", "aggregates", "window"}),
    "scd2": frozenset({"schema", "mode", "sequence_by"}),
}
_ALWAYS_SHAPING: Final = frozenset({"schema", "mode"})
# What a commit keeps beside the declared fields: the record type of each topic in its rows.
RECORD_TYPES: Final = "record_types"
# Likewise what evaluated ``where`` and ``select`` for its rows, if that was not Spark.
EVALUATED_BY: Final = "evaluated_by"
# Likewise, of a commit that alters the table, which columns it has renamed and dropped.
ALTERED: Final = "altered"
_OF_EVERY_TABLE: Final = (*COORDINATES, "_timestamp", "_epoch", "_seq")
# Fields in which one name needs no list around it.
_LISTS_OR_ONE: Final = (
    *("topics", "record", "exclude", "from_key", "keys", "sequence_by", "partition_by"),
    *("sort_by", "cluster_by", "track"),
)


class StreamSpec(Declaration):
    """One declared stream: its fields, which agree with one another, and its table.

    Raises:
        pydantic.ValidationError: a field is missing, unknown or wrong, or two contradict.
    """

    @model_validator(mode="after")
    def _fields_agree(self) -> StreamSpec:
        violations = [*rule_violations(self), *mode_violations(self)]
        about = {at if isinstance(at, str) else at[0] for at, _ in violations}
        if not about & _SHAPING.get(self.mode, _ALWAYS_SHAPING):
            types = {column.name: column.type for column in self.table_columns}
            violations += column_violations(self, {**types, **dict.fromkeys(_OF_EVERY_TABLE)})
            violations += sink_violations(self, self.table_columns)
        if violations:
            raise RuleViolationsError(violations)
        return self

    @property
    def follows_schema(self) -> bool:
        """Tell whether a schema that comes with the records may change the columns."""
        evolves = "evolve" in (self.on_new_field, self.on_wider_type)
        return self.schema_from is not None and self.schema_from.is_followed and evolves

    @property
    def whole_columns(self) -> frozenset[str]:
        """Columns that get each new field of a STRUCT in them, or its record waits."""
        own = {*self.overrides}
        return frozenset(self.value_types) - own if self.follows_schema else frozenset()

    def following(self, types: Mapping[str, SqlType]) -> StreamSpec:
        """Return the declaration with columns that hold the values of another schema, too.

        As far as it lets them be followed; those that it says itself stay.
        """
        own = {*self.exclude, *self.overrides}
        columns = united(
            self.columns,
            {name: type_ for name, type_ in types.items() if name not in own},
            with_new=self.on_new_field == "evolve",
            with_wider=self.on_wider_type == "evolve",
        )
        return self.with_columns(columns)

    def as_of(self, ddl: str) -> StreamSpec:
        """Return the declaration with the columns that its table got from a newer schema.

        Their order is the table's.

        Args:
            ddl: The table's columns, as its last commit has them.
        """
        own = {each.name: each for each in self.columns if each.name in self.overrides}
        there = {c.name: c for c in parse_columns(ddl) if c.name not in self.exclude}
        return self.with_columns(united({**there, **own}.values(), self.types))

    def with_columns(self, columns: Sequence[DeclaredColumn]) -> StreamSpec:
        """Return the declaration with other columns; itself where they are the same.

        Raises:
            pydantic.ValidationError: they contradict the other fields.
        """
        ddl = as_ddl(columns)
        if ddl == self.ddl:
            return self
        fields = self.model_dump(by_alias=True, exclude_unset=True)
        return StreamSpec.model_validate({**fields, "schema": ddl})

    @property
    def table_ddl(self) -> str:
        """The table's columns but for the six of every table, as DDL."""
        added = (f"{column.name} {column.type}" for column in self._added_columns)
        return ", ".join((self._mode_ddl, *added))

    @cached_property
    def table_columns(self) -> tuple[DeclaredColumn, ...]:
        """The table's columns but for the six of every table, in order."""
        return (*parse_columns(self._mode_ddl), *self._added_columns)

    @property
    def are_variants_text(self) -> bool:
        """Whether the sink has no VARIANT, so that columns hold the text of the JSON."""
        return "VARIANT" in self.sink.kind.stored_as

    def in_statements(self, columns: Iterable[DeclaredColumn]) -> Iterator[DeclaredColumn]:
        """Yield columns as SQL reads them after decoding, which made texts of some."""
        words = {"VARIANT": "STRING"} if self.are_variants_text else {}
        return (replace(each, type=each.type.with_words(words)) for each in columns)

    @property
    def rule(self) -> str:
        """How records become rows, in one line: a table written by another rule is refused."""
        of_mode = ""
        if self.mode == "aggregate":
            of_mode = aggregate_rule(self)
        elif self.deletes == "soft":
            of_mode = "with soft deletes"
        elif self.ignore_null_updates:
            of_mode = "of partial updates"
        elif self.track:
            of_mode = f"that tracks {', '.join(sorted(self.track))}"
        exploded = f"explode {self.explode}" if self.explode else ""
        return " ".join(filter(None, (self.mode, of_mode, exploded)))

    @property
    def _mode_ddl(self) -> str:
        if self.mode == "aggregate":
            return aggregate_columns(self)
        if self.mode == "scd2":
            moment = self.sequence_types[self.sequence_by[0]]
            return f"{self.ddl}, {VALID_FROM} {moment}, {VALID_TO} {moment}, {CURRENT} BOOLEAN"
        if self.deletes == "soft":
            # Of a deleted row that stays, only the keys are known for sure.
            columns = (
                replace(column, nullable=column.nullable or column.name not in self.keys)
                for column in self.columns
            )
            return ", ".join(column.as_ddl() for column in columns)
        return self.ddl

    @property
    def _added_columns(self) -> tuple[DeclaredColumn, ...]:
        is_added = {
            _DELETED: self.deletes == "soft",
            _EXTRA: self.extra_fields == "keep",
            _INDEX: self.explode is not None,
        }
        return tuple(column for column in is_added if is_added[column])


def fingerprint(spec: StreamSpec) -> str:
    """Return a short text for all in a declaration that decides the outcome of a record.

    A record that is bad for one declaration, or one engine, may be good for the next. The
    quarantine keeps both, so that the proof can tell a record that waits to be redriven from one
    that should never have been there.
    """
    fields = spec.model_dump(mode="json", exclude={*ABOUT_RUNS, "sink"}, exclude_defaults=True)
    text = json.dumps(fields, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def meaning(spec: StreamSpec) -> dict[str, Any]:
    """Return the fields that decide what a record means, by name, but for those the table has.

    Every commit keeps them. Rows that an earlier meaning wrote stay as they are, and the proof
    compares them by today's.
    """
    elsewhere = ABOUT_RUNS | _IN_THE_TABLE
    return spec.model_dump(
        mode="json", by_alias=True, exclude=set(elsewhere), exclude_defaults=True
    )


def meaning_changes(
    before: Mapping[str, Any] | None, now: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield each field that means something else now, and from what to what it changed.

    Args:
        before: What a commit kept; ``None`` of one that an earlier version made.
        now: What the declaration says today.
    """
    if before is None:
        return
    for name in sorted({**before, **now}.keys() - {RECORD_TYPES, EVALUATED_BY, ALTERED}):
        if before.get(name) != now.get(name):
            yield name, f"was {_written(before.get(name))}, becomes {_written(now.get(name))}"


def _written(value: Any) -> str:
    return "the default" if value is None else json.dumps(value, ensure_ascii=False)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a stream's file, by which editors complete keys and mark mistakes.

    ``assets/stream.schema.json`` has it; a stream's file names that in its first line:
    ``# yaml-language-server: $schema=../stream.schema.json``. It says what can be said of one field
    at a time; ``oncelake validate`` says the rest.
    """
    schema = StreamSpec.model_json_schema(by_alias=True)
    _without_titles(schema)
    fields, parts = schema["properties"], schema["$defs"]
    for name in NOT_WRITTEN:
        del fields[name]
    del parts["Route"]
    schema["required"] = []
    routed = RoutedFile.model_json_schema()["properties"]
    _without_titles({"$defs": {}, "properties": routed})
    of_table = {name: {"$ref": f"#/properties/{name}"} for name in fields.keys() - OF_THE_FILE}
    of_table |= {"when": {"description": "The routes of the table, one or a list."}}
    routed["tables"]["additionalProperties"] = {
        "type": "object",
        "properties": dict(sorted(of_table.items())),
        "additionalProperties": False,
    }
    fields |= {name: routed[name] for name in ("route_by", "tables", "otherwise")}
    fields["mode"]["enum"] = list(MODES)
    for name, model in {"format": FormatSpec, "key_format": KeyFormatSpec}.items():
        parts[model.__name__]["properties"]["type"]["enum"] = model.names()
        fields[name] = _with_short_form(fields[name], {"type": "string", "enum": model.names()})
        fields[name]["default"] = "json"
    words = parts["Starting"]["properties"]["at"]["enum"]
    fields["starting"] = _with_short_form(fields["starting"], {"type": "string", "enum": words})
    fields["starting"]["default"] = "earliest"
    _shorten_gate(fields)
    for name in _LISTS_OR_ONE:
        fields[name] = _with_short_form(fields[name], fields[name]["items"])
    # The file says it in `schema`.
    source = parts.pop("SchemaSource")
    of_registry = {name: source["properties"][name] for name in ("subject", "version")}
    pinned = {"additionalProperties": False, "properties": of_registry, "type": "object"}
    registry = {"properties": {"registry": pinned}, "required": ["registry"], "type": "object"}
    fields["schema"] = _with_short_form(fields["schema"], registry)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A stream of Oncelake",
        **schema,
        "description": "One Kafka topic (or several) into one Delta table.",
        "oneOf": [{"required": [name]} for name in ("topic", "topics", "topic_pattern")],
        # What one table must have, another may have of its own.
        "if": {"anyOf": [{"required": [name]} for name in ("route_by", "tables")]},
        "then": {"required": ["route_by", "tables"]},
        "else": {
            "required": ["schema"],
            "properties": {"otherwise": False},
            "allOf": [_of_mode(name, mode) for name, mode in MODES.items()],
        },
    }


def _shorten_gate(fields: dict[str, Any]) -> None:
    rules = fields["expect"]["patternProperties"]
    rules |= {name: _with_short_form(rule, {"type": "string"}) for name, rule in rules.items()}
    fields["guard"] = _with_short_form(fields["guard"], {"type": "boolean"})
    fields["publish"] = _with_short_form(fields["publish"], {"enum": ["always", "checked"]})


def _of_mode(name: str, mode: Mode) -> dict[str, Any]:
    """Say, in JSON Schema, which fields a declaration has in a write mode, and must have."""
    others = {field for other in MODES.values() for field in other.fields} - {*mode.fields}
    refused: dict[str, Any] = dict.fromkeys(sorted(others), False)
    # An empty list says nothing.
    empty = {"maxItems": 0, "type": "array"}
    refused |= {} if mode.has_keys else {"keys": empty}
    refused |= {} if mode.has_order else {"sequence_by": empty}
    refused |= {} if mode.has_deletes else {"apply_as_deletes": False}
    # Without a word it is an upsert.
    is_said = [] if name == "upsert" else ["mode"]
    return {
        "if": {"properties": {"mode": {"const": name}}, "required": is_said},
        "then": {
            "properties": refused,
            "required": [*(["keys"] if mode.has_keys else []), *mode.needs],
        },
    }


def _with_short_form(field: dict[str, Any], short: dict[str, Any]) -> dict[str, Any]:
    """Let a field be written in one word as well as in full."""
    outer = {name: part for name, part in field.items() if name in {"description", "default"}}
    full = {name: part for name, part in field.items() if name not in outer}
    return {**outer, "anyOf": [short, full]}


def _without_titles(schema: dict[str, Any]) -> None:
    """Drop what pydantic derives from the names of the classes and fields."""
    for part in (schema, *schema["$defs"].values()):
        part.pop("title", None)
        for field in part.get("properties", {}).values():
            field.pop("title", None)


def _column(name: str, word: str, comment: str) -> DeclaredColumn:
    return DeclaredColumn(name=name, type=SqlType(word=word), nullable=True, comment=comment)


_DELETED: Final = _column(
    DELETED_COLUMN, "BOOLEAN", "Whether the newest record of the key is a delete"
)
_EXTRA: Final = _column(
    EXTRA_COLUMN, "VARIANT", "Fields of the record that the schema does not name"
)
_INDEX: Final = _column(
    INDEX_COLUMN, "INT", "Which element of the record's array the row comes from, from 0"
)
