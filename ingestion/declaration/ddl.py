"""Columns and types, read from Spark DDL without a JVM.

The code location must load in a second or two and start nothing, yet a misspelt type or a key
that names no column should fail there and not at 3 a.m. This reads the part of Spark's grammar
that a Delta table can hold; Spark parses the same text again when a run begins, and decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from oncelake.ingestion.declaration.modes import OUR_COLUMNS
from oncelake.ingestion.declaration.names import nearest
from oncelake.ingestion.declaration.rules.violations import RuleViolationsError
from oncelake.ingestion.declaration.sql import quoted
from oncelake.ingestion.declaration.types import PLAIN_NAME, SqlType

T = TypeVar("T")

# Spelling to type. Absent on purpose, though Spark parses them: INTERVAL, TIME, VOID, GEOMETRY.
_NAMES: Final = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE"),
    *("STRING", "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "VARIANT"),
)
_PLAIN: Final = {
    **{name: name for name in _NAMES},
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "TIMESTAMP_LTZ": "TIMESTAMP",
}
_DECIMAL: Final = ("DECIMAL", "DEC", "NUMERIC")
# CHAR is left out: it is padded when written, so that what is read is not what was sent.
_VARCHAR: Final = "VARCHAR"
_NESTED: Final = ("ARRAY", "MAP", "STRUCT")
_KNOWN: Final = (*_PLAIN, *_DECIMAL, _VARCHAR, *_NESTED)

# What people write out of habit with other databases.
_ELSEWHERE: Final = {
    "TEXT": "STRING",
    "CHAR": "VARCHAR",
    "CHARACTER": "VARCHAR",
    "UUID": "STRING",
    "JSON": "VARIANT",
    "BOOL": "BOOLEAN",
    "BLOB": "BINARY",
    "DATETIME": "TIMESTAMP",
    "TIMESTAMPTZ": "TIMESTAMP",
    "INT32": "INT",
    "INT64": "BIGINT",
}

# What Arrow ends a name at, and what UTF-8 has not.
_NO_TEXT: Final = re.compile(r"[\0\ud800-\udfff]")

_COLUMNS: Final = "write columns as `name TYPE [NOT NULL] [COMMENT 'text']`, separated by commas"
_BACKTICKS: Final = "a name of other than letters, digits and _ needs backticks"

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<name>`(?:[^`]|``)+`)
      | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      | (?P<word>\w+)
      | (?P<sign>[<>(),:])
      | (?P<stray>.)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredColumn:
    """One column of a stream's table, as a person declared it; the comment may be empty.

    Attributes:
        filled_by: What gives it a value where a batch does not; of a table's own column alone.
    """

    name: str
    type: SqlType
    nullable: bool
    comment: str
    filled_by: Literal["", "default", "identity", "always identity", "generated"] = ""

    def as_ddl(self) -> str:
        """Write it as Spark DDL."""
        required = "" if self.nullable else " NOT NULL"
        return f"{quoted(self.name)} {self.type}{required}{self.comment_ddl}"

    @property
    def comment_ddl(self) -> str:
        """The comment as DDL, with a blank in front; empty where there is none."""
        text = self.comment.replace("\\", "\\\\").replace("'", "\\'")
        return f" COMMENT '{text}'" if text else ""


def parse_columns(ddl: str) -> tuple[DeclaredColumn, ...]:
    """Read the columns of a Spark DDL string such as ``id BIGINT NOT NULL, name STRING``.

    Raises:
        ValueError: the text is not DDL, or names a column twice.
    """
    try:
        return _read_all(ddl, _Reader.columns)
    except ValueError:
        problems = _problems_by_column(ddl)
        if len(problems) < 2:
            raise
        raise RuleViolationsError(((), problem) for problem in problems) from None


def system_columns() -> tuple[DeclaredColumn, ...]:
    """Return the columns that every table has behind its own."""
    return _read_all(OUR_COLUMNS, _Reader.columns)


def parse_type(text: str) -> SqlType:
    """Read one type, such as ``DECIMAL(10, 2)``; ``ValueError`` where no table can hold it."""
    return _read_all(text, lambda reader: reader.type_of(text))


def _problems_by_column(ddl: str) -> list[str]:
    """Return what is wrong with each column by itself, so that all can be corrected at once."""
    problems = []
    for reader in _Reader(ddl).split():
        try:
            reader.column()
            reader.expect_end()
        except (ValueError, RecursionError) as error:
            problems.append(str(error))
    return problems


def _read_all(text: str, read: Callable[[_Reader], T]) -> T:
    reader = _Reader(text)
    if reader.is_at_end:
        raise ValueError(f"no columns; {_COLUMNS}")
    try:
        value = read(reader)
    except RecursionError:
        raise ValueError("types are nested too deeply") from None
    reader.expect_end()
    return value


class _Reader:
    """Recursive descent over the tokens of a DDL string."""

    def __init__(self, ddl: str) -> None:
        tokens = ((str(match.lastgroup), match.group()) for match in _TOKEN.finditer(ddl))
        self._tokens = [token for token in tokens if token[0] != "space"]
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._tokens)

    def columns(self) -> tuple[DeclaredColumn, ...]:
        columns = [self.column()]
        while self._take(","):
            columns.append(self.column())
        taken: set[str] = set()
        for name in (column.name for column in columns):
            if name.lower() in taken:
                raise ValueError(
                    f"column {name}: declared twice; names that differ only in case are one to "
                    "Spark and DuckDB: declare one of them"
                )
            taken.add(name.lower())
        return tuple(columns)

    def split(self) -> Iterator[_Reader]:
        """Yield a reader for each column, as far as brackets and commas tell them apart."""
        part, depth = _Reader(""), 0
        for token in self._tokens:
            depth += (token[1] in "<(") - (token[1] in ">)")
            if token[1] == "," and depth <= 0:
                yield part
                part = _Reader("")
            else:
                part._tokens.append(token)
        yield part

    def column(self) -> DeclaredColumn:
        name = self._name()
        self._take(":")
        type_ = self.type_of(name)
        required = self._take("NOT")
        if required:
            self._expect("NULL")
        return DeclaredColumn(name=name, type=type_, nullable=not required, comment=self._comment())

    def expect_end(self) -> None:
        if not self.is_at_end:
            text = self._tokens[self._at][1]
            raise ValueError(f"did not expect `{text}` after `{self._before()}`; {_COLUMNS}")

    def _name(self) -> str:
        kind, text = self._next("a column's name")
        if kind == "name" and _NO_TEXT.search(text):
            raise ValueError(f"column {text!r}: no name has NUL, or half a character, in it")
        if kind == "name":
            return text[1:-1].replace("``", "`")
        if kind != "word":
            needs = f"; {_BACKTICKS}" if kind == "stray" else ""
            raise ValueError(f"expected a column's name, found `{text}`{needs}")
        if not PLAIN_NAME.fullmatch(text):
            raise ValueError(f"column {text}: write this name in backticks: `{text}`")
        return text

    def type_of(self, column: str) -> SqlType:
        kind, text = self._next(f"a type for column {column}")
        word = text.upper()
        if word in _PLAIN:
            return SqlType(word=_PLAIN[word])
        if word in _DECIMAL:
            return self._decimal()
        if word == _VARCHAR:
            self._expect("(")
            length = self._number(minimum=1)
            self._expect(")")
            return SqlType(word=word, precision=length)
        if word in _NESTED:
            return self._nested(word, column)
        if kind != "word":
            raise ValueError(f"column {column}: expected a type, found `{text}`; {_BACKTICKS}")
        near = _ELSEWHERE.get(word) or nearest(word, _KNOWN)
        hint = f"did you mean {near}?" if near else f"there are: {', '.join(_KNOWN)}"
        raise ValueError(
            f"column {column}: {text} is no type that a stream's table can hold; {hint}"
        )

    def _decimal(self) -> SqlType:
        precision, scale = 10, 0  # Spark's own default.
        if self._take("("):
            precision = self._number(minimum=1)
            scale = self._number() if self._take(",") else 0
            self._expect(")")
        if not scale <= precision <= 38:
            limits = "at most 38 digits, and no more than all of them behind the point"
            raise ValueError(f"DECIMAL({precision}, {scale}): {limits}")
        return SqlType(word="DECIMAL", precision=precision, scale=scale)

    def _nested(self, word: str, column: str) -> SqlType:
        required: frozenset[str] = frozenset()
        self._expect("<")
        if word == "STRUCT":
            fields = self.columns()
            parts = {field.name: field.type for field in fields}
            required = frozenset(field.name for field in fields if not field.nullable)
        elif word == "ARRAY":
            parts = {"element": self.type_of(column)}
        else:
            parts = {"key": self.type_of(column)}
            self._expect(",")
            parts["value"] = self.type_of(column)
        self._expect(">")
        return SqlType(word=word, parts=parts, required=required)

    def _comment(self) -> str:
        if not self._take("COMMENT"):
            return ""
        kind, text = self._next("the comment's text")
        if kind != "text":
            raise ValueError(f"COMMENT {text}: put the comment in quotes")
        # Spark joins adjacent literals, as SQL does.
        while not self.is_at_end and self._tokens[self._at][0] == "text":
            text = text[:-1] + self._next("")[1][1:]
        return re.sub(r"\\(.)", r"\1", text[1:-1])

    def _number(self, minimum: int = 0) -> int:
        _, text = self._next("a number")
        if not text.isdecimal() or int(text) < minimum:
            raise ValueError(f"expected a number from {minimum} up, found `{text}`")
        return int(text)

    def _next(self, wanted: str) -> tuple[str, str]:
        if self.is_at_end:
            raise ValueError(f"expected {wanted} after `{self._before()}`, found the end")
        self._at += 1
        return self._tokens[self._at - 1]

    def _take(self, text: str) -> bool:
        is_next = not self.is_at_end and self._tokens[self._at][1].upper() == text
        self._at += is_next
        return is_next

    def _expect(self, text: str) -> None:
        if not self._take(text):
            there = "the end" if self.is_at_end else f"`{self._tokens[self._at][1]}`"
            raise ValueError(f"expected `{text}` after `{self._before()}`, found {there}")

    def _before(self) -> str:
        return " ".join(text for _, text in self._tokens[max(0, self._at - 3) : self._at])
