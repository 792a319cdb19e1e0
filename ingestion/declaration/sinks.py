"""The sinks: where a stream's rows are stored, how it is declared, and what it can do.

Plain data, and the one record of it: a sink is a module with a ``SinkTable`` (see
``ingestion.tables.table``); it is named here and imported when a stream of it is opened. Another
package adds one by an entry point of the group ``oncelake.sinks``: its name, and a ``SinkKind``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import Field, StringConstraints, create_model, field_validator, model_validator

from oncelake.ingestion.declaration.catalogs import DeltaCatalog, QualifiedName
from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.modes import MODES
from oncelake.ingestion.declaration.names import SINKS_OF_OTHERS
from oncelake.ingestion.declaration.partitions import CLUSTERED_TYPES, DELTA_TYPES, TYPES
from oncelake.ingestion.declaration.parts import Allowed, Flag, Part
from oncelake.ingestion.declaration.sql import identifier, quoted
from oncelake.ingestion.declaration.types import PLAIN_NAME, SqlType

# The ending of the name of a table that is made beside another, to take its place.
BESIDE: Final = "__rebuild"
# The branch of an Iceberg table in which that one is made.
REBUILD: Final = "oncelake_rebuild"
TopicName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,240}$"),
    Allowed("write the name of a topic: at most 240 letters, digits, points, _ and -"),
]
# What a sink may be unable to do; each is refused then, with the sink's own reason.
Ability = Literal["rewind", "replay", "redrive", "rebuild", "erase", "time travel"]
CatalogName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9_-]+$"),
    Allowed("write the name of a catalog: letters, digits, - and _"),
]


PropertyText = Annotated[str, Field(strict=True), Allowed("write a text in quotes, such as '20'")]
# Delta's properties that a declaration may set, and what each may be: see docs/sinks.md.
PROPERTIES: Final[Mapping[str, str]] = {
    "delta.autoOptimize.autoCompact": "true|false|auto",
    "delta.autoOptimize.optimizeWrite": "true|false",
    "delta.checkpointInterval": "[1-9][0-9]{0,3}",
    "delta.isolationLevel": "Serializable|WriteSerializable",
    "delta.targetFileSize": "[1-9][0-9]*(b|kb|mb|gb)?",
    "delta.tuneFileSizesForRewrites": "true|false",
}
_RESERVED: Final = re.compile("(delta|oncelake)[.]", re.IGNORECASE)
_OF_DELTA: Final = f"of Delta's own, a declaration sets {', '.join(PROPERTIES)}; remove it"
_INSTEAD: Final = {
    "delta.enableChangeDataFeed": "write `change_data_feed: true`",
    "delta.enableDeletionVectors": "write `deletion_vectors: true`, beside `sink`",
    "delta.deletedFileRetentionDuration": "`rewind_window_days` sets it",
    "delta.logRetentionDuration": "`rewind_window_days` sets it",
}


class SinkPart(Part):
    """The declared options of a sink."""

    def table_of(self, stream: str) -> str:
        """Return the table of a stream."""
        return stream

    def shown_name(self, stream: str) -> str:
        """Return the name by which others look for the table of a stream."""
        return self.table_of(stream)

    def beside(self, stream: str) -> SinkPart:
        """Return where a table is made that is to take the place of a stream's.

        Where a person may name the ``table``, by a longer name. One that has its name for good is
        its own; so are tables in the lake's folders, which are made in another one.
        """
        if "table" not in type(self).model_fields:
            return self
        return self.model_copy(update={"table": f"{self.table_of(stream)}{BESIDE}"})


class DeltaSink(SinkPart):
    """A Delta table in the lake, named for the stream."""

    change_data_feed: Flag = Field(
        False,
        description="Whether the table tells its readers which rows each batch has inserted, "
        "updated and deleted: Delta's change data feed. It is never turned off again from here.",
    )
    catalog: DeltaCatalog | None = Field(
        None, description="A catalog in which the table has an entry, which follows its columns."
    )
    key_index: Flag = Field(
        False,
        description="Whether this machine keeps an index of the table's keys, so that a batch "
        "reads only the rows of its keys, however large the table is. Needs `deletion_vectors: "
        "true`; without effect where the lake is in a store.",
    )
    properties: Mapping[str, PropertyText] = Field(
        {},
        description="Properties of the table: any of your own, and those of Delta's that change "
        "nothing which Oncelake relies on.",
    )

    @field_validator("properties")
    @classmethod
    def _are_allowed(cls, properties: Mapping[str, str]) -> Mapping[str, str]:
        for name, value in properties.items():
            allowed = PROPERTIES.get(name, "" if _RESERVED.match(name) else ".*")
            if not re.fullmatch(allowed, value):
                known = f"write a value like {allowed}" if allowed else _OF_DELTA
                raise ValueError(f"{name} cannot be {value!r}: {_INSTEAD.get(name, known)}")
        return properties

    def shown_name(self, stream: str) -> str:
        """Return the table's name in its catalog, where it has one."""
        return self.catalog.name_of(stream) if self.catalog else stream


