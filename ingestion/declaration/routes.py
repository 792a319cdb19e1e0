"""One topic, many tables: each table of a file is a stream, and each record belongs to one of them.

The file says by what records are routed. What a stream must know of it, its own routes and those of
its siblings, is its ``Route``, which every commit keeps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_columns
from oncelake.ingestion.declaration.names import name_problem, suggest
from oncelake.ingestion.declaration.parts import Allowed, Part
from oncelake.ingestion.declaration.rules.violations import RuleViolationsError, Violation

if TYPE_CHECKING:
    from oncelake.ingestion.declaration.fields import Declaration

BY_SCHEMA: Final = "_schema"
HEADER: Final = "header:"
# Formats in whose values a field has a name.
_WITH_FIELDS: Final = ("json", "avro", "protobuf", "json_schema", "debezium")
# Fields that say where records come from: of all tables, or of none.
OF_THE_FILE: Final = frozenset(
    {
        *("topic", "topics", "topic_pattern", "table_per_topic", "format", "key_format"),
        *("starting", "max_offsets_per_trigger", "delivery", "route_by", "tables", "otherwise"),
    }
)
_BY: Final = r"^(_schema|header:.+|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)$"
_TYPES: Final[Mapping[type, str]] = {str: "STRING", bool: "BOOLEAN", int: "BIGINT"}

RouteBy = Annotated[
    str,
    StringConstraints(pattern=_BY),
    Allowed(
        "write a field of the value such as `type` or `meta.type`, `_schema`, or `header:NAME`"
    ),
]
RouteValue = str | bool | int


Treatment = Literal["take", "share", "quarantine", "ignore", "elsewhere"]


class Route(Part):
    """Which records of a routed topic are a stream's own; all but ``stream`` is its siblings', too.

    Attributes:
        by: Where a record has its route.
        stream: The stream itself.
        tables: The routes of each stream of the file, in its order.
        otherwise: Who takes a record of no route: `quarantine`, `ignore` or a stream.
        tombstones: The streams that take a null value of no route.
        deleting: The streams that take a delete of no route.
    """

    by: RouteBy
    stream: str
    tables: tuple[tuple[str, tuple[RouteValue, ...]], ...]
    otherwise: str = "quarantine"
    tombstones: tuple[str, ...] = ()
    deleting: tuple[str, ...] = ()

    @cached_property
    def own(self) -> tuple[RouteValue, ...]:
        """The routes that are this stream's."""
        return dict(self.tables)[self.stream]

    @cached_property
    def others(self) -> tuple[RouteValue, ...]:
        """The routes that are its siblings'."""
        return tuple(v for name, values in self.tables if name != self.stream for v in values)

    @property
    def of_unrouted(self) -> Treatment:
        """The policy for a record of no route."""
        if self.otherwise == "ignore":
            return "ignore"
        if self.otherwise == "quarantine":
            return "quarantine" if self.stream == self.tables[0][0] else "elsewhere"
        return "take" if self.stream == self.otherwise else "elsewhere"

    @property
    def of_tombstones(self) -> Treatment:
        """The policy for a null value of no route, which several streams may take."""
        return self._of_all(self.tombstones)

    @property
    def of_deletes(self) -> Treatment:
        """The policy for a delete of no route, whose row may be in any table."""
        return self._of_all(self.deleting)

    def _of_all(self, takers: tuple[str, ...]) -> Treatment:
        if not takers:
            return self.of_unrouted
        if self.stream not in takers:
            return "elsewhere"
        return "share" if len(takers) > 1 else "take"

    @property
    def header(self) -> str | None:
        """The header that has a record's route, if one has."""
        return self.by.removeprefix(HEADER) if self.by.startswith(HEADER) else None

    @property
    def record_types(self) -> tuple[str, ...]:
        """Full names of the record types that are this stream's; none where any may be."""
        is_named = self.by == BY_SCHEMA and self.of_unrouted != "take"
        return tuple(map(str, self.own)) if is_named else ()

    @cached_property
    def columns(self) -> tuple[DeclaredColumn, ...]:
        """The one column of a value that has its route; none where its schema or a header does."""
        if self.header or self.by == BY_SCHEMA:
            return ()
        first, *inner = self.by.split(".")
        type_ = _TYPES[type(self.own[0])]
        for name in reversed(inner):
            type_ = f"STRUCT<`{name}`: {type_}>"
        return parse_columns(f"`{first}` {type_}")


