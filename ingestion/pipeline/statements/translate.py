"""Declared statements for DuckDB: what Spark has resolved of them, in the part that both agree on.

Spark's optimizer hands its plan over as JSON: names are resolved, implicit casts written out,
literals typed, and constants folded. Each node that is taken here gives the same value in DuckDB,
or raises where Spark's rules of ANSI do; of any other the whole statement is left to Spark. Where
that depends on the value, DuckDB raises, and Spark is asked for the batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.sql import identifier, literal
from oncelake.ingestion.pipeline.schema.types import nothing_of

# Spark's names of types, and DuckDB's.
_TYPES: Final[Mapping[str, str]] = {
    "boolean": "BOOLEAN",
    "byte": "TINYINT",
    "short": "SMALLINT",
    "integer": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP",
}
_INTEGERS: Final = ("byte", "short", "integer", "long")
_FRACTIONS: Final = ("float", "double")
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_WIDEST: Final = 38
_COLUMN: Final = "AttributeReference"
_COMPARED: Final[Mapping[str, str]] = {
    "EqualTo": "=",
    "EqualNullSafe": "IS NOT DISTINCT FROM",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}
_ARITHMETIC: Final[Mapping[str, str]] = {"Add": "+", "Subtract": "-", "Multiply": "*"}
_TEXTS: Final[Mapping[str, str]] = {
    "StartsWith": "starts_with",
    "EndsWith": "suffix",
    "Contains": "contains",
}
# Those of one operand: its type, what DuckDB computes, and the type of that.
_FUNCTIONS: Final[Mapping[str, tuple[str, str, str]]] = {
    "Length": ("string", "length({})", "integer"),
    "StringTrim": ("string", "trim({}, ' ')", "string"),
    "Year": ("date", "year({})", "integer"),
    "Month": ("date", "month({})", "integer"),
    "DayOfMonth": ("date", "day({})", "integer"),
}
# What JSON does not tell of a node: that it gives null where its twin fails, or another escape.
_UNSEEN: Final = re.compile(r"try_| ESCAPE ", re.IGNORECASE)
# Years of four digits, as a table can hold them.
_MOMENT: Final = re.compile(r"(?!0000)\d{4}-.*")
# Letters whose other case is one letter to both, and what has one case: Latin and Cyrillic without
# the few exceptions, kana, Han and Hangul, punctuation, emoji.
CASED: Final = (
    r"\x00-\x7F\x{A0}-\x{B4}\x{B6}-\x{DE}\x{E0}-\x{12F}\x{132}-\x{148}\x{14A}-\x{17E}"
    r"\x{400}-\x{45F}\x{2010}-\x{205E}\x{3040}-\x{30FF}\x{4E00}-\x{9FFF}\x{AC00}-\x{D7A3}"
    r"\x{1F300}-\x{1F64F}"
)
_Nodes = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """One expression.

    Attributes:
        sql: In DuckDB's dialect, over ``value``.
        columns: The columns of the value that it reads, by name.
        is_column: Whether it is one of them, taken as it is.
    """

    sql: str
    columns: tuple[str, ...]
    is_column: bool


class _UntranslatableError(Exception):
    """DuckDB might give another value, or none."""


def translate(frame: DataFrame, expressions: Sequence[Column]) -> tuple[Statement, ...] | None:
    """Return expressions over a frame for DuckDB; ``None`` where one of them is Spark's alone."""
    if frame.sparkSession.conf.get("spark.sql.ansi.enabled") != "true":
        return None
    named = (each.alias(f"e{n}") for n, each in enumerate(expressions))
    query: Any = frame.select(*named)._jdf.queryExecution()
    if _UNSEEN.search(query.analyzed().toString()):
        return None
    try:
        plan = json.loads(query.optimizedPlan().toJSON())
    except PySparkException:
        # A constant that fails does so here; Spark says so of the batch that needs it.
        return None
    # Below the first lie those that compute what several expressions share.
    first, *below = [each["projectList"] for each in plan if "projectList" in each]
    shared = {nodes[0]["exprId"]["id"]: nodes[1:] for each in below for nodes in each}
    try:
        return tuple(_statement(nodes, shared) for nodes in first)
    except _UntranslatableError:
        return None