class IcebergSink(SinkPart):
    """An Iceberg table, in the catalog that pyiceberg is configured for."""

    table: QualifiedName | None = Field(
        None, description="namespace.table; left out: oncelake.<stream>."
    )
    catalog: CatalogName | None = Field(
        None,
        description="Name of a catalog in pyiceberg's configuration. Left out: its default, or, "
        "with no configuration, one on SQLite in the lake.",
    )
    spark_names: Flag = Field(
        False,
        description="Whether _partition and _deleted are stored as _oncelake_partition and "
        "_oncelake_deleted: Iceberg's library for Spark reserves those names, and refuses them.",
    )

    def table_of(self, stream: str) -> str:
        """Return the table of a stream."""
        return self.table or f"oncelake.{stream}"

    def beside(self, stream: str) -> SinkPart:
        """Return a branch of the table, which is named as Spark does."""
        return self.model_copy(update={"table": f"{self.table_of(stream)}.branch_{REBUILD}"})


class PostgresSink(SinkPart):
    """A table of PostgreSQL; ONCELAKE_POSTGRES says where the server is."""

    table: QualifiedName | None = Field(
        None, description="schema.table; left out: public.<stream>."
    )

    def table_of(self, stream: str) -> str:
        """Return the table of a stream."""
        return self.table or f"public.{stream}"


