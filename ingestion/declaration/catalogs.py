"""The catalogs in which a stream's Delta table has an entry, so that others find it by name."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints, model_validator

from oncelake.ingestion.declaration.parts import Allowed, Part

Kind = Literal["glue", "unity", "hive"]
# As people call them.
_NAMES: Final[dict[Kind, str]] = {"glue": "Glue", "unity": "Unity Catalog", "hive": "Hive"}
# As PostgreSQL and most catalogs take a name without quotes.
_QUALIFIED: Final = r"^[a-z_][a-z0-9_]*\.[a-z_][a-z0-9_]*$"
QualifiedName = Annotated[
    str,
    StringConstraints(pattern=_QUALIFIED),
    Allowed("write two names of a-z, 0-9 and _ with a point between them, such as public.orders"),
]
# As Athena takes a name.
GlueName = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9_]{1,255}$"),
    Allowed("write a name of a-z, 0-9 and _, such as sales"),
]
UnityName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){2}$"),
    Allowed("write catalog, schema and table with points between them, such as main.sales.orders"),
]


class GlueEntry(Part):
    """An entry of AWS Glue's data catalog, by which Athena finds the table."""

    database: GlueName = Field(description="A database that is there.")
    table: GlueName | None = Field(None, description="Left out: the stream's name.")


class UnityEntry(Part):
    """An external table of a Unity Catalog; ONCELAKE_UNITY says where that is."""

    table: UnityName = Field(description="catalog.schema.table; the schema must be there.")


class HiveEntry(Part):
    """An external table of a Hive metastore; ONCELAKE_HIVE_METASTORE says where that is."""

    table: QualifiedName = Field(description="database.table; the database must be there.")


class DeltaCatalog(Part):
    """One catalog, and the table's name there. An entry is written behind commits."""

    glue: GlueEntry | None = None
    unity: UnityEntry | None = None
    hive: HiveEntry | None = None

    @model_validator(mode="after")
    def _is_one(self) -> DeltaCatalog:
        if sum(getattr(self, name) is not None for name in _NAMES) != 1:
            raise ValueError(f"write one of: {', '.join(_NAMES)}")
        return self

    @property
    def kind(self) -> Kind:
        """Which one."""
        return next(name for name in _NAMES if getattr(self, name))

    def name_of(self, stream: str) -> str:
        """Return the name of a stream's table in the catalog."""
        if self.glue:
            return f"{self.glue.database}.{self.glue.table or stream}"
        return str(getattr(self, self.kind).table)

    def where_of(self, stream: str) -> str:
        """Name a stream's entry, for people."""
        return f"{_NAMES[self.kind]} {self.name_of(stream)}"