def translate_conditions(
    spark: SparkSession, row: Iterable[DeclaredColumn], conditions: Iterable[str]
) -> tuple[Statement, ...] | None:
    """Return conditions over some columns; ``None`` where one of them is Spark's alone."""
    return translate(nothing_of(spark, row), [F.expr(each) for each in conditions])


def _statement(nodes: _Nodes, shared: Mapping[int, _Nodes]) -> Statement:
    root = _tree(iter(nodes), shared)
    if root.word == "Alias":
        (root,) = root.children
    columns = tuple(dict.fromkeys(each.of["name"] for each in root.walk() if each.word == _COLUMN))
    return Statement(sql=_translated(root).sql, columns=columns, is_column=root.word == _COLUMN)


@dataclass(frozen=True, slots=True)
class _Node:
    word: str
    of: Mapping[str, Any]
    children: tuple[_Node, ...]

    def walk(self) -> Iterator[_Node]:
        yield self
        for child in self.children:
            yield from child.walk()


def _tree(nodes: Iterator[Mapping[str, Any]], shared: Mapping[int, _Nodes]) -> _Node:
    """Return the expression that begins a list of nodes, each before its children.

    Args:
        nodes: As JSON has them.
        shared: What is computed once, by its id.
    """
    of = next(nodes)
    if "exprId" in of and (behind := shared.get(of["exprId"]["id"])):
        return _tree(iter(behind), shared)
    children = tuple(_tree(nodes, shared) for _ in range(of["num-children"]))
    return _Node(of["class"].rpartition(".")[2], of, children)


@dataclass(frozen=True, slots=True)
class _Typed:
    """An expression of DuckDB's, and the name of its type in Spark; a struct's is its fields."""

    sql: str
    type: Any

    @property
    def decimal(self) -> tuple[int, int] | None:
        """Precision and scale of a decimal."""
        found = _DECIMAL.fullmatch(self.type) if isinstance(self.type, str) else None
        return (int(found[1]), int(found[2])) if found else None


def _translated(node: _Node) -> _Typed:
    if translator := _TRANSLATORS.get(node.word):
        return translator(node)
    raise _UntranslatableError(node.word)


def _operands(node: _Node, *types: str) -> list[_Typed]:
    """Return the children of a node, all of one scalar type, which is among ``types`` if any."""
    found = [_translated(child) for child in node.children]
    of = {json.dumps(each.type) for each in found}
    if len(of) != 1 or not _is_scalar(found[0].type) or (types and found[0].type not in types):
        raise _UntranslatableError(node.word)
    return found


def _operand(node: _Node, *types: str) -> _Typed:
    """Return the only child of a node, which has one of the types."""
    found = _operands(node, *types)
    if len(found) > 1:
        raise _UntranslatableError(node.word)
    return found[0]


def _is_scalar(type_: Any) -> bool:
    return isinstance(type_, str) and (type_ in _TYPES or bool(_DECIMAL.fullmatch(type_)))


def _duckdb(type_: str) -> str:
    return _TYPES.get(type_) or type_.upper()


def _cast(sql: str, type_: str) -> _Typed:
    return _Typed(f"CAST({sql} AS {_duckdb(type_)})", type_)


def _column(node: _Node) -> _Typed:
    return _Typed(f"value.{identifier(node.of['name'])}", node.of["dataType"])


def _field(node: _Node) -> _Typed:
    of = _translated(node.children[0])
    field = of.type["fields"][node.of["ordinal"]]
    return _Typed(f"struct_extract({of.sql}, {literal(field['name'])})", field["type"])


