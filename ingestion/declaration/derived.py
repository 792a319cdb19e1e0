"""Columns that a schema gives which comes with the records: a registry's, or one in each record.

A declaration says ``schema: registry`` or ``schema: embedded``. What that came to is kept beside it
(``topics_file``), so that a declaration is read without a network; a run that meets a newer schema
unites its columns with these. A column never leaves, and never gets a narrower type, by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from pydantic import Field

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_columns, parse_type
from oncelake.ingestion.declaration.modes import DELETED_COLUMN, EXTRA_COLUMN, RESERVED
from oncelake.ingestion.declaration.names import name_trouble
from oncelake.ingestion.declaration.parts import Count, Part
from oncelake.ingestion.declaration.sinks import SINKS
from oncelake.ingestion.declaration.sql import quoted
from oncelake.ingestion.declaration.types import SqlType

# What `keys` says where the Kafka key's schema names the columns.
FROM_KEY: Final = "from_key"
NO_TYPE: Final = "no column type holds all of its values"
_RENAMED: Final = (
    "with `schema` as columns, `select` gives it another: docs/transform.md, Rename fields"
)
_WORDS: Final = ("registry", "embedded")
# Who writes records, or their schemas, may not give a table columns without end.
MOST_COLUMNS: Final = 2_000


class _Registered(Part):
    """The declaration of a registry's schema."""

    subject: str | None = Field(None, description="Left out: the topic's name and `-value`.")
    version: Count | None = Field(None, description="Left out: the newest, and those to come.")


class SchemaSource(_Registered):
    """Where the columns come from, and what is made of them.

    Attributes:
        records: Full names of the record types that the columns are of; none where any is.
    """

    kind: Literal["registry", "embedded"]
    records: tuple[str, ...] = ()

    @property
    def is_followed(self) -> bool:
        """Tell whether schemas that are met later may change the columns."""
        return self.version is None


def schema_source(schema: Any) -> SchemaSource | None:
    """Return what the field `schema` of a file says of a source; ``None`` of columns as DDL."""
    if schema in _WORDS:
        return SchemaSource(kind=schema)
    if isinstance(schema, dict) and schema.keys() == {"registry"}:
        registered = _Registered.model_validate(schema["registry"] or {})
        return SchemaSource(kind="registry", **registered.model_dump())
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Derived:
    """The columns that one schema describes.

    Attributes:
        types: By name, in the order of the schema.
        left_out: Why a field has no column, by its name.
    """

    types: Mapping[str, SqlType]
    left_out: Mapping[str, str]

    @classmethod
    def of(cls, types: Mapping[str, SqlType | None], sink: str, *, fills_variants: bool) -> Derived:
        """Take the types of all fields, ``None`` where no column holds every value.

        A type that the sink cannot keep becomes JSON, if the format ``fills_variants``.
        """
        as_json = dict.fromkeys(SINKS[sink].refused if fills_variants else (), "VARIANT")
        kept: dict[str, SqlType] = {}
        left_out = {}
        for name, given in types.items():
            type_ = given and given.with_words(as_json)
            if problem := _problem(name, type_, {each.lower() for each in kept}, sink):
                left_out[name] = problem
            elif type_ is not None:
                kept[name] = type_
        return cls(types=kept, left_out=left_out)


def _problem(name: str, type_: SqlType | None, taken: set[str], sink: str) -> str | None:
    """Say why a field cannot be a column of its own name."""
    if type_ is None:
        return NO_TYPE
    kind = SINKS[sink]
    try:
        parse_type(str(type_))
    except ValueError as error:
        return str(error)
    if name.lower() in taken:
        return "another column has this name in other letters"
    if name.lower() in RESERVED | {DELETED_COLUMN, EXTRA_COLUMN}:
        return f"the name is one of Oncelake's own; {_RENAMED}"
    if trouble := name_trouble(name):
        return trouble
    if kind.refused_name(name, type_) is not None:
        return f"`sink: {sink}` cannot store the name; {_RENAMED}"
    if 0 < kind.longest_name < (size := len(name.encode())):
        problem = f"its name has {size} bytes, and `sink: {sink}` takes {kind.longest_name}"
        return f"{problem}; {_RENAMED}"
    refused = kind.refused_in(type_)
    return f"`sink: {sink}` cannot keep a {refused[0]}" if refused else None


def united(
    columns: Iterable[DeclaredColumn],
    types: Mapping[str, SqlType],
    *,
    with_new: bool = True,
    with_wider: bool = True,
) -> tuple[DeclaredColumn, ...]:
    """Return columns that hold the values of these types, too, as far as any can.

    Args:
        columns: Those that are there, and stay.
        types: Of the fields of another schema.
        with_new: Whether a field that is not there becomes a column, which may be null.
        with_wider: Whether a type may become a wider one.
    """
    known = {column.name: column for column in columns}
    for name, type_ in types.items():
        if name in known:
            wider = known[name].type.united_with(type_) if with_wider else None
            known[name] = replace(known[name], type=wider or known[name].type)
        elif with_new and _is_free(name, known):
            known[name] = DeclaredColumn(name=name, type=type_, nullable=True, comment="")
    return tuple(known.values())


def _is_free(name: str, known: Mapping[str, DeclaredColumn]) -> bool:
    return len(known) < MOST_COLUMNS and name.lower() not in {each.lower() for each in known}


def adjusted(
    columns: Iterable[DeclaredColumn],
    *,
    overrides: Mapping[str, str],
    exclude: Iterable[str],
    required: Iterable[str],
) -> tuple[DeclaredColumn, ...]:
    """Return derived columns as a declaration wants them.

    Args:
        columns: As the schema gives them.
        overrides: Types, as DDL, of single columns, and of some that are added.
        exclude: Names of columns to leave out.
        required: Names of columns that are never null.

    Raises:
        ValueError: an override is not DDL.
    """
    left_out, never_null = {*exclude}, {*required}
    chosen = {name: parse_columns(f"{quoted(name)} {ddl}")[0] for name, ddl in overrides.items()}
    own = {column.name: column for column in columns if column.name not in left_out}
    return tuple(
        replace(column, nullable=column.nullable and column.name not in never_null)
        for column in {**own, **chosen}.values()
    )


def as_ddl(columns: Iterable[DeclaredColumn]) -> str:
    """Write columns as DDL."""
    return ", ".join(column.as_ddl() for column in columns)
