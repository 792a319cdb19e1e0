"""The transformation of a value into its row, applied a second time.

The proof uses another engine than the one that has evaluated a statement for the table, wherever
there is one. What DuckDB evaluated, as the batch's commit says, is left to Spark: whoever asks for
the proof hands in what applies it, to what this proof has decoded. A condition that Spark evaluated
is translated by sqlglot, and DuckDB evaluates it over typed rows. What the two engines might
evaluate differently is not evaluated there, for a wrong guess would be a wrong proof.

A ``where`` of that kind, and any other transformation by Spark, only Spark can evaluate. That is no
second opinion on the statement itself, and the verdict says so; which records it was applied to,
and what became of its rows, is still proven.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.sql import OFFLINE, parse_sql
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.decode import DecodedRecord
from oncelake.ingestion.verify.decode.coerce import UnprovableError, provable_types
from oncelake.ingestion.verify.read.record import Record, Row
from oncelake.ingestion.verify.read.snapshot import rows_in

if TYPE_CHECKING:
    from sqlglot.expressions import Expr

NOT_INDEPENDENT: Final = "transform: not independent: Spark itself was asked again"

# Makes rows of values as the engine does: each value is a dictionary with its number as ``_at`` and
# its columns as ``_good``. The number is the first column of the rows; the last are whether the
# row is one that ``where`` does not let stay, and the reason why no table could hold it, or null.
Apply = Callable[[Sequence[dict[str, Any]]], pa.Table]
ApplyTransformation = Callable[[StreamSpec, Settings], Apply]

# Constructs that mean the same to Spark and to DuckDB, by their names in sqlglot.
_UNDERSTOOD: Final = frozenset(
    {
        *("Column", "Identifier", "Literal", "Null", "Boolean", "Paren", "Tuple"),
        *("And", "Or", "Not", "EQ", "NEQ", "GT", "GTE", "LT", "LTE", "Is", "In", "Between"),
        *("NullSafeEQ", "NullSafeNEQ", "Like", "Case", "If", "Coalesce", "Nullif"),
        *("Lower", "Upper", "Length", "Add", "Sub", "Mul", "Mod", "Neg"),
        *("Cast", "DataType"),
    }
)
# The last letter of Europe's Latin alphabets.
_LAST_LETTER: Final = "\u017f"
# Of each type without parts that an expression may be about.
ARROW: Final[Mapping[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    **dict.fromkeys(("STRING", "VARCHAR"), pa.string()),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
TIME: Final = "_timestamp"


class Value(NamedTuple):
    """The values of a record, or of one element of it.

    Attributes:
        decoded: What its format says of it.
        values: One value a column: as decoded, of an element, and at last of the row.
        lacks: Whether a column is null that may not be.
        misfit: Why no table could hold the row that Spark made of it; null where one could.
        is_ended: Whether it is of the row that the record ends under another key.
        moves: Whether it is of a row that gets, or loses, its key by a move.
        is_alone: Whether the row that it ends has none under another key in this table.
        is_left: Whether it is of a row that another table has, or none, for the condition does not
            let it stay.
    """

    record: Record
    decoded: DecodedRecord
    values: Row
    element: int = 0
    lacks: bool = False
    misfit: str | None = None
    is_ended: bool = False
    moves: bool = False
    is_alone: bool = False
    is_left: bool = False


def transformation(
    spec: StreamSpec,
    settings: Settings | None,
    apply: ApplyTransformation | None,
    *,
    evaluated_by: str | None = None,
) -> Filter | OfTheEngine | None:
    """Return what makes rows of values, and nothing of one that is filtered out; deletes never are.

    A declaration that does nothing to values needs none.

    Args:
        spec: The declaration.
        settings: For Spark.
        apply: Asks Spark.
        evaluated_by: What has evaluated the statements for the table, if not Spark: it is not asked
            again.
    """
    if not spec.is_transformed:
        return None

    def of_the_engine() -> OfTheEngine:
        if settings is None or apply is None:
            raise UnprovableError("the transformation is not provable without Spark")
        return OfTheEngine(spec, apply(spec, settings), is_independent=bool(evaluated_by))

    given = {column.name: column.type for column in spec.exploded_columns}
    # Only a shorter VARCHAR is of another type than its value, which may not fit.
    fits = all(given.get(column.name) == column.type for column in spec.columns)
    if fits and not (spec.select or spec.transform or evaluated_by):
        with suppress(UnprovableError):
            return Filter(spec, of_the_engine)
    return of_the_engine()


def reads_time(spec: StreamSpec, *texts: str | None) -> bool:
    """Tell whether an expression reads the time of a record, and not a field of its value."""
    from sqlglot.expressions import Column

    if any(column.name.lower() == TIME for column in spec.value_columns):
        return False
    nodes = (node for text in texts if text for node in parse_sql(text).walk())
    return any(isinstance(node, Column) and node.parts[0].name.lower() == TIME for node in nodes)


class Filter:
    """A ``where`` that DuckDB understands, and columns that are taken as they are.

    It makes rows of values, and nothing of one that is filtered out. It takes no VARIANT as the
    text of its JSON. From the first value on that DuckDB might evaluate otherwise, the engine is
    used.
    """

    takes_json = False

    def __init__(self, spec: StreamSpec, of_the_engine: Callable[[], OfTheEngine]) -> None:
        names = [column.name for column in spec.exploded_columns]
        self._taken = [names.index(column.name) for column in spec.columns]
        self._types = tuple(spec.in_statements(spec.exploded_columns))
        self._where = Condition("where", spec.where or "TRUE", self._types)
        self._leaves = _leaving(spec, self._types)
        self._of_the_engine = of_the_engine
        self._engine: OfTheEngine | None = None

    @property
    def is_independent(self) -> bool:
        """Tell whether the engine was not used."""
        return self._engine is None

    def __call__(self, values: Sequence[Value]) -> list[Value | None]:
        """Return a row, or nothing, for each value."""
        if self._engine is None:
            try:
                return self._filtered(values)
            except UnprovableError:
                provable_types(self._types)
                self._engine = self._of_the_engine()
        return self._engine(values)

    def _filtered(self, values: Sequence[Value]) -> list[Value | None]:
        rows = [value.values for value in values]
        wanted = self._where(rows) if values else []
        left = self._leaves(rows) if values and self._leaves else [False] * len(values)
        return [
            value._replace(
                values=tuple([value.values[i] for i in self._taken]),
                is_left=value.is_left or not (is_wanted or value.decoded.is_delete),
            )
            if is_wanted or value.decoded.is_delete or is_left
            else None
            for value, is_wanted, is_left in zip(values, wanted, left, strict=True)
        ]


def _leaving(
    spec: StreamSpec, types: Sequence[DeclaredColumn]
) -> Callable[[Sequence[Row]], list[bool]] | None:
    """Return what tells the rows that may not stay, of those that ``where`` leaves out."""
    is_kept = spec.on_filtered == "keep" or not spec.write_mode.has_deletes
    if is_kept or spec.transform or spec.where is None:
        return None
    if not spec.ignore_null_updates:
        return lambda rows: [True] * len(rows)
    # Of a partial update a null says nothing, and neither does an answer that is null.
    return Condition("where", f"NOT ({spec.where})", types)


class OfTheEngine:
    """Makes rows in any other way, by Spark; a VARIANT is the text of its JSON."""

    takes_json = True

    def __init__(self, spec: StreamSpec, apply: Apply, *, is_independent: bool) -> None:
        self._apply = apply
        self.is_independent = is_independent
        self._names = [column.name for column in spec.exploded_columns]

    def __call__(self, values: Sequence[Value]) -> list[Value | None]:
        """Return a row, or nothing, for each value."""
        if not values:
            return []
        table = self._apply([self._as_row(at, value) for at, value in enumerate(values)])
        found = chain.from_iterable(rows_in(table.to_batches()))
        rows = {at: row for at, *row in found}
        made: list[Value | None] = []
        for at, value in enumerate(values):
            row = rows.get(at)
            if row is None:
                made.append(None)
            else:
                *columns, is_left, misfit = row
                is_left = value.is_left or is_left
                made.append(value._replace(values=tuple(columns), misfit=misfit, is_left=is_left))
        return made

    def _as_row(self, at: int, value: Value) -> dict[str, Any]:
        record = value.record
        return {
            "_at": at,
            "_is_delete": value.decoded.is_delete,
            "_topic": record.topic,
            "_partition": record.partition,
            "_offset": record.offset,
            "_timestamp": record.sent,
            "_key": record.key,
            "_headers": [{"key": k, "value": v} for k, v in record.headers or ()] or None,
            "_index": value.element,
            "_good": dict(zip(self._names, value.values, strict=True)),
        }


class Condition:
    """Tells which rows a condition selects.

    Attributes:
        expression: The condition in DuckDB's SQL.
        cased: The columns of which it asks the upper or lower case.
    """

    def __init__(self, field: str, sql: str, columns: Sequence[DeclaredColumn]) -> None:
        """Translate the condition in a field of the declaration, over rows of these columns."""
        from sqlglot.expressions import Column, Literal, Lower, Upper

        self._field, self._condition = field, sql
        expression = self._parsed()
        names = [column.name for column in columns]
        # Of ``a.b``, which is a field, the column counts.
        used = {column.parts[0].name.lower() for column in expression.find_all(Column)}
        if strange := used - {name.lower() for name in names}:
            raise self._unprovable(f"{', '.join(sorted(strange))} is no column of the value")
        cased = list(expression.find_all(Lower, Upper))
        self._refuse_two_cases(text.name for node in cased for text in node.find_all(Literal))
        of_case = {column.name.lower() for node in cased for column in node.find_all(Column)}
        self.cased = [name for name in names if name.lower() in of_case]
        self._cased = [names.index(name) for name in self.cased]
        at = [i for i, name in enumerate(names) if name.lower() in used]
        self._columns = {names[i]: (i, self._arrow(columns[i].type)) for i in at}
        self.expression = expression.sql(dialect="duckdb", identify=True)
        self._sql = f"SELECT {self.expression} FROM chunk"
        self._connection: Any = None

    def __call__(self, rows: Sequence[Row]) -> list[bool]:
        """Tell for each row whether it is selected; a condition that is null selects nothing."""
        import duckdb

        self._refuse_two_cases(row[i] for row in rows for i in self._cased)
        if self._connection is None:
            self._connection = duckdb.connect(config={**OFFLINE, "threads": 1})
            self._connection.execute("SET TimeZone = 'UTC'")
        columns = {n: pa.array([r[i] for r in rows], t) for n, (i, t) in self._columns.items()}
        try:
            # Without a column there would be no rows.
            of_none = {"_row": pa.nulls(len(rows))}
            self._connection.register("chunk", pa.table(columns or of_none))
            answer = self._connection.execute(self._sql)
            if str(answer.description[0][1]) != "BOOLEAN":
                raise self._unprovable("DuckDB takes it for no condition")
            return [bool(found) for (found,) in answer.fetchall()]
        except duckdb.Error as error:
            raise self._unprovable(f"DuckDB: {error}") from error

    def _refuse_two_cases(self, texts: Iterable[Any]) -> None:
        """Refuse letters whose other case is not one letter, or depends on the age of a library."""
        for text in (each for each in texts if isinstance(each, str) and not each.isascii()):
            cased = "".join(each for each in text if not _is_caseless(each))
            if max(cased, default="") > _LAST_LETTER or not (
                len(cased.lower()) == len(cased) == len(cased.upper())
            ):
                raise self._unprovable(f"LOWER or UPPER of {text!r} may be read in two ways")

    def _parsed(self) -> Expr:
        from sqlglot import errors

        if "\\" in self._condition:
            raise self._unprovable("a backslash may be read in two ways")
        try:
            parsed = parse_sql(self._condition)
        except errors.SqlglotError as error:
            raise self._unprovable(str(error)) from error
        for node in parsed.walk():
            name = type(node).__name__
            is_plain_cast = name != "Cast" or type(node.this).__name__ == "Literal"
            if name not in _UNDERSTOOD or not is_plain_cast:
                raise self._unprovable(f"{node.sql(dialect='spark')} may be read in two ways")
        return parsed

    def _arrow(self, type_: SqlType) -> pa.DataType:
        if type_.word == "DECIMAL":
            return pa.decimal128(type_.precision, type_.scale)
        if type_.word not in ARROW:
            raise self._unprovable(f"a column of type {type_} may be compared in two ways")
        return ARROW[type_.word]

    def _unprovable(self, why: str) -> UnprovableError:
        reason = why.partition("\n")[0]
        return UnprovableError(f"{self._field} is not provable: `{self._condition}`: {reason}")


def _is_caseless(character: str) -> bool:
    """Tell what has one case, and in newer versions of Unicode, too: signs, and letters of Asia."""
    has_one = character.lower() == character == character.upper()
    return has_one and unicodedata.category(character) not in {"Lu", "Ll", "Lt", "Cn", "Co", "Cs"}