def _literal(node: _Node) -> _Typed:
    type_, value = node.of["dataType"], node.of["value"]
    if not _is_scalar(type_):
        raise _UntranslatableError(type_)
    if value is None:
        return _cast("NULL", type_)
    if type_ == "timestamp_ntz":
        return _Typed(f"make_timestamp({int(value)})", type_)
    if type_ in ("date", "timestamp") and not _MOMENT.fullmatch(value):
        raise _UntranslatableError(value)
    # Spark writes a moment by the session's time zone, which is UTC here and there.
    return _cast(literal(value), type_)


def _comparison(node: _Node) -> _Typed:
    left, right = _operands(node)
    return _Typed(f"({left.sql} {_COMPARED[node.word]} {right.sql})", "boolean")


def _logic(node: _Node) -> _Typed:
    sql = f" {node.word.upper()} ".join(each.sql for each in _operands(node, "boolean"))
    return _Typed(f"({sql})", "boolean")


def _not(node: _Node) -> _Typed:
    of = _operand(node, "boolean")
    return _Typed(f"(NOT {of.sql})", "boolean")


def _null_test(node: _Node) -> _Typed:
    of = _translated(node.children[0])
    negated = "NOT " if node.word == "IsNotNull" else ""
    return _Typed(f"({of.sql} IS {negated}NULL)", "boolean")


def _in(node: _Node) -> _Typed:
    value, *among = _operands(node)
    return _Typed(f"({value.sql} IN ({', '.join(each.sql for each in among)}))", "boolean")


def _coalesce(node: _Node) -> _Typed:
    found = _operands(node)
    return _Typed(f"coalesce({', '.join(each.sql for each in found)})", found[0].type)


def _case(node: _Node) -> _Typed:
    """Translate ``if`` and ``CASE``: conditions, each with its value, and perhaps what is left."""
    found = [_translated(child) for child in node.children]
    conditions, values = found[:-1:2], [*found[1::2], *(found[-1:] if len(found) % 2 else [])]
    types = {json.dumps(each.type) for each in values}
    if len(types) != 1 or not _is_scalar(values[0].type):
        raise _UntranslatableError(node.word)
    cases = (f"WHEN {c.sql} THEN {v.sql}" for c, v in zip(conditions, values, strict=False))
    left = f" ELSE {values[-1].sql}" if len(found) % 2 else ""
    return _Typed(f"CASE {' '.join(cases)}{left} END", values[0].type)


def _arithmetic(node: _Node) -> _Typed:
    """Translate what fails by an overflow in both; of decimals, what cannot have one."""
    left, right = (_translated(child) for child in node.children)
    sql = f"({left.sql} {_ARITHMETIC[node.word]} {right.sql})"
    if left.decimal and right.decimal:
        (p1, s1), (p2, s2) = left.decimal, right.decimal
        scale, whole = max(s1, s2), max(p1 - s1, p2 - s2) + 1
        precision = whole + scale
        if node.word == "Multiply":
            precision, scale = p1 + p2 + 1, s1 + s2
        if precision > _WIDEST:
            raise _UntranslatableError(node.word)
        return _cast(sql, f"decimal({precision},{scale})")
    if left.type != right.type or left.type not in (*_INTEGERS, *_FRACTIONS):
        raise _UntranslatableError(node.word)
    return _cast(sql, left.type)


def _division(node: _Node) -> _Typed:
    types = ("double",) if node.word == "Divide" else _INTEGERS
    left, right = _operands(node, *types)
    operator = "/" if node.word == "Divide" else "%"
    by_zero = f"CASE WHEN {right.sql} = 0 AND {left.sql} IS NOT NULL THEN {_raise('division by 0')}"
    return _cast(f"{by_zero} ELSE {left.sql} {operator} {right.sql} END", left.type)


