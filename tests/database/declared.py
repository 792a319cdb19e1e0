"""What stands around a history: how the source writes, and which tables are declared of it.

What is drawn here is valid by the pages of docs; which rows a table must have is said of the
database's rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from oncelake.ingestion.sinks.delta import transaction
from tests.database.database import Row

STATES: Final = ("open", "closed", "done", None)

# Conditions of SQL, and what they mean.
CONDITIONS: Final[Mapping[str, Callable[[Row], bool]]] = {
    "state = 'open'": lambda row: row.state == "open",
    "state <> 'closed'": lambda row: row.state not in ("closed", None),
    "n > 1": lambda row: (row.n or 0) > 1,
    "v IS NOT NULL": lambda row: row.v is not None,
}
# Columns that a condition reads.
READ_BY: Final = {sql: sql.partition(" ")[0] for sql in CONDITIONS}
_COLUMNS: Final = "id INT NOT NULL, part INT NOT NULL, state STRING, v STRING, wide STRING, n INT"
_SELECT: Final = {"v": "upper(v)", "label": "coalesce(state, 'none')"}
Image = dict[str, Any]


# Offsets a batch, by which no history is cut.
UNCUT: Final = 1000
# No history has as many rows as an index of keys is asked for.
transaction.ROWS_PER_KEY = 0
# What of a sink is tried beside it.
_SINKS: Final = {
    "vectors": {"delta": {"key_index": True}},
    "divided": {"delta": {"change_data_feed": True}},
    "partitions": "iceberg",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """How changes are written to the topic.

    Attributes:
        writes: Envelopes of Debezium, or each row's new state and null values.
        has_schemas: Whether JSON carries its schema.
        identity: What of a row's old values the log has.
        is_composite: Whether the primary key has two columns.
        kafka_key: The primary key, or a column that has nothing to do with it.
        partitions: The topic's.
        encoding: Of envelopes.
        has_more: Whether rows have columns that an ALTER may change.
    """

    writes: Literal["debezium", "rows"] = "debezium"
    has_schemas: bool = False
    identity: Literal["full", "default", "nothing"] = "full"
    is_composite: bool = False
    kafka_key: Literal["primary", "shard"] = "primary"
    partitions: int = 1
    encoding: Literal["json", "avro"] = "json"
    has_more: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the primary key."""
        return ("id", "part") if self.is_composite else ("id",)

    def is_said_by(self, schema: str) -> bool:
        """Tell whether columns may come from there, and follow an ALTER where there is one."""
        has_schema = {
            "written": not self.has_more and self.encoding == "json",
            "embedded": self.has_schemas and self.encoding == "json",
            "registry": not self.has_schemas and self.encoding == "avro",
        }
        is_known = self.encoding == "json" or self.identity != "nothing"
        return has_schema[schema] and is_known

    def key_of(self, key: int) -> Image:
        """Return the columns of a primary key."""
        return {"id": key // 2, "part": key % 2} if self.is_composite else {"id": key}

    def image(self, row: Row, altered: frozenset[str]) -> Image:
        """Return a row with all its columns."""
        named = row._asdict()
        key, _ = named.pop("key"), named.pop("identity")
        addr, extra = named.pop("addr"), named.pop("extra")
        if self.has_more:
            names = ("city", "zip") if "nest" in altered else ("city",)
            named["addr"] = addr and dict(zip(names, addr, strict=False))
        if self.has_more and "add" in altered:
            named["extra"] = extra
        # Where it is no part of the key it changes with it all the same.
        return {**self.key_of(key), "part": key % 2, **named}


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table of a file.

    Attributes:
        when: Its routes, where it has siblings.
        where: Its condition.
    """

    name: str
    when: tuple[str, ...] = ()
    mode: Literal["upsert", "soft", "scd2", "append"] = "upsert"
    where: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """A stream's file.

    Attributes:
        tables: One, or several that share the topic by ``state``.
        otherwise: Who takes rows of no route.
        is_ordered: Whether records have an order beside their offsets.
        schema: Where the columns come from.
        limit: At most so many offsets a batch.
    """

    tables: tuple[Table, ...] = (Table(name="t"),)
    otherwise: str = "quarantine"
    is_ordered: bool = False
    on_truncate: Literal["quarantine", "stop", "apply"] = "quarantine"
    tombstones: Literal["ignore", "delete", "quarantine"] | None = None
    computes: bool = False
    takes_header: bool = False
    schema: Literal["written", "embedded", "registry"] = "written"
    limit: int = UNCUT
    sink: Literal["delta", "vectors", "divided", "iceberg", "partitions", "postgres"] = "delta"

    @property
    def is_routed(self) -> bool:
        """Tell whether the topic has several tables."""
        return len(self.tables) > 1

    def table_of(self, row: Row) -> str | None:
        """Return the table that a row belongs to by its route."""
        if not self.is_routed:
            return self.tables[0].name
        of_route = (table.name for table in self.tables if row.state in table.when)
        other = self.otherwise if self.otherwise in {t.name for t in self.tables} else None
        return next(of_route, other)

    def has(self, table: Table, row: Row) -> bool:
        """Tell whether a row of the source is one of a table."""
        meets = table.where is None or CONDITIONS[table.where](row)
        return meets and self.table_of(row) == table.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """A source, and the file that is declared of its topic."""

    source: Source = Source()
    declared: Declared = Declared()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a table's row that the database has, or that are computed from it."""
        more = ("tenant",) if self.declared.takes_header else ()
        computed = ("label",) if self.declared.computes else ()
        if self.source.has_more:
            # A record has no column in PostgreSQL, unless a registry has its schema.
            has_none = (self.declared.sink, self.declared.schema) == ("postgres", "embedded")
            more = (*more, "extra") if has_none else (*more, "addr", "extra")
        return ("id", "part", "state", "v", "wide", "n", *more, *computed)

    @property
    def not_promised(self) -> tuple[str, ...]:
        """What a history of it may not have, since the docs promise nothing of that."""
        if self.source.writes == "rows":
            # A producer who sends no row of before cannot say that one has left its route.
            return ("a change of route",)
        # A new row of a key that has one may have come a second time, or after a silent TRUNCATE.
        # Of rows of two tables that have one key, the newest alone is known.
        never = (
            "a key that is taken over by a new row",
            "a key that a row of another table passes",
            "a key that is taken over from a row of no table",
        )
        if self.declared.is_ordered:
            return never
        # Nothing orders the events of two partitions; and by its key alone, without an order, a
        # delete takes the row that is there.
        taken = () if self.source.identity == "full" else ("a key that is taken over",)
        untold = "a row of nulls that leaves a key to another"
        # It may be the same move, sent once more.
        repeated = "a key that is taken over by its like from the same key"
        return (*never, *taken, untold, repeated, "a large value that moves to another partition")

    def expected(self, row: Row) -> Image:
        """Return a row of the source as a table must have it, null where a column is not yet."""
        image = self.source.image(row, frozenset({"add", "nest"}))
        if self.declared.computes:
            image |= {"v": image["v"] and image["v"].upper(), "label": image["state"] or "none"}
        return {name: image[name] for name in self.columns}

    def file(self, topic: str) -> dict[str, Any]:
        """Return the declaration as its file has it."""
        declared = self.declared
        fields = {**self._of_all(), "topic": topic}
        tables = {table.name: dict(self._of(table)) for table in declared.tables}
        if not declared.is_routed:
            return {**fields, **next(iter(tables.values()))}
        routes = {"route_by": "state", "tables": tables, "otherwise": declared.otherwise}
        return {**fields, **routes}

    def _of_all(self) -> dict[str, Any]:
        declared, is_debezium = self.declared, self.source.writes == "debezium"
        fields: dict[str, Any] = {
            "max_offsets_per_trigger": declared.limit,
            "quarantine_rate": {"stop_above": 1},
            "sink": _SINKS.get(declared.sink, declared.sink),
        }
        if declared.sink == "vectors" and any(each.mode == "append" for each in declared.tables):
            fields["sink"] = "delta"  # It looks no keys up.
        if declared.sink == "divided":
            fields["partition_by"] = ["state", "day(_timestamp)"]
        if declared.sink in ("vectors", "divided", "partitions"):
            fields["deletion_vectors"] = True
        if declared.sink == "vectors":
            fields["cluster_by"] = ["state", "_timestamp"]
        if declared.sink == "partitions":
            fields["partition_by"] = ["state", "bucket(2, id)"]
            fields["sort_by"] = ["_timestamp", "state"]
        if is_debezium:
            columns = {"columns": {"lsn": "source.lsn"}} if declared.is_ordered else {}
            options: dict[str, Any] = {"on_truncate": declared.on_truncate}
            if self.source.encoding == "avro":
                options["encoding"] = fields["key_format"] = "avro"
            else:
                options["schemas"] = self.source.has_schemas
            fields["format"] = {"type": "debezium", **options, **columns}
        if declared.takes_header:
            fields["from_headers"] = {"tenant": "x-tenant"}
        return {**fields, **dict(self._columns())}

    def _columns(self) -> Iterator[tuple[str, Any]]:
        declared = self.declared
        if declared.schema != "written":
            yield "schema", declared.schema
            yield "schema_change", "evolve"
            if declared.is_ordered:
                yield "columns", {"lsn": "BIGINT NOT NULL"}
            return
        columns = _COLUMNS + (", tenant STRING" if declared.takes_header else "")
        columns += ", lsn BIGINT NOT NULL" if declared.is_ordered else ""
        columns += ", gone BOOLEAN" if self.deletes_by_record else ""
        yield "schema", f"{columns}, label STRING" if declared.computes else columns
        if declared.computes:
            yield "value_schema", columns
            yield "select", _SELECT

    @property
    def deletes_by_record(self) -> bool:
        """Tell whether rows that go are sent with a mark: a null value would have no order."""
        return self.source.writes == "rows" and self.declared.is_ordered

    def _of(self, table: Table) -> Iterator[tuple[str, Any]]:
        declared = self.declared
        if declared.is_routed:
            yield "when", list(table.when)
        if table.where:
            yield "where", table.where
        if table.mode == "append":
            yield "mode", "append"
        else:
            yield "mode", "scd2" if table.mode == "scd2" else "upsert"
            yield "keys", list(self.source.keys)
            if declared.is_ordered:
                yield "sequence_by", ["lsn"]
            if table.mode == "soft":
                yield "deletes", "soft"
            if self.deletes_by_record:
                yield "apply_as_deletes", "gone = true"
                yield "tombstones", "ignore"
            elif declared.tombstones:
                yield "tombstones", declared.tombstones
