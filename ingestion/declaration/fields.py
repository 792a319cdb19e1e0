"""The fields of a stream's file, and the properties that follow from them.

Each field is checked by itself here; ``rules`` and ``mode_rules`` check them against one another.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_columns
from oncelake.ingestion.declaration.derived import SchemaSource
from oncelake.ingestion.declaration.gate import Guard, Publish, Rule, RuleName
from oncelake.ingestion.declaration.modes import (
    COORDINATES,
    INDEX_COLUMN,
    MODES,
    OF_A_RECORD,
    WINDOW_COLUMNS,
    Mode,
)
from oncelake.ingestion.declaration.names import name_problem
from oncelake.ingestion.declaration.partitions import (
    DeclaredPartition,
    parse_partition,
    rejoined,
)
from oncelake.ingestion.declaration.parts import (
    Count,
    Cron,
    Days,
    DottedName,
    Duration,
    Expectation,
    ExtraFields,
    Flag,
    FollowPace,
    FormatSpec,
    Group,
    KeyFormatSpec,
    Maintenance,
    Minutes,
    Owner,
    Part,
    PartitionText,
    Pattern,
    PauseSeconds,
    QuarantineRate,
    Sql,
    Starting,
    TagKey,
    TagValue,
    TombstonePolicy,
    Topic,
    Unavailable,
    Window,
    one_of,
    seconds_of,
)
from oncelake.ingestion.declaration.routes import BY_SCHEMA, Route
from oncelake.ingestion.declaration.sinks import SINKS, SinkSpec
from oncelake.ingestion.declaration.sql import names_in, refuse_absent_module
from oncelake.ingestion.declaration.types import SqlType

# Fields of a stream that follow from the file, and what to do about them in it.
NOT_WRITTEN: Final = {
    "name": "the file's name is the stream's; remove it",
    "declared_in": "the file's name says it; remove it",
    "schema_from": "unknown key; write `schema: registry`, or `schema: embedded`",
    "route": "unknown key; did you mean `route_by`, beside `tables`?",
}


class Declaration(Part):
    """The fields of a stream's file, in the order in which a person would write them."""

    name: str = Field(description="The file's name; also the asset's and the table's.")
    declared_in: str | None = Field(None, description="The file, where it declares several.")
    description: str = Field("", description="What the table holds, for people.")
    topic: Topic | None = Field(None, description="The Kafka topic to read.")
    topics: tuple[Topic, ...] = Field((), description="Several topics into the one table.")
    topic_pattern: Pattern | None = Field(
        None, description="Every topic whose whole name matches, as of each run's start."
    )
    table_per_topic: Flag = Field(
        False, description="A table, and a stream, of its own for each topic."
    )
    table: str | None = Field(
        None,
        description="With `table_per_topic`: the name, of groups of `topic_pattern`: '{1}_{2}'.",
    )
    discover: Literal["manual", "auto"] = Field(
        "manual",
        description="Who writes down new topics and schemas: `oncelake discover` alone, or also "
        "whoever meets one.",
    )
    route: Route | None = Field(
        None, description="Of a file with `tables`: which records are this one's."
    )
    format: FormatSpec = Field(FormatSpec(), description="How a value is encoded.")
    record: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="Full name of the record type that is meant, in a topic of several."
    )
    ddl: str = Field(alias="schema", description="The table's columns, as Spark DDL.")
    schema_from: SchemaSource | None = Field(
        None, description="What gave the columns, where `schema` is no DDL."
    )
    overrides: Mapping[str, str] = Field(
        {},
        alias="columns",
        description="Types, as DDL, of single columns, where `schema` comes with the records.",
    )
    exclude: tuple[str, ...] = Field(
        (), description="Fields that get no column, where `schema` comes with the records."
    )
    renamed_from: Mapping[str, str] = Field(
        {},
        description="Columns that `oncelake alter` renames: what the table calls each until then, "
        "by its name in `schema`.",
    )
    leniency: Mapping[str, Literal["lenient"]] = Field(
        {},
        alias="types",
        description="Columns that take a number in quotes, or as text a number or boolean.",
    )
    value_ddl: str | None = Field(
        None,
        alias="value_schema",
        description="The value's columns, where they are not the table's.",
    )
    from_headers: Mapping[str, Annotated[str, Field(min_length=1)]] = Field(
        {}, description="Columns that a header of the record gives, each by the header's name."
    )
    header_format: Mapping[str, Literal["short", "int", "long", "uuid"]] = Field(
        {}, description="How a header is encoded, by its column, where it is not text."
    )
    from_key: tuple[str, ...] = Field(
        (), description="Columns that the record's Kafka key gives, in its order."
    )
    explode: str | None = Field(
        None, description="Array column of the value, each of whose elements gives a row."
    )
    where: Sql | None = Field(None, description="SQL condition: other records are filtered out.")
    on_filtered: Literal["delete", "keep"] = Field(
        "delete",
        description="What a record that `where` leaves out does to the row of its key.",
    )
    select: Mapping[str, Sql] = Field(
        {}, description="SQL expressions, by the table's column that each gives."
    )
    transform: DottedName | None = Field(
        None, description="Python function from DataFrame to DataFrame, as package.module.function."
    )
    sink: SinkSpec = Field(
        SinkSpec(), description="What keeps the rows: delta, iceberg, postgres or kafka."
    )
    mode: str = Field("upsert", description="How records become rows.")
    keys: tuple[str, ...] = Field((), description="Columns that identify a row.")
    sequence_by: tuple[str, ...] = Field((), description="Columns that say which record is newer.")
    partition_by: tuple[PartitionText, ...] = Field(
        (),
        description="Columns, or transforms of them, by which the table is divided: day(at), "
        "bucket(16, id), region. Left out: as the table is.",
    )
    sort_by: tuple[str, ...] = Field(
        (), description="Columns by which the rows of a file are sorted. Left out: as the table is."
    )
    cluster_by: tuple[str, ...] = Field(
        (),
        description="Columns of whose values upkeep gives each file a range of its own. "
        "Left out: as the table is.",
    )
    track: tuple[str, ...] = Field(
        (),
        description="With `mode: scd2`: columns of which one must change to make a new version. "
        "Left out: every record is a version.",
    )
    aggregates: Mapping[str, str] = Field(
        {}, description="Columns of a group, each a function of a column, such as sum(amount)."
    )
    window: Window | None = Field(None, description="Groups by event time, too.")
    apply_as_deletes: Sql | None = Field(None, description="SQL condition: the record is a delete.")
    deletes: Literal["hard", "soft"] = Field(
        "hard", description="Whether a delete removes the row, or marks it as `_deleted`."
    )
    ignore_null_updates: Flag = Field(
        False, description="Whether a null column of a record keeps what is there."
    )
    tombstones: TombstonePolicy | None = Field(None, description="What a null value means.")
    key_format: KeyFormatSpec = Field(
        KeyFormatSpec(), description="How a Kafka key is encoded, where columns come from it."
    )
    starting: Starting = Field(Starting(), description="Where the very first run begins.")
    max_offsets_per_trigger: Count = Field(
        1_000_000, description="At most this many offsets a batch."
    )
    extra_fields: ExtraFields = Field(
        "ignore",
        description="Fields the schema does not name: counted, kept, or quarantined.",
    )
    delivery: Literal["exactly_once", "at_least_once", "at_most_once"] = Field(
        "exactly_once", description="What is done without a person where Kafka takes records away."
    )
    schema_change: Literal["freeze", "evolve"] = Field(
        "freeze", description="What a changed `schema` does to the table: see oncelake plan."
    )
    on_new_field: Literal["evolve", "ignore", "quarantine"] | None = Field(
        None,
        description="What a new field in a schema that comes with the records does. Left out: as "
        "`schema_change` says; a field that is ignored is counted.",
    )
    on_wider_type: Literal["evolve", "quarantine"] | None = Field(
        None,
        description="What a wider type there does: the column gets it, or what does not fit goes "
        "to quarantine. Left out: as `schema_change` says.",
    )
    gaps: Literal["auto", "always", "never"] = Field(
        "auto", description="Whether offsets without a record are proven empty during the run."
    )
    rewind_window_days: Days = Field(7, description="How far back the table can be rewound.")
    deletion_vectors: Flag = Field(
        False,
        description="Whether rows are marked as gone, instead of writing their files anew: by "
        "deletion vectors in Delta, by position deletes in Iceberg. Readers must heed that.",
    )
    maintenance: Maintenance = Field(
        Maintenance(), description="How tables are kept small: see oncelake maintain."
    )
    quarantine_rate: QuarantineRate = Field(
        QuarantineRate(), description="When bad records are too many."
    )
    freshness_minutes: Minutes | None = Field(
        None, description="The check warns when records wait for longer than this."
    )
    retention_warning: Duration | None = Field(
        None,
        description="The check warns when Kafka may delete unread records sooner than this, such "
        "as `24 hours`. Left out: sooner than a quarter of what the topic retains.",
    )
    expectations: tuple[Expectation, ...] = Field(
        (), description="Great Expectations on a run's rows."
    )
    expect: Mapping[RuleName, Rule] = Field(
        {}, description="Conditions that each row should meet, by name."
    )
    guard: Guard = Field(
        Guard(), description="What a batch may be beside the batches before; or `true`."
    )
    publish: Publish = Field(
        Publish(),
        description="Whether a batch is judged by its books, `expect`, `guard` and `expectations` "
        "before it is committed, and committed only if it passes.",
    )
    verify: Flag = Field(
        False, description="Whether every run ends with a proof, as the check `verified`."
    )
    schedule: Cron | None = Field(None, description="Cron line, in UTC, that starts runs.")
    backfill_from: dt.date | None = Field(
        None, description="From this day on, Dagster shows days that may be replayed."
    )
    sensor: Flag | None = Field(
        None,
        description="Whether Dagster's sensor `lag` starts runs. Left out: unless `schedule` is "
        "declared.",
    )
    sensor_seconds: PauseSeconds = Field(
        60, description="How often the sensor looks for new records."
    )
    follow: FollowPace = Field(
        FollowPace(), description="How often `oncelake follow` runs the stream."
    )
    owners: tuple[Owner, ...] = Field(
        (), description="Dagster owners: e-mail addresses or team:name."
    )
    group: Group = Field("ingest", description="Dagster's group of the asset.")
    tags: Mapping[TagKey, TagValue] = Field({}, description="Dagster's tags of the asset.")

    @field_validator("topic", "topics")
    @classmethod
    def _topic_is_no_path(cls, value: Any) -> Any:
        for topic in (value,) if isinstance(value, str) else value or ():
            if topic in {".", ".."}:
                raise ValueError(f"{topic!r} is not a topic that Kafka allows")
        return value

    @field_validator("topic_pattern")
    @classmethod
    def _pattern_is_one(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        return pattern

    @field_validator("sink", mode="before")
    @classmethod
    def _one_word_is_a_sink(cls, value: Any) -> Any:
        return {one_of(SINKS, value): {}} if isinstance(value, str) else value

    @field_validator("format", "key_format", "starting", mode="before")
    @classmethod
    def _one_word_is_a_map(cls, value: Any, validated: ValidationInfo) -> Any:
        key = "at" if validated.field_name == "starting" else "type"
        return {key: value} if isinstance(value, str) else value

    @field_validator(
        *("cluster_by", "exclude", "from_key", "keys", "partition_by", "record", "sequence_by"),
        *("sort_by", "topics", "track"),
        mode="before",
    )
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("partition_by", mode="before")
    @classmethod
    def _a_call_is_one_text(cls, value: Any) -> Any:
        return rejoined(value) if isinstance(value, list | tuple) else value

    @field_validator("name")
    @classmethod
    def _name_is_free(cls, name: str) -> str:
        if problem := name_problem(name):
            raise ValueError(problem)
        return name

    @field_validator("ddl", "value_ddl")
    @classmethod
    def _ddl_is_readable(cls, ddl: str | None) -> str | None:
        if ddl is not None:
            parse_columns(ddl)
        return ddl and ddl.strip()

    @field_validator("transform")
    @classmethod
    def _function_is_there(cls, name: str | None) -> str | None:
        if name is not None:
            refuse_absent_module(name)
        return name

    @field_validator("mode")
    @classmethod
    def _mode_is_known(cls, mode: str) -> str:
        return one_of(MODES, mode)

    @property
    def file(self) -> str:
        """The name of the file that declares it, for people."""
        return self.declared_in or f"{self.name}.yaml"

    @cached_property
    def columns(self) -> tuple[DeclaredColumn, ...]:
        """The declared columns, in order."""
        return parse_columns(self.ddl)

    @cached_property
    def partitions(self) -> tuple[DeclaredPartition, ...]:
        """The declared fields by which the table is partitioned, in order."""
        return tuple(map(parse_partition, self.partition_by))

    @cached_property
    def value_columns(self) -> tuple[DeclaredColumn, ...]:
        """The columns of a record as it is decoded, in order."""
        declared = parse_columns(self.value_ddl) if self.value_ddl else self.columns
        names = {column.name for column in declared}
        added = self.metadata_columns - names
        return (*declared, *(column for column in self.columns if column.name in added))

    @cached_property
    def metadata_columns(self) -> frozenset[str]:
        """Columns that headers and the Kafka key give, and not the value."""
        return frozenset((*self.from_headers, *self.from_key))

    @property
    def payload_columns(self) -> tuple[DeclaredColumn, ...]:
        """The columns that the bytes of a value give, in order."""
        names = self.metadata_columns
        return tuple(column for column in self.value_columns if column.name not in names)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns that a Kafka key gives, in order."""
        return self.from_key or tuple(name for name in self.keys if name not in self.from_headers)

    @property
    def tombstone_columns(self) -> tuple[str, ...]:
        """The columns of key and order that a null value has, by its Kafka key and its headers."""
        given = self.metadata_columns - self.select.keys()
        ordering = (name for name in self.sequence_by if name in given)
        return tuple(dict.fromkeys((*self.keys, *ordering)))

    @cached_property
    def value_types(self) -> Mapping[str, SqlType]:
        """The types of a value's columns, by name."""
        return {column.name: column.type for column in self.value_columns}

    @property
    def value_field(self) -> str:
        """The field of the file that declares the value's columns."""
        return "value_schema" if self.value_ddl else "schema"

    @property
    def lenient(self) -> frozenset[str]:
        """Columns of the value that take what is written as another type."""
        return frozenset(self.leniency)

    @cached_property
    def exploded_columns(self) -> tuple[DeclaredColumn, ...]:
        """The columns of ``where`` and ``select``: the value's, one an element where exploded."""
        return tuple(
            replace(column, type=column.type.parts["element"], nullable=True)
            if column.name == self.explode
            else column
            for column in self.value_columns
        )

    @property
    def required_value_columns(self) -> tuple[str, ...]:
        """Columns that `value_schema` says are never null, but for those of key and order."""
        if not self.value_ddl:
            return ()
        elsewhere = {*self.never_null, *self.sequence_by, self.explode}
        required = (column.name for column in self.value_columns if not column.nullable)
        return tuple(name for name in required if name not in elsewhere)

    @property
    def _makes_columns(self) -> bool:
        """Tell whether the table's columns are computed from the value's, which are others."""
        return bool(self.select or self.transform or self.value_ddl or self.explode)

    @property
    def is_transformed(self) -> bool:
        """Tell whether the row is computed from the value."""
        return bool(self.where or self.select or self.transform or self.value_ddl)

    @property
    def unavailable(self) -> Unavailable | None:
        """The treatment of a column that a record leaves out because it has not changed.

        ``keep`` the row's value, or ``null``, which partial updates understand. ``None`` where the
        format leaves nothing out.
        """
        if not self.format.options.may_lack_columns:
            return None
        keeps = self.write_mode.keeps_columns and not self.ignore_null_updates
        keeps = keeps and not (self._makes_columns or self.is_log)
        return "keep" if keeps else "null"

    @property
    def has_whole_rows(self) -> bool:
        """Tell whether a record alone determines the declared columns of its row."""
        takes_over = self.ignore_null_updates or self.unavailable == "keep"
        return self.mode != "aggregate" and not takes_over

    @cached_property
    def never_left_out(self) -> frozenset[str]:
        """Columns that a record may not leave out: key, order, and those that expressions read."""
        if self.unavailable is None:
            return frozenset()
        if self._makes_columns or self.is_log:
            return frozenset(column.name for column in self.value_columns)
        asked = names_in(self.where) | names_in(self.apply_as_deletes)
        of_columns = (column.name for column in self.columns if column.name.lower() in asked)
        return frozenset((*self.never_null, *self.sequence_by, *of_columns))

    @cached_property
    def moved_by(self) -> tuple[str, ...]:
        """Columns of a value that make the key: an update in which one differs may move its row.

        None where no record has the row before it, or nothing is deleted.
        """
        if not (self.format.options.may_lack_columns and self.write_mode.has_deletes):
            return ()
        taken = {name.lower() for name in self.keys if name not in self.select}
        made_of = taken.union(*(names_in(self.select.get(name)) for name in self.keys))
        names = (column.name for column in self.payload_columns if column.name != self.explode)
        return tuple(name for name in names if name.lower() in made_of)

    @property
    def settles_moves(self) -> bool:
        """Tell whether it is looked up which row a move takes; a log finds none by its key."""
        return bool(self.moved_by) and not self.is_log

    @property
    def movable(self) -> tuple[str, ...]:
        """Columns that a row takes along to another key."""
        of_record = {*self.format.options.of_envelope, *self.metadata_columns}
        fixed = {*self.keys, *self.never_left_out, *of_record}
        return tuple(name for name in self.types if name not in fixed)

    @cached_property
    def types(self) -> Mapping[str, SqlType]:
        """The types of the declared columns, by name."""
        return {column.name: column.type for column in self.columns}

    @cached_property
    def sequence_types(self) -> Mapping[str, SqlType]:
        """The types of what records may be ordered or windowed by: columns and Kafka's time."""
        return {**self.types, "_timestamp": SqlType(word="TIMESTAMP")}

    @property
    def write_mode(self) -> Mode:
        """The row of the mode in ``MODES``."""
        return MODES[self.mode]

    @property
    def never_null(self) -> tuple[str, ...]:
        """Columns without which a record belongs to no row: the keys, and what windows go by."""
        by_time = (self.window.column,) if self.window else ()
        return (*self.keys, *(name for name in by_time if name != "_timestamp"))

    @property
    def row_keys(self) -> tuple[str, ...]:
        """Columns by which a row of the table is the same one: its keys, or its place in Kafka.

        A version of a key is known by both, a group by its window too. A log without keys has none.
        """
        if self.mode == "aggregate" and self.window:
            return (*self.keys, *WINDOW_COLUMNS)
        if self.is_log or (self.keys and self.mode != "scd2"):
            return self.keys
        return (*self.keys, "_epoch", *self.origin)

    @property
    def is_log(self) -> bool:
        """Tell whether rows are only ever added to what keeps them."""
        return self.sink.kind.is_log

    @property
    def remembered(self) -> frozenset[str]:
        """Declared columns of the table that remembers deletes, and records that are no version."""
        if self.is_log or not self.write_mode.has_deletes:
            return frozenset()
        is_whole = self.unavailable == "keep" or self.moved_by or self.track
        names = self.types if is_whole else (*self.keys, *self.sequence_by)
        return frozenset(names)

    @cached_property
    def record_names(self) -> tuple[str, ...]:
        """The record's names in expressions: a column of the value hides one of its name."""
        of_value = {column.name.lower() for column in self.value_columns}
        return tuple(name for name in OF_A_RECORD if name not in of_value)

    @property
    def origin(self) -> tuple[str, ...]:
        """Columns that say where in Kafka a row comes from, and no other row of its epoch."""
        return (*COORDINATES, INDEX_COLUMN) if self.explode else COORDINATES

    @property
    def order_columns(self) -> tuple[str, ...]:
        """Columns along which a key's records are ordered, most significant first."""
        return (*self.sequence_by, *self.origin)

    @property
    def subscribed(self) -> tuple[str, ...]:
        """The topics to read, in order; of a pattern, none until ``resolve_topics`` does."""
        return (self.topic,) if self.topic else self.topics

    @property
    def record_types(self) -> tuple[str, ...]:
        """The record types that are meant, as declared or as the route says; none where any is."""
        return self.record or (self.route.record_types if self.route else ())

    @property
    def shares_tombstones(self) -> bool:
        """Tell whether a null value, or a change of no route, may belong to sibling streams."""
        if self.route is None:
            return False
        may_be_of_all = self.format.options.may_lack_columns and self.route.by != BY_SCHEMA
        are_many = len(self.route.tables) > 1
        return (may_be_of_all and are_many) or self.route.of_tombstones == "share"

    @property
    def leaves_by_where(self) -> bool:
        """Tell whether a record that ``where`` leaves out deletes the row of its key."""
        is_asked = self.where is not None and self.transform is None
        return is_asked and self.on_filtered == "delete" and self.write_mode.has_deletes

    @property
    def leaves_rows(self) -> bool:
        """Tell whether a record that is not of this table may delete a row of it."""
        return self.leaves_by_where or self.leaves_by_route

    @property
    def leaving_columns(self) -> tuple[str, ...]:
        """Columns of a row that leaves by ``where``: those of the value, and of key and order.

        What ``select`` makes of another may fail for what ``where`` leaves out.
        """
        made = self.select.keys() - {*self.keys, *self.sequence_by}
        return tuple(name for name in self.types if name not in made)

    @property
    def leaves_by_route(self) -> bool:
        """Tell whether a change of a row whose route is not this table's deletes the row here.

        A column of the row is its route, so that an update may change it. Other records of another
        route are other rows, which may have the same keys.
        """
        options = self.format.options
        if self.route is None or not (options.may_lack_columns and self.write_mode.has_deletes):
            return False
        return bool({c.name for c in self.route.columns}.difference(options.of_envelope))

    @property
    def routed_by(self) -> str | None:
        """The column that has a row's route, where the row before a move may tell its own."""
        if self.route is None or not (self.leaves_by_route and self.settles_moves):
            return None
        by, (column, *_) = self.route.by, self.route.columns
        is_same = self.types.get(by) == column.type and by not in self.select
        return by if is_same and not self.transform else None

    @property
    def is_sensed(self) -> bool:
        """Whether Dagster's sensor starts runs."""
        return self.schedule is None if self.sensor is None else self.sensor

    @property
    def retention_warning_seconds(self) -> int | None:
        """How much headroom is too little; ``None`` when the topic's retention decides."""
        return seconds_of(self.retention_warning) if self.retention_warning else None

    @property
    def tombstone_policy(self) -> TombstonePolicy:
        """The meaning of a null value: as declared, else a delete wherever its order is known.

        Where the order would have to come from the value that is not there, the default is the
        quarantine: a delete that cannot be placed must be seen, not dropped.
        """
        if self.tombstones:
            return self.tombstones
        if self.format.options.tombstones_repeat_deletes:
            return "ignore"
        if not self.write_mode.has_deletes:
            return "quarantine"
        is_placed = self.tombstones_have_a_key and self.tombstones_have_an_order
        return "delete" if is_placed else "quarantine"

    @property
    def tombstones_have_an_order(self) -> bool:
        """Tell whether a null value, which has only key, headers and time, can be placed."""
        return set(self.sequence_by) <= {*self.tombstone_columns, "_timestamp"}

    @property
    def tombstones_have_a_key(self) -> bool:
        """Tell whether Kafka key and headers give all columns of ``keys``."""
        return not self.from_key or self.metadata_columns.issuperset(self.keys)
