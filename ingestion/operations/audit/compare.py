"""A topic's records and a table's rows in DuckDB: which of them belong together, and which do not.

The statements stand here as DuckDB sees them, but for lists of columns: ``{c}`` are the compared
ones, by the table's types, and ``{k}`` those that say which row a record is of: its keys, its place
in Kafka, or else all that are compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import pyarrow as pa
import sqlglot

from oncelake.ingestion.declaration.sql import identifier, literal, readable_sql
from oncelake.ingestion.errors import InvalidSpecError, RefusedError, counted, first_line
from oncelake.ingestion.operations.audit.declare import AuditRequest, Reading, unknown_column
from oncelake.ingestion.operations.audit.foreign_table import NAME, ForeignTable, unreadable

_PLACE: Final = (identifier("_partition"), identifier("_offset"))
_SIDES: Final = ("due", "found")
_WHAT: Final = {
    "missing": "is not in the table",
    "different": "differs in {0}",
    "doubled": "is in the table more than once",
    "deleted": "is in the table, and the record deletes it",
    "extra": "is in the table, and no record says so",
    "gone": "is in the table, and no record that was read says so",
    "unreadable": "is in the table, and its record cannot be read",
    "unordered": "has records in several partitions, and nothing says which is the newest",
    "partial": "comes from a record that leaves columns out",
    "pending": "is not in the table, and a delete may be why",
}
_WHOLE: Final = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
# A whole number is a moment in seconds, milliseconds, microseconds or nanoseconds since 1970: in
# which, its length tells for the years from 1973 to 5138.
_MOMENT: Final = (
    "make_timestamptz(CASE WHEN abs({0}) < 100000000000 THEN {0} * 1000000 "
    "WHEN abs({0}) < 100000000000000 THEN {0} * 1000 "
    "WHEN abs({0}) < 100000000000000000 THEN {0} ELSE {0} // 1000 END)"
)
# How far the table has been filled, by partition: the newest record that a row shows. Of several
# that say the same, fewer rows show the first; where those are in several partitions, only that
# something of these was loaded. Where no record is gone, a row shows the first of its key, whatever
# else is in it.
_REACH: Final = """
CREATE TABLE reach AS
WITH sides AS (
    SELECT {c}, p, o, 0 AS f FROM records WHERE act = 'row' AND misfit IS NULL
    UNION ALL BY NAME
    SELECT {c}, 1 AS f FROM found
), shown AS (
    SELECT unnest(CASE WHEN min(p) = max(p) THEN [min(p)] ELSE [min(p), max(p)] END) AS p,
           CASE WHEN min(p) < max(p) THEN -1 WHEN sum(f) < count(p) THEN min(o) ELSE max(o) END
               AS o, TRUE AS is_same
    FROM sides GROUP BY {c} HAVING sum(f) > 0 AND count(p) > 0
    UNION ALL
    SELECT p, o, FALSE AS is_same FROM (
        SELECT {k}, min(p) AS p, min(o) AS o FROM records WHERE act = 'row' AND {is_whole}
        GROUP BY {k} HAVING min(p) = max(p)
    ) SEMI JOIN found USING ({k})
)
SELECT p, max(o) AS o, bool_or(is_same) AS is_same FROM shown GROUP BY p
"""
# Where no row shows any record of a partition, all of them may have been deleted for a while.
_EMPTIED: Final = """
INSERT INTO reach
WITH changes AS (
    SELECT p, o, (act = 'row')::INT - coalesce((lag(act) OVER key = 'row')::INT, 0) AS change
    FROM records WHERE act IN ('row', 'delete') AND p NOT IN (SELECT p FROM reach)
    WINDOW key AS (PARTITION BY {k}, p ORDER BY o)
), living AS (
    SELECT p, o, sum(change) OVER (PARTITION BY p ORDER BY o) AS living FROM changes
)
SELECT p, max(o), FALSE FROM living WHERE living = 0 GROUP BY p
"""
# The last record of each partition that is due; of those behind it, nothing is in the table yet.
# What is older than the newest record in the table, by more than the grace, is due all the same;
# where nothing of a partition is in the table, whatever is older.
_DUE: Final = """
CREATE TABLE due AS
WITH newest AS (SELECT max(sent) AS sent FROM records SEMI JOIN reach USING (p, o))
SELECT r.p, coalesce(max(r.o) FILTER ({until}), -1) AS until
FROM records r LEFT JOIN reach USING (p), newest GROUP BY r.p
"""
_UNTIL_REACHED: Final = """
    r.o <= reach.o OR r.sent <= newest.sent - CASE WHEN reach.o IS NULL THEN 0 ELSE {grace} END
        * INTERVAL 1 SECOND