def _sign(node: _Node) -> _Typed:
    of = _operand(node, *_INTEGERS, *_FRACTIONS)
    return _cast(f"(-{of.sql})" if node.word == "UnaryMinus" else f"abs({of.sql})", of.type)


def _text_test(node: _Node) -> _Typed:
    text, part = _operands(node, "string")
    return _Typed(f"{_TEXTS[node.word]}({text.sql}, {part.sql})", "boolean")


def _like(node: _Node) -> _Typed:
    text, pattern = node.children
    if pattern.word != "Literal" or "\\" in (pattern.of["value"] or "\\"):
        raise _UntranslatableError(node.word)
    left, right = _translated(text), _translated(pattern)
    return _Typed(f"({left.sql} LIKE {right.sql})", "boolean")


def _concat(node: _Node) -> _Typed:
    return _Typed(f"({' || '.join(each.sql for each in _operands(node, 'string'))})", "string")


def _case_of_letters(node: _Node) -> _Typed:
    of = _operand(node, "string")
    agreed = f"strlen({of.sql}) = length({of.sql}) OR regexp_full_match({of.sql}, '[{CASED}]*')"
    cased = f"{node.word.lower()}({of.sql})"
    other = _raise(f"a letter that {node.word.lower()} may read in two ways")
    return _Typed(f"CASE WHEN NOT ({agreed}) THEN {other} ELSE {cased} END", "string")


def _function(node: _Node) -> _Typed:
    of_type, sql, type_ = _FUNCTIONS[node.word]
    return _cast(sql.format(_operand(node, of_type).sql), type_)


def _conversion(node: _Node) -> _Typed:
    """Translate a cast that loses nothing and cannot fail, and that of a moment to its day."""
    of, type_ = _translated(node.children[0]), node.of["dataType"]
    if not (_is_scalar(of.type) and _is_scalar(type_) and _loses_nothing(of, _Typed("", type_))):
        raise _UntranslatableError(node.word)
    if (of.type, type_) == ("timestamp", "date"):
        return _cast(f"({of.sql} AT TIME ZONE 'UTC')", type_)
    return _cast(of.sql, type_)


_LOSSLESS: Final = {
    *(("float", "double"), ("timestamp", "date"), ("timestamp_ntz", "date")),
    *((each, other) for n, each in enumerate(_INTEGERS) for other in _INTEGERS[n:]),
    *((each, other) for each in _INTEGERS for other in ("string", "double")),
}
_DIGITS: Final[Mapping[str, int]] = {"byte": 3, "short": 5, "integer": 10, "long": 19}


def _loses_nothing(of: _Typed, to: _Typed) -> bool:
    if to.decimal is None:
        return of.type == to.type or (of.type, to.type) in _LOSSLESS
    precision, scale = of.decimal or (_DIGITS.get(of.type, _WIDEST + 1), 0)
    return to.decimal[1] >= scale and to.decimal[0] - to.decimal[1] >= precision - scale


def _raise(why: str) -> str:
    return f"error({literal(why)})"


_TRANSLATORS: Final[Mapping[str, Callable[[_Node], _Typed]]] = {
    _COLUMN: _column,
    "GetStructField": _field,
    "Literal": _literal,
    **dict.fromkeys(_COMPARED, _comparison),
    **dict.fromkeys(("And", "Or"), _logic),
    "Not": _not,
    **dict.fromkeys(("IsNull", "IsNotNull"), _null_test),
    "In": _in,
    "Coalesce": _coalesce,
    **dict.fromkeys(("If", "CaseWhen"), _case),
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    **dict.fromkeys(("Divide", "Remainder"), _division),
    **dict.fromkeys(("UnaryMinus", "Abs"), _sign),
    **dict.fromkeys(_TEXTS, _text_test),
    "Like": _like,
    "Concat": _concat,
    **dict.fromkeys(("Upper", "Lower"), _case_of_letters),
    **dict.fromkeys(_FUNCTIONS, _function),
    "Cast": _conversion,
}
