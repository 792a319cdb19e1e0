"""Conditions of a declaration, evaluated by another engine: DuckDB, over typed rows.

The condition is written in Spark's SQL, so sqlglot translates it. What the two engines might
understand differently is not evaluated at all: a wrong guess would be a wrong proof.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ingestion.declaration.ddl import DeclaredColumn
from ingestion.declaration.types import SqlType
from ingestion.verify.decode.coerce import UnprovableError
from ingestion.verify.read.record import Row

if TYPE_CHECKING:
    from sqlglot.expressions import Expr

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
_ARROW: Final[Mapping[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
# Nothing may be fetched while a proof is made.
_CLOSED: Final[dict[str, str | bool | int | float | list[str]]] = {
    "threads": 1,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}


class Condition:
    """Tells which rows a condition selects."""

    def __init__(self, field: str, sql: str, columns: Sequence[DeclaredColumn]) -> None:
        """Translate the condition in a field of the declaration, over rows of these columns.

        Raises:
            UnprovableError: it has what only Spark can be trusted to evaluate.
        """
        from sqlglot.expressions import Column

        self._field, self._condition = field, sql
        expression = self._parsed()
        names = [column.name for column in columns]
        # Of ``a.b``, which is a field, the column counts.
        used = {column.parts[0].name.lower() for column in expression.find_all(Column)}
        if strange := used - {name.lower() for name in names}:
            raise self._unprovable(f"{', '.join(sorted(strange))} is no column of the value")
        at = [i for i, name in enumerate(names) if name.lower() in used]
        self._columns = {names[i]: (i, self._arrow(columns[i].type)) for i in at}
        self._sql = f"SELECT {expression.sql(dialect='duckdb', identify=True)} FROM chunk"
        self._connection: Any = None

    def __call__(self, rows: Sequence[Row]) -> list[bool]:
        """Tell for each row whether it is selected; a condition that is null selects nothing.

        Raises:
            UnprovableError: DuckDB cannot evaluate the condition on these rows.
        """
        import duckdb

        if self._connection is None:
            self._connection = duckdb.connect(config=_CLOSED)
            self._connection.execute("SET TimeZone = 'UTC'")
        columns = {n: pa.array([r[i] for r in rows], t) for n, (i, t) in self._columns.items()}
        columns["_row"] = pa.nulls(len(rows))
        try:
            self._connection.register("chunk", pa.table(columns))
            answer = self._connection.execute(self._sql)
            if str(answer.description[0][1]) != "BOOLEAN":
                raise self._unprovable("DuckDB takes it for no condition")
            return [bool(found) for (found,) in answer.fetchall()]
        except duckdb.Error as error:
            raise self._unprovable(f"DuckDB: {error}") from error

    def _parsed(self) -> Expr:
        from sqlglot import errors, parse_one

        if "\\" in self._condition:
            raise self._unprovable("a backslash may be read in two ways")
        try:
            parsed = parse_one(self._condition, read="spark")
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
        if type_.word not in _ARROW:
            raise self._unprovable(f"a column of type {type_} may be compared in two ways")
        return _ARROW[type_.word]

    def _unprovable(self, why: str) -> UnprovableError:
        reason = why.partition("\n")[0]
        return UnprovableError(f"{self._field} is not provable: `{self._condition}`: {reason}")