"""
# A null value has no order of its own: it is as new as the newest record before it.
_ORDER_DELETES: Final = """
UPDATE records SET {orders} FROM (
    SELECT id, {latest} FROM records WHERE act IN ('row', 'delete')
    WINDOW before AS (PARTITION BY {k}, p ORDER BY o)
) earlier WHERE earlier.id = records.id AND act = 'delete' AND records.r0 IS NULL
"""
# Keys onto which a row has moved while another one had them: the next delete may be of either.
_CONTESTED: Final = """
CREATE TABLE contested AS SELECT DISTINCT {k} FROM (
    SELECT {k}, act, moves, lag(act) OVER (PARTITION BY {k} ORDER BY {rank}) AS before
    FROM records WHERE act IN ('row', 'delete')
) WHERE act = 'row' AND moves AND before = 'row'
"""
# Of each key, the newest record that is due, and the newest of all.
_NEWEST: Final = """
CREATE TABLE newest AS
SELECT {k}, max_by(id, {rank}) FILTER (o <= until) AS base, max_by(id, {rank}) AS last,
       max_by(act, {rank}) FILTER (o <= until) AS base_act, max_by(act, {rank}) AS last_act,
       {is_split} OR {is_contested} AS is_split,
       NOT ({is_split}) AND {is_contested} AS is_contested,
       bool_or(act = 'delete' AND o > until) AS may_be_deleted
FROM records r JOIN due USING (p) WHERE {is_asked} GROUP BY {k}
"""
# Keys whose newest record is not due, and is not what the table shows of them.
_WAITING: Final = """
SELECT count(*) FROM newest w JOIN records r ON r.id = w.last
WHERE last IS DISTINCT FROM base AND NOT is_split AND (
    (act = 'delete' AND EXISTS (FROM found f WHERE {is_same_key}))
    OR (act = 'row' AND NOT EXISTS (FROM found f WHERE {is_same_row}))
)
"""
# Rows of which the table has fewer than records are due, or more.
_LEFT_OVER: Final = """
CREATE TABLE left_over AS
WITH judged AS (
    SELECT *, o > until AS is_later, {is_due} AS is_due
    FROM records JOIN due USING (p) WHERE act = 'row'
), sides AS (
    SELECT {c}, misfit, id, is_due::INT AS e, is_later::INT AS later, 0 AS f
    FROM judged WHERE is_due OR is_later
    UNION ALL BY NAME
    SELECT {c}, 0 AS e, 0 AS later, 1 AS f FROM found
)
SELECT {c}, max(id) AS id, sum(e) - sum(f) AS missing, sum(f) - ({allowed}) AS surplus
FROM sides GROUP BY {c}, misfit HAVING sum(e) <> sum(f)
"""
# A row too few and a row too many of one key are one row that differs.
_FAULTS: Final = """
CREATE TABLE faults AS
WITH missing AS (
    SELECT {k}, id, row_number() OVER (PARTITION BY {k}) AS n
    FROM (SELECT *, unnest(range(missing::BIGINT)) FROM left_over WHERE missing > 0)
), surplus AS (
    SELECT {k}, {found}, id AS own, TRUE AS is_found, row_number() OVER (PARTITION BY {k}) AS n
    FROM (SELECT *, unnest(range(surplus::BIGINT)) FROM left_over WHERE surplus > 0)
), arrived AS (
    SELECT DISTINCT {k}, TRUE AS has_arrived FROM left_over WHERE missing < 0 AND surplus <= 0
), joined AS (
    SELECT * FROM missing FULL JOIN surplus USING ({k}, n)
), known AS (
    SELECT j.*, is_split, may_be_deleted, has_arrived, base, last, base_act, last_act,
           coalesce(j.id, own, CASE WHEN last_act = 'row' AND base_act = 'delete' THEN last END,
                    base, last) AS record
    FROM joined j LEFT JOIN newest w ON {is_same_w} LEFT JOIN arrived a ON {is_same_a}
)
SELECT k.*, r.p, r.o, r.misfit, {expected}, CASE
    WHEN is_split THEN 'unordered'
    WHEN k.id IS NOT NULL AND is_found THEN
        CASE WHEN lacks THEN 'partial' WHEN {is_newer} THEN 'gone' ELSE 'different' END
    WHEN k.id IS NOT NULL THEN
        CASE WHEN may_be_deleted OR has_arrived THEN 'pending' ELSE 'missing' END
    WHEN last IS NULL THEN CASE WHEN {is_gone} THEN 'gone' ELSE 'extra' END
    WHEN r.act IN ('bad', 'none') THEN 'unreadable'
    WHEN r.act = 'delete' THEN 'deleted'
    WHEN own IS NULL AND (base IS NULL OR base_act = 'delete') THEN 'different'
    ELSE 'doubled' END AS kind
