"""The sinks: what keeps a stream's rows, what a person says of it, and what it cannot hold.

Plain data: a sink is a module with a ``SinkTable`` (see ``ingestion.sinks.table``); it is named
here and imported when a stream of it is opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from ingestion.declaration.modes import MODES
from ingestion.declaration.names import SinkName
from ingestion.declaration.parts import Allowed, Part
from ingestion.declaration.types import PLAIN_NAME, SqlType

# As PostgreSQL and most catalogs take a name without quotes.
_QUALIFIED: Final = r"^[a-z_][a-z0-9_]*\.[a-z_][a-z0-9_]*$"
# What the name of a table ends on that is made beside another, to take its place.
BESIDE: Final = "__rebuild"
QualifiedName = Annotated[
    str,
    StringConstraints(pattern=_QUALIFIED),
    Allowed("write two names of a-z, 0-9 and _ with a point between them, such as public.orders"),
]
TopicName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,240}$"),
    Allowed("write the name of a topic: at most 240 letters, digits, points, _ and -"),
]
CatalogName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9_-]+$"),
    Allowed("write the name of a catalog: letters, digits, - and _"),
]


class DeltaSink(Part):
    """A Delta table in the lake, named for the stream."""


class IcebergSink(Part):
    """An Iceberg table, in the catalog that pyiceberg is configured for."""

    table: QualifiedName | None = Field(
        None, description="namespace.table; left out: oncelake.<stream>."
    )
    catalog: CatalogName | None = Field(
        None,
        description="Name of a catalog in pyiceberg's configuration. Left out: its default, or, "
        "with no configuration, one on SQLite in the lake.",
    )

    def table_of(self, stream: str) -> str:
        """Return the table of a stream."""
        return self.table or f"oncelake.{stream}"


class PostgresSink(Part):
    """A table of PostgreSQL; ONCELAKE_POSTGRES says where the server is."""

    table: QualifiedName | None = Field(
        None, description="schema.table; left out: public.<stream>."
    )

    def table_of(self, stream: str) -> str:
        """Return the table of a stream."""
        return self.table or f"public.{stream}"


class KafkaSink(Part):
    """A topic: a record a row, a transaction a batch."""

    topic: TopicName | None = Field(None, description="Left out: oncelake.<stream>.")
    format: Literal["json", "avro"] = Field(
        "json",
        description="How a row is written. Avro needs ONCELAKE_SCHEMA_REGISTRY, where the schemas "
        "are registered as <topic>-key and <topic>-value.",
    )

    def topic_of(self, stream: str) -> str:
        """Return the topic of a stream."""
        return self.topic or f"oncelake.{stream}"

    def refused_name(self, name: str, type_: SqlType) -> str | None:
        """Return the name, of a column or of a field within it, that the format cannot write."""
        others = (each for each in (name, *type_.names()) if not PLAIN_NAME.fullmatch(each))
        return next(others, None) if self.format == "avro" else None


class SinkSpec(Part):
    """What keeps the rows: one of the sinks."""

    delta: DeltaSink | None = None
    iceberg: IcebergSink | None = None
    postgres: PostgresSink | None = None
    kafka: KafkaSink | None = None

    @model_validator(mode="after")
    def _is_one(self) -> SinkSpec:
        if len(self.model_fields_set) > 1:
            raise ValueError(f"write one of: {', '.join(SINKS)}")
        return self

    @field_validator("*", mode="before")
    @classmethod
    def _nothing_is_a_map(cls, value: Any) -> Any:
        return {} if value is None else value

    @property
    def name(self) -> SinkName:
        """Which one."""
        return next((name for name in SINKS if name in self.model_fields_set), "delta")

    @property
    def declared(self) -> Part:
        """What a person says of it."""
        return getattr(self, self.name) or DeltaSink()

    def table_of(self, stream: str) -> str:
        """Name the table of a stream as its sink does."""
        sink = self.declared
        if isinstance(sink, KafkaSink):
            return sink.topic_of(stream)
        return sink.table_of(stream) if isinstance(sink, IcebergSink | PostgresSink) else stream

    def beside(self, stream: str) -> SinkSpec:
        """Return the sink of a table that is made to take the place of this one's.

        A topic, which has its name for good, is its own.
        """
        sink = self.declared
        if not isinstance(sink, IcebergSink | PostgresSink):
            return self
        table = f"{sink.table_of(stream)}{BESIDE}"
        return SinkSpec(**{self.name: sink.model_copy(update={"table": table})})


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkKind:
    """One sink.

    Attributes:
        module: Where its table is: ``open_table(stream, sink, settings, lake)``.
        refused_modes: The write modes that it cannot keep.
        refused: Types that would lose something in it, each with what to write instead.
        unstorable: Characters that no name of a column, or of a field within it, may have.
        taken: Names of columns that every table of it has.
        has_text_keys: Whether the keys of a MAP must be texts.
        is_log: Whether rows are only ever added to it: it looks nothing up, and merges nothing.
        longest_key: How many bytes the texts and bytes of a key may have together; 0 for any.
    """

    module: str
    refused_modes: tuple[str, ...] = ("scd2", "aggregate")
    refused: tuple[str, ...] = ()
    unstorable: str = ""
    taken: tuple[str, ...] = ()
    has_text_keys: bool = False
    is_log: bool = False
    longest_key: int = 0

    def refused_in(self, type_: SqlType) -> list[str]:
        """Name the types, within one, that it cannot keep."""
        words = {part.word for part in type_.walk()}
        keys = {part.parts["key"].word for part in type_.walk() if part.word == "MAP"}
        found = [word for word in self.refused if word in words]
        if self.has_text_keys and keys - {"STRING", "VARCHAR"}:
            found.append("MAP whose keys are not STRING")
        return found

    def refused_name(self, name: str, type_: SqlType) -> str | None:
        """Return the name, of a column or of a field within it, that it cannot store."""
        if name in self.taken:
            return name
        names = (name, *type_.names())
        return next((each for each in names if set(each) & set(self.unstorable)), None)

    @property
    def refusal_of_names(self) -> str:
        """Say which names it cannot store."""
        if self.taken:
            return f"since each of its tables has {', '.join(self.taken)}"
        shown = "".join(each for each in self.unstorable if each.isprintable() and each != "`")
        return f"with one of `{shown}`, a backtick or a control character in it"

    def keeps(self, mode: str) -> bool:
        """Tell whether it can keep a write mode."""
        can = bool(MODES[mode].log_module) if self.is_log else True
        return can and mode not in self.refused_modes


_NESTED: Final = ("ARRAY", "MAP", "STRUCT")
_CONTROL: Final = "".join(map(chr, (*range(32), 127)))
SINKS: Final[dict[SinkName, SinkKind]] = {
    # Delta itself takes some of these, though only under column mapping, a protocol upgrade.
    "delta": SinkKind(
        module="ingestion.sinks.delta.table", refused_modes=(), unstorable=f" ,;{{}}()=.`{_CONTROL}"
    ),
    # A path of pyiceberg's is names with points between them.
    "iceberg": SinkKind(
        module="ingestion.sinks.iceberg.table", refused=("VARIANT",), unstorable=f".`{_CONTROL}"
    ),
    "postgres": SinkKind(
        module="ingestion.sinks.postgres.table",
        refused=("VARIANT", *_NESTED),
        taken=("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"),
        # A row of an index has at most 2,704, other columns and what goes between them included.
        longest_key=2_000,
    ),
    "kafka": SinkKind(
        module="ingestion.sinks.kafka.table",
        refused=("VARIANT",),
        has_text_keys=True,
        is_log=True,
    ),
}


def named_version(sink: str, version: int) -> str:
    """Name a version of a sink's table, for people."""
    return f"Delta version {version}" if sink == "delta" else f"version {version}"


# Those to which rows are only added: they need no memory of deletes.
LOGS: Final = frozenset(name for name, kind in SINKS.items() if kind.is_log)