class KafkaSink(SinkPart):
    """A topic: a record a row, a transaction a batch."""

    topic: TopicName | None = Field(None, description="Left out: oncelake.<stream>.")
    format: Literal["json", "avro"] = Field(
        "json",
        description="How a row is written. Avro needs ONCELAKE_SCHEMA_REGISTRY, where the schemas "
        "are registered as <topic>-key and <topic>-value.",
    )

    def table_of(self, stream: str) -> str:
        """Return the topic of a stream."""
        return self.topic or f"oncelake.{stream}"

    def refused_name(self, name: str, type_: SqlType) -> str | None:
        """Return the name, of a column or of a field within it, that the format cannot write."""
        others = (each for each in (name, *type_.names()) if not PLAIN_NAME.fullmatch(each))
        return next(others, None) if self.format == "avro" else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Statements:
    """What gives a table of a sink other columns, as a person types it, or reads it.

    Each text is filled in by `SinkKind.statement`. One that is empty says that the sink cannot do
    it.

    Attributes:
        add: What adds a column.
        take_nulls: What lets a column take nulls.
        widen: What gives a column a type that holds more.
        drop_constraint: What drops a constraint, whose name is the column's.
        refit: What makes a column of an empty table of others as it is declared, by what differs:
            its ``type``, or how the table fills it.
        type_names: How types are named in these texts, where that is not as they are declared.
    """

    add: str = ""
    take_nulls: str = ""
    widen: str = ""
    drop_constraint: str = ""
    refit: Mapping[str, str] = field(default_factory=dict)
    type_names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkKind:
    """One sink, and all that it can and cannot do.

    Attributes:
        module: Where its table is: ``open_table(stream, sink, settings, lake)``.
        part: What a person may say of it.
        problem: Why it cannot be used, though it is registered.
        cannot: What it is unable to do, each with the reason, as a sentence.
        refused_modes: The write modes that it cannot keep.
        refused: Types that would lose something in it.
        stored_as: The types that it stores as another: the stored by the declared type. A VARIANT
            that is a STRING is the text of its JSON.
        unstorable: Characters that no name of a column, or of a field within it, may have.
        unstorable_in_text: Characters that no text may have: a batch with one is refused.
        taken: Names of columns that every table of it has.
        has_text_keys: Whether the keys of a MAP must be texts.
        is_log: Whether rows are only ever added to it: it looks nothing up, and merges nothing.
        marks_rows: Whether it can mark rows as gone, and leave their files as they are: it is a
            ``MarkableTable``.
        longest_key: How many bytes the texts and bytes of a key may have together; 0 for any.
        longest_name: How many bytes the name of a column may have; 0 for any.
        way_out: What a person does about an empty table of others that cannot be a stream's.
        statements: How its tables get other columns.
        keeps_scale: Whether a wider DECIMAL has no more places, and the key of a MAP stays.
        keeps_name: What a person does about a table with batches that cannot get another name.
        seals: Whether its files are synced and checked by Oncelake: it is a ``SealedTable``.
        renames_columns: Whether columns that are there can get other names, or go.
        orders_columns: Whether they can be put into another order.
        has_branches: Whether a change can be shown beside the table: it is a ``BranchingTable``.
        partition_types: The types that its tables may be partitioned by, by transform.
        computes_columns: Whether a table has a column for each transform of another.
        sorts_rows: Whether a declaration may sort the rows of its files.
        clustered_types: The types that its tables may be clustered by.
        clusters_partitions: Whether a table that is partitioned may be.
        divides: What an alter of its partitions does.
    """

    module: str
    part: type[SinkPart] = SinkPart
    problem: str = ""
    cannot: Mapping[Ability, str] = field(default_factory=dict)
    refused_modes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    stored_as: Mapping[str, str] = field(default_factory=dict)
    unstorable: str = ""
    unstorable_in_text: str = ""
    taken: tuple[str, ...] = ()
    has_text_keys: bool = False
    is_log: bool = False
    marks_rows: bool = False
    longest_key: int = 0
    longest_name: int = 0
    way_out: str = "drop or rename that table, or declare another one in `sink`"
    statements: Statements = Statements()
    keeps_scale: bool = False
    keeps_name: str = ""
    seals: bool = False
    renames_columns: bool = False
    orders_columns: bool = False
    has_branches: bool = False
    partition_types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    computes_columns: bool = False
    sorts_rows: bool = False
    clustered_types: tuple[str, ...] = ()
    clusters_partitions: bool = False
    divides: str = "lets new files follow it, and older ones stay"

    def statement(self, text: str, column: DeclaredColumn, *, table: str, where: str = "") -> str:
        """Fill in one of its texts about a column.

        Args:
            table: The table's name in the sink.
            where: What the table is called for people.
        """
        stored = self.stored_type(column.type)
        return text.format(
            where=where,
            table=table,
            quoted_table=".".join(map(identifier, table.split("."))),
            name=column.name,
            ticked=quoted(column.name),
            quoted=identifier(column.name),
            type=self.statements.type_names.get(stored.word, stored),
            comment=column.comment_ddl,
        )

    def can_widen(self, found: SqlType, wider: SqlType) -> bool:
        """Tell whether a column of a type can get another, which holds all its values."""
        return bool(self.statements.widen) and found.widens_to(wider) and self._fits(found, wider)

    def _fits(self, found: SqlType, wider: SqlType) -> bool:
        """Tell whether files that have a type can be read by a wider one."""
        if not self.keeps_scale:
            return True
        parts = found.parts.items()
        return (
            found.scale == wider.scale
            and not (found.word == "MAP" and found.parts["key"] != wider.parts["key"])
            and all(self._fits(part, wider.parts[name]) for name, part in parts)
        )

    @property
    def has_names(self) -> bool:
        """Tell whether a person may name its tables, outside the lake: each is a ``NamedTable``."""
        return "table" in self.part.model_fields

    def stored_type(self, declared: SqlType) -> SqlType:
        """Return the type by which a declared one is kept, and read again."""
        return declared.without_required().with_words(self.stored_as)

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
_NO_PAST: Final = "PostgreSQL keeps no earlier state of a table"
_KEPT: Final = "a topic keeps what was written to it"
_ALTER_COLUMN: Final = "ALTER TABLE {quoted_table} ALTER COLUMN {quoted}"
_CONTROL: Final = "".join(map(chr, (*range(32), 127)))
_OWN: Final[dict[str, SinkKind]] = {
    # Delta itself takes some of these, though only under column mapping, a protocol upgrade.
    "delta": SinkKind(
        module="oncelake.ingestion.sinks.delta.table",
        part=DeltaSink,
        unstorable=f" ,;{{}}()=.`{_CONTROL}",
        marks_rows=True,
        seals=True,
        renames_columns=True,
        orders_columns=True,
        partition_types=DELTA_TYPES,
        computes_columns=True,
        clustered_types=CLUSTERED_TYPES,
        divides="writes all files anew by it, in one commit",
        way_out="oncelake reset {stream} --yes, which moves that table into the archive",
        statements=Statements(
            add="ALTER TABLE delta.`{where}` ADD COLUMNS ({ticked} {type}{comment})",
            take_nulls="ALTER TABLE delta.`{where}` ALTER COLUMN {ticked} DROP NOT NULL",
            widen="the files of {where} are written anew, {name} as {type}",
            drop_constraint="ALTER TABLE delta.`{where}` DROP CONSTRAINT {ticked}",
        ),
    ),
    # A path of pyiceberg's is names with points between them.
    "iceberg": SinkKind(
        module="oncelake.ingestion.sinks.iceberg.table",
        part=IcebergSink,
        stored_as={"TINYINT": "INT", "SMALLINT": "INT", "VARCHAR": "STRING", "VARIANT": "STRING"},
        unstorable=f".`{_CONTROL}",
        marks_rows=True,
        statements=Statements(
            add="ALTER TABLE {table} ADD COLUMN {ticked} {type}{comment}",
            take_nulls="ALTER TABLE {table} ALTER COLUMN {ticked} DROP NOT NULL",
            widen="ALTER TABLE {table} ALTER COLUMN {ticked} TYPE {type}",
        ),
        # The format has no other wider types for files that have the narrower.
        keeps_scale=True,
        renames_columns=True,
        orders_columns=True,
        has_branches=True,
        partition_types=TYPES,
        sorts_rows=True,
        clustered_types=CLUSTERED_TYPES,
        clusters_partitions=True,
    ),
    "postgres": SinkKind(
        module="oncelake.ingestion.sinks.postgres.table",
        part=PostgresSink,
        cannot={"rewind": _NO_PAST, "time travel": _NO_PAST},
        refused=_NESTED,
        stored_as={"TINYINT": "SMALLINT", "VARIANT": "STRING"},
        unstorable_in_text="\0",
        taken=("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"),
        # A row of an index has at most 2,704, other columns and what goes between them included.
        longest_key=2_000,
        # It cuts a longer one short, and says nothing.
        longest_name=63,
        renames_columns=True,
        statements=Statements(
            add="ALTER TABLE {quoted_table} ADD COLUMN IF NOT EXISTS {quoted} {type}",
            take_nulls=f"{_ALTER_COLUMN} DROP NOT NULL",
            widen=f"{_ALTER_COLUMN} TYPE {{type}}",
            refit={
                # A generated column takes no other type in the statement that makes it a plain one.
                "generated": f"{_ALTER_COLUMN} DROP EXPRESSION",
                "default": f"{_ALTER_COLUMN} DROP DEFAULT",
                "identity": f"{_ALTER_COLUMN} DROP IDENTITY",
                "always identity": f"{_ALTER_COLUMN} DROP IDENTITY",
                "type": f"{_ALTER_COLUMN} TYPE {{type}} USING NULL",
            },
            type_names={
                "BOOLEAN": "boolean",
                "SMALLINT": "smallint",
                "INT": "integer",
                "BIGINT": "bigint",
                "FLOAT": "real",
                "DOUBLE": "double precision",
                "STRING": "text",
                "BINARY": "bytea",
                "DATE": "date",
                "TIMESTAMP": "timestamp with time zone",
                "TIMESTAMP_NTZ": "timestamp without time zone",
            },
        ),
    ),
    "kafka": SinkKind(
        module="oncelake.ingestion.sinks.kafka.table",
        part=KafkaSink,
        cannot={
            "rewind": _KEPT,
            "replay": f"{_KEPT}, so records that are read again would come after newer ones",
            "redrive": f"{_KEPT}, so a record from quarantine would come after newer ones",
            "rebuild": _KEPT,
            "erase": f"{_KEPT}, until compaction or retention removes it",
            "time travel": "compaction may have removed what its rows were before",
        },
        stored_as={"VARIANT": "STRING"},
        has_text_keys=True,
        is_log=True,
        keeps_name="declare another one by `sink: {{kafka: {{topic: …}}}}`, or delete {table} and "
        "{table}.oncelake",
        statements=Statements(
            add="records of topic {table} have {name} {type} from now on",
            take_nulls="records of topic {table} may have null as {name} from now on",
        ),
    ),
}