FROM known k LEFT JOIN records r ON r.id = k.record
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditSample:
    """One row that is not as the records say.

    Attributes:
        partition, offset: Of the record that says so, if one does.
        values: What is expected and what was found, by column: of a row that is there and should
            be another, the columns that differ.
    """

    what: str
    key: Mapping[str, str | None]
    partition: int | None
    offset: int | None
    values: Mapping[str, Mapping[str, str | None]]


@dataclass(frozen=True, slots=True)
class _Compared:
    """A column: what a record has, and the table's column, which it is compared as."""

    value: str
    column: str
    type: str
    alias: str


class Comparison:
    """One comparison: rows first, then records, then the verdict; all in one database.

    Attributes:
        limits: What is not compared, as sentences.
    """

    def __init__(
        self,
        database: duckdb.DuckDBPyConnection,
        reading: Reading,
        table: ForeignTable,
        request: AuditRequest,
    ) -> None:
        self._run, self._register = database.execute, database.register
        self._sql = database.sql
        self._reading, self._request, self._table = reading, request, table
        self.limits = list(reading.limits)
        self._columns: list[_Compared] = []
        self._select = ""
        self._may_round: list[_Compared] = []

    @property
    def columns(self) -> list[str]:
        """The columns of the table that are compared."""
        return [each.column for each in self._columns]

    def load_rows(self) -> int:
        """Take the table's rows; return how many there are."""
        reading, request = self._reading, self._request
        names = {column: identifier(field) for field, column in reading.columns.items()}
        places = dict(zip(request.place, _PLACE, strict=False))
        marks = [request.deleted_column] if request.deleted_column else []
        for option, given in (("--offset-columns", places), ("--deleted-column", marks)):
            for name in given:
                if name not in (there := self._table.schema.names):
                    raise unknown_column(option, name, there, "the table has no such column")
        values = {**names, **places}
        wanted = list(dict.fromkeys([*values, *marks]))
        self._register("rows", self._table.read(wanted))
        selected = [f"{self._as_kept(name)} AS c{at}" for at, name in enumerate(values)]
        # Text of a flag is `true`; any other kind of mark, such as a time, marks by being there.
        living = [
            f"NOT coalesce(TRY_CAST({identifier(name)}::VARCHAR AS BOOLEAN), "
            f"{identifier(name)} IS NOT NULL)"
            for name in marks
        ]
        where = f"WHERE {living[0]}" if living else ""
        try:
            self._run(f"CREATE TABLE found AS SELECT {', '.join(selected)} FROM rows {where}")
        except duckdb.Error as error:  # What reading raises comes as one of DuckDB's.
            raise unreadable(self._table.where, error) from error
        types = [each[1] for each in self._all("DESCRIBE found")]
        self._columns = [
            _Compared(value, column, type_, f"c{at}")
            for at, ((column, value), type_) in enumerate(zip(values.items(), types, strict=True))
        ]
        return int(self._all("SELECT count(*) FROM found")[0][0])

    def _as_kept(self, column: str) -> str:
        kept, type_ = identifier(column), self._table.schema.field(column).type
        if cast := self._table.casts.get(column):
            return f"TRY_CAST({kept} AS {cast})"
        return f"{kept}::VARCHAR" if pa.types.is_dictionary(type_) else kept

    def add(self, decoded: pa.Table, sql: str, partitions: int) -> None:
        """Take decoded records, and the query that gives each its disposition."""
        self._register("decoded", decoded)
        if not self._select:
            self._select = self._plan(f"({sql})", partitions)
            try:
                self._run(f"CREATE TABLE records AS {self._select} LIMIT 0")
            except duckdb.Error as error:
                if not self._reading.deletes:
                    raise
                raise _bad_condition(self._reading.deletes, error) from error
        self._run(f"INSERT INTO records {self._select}")

    def _plan(self, batch: str, partitions: int) -> str:
        """Decide how records are compared, by their types and the table's; return the query."""
        types = {identifier(name): type_ for name, type_, *_ in self._all(f"DESCRIBE FROM {batch}")}
        nested = {
            each: _is_nested(types[each.value]) != _is_nested(each.type) for each in self._columns
        }
        if refused := [each.column for each, is_other in nested.items() if is_other]:
            self.limits.append(f"the types of {', '.join(refused)} cannot be compared")
        self._columns = [each for each, is_other in nested.items() if not is_other]
        cast = {each: _cast(each.value, types[each.value], each.type) for each in self._columns}
        others = [each for each in self._columns if types[each.value] != each.type]
        misfits = (
            f"WHEN {each.value} IS NOT NULL AND {cast[each]} IS NULL THEN {literal(each.column)}"
            for each in others
        )
        self._may_round = [each for each in others if each.type.startswith(("DECIMAL", "FLOAT"))][
            :62
        ]
        rounded = (
            f"({cast[each]}::{types[each.value]} IS DISTINCT FROM {each.value})::BIGINT << {bit}"
            for bit, each in enumerate(self._may_round)
        )
        order = (identifier(name) for name in self._reading.order)
        deletes = "FALSE"
        if self._reading.deletes:
            try:
                condition = readable_sql(self._reading.deletes)
                [deletes] = sqlglot.transpile(condition, read="spark", write="duckdb")
            except (sqlglot.ParseError, ValueError) as error:
                raise _bad_condition(self._reading.deletes, error) from error
        lacks = "_unavailable IS NOT NULL" if self._reading.spec.unavailable else "FALSE"
        moves = "coalesce(_moves, FALSE)" if self._reading.spec.settles_moves else "FALSE"
        return f"""
            SELECT (_offset * 2 + _index) * {partitions} + _partition AS id,
                   _partition AS p, _offset AS o, _timestamp AS sent,
                   CASE WHEN _disposition = 'row' AND coalesce({deletes}, FALSE) THEN 'delete'
                        WHEN _disposition IN ('row', 'delete') THEN _disposition
                        WHEN _disposition = 'quarantined' THEN 'bad' ELSE 'none' END AS act,
                   {lacks} AS lacks, {moves} AS moves, concat_ws(': ', _reason, _detail) AS why,
                   CASE {" ".join(misfits) or "WHEN FALSE THEN ''"} END AS misfit,
                   {" | ".join(rounded) or "0"} AS rounded
                   {"".join(f", {cast[each]} AS {each.alias}" for each in self._columns)}
                   {"".join(f", {name} AS r{at}" for at, name in enumerate(order))}
            FROM {batch}
        """

    def judge(
        self, first: Mapping[int, int], *, may_lack_some: bool, limit: int
    ) -> tuple[Counter[str], dict[str, list[AuditSample]]]:
        """Compare; return how many there are of each kind, and samples.

        Args:
            first: The first offset that was read of each partition which had others before it.
            may_lack_some: Whether others may be gone from among those that were read.
            limit: How many samples of a kind are returned.
        """
        is_upsert = self._reading.spec.mode == "upsert"
        self._drop_absent()
        aliases = [each.alias for each in self._columns]
        keys, every = ", ".join(self._keys()), ", ".join(aliases)
        self._run(_REACH.format(c=every, k=keys, is_whole=not first))
        if is_upsert:
            self._run(_EMPTIED.format(k=keys))
        counts = Counter(reached=self._number("SELECT count(*) FROM reach"))
        self._run(_DUE.format(until=self._due(counts["reached"])))
        if is_upsert:
            self._rank(keys)
            of_key = "id IN (SELECT base FROM newest WHERE base IS NOT NULL AND NOT is_split)"
            allowed = "greatest(max(e), max(later))"
            self._run(_LEFT_OVER.format(c=every, is_due=of_key, allowed=allowed))
        else:
            allowed = "sum(e) + sum(later)"
            self._run(_LEFT_OVER.format(c=every, is_due="o <= until", allowed=allowed))
            same = _is_same(self._keys(), "l", "r")
            is_asked = f"EXISTS (FROM left_over l WHERE l.surplus > 0 AND {same})"
            nothing = {"is_split": "FALSE", "is_contested": "FALSE"}
            self._run(_NEWEST.format(k=keys, rank="id", is_asked=is_asked, **nothing))
        self._run(
            _FAULTS.format(
                k=keys,
                found=", ".join(f"{each} AS found_{each}" for each in aliases),
                expected=", ".join(f"r.{each} AS due_{each}" for each in aliases),
                is_same_w=_is_same(self._keys(), "j", "w"),
                is_same_a=_is_same(self._keys(), "j", "a"),
                is_newer=self._is_newer() if first else "FALSE",
                is_gone=self._is_gone(first, may_lack_some=may_lack_some and not is_upsert),
            )
        )
        counts.update(self._counted(aliases, is_upsert=is_upsert))
        return counts, self._samples(limit)

    def reached(self) -> dict[int, int]:
        """Return the offset behind the newest record that rows show, by partition."""
        return dict(self._all("SELECT p, o + 1 FROM reach"))

    def _counted(self, aliases: Sequence[str], *, is_upsert: bool) -> Counter[str]:
        """Count what was judged."""
        counts = Counter[str]()
        counts.update(dict(self._all("SELECT kind, count(*) FROM faults GROUP BY kind")))
        counts.update(dict(self._all("SELECT act, count(*) FROM records GROUP BY act")))
        counts["waiting"] = self._number(
            _WAITING.format(
                is_same_key=_is_same(self._keys(), "f", "r"),
                is_same_row=_is_same(aliases, "f", "r"),
            )
            if is_upsert
            else "SELECT count(*) FROM records JOIN due USING (p) WHERE act = 'row' AND o > until"
        )
        counts["contested"] = self._number("SELECT count(*) FROM newest WHERE is_contested")
        split = self._number("SELECT count(*) FROM newest WHERE is_split")
        counts["split"] = split - counts["contested"]
        is_due = "id IN (SELECT base FROM newest WHERE NOT is_split)" if is_upsert else "o <= until"
        counts["proven"] = self._number(
            f"SELECT count(*) - (SELECT coalesce(sum(missing), 0) FROM left_over WHERE missing > 0)"
            f" FROM records JOIN due USING (p) WHERE act = 'row' AND {is_due}"
        )
        return counts

    def _drop_absent(self) -> None:
        """Compare no column that was only assumed to be in records, and is in none."""
        assumed = {*map(identifier, self._reading.assumed)}
        asked = [each for each in self._columns if each.value in assumed]
        numbers = ", ".join(f"count({each.alias})" for each in asked) or "0"
        found = dict(zip(asked, self._all(f"SELECT {numbers} FROM records")[0], strict=False))
        if absent := [each.column for each, number in found.items() if not number]:
            self.limits.append(f"records have no value for {', '.join(absent)}")
        self._columns = [each for each in self._columns if each.column not in absent]

    def _due(self, reached: int) -> str:
        """Tell a record that must be in the table by now."""
        if until := self._request.until:
            return f"r.sent < TIMESTAMPTZ '{until.isoformat()}'"
        if reached and not self._number("SELECT count(*) FROM reach WHERE is_same"):
            # Where no row is as it should be, none shows what is on its way.
            return "TRUE"
        grace = self._request.grace.total_seconds()
        return _UNTIL_REACHED.format(grace=grace) if reached else "FALSE"

    def _keys(self) -> list[str]:
        """Return the columns that say which row a record is of."""
        wanted = {*_PLACE} if self._request.place else {*map(identifier, self._reading.keys)}
        keys = [each.alias for each in self._columns if each.value in wanted]
        if len(keys) < len(wanted):
            raise RefusedError(
                NAME,
                f"the columns of --keys in {self._table.where} are of types that records cannot be "
                "compared with.",
                remedy="name others",
            )
        return keys or [each.alias for each in self._columns]

    def _rank(self, keys: str) -> None:
        """Find the newest record of each key; two have no order where nothing tells it."""
        orders = [f"r{at}" for at, _ in enumerate(self._reading.order)]
        rank, is_split = "id", "min(p) <> max(p)"
        if orders:
            # A column that is null is below all others.
            parts = [f"'{each}_': {each} IS NOT NULL, '{each}': {each}" for each in orders]
            line = ", ".join(parts)
            rank = f"{{{line}, 'id': id}}"
            ends = (f"max_by(p, {{{line}, 'p': {sign}p}})" for sign in ("", "-"))
            is_split += f" AND {' <> '.join(ends)}"
            latest = ", ".join(f"max({each}) OVER before AS {each}" for each in orders)
            sets = ", ".join(f"{each} = earlier.{each}" for each in orders)
            if self._number("SELECT count(*) FROM records WHERE act = 'delete' AND r0 IS NULL"):
                self._run(_ORDER_DELETES.format(k=keys, latest=latest, orders=sets))
        is_contested = "FALSE"
        if self._reading.spec.settles_moves:
            self._run(_CONTESTED.format(k=keys, rank=rank))
            is_contested = f"coalesce(({keys}) IN (FROM contested), FALSE)"
        given = {"k": keys, "rank": rank, "is_split": is_split, "is_contested": is_contested}
        self._run(_NEWEST.format(is_asked="act IN ('row', 'delete')", **given))

    def _is_newer(self) -> str:
        """Tell a row whose order is beyond that of every record that was read."""
        first = identifier(self._reading.order[0]) if self._reading.order else ""
        aliases = (each.alias for each in self._columns if each.value == first)
        return next((f"found_{each} > r.{each}" for each in aliases), "FALSE")

    def _is_gone(self, first: Mapping[int, int], *, may_lack_some: bool) -> str:
        """Tell a row whose record may be one that Kafka has no longer, or that was not read."""
        if self._request.place and first:
            at = {each.value: f"found_{each.alias}" for each in self._columns}
            cases = " ".join(f"WHEN {partition} THEN {start}" for partition, start in first.items())
            partition, offset = (at[each] for each in _PLACE)
            return f"{offset} < CASE {partition} {cases} ELSE 0 END"
        return "TRUE" if first or may_lack_some else "FALSE"

    def _samples(self, limit: int) -> dict[str, list[AuditSample]]:
        columns = [each.alias for each in self._columns]
        texts = ", ".join(
            f"{side}_{each}::VARCHAR AS {side}_{each}" for each in columns for side in _SIDES
        )
        found = self._sql(
            f"SELECT kind, p, o, misfit, {texts} FROM faults "
            f"QUALIFY row_number() OVER (PARTITION BY kind ORDER BY p, o, id) <= {limit}"
        ).to_arrow_table()
        samples = defaultdict[str, list[AuditSample]](list)
        for row in found.to_pylist():
            samples[row["kind"]].append(self._sample(row))
        return samples

    def _sample(self, row: Mapping[str, Any]) -> AuditSample:
        kind, named = row["kind"], {*map(identifier, self._reading.keys)} or {*_PLACE}
        sides = ("due",) if kind == "missing" else _SIDES if kind == "different" else ("found",)
        names = {"due": "expected", "found": "found"}
        values = {
            each.column: {names[side]: row[f"{side}_{each.alias}"] for side in sides}
            for each in self._columns
            if kind != "different"
            or row[f"due_{each.alias}"] != row[f"found_{each.alias}"]
            or row["misfit"] == each.column
        }
        what = _WHAT[kind].format(", ".join(values))
        if row["misfit"]:
            what += f"; the record's {row['misfit']} is no value of the table's type"
        return AuditSample(
            what=what,
            key={
                each.column: row[f"{sides[-1]}_{each.alias}"]
                for each in self._columns
                if each.value in named
            },
            partition=row["p"],
            offset=row["o"],
            values=values,
        )

    def rounded(self) -> Iterator[str]:
        """Say, by column, how many values of records the table's type has rounded."""
        for bit, each in enumerate(self._may_round):
            if number := self._number(f"SELECT count_if(rounded >> {bit} & 1 = 1) FROM records"):
                yield f"{counted(number, 'value')} of {each.column} fit {each.type} only rounded"

    def unreadable(self) -> Iterator[str]:
        """Say why records cannot be read, and where the first of each reason is."""
        rows = self._all(
            "SELECT split_part(why, ': ', 1) AS reason, count(*), arg_min(p, sent), "
            "arg_min(o, sent), arg_min(why, sent) FROM records WHERE act = 'bad' "
            "GROUP BY reason ORDER BY 2 DESC LIMIT 5"
        )
        for _, number, partition, offset, why in rows:
            at = f"{self._reading.spec.topic}-{partition} offset {offset}"
            yield f"{counted(number, 'record')} cannot be read, the first at {at}: {why}"

    def _all(self, query: str) -> list[Any]:
        return self._run(query).fetchall()

    def _number(self, query: str) -> int:
        return int(self._all(query)[0][0])


def _bad_condition(condition: str, error: Exception) -> InvalidSpecError:
    return InvalidSpecError(
        f"--deletes {condition}: {first_line(error)}. Next: write a condition over fields of the "
        "value, in SQL"
    )


def _is_same(columns: Sequence[str], one: str, other: str) -> str:
    return " AND ".join(f"{one}.{each} IS NOT DISTINCT FROM {other}.{each}" for each in columns)


def _is_nested(type_: str) -> bool:
    return type_.endswith("]") or type_.startswith(("STRUCT", "MAP", "VARIANT"))


def _cast(value: str, own: str, to: str) -> str:
    """Write a record's value as the table's type has it; null where that has no such value."""
    if own == to:
        return value
    if own in _WHOLE and to.startswith("TIMESTAMP"):
        value = _MOMENT.format(value)
    return f"TRY_CAST({value} AS {to})"