class RoutedFile(Part):
    """The fields of a file that make it one of several tables."""

    route_by: RouteBy = Field(
        description="What decides the table of a record: a field of its value (dots go inside), "
        "`_schema`, the full name of its schema, or `header:NAME`."
    )
    tables: Mapping[str, Mapping[str, Any]] = Field(
        description="The tables by name, each a stream of its own: `when` has its routes, else its "
        "name is the route; the file's other fields are the defaults of all."
    )
    otherwise: str = Field(
        "quarantine",
        description="Who takes a record of no route: `quarantine` of the first table, `ignore` "
        "(counted), or the table of this name.",
    )

    @field_validator("tables")
    @classmethod
    def _tables_are_named(cls, tables: Mapping[str, Any]) -> Mapping[str, Any]:
        if not tables:
            raise ValueError("write at least one table")
        for name in tables:
            if problem := name_problem(f"t_{name}"):
                raise RuleViolationsError([((name,), problem.replace("a stream", "a table"))])
        return tables

    @model_validator(mode="after")
    def _fields_agree(self) -> RoutedFile:
        violations = [*self._of_tables()]
        words = ("quarantine", "ignore", *self.tables)
        if self.otherwise not in words:
            violations.append(("otherwise", f"is no table; {suggest(self.otherwise, words)}"))
        if violations:
            raise RuleViolationsError(violations)
        return self

    def _of_tables(self) -> Iterator[Violation]:
        tables: dict[object, str] = {}
        has_text = self.route_by == BY_SCHEMA or self.route_by.startswith(HEADER)
        kinds = {type(value) for name in self.tables for value in self.routes_of(name)}
        for name, fields in self.tables.items():
            for field in fields:
                if field in OF_THE_FILE:
                    yield ("tables", name, field), "is for all tables; write it beside `tables`"
            if not self.routes_of(name):
                yield ("tables", name, "when"), "write at least one route, or remove it"
            for value in self.routes_of(name):
                if type(value) not in _TYPES:
                    problem = "write a text, a whole number, true or false, or a list of them"
                    yield ("tables", name, "when"), problem
                elif has_text and not isinstance(value, str):
                    yield ("tables", name, "when"), "is text there; write it in quotes"
                elif (first := tables.setdefault((type(value), value), name)) != name:
                    problem = f"{json.dumps(value)} is of table {first} already"
                    yield ("tables", name, "when"), f"{problem}; a record has one table"
        if len(kinds & set(_TYPES)) > 1:
            yield "tables", "a route is a text, a number or a boolean: write all `when` alike"

    def routes_of(self, table: str) -> tuple[Any, ...]:
        """Return the routes of a table."""
        when = self.tables[table].get("when", table)
        return tuple(when) if isinstance(when, list | tuple) else (when,)

    def declarations(self, content: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each table's name, and what declares its stream but for name and route."""
        shared = {key: each for key, each in content.items() if key not in type(self).model_fields}
        for table, fields in self.tables.items():
            yield table, {**shared, **{key: each for key, each in fields.items() if key != "when"}}

    def routes(self, file: str, streams: Iterable[Declaration]) -> dict[str, Route]:
        """Return the route of each stream, given those that are known.

        A null value without a route is for all tables that delete by it, else for the first that
        ignores it: its key may be of any table, and a delete of a key that is not there changes
        nothing.
        """
        named = {table: f"{file}_{table}" for table in self.tables}
        known = tuple(streams)
        takers = [each.name for each in known if each.tombstone_policy == "delete"]
        ignoring = [each.name for each in known if each.tombstone_policy == "ignore"]
        of_all: dict[str, Any] = {
            "by": self.route_by,
            "tables": tuple((named[table], self.routes_of(table)) for table in self.tables),
            "otherwise": named.get(self.otherwise, self.otherwise),
            "tombstones": tuple(takers or ignoring[:1]),
            "deleting": tuple(each.name for each in known if each.write_mode.has_deletes),
        }
        return {stream: Route(stream=stream, **of_all) for stream in named.values()}


def route_violations(spec: Declaration) -> Iterator[Violation]:
    """Yield why the records of a stream cannot be routed as declared."""
    if spec.route is None:
        return
    if spec.route.by == BY_SCHEMA and not spec.format.options.uses_registry:
        yield "route_by", "only schemas of a registry have names; write a field, or `header:NAME`"
    if spec.route.columns and spec.format.type not in _WITH_FIELDS:
        yield "route_by", f"{spec.format.type} has no field of a name; write `header:NAME`"