def _of_others() -> Iterator[tuple[str, SinkKind]]:
    """Yield the sinks that other packages have registered."""
    for point in entry_points(group=SINKS_OF_OTHERS):
        if point.name in _OWN:
            continue
        origin = f"sink {point.name} of {point.value}"
        try:
            kind = point.load()
        except Exception as error:  # noqa: BLE001 (of a stranger's package; told to who declares it)
            kind = SinkKind(module="", problem=f"{origin} cannot be imported: {error!r}")
        if not isinstance(kind, SinkKind):
            kind = SinkKind(module="", problem=f"{origin} is no SinkKind, but {kind!r}")
        yield point.name, kind


SINKS: Final[dict[str, SinkKind]] = {**_OWN, **dict(_of_others())}


class _OwnSinks(Part):
    delta: DeltaSink | None = None
    iceberg: IcebergSink | None = None
    postgres: PostgresSink | None = None
    kafka: KafkaSink | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if len(self.model_fields_set) > 1:
            raise ValueError(f"write one of: {', '.join(SINKS)}")
        if self.kind.problem:
            raise ValueError(self.kind.problem)
        return self

    @field_validator("*", mode="before")
    @classmethod
    def _nothing_is_a_map(cls, value: Any) -> Any:
        return {} if value is None else value

    @property
    def name(self) -> str:
        """Which one."""
        return next((name for name in SINKS if name in self.model_fields_set), "delta")

    @property
    def kind(self) -> SinkKind:
        """The capabilities of the sink."""
        return SINKS[self.name]

    @property
    def declared(self) -> SinkPart:
        """The declared options of the sink."""
        found: SinkPart | None = getattr(self, self.name)
        return found or DeltaSink()

    @property
    def catalog(self) -> DeltaCatalog | None:
        """The catalog in which its tables have entries, if one is declared."""
        return self.delta.catalog if self.delta else None

    def table_of(self, stream: str) -> str:
        """Name the table of a stream as its sink does."""
        return self.declared.table_of(stream)

    def beside(self, stream: str) -> SinkSpec:
        """Return the sink of a table that is made to take the place of this one's."""
        sink = self.declared
        return SinkSpec(**{self.name: sink.beside(stream)}) if self.model_fields_set else SinkSpec()


if TYPE_CHECKING:

    class SinkSpec(_OwnSinks):
        """The sink of the rows."""

else:
    SinkSpec = create_model(
        "SinkSpec",
        __base__=_OwnSinks,
        __module__=__name__,
        __doc__="What keeps the rows: one of the sinks.",
        **{name: (kind.part | None, None) for name, kind in SINKS.items() if name not in _OWN},
    )


def named_version(sink: str, version: int) -> str:
    """Name a version of a sink's table, for people."""
    return f"Delta version {version}" if sink == "delta" else f"version {version}"


# Those to which rows are only added: they need no memory of deletes.
LOGS: Final = frozenset(name for name, kind in SINKS.items() if kind.is_log)
