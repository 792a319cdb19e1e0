"""A stream's columns, read from Spark DDL without a JVM.

The code location must load in a second or two and start nothing, yet a misspelt type or a key
that names no column should fail there and not at 3 a.m. This reads the part of Spark's grammar
that a Delta table can hold; Spark parses the same text again when a run begins, and has the last
word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ingestion.declaration.names import nearest

# Spelling to type. Absent on purpose, though Spark parses them: INTERVAL, TIME, VOID, GEOMETRY.
PLAIN: Final = {
    "BOOLEAN": "BOOLEAN",
    "TINYINT": "TINYINT",
    "BYTE": "TINYINT",
    "SMALLINT": "SMALLINT",
    "SHORT": "SMALLINT",
    "INT": "INT",
    "INTEGER": "INT",
    "BIGINT": "BIGINT",
    "LONG": "BIGINT",
    "FLOAT": "FLOAT",
    "REAL": "FLOAT",
    "DOUBLE": "DOUBLE",
    "STRING": "STRING",
    "BINARY": "BINARY",
    "DATE": "DATE",
    "TIMESTAMP": "TIMESTAMP",
    "TIMESTAMP_LTZ": "TIMESTAMP",
    "TIMESTAMP_NTZ": "TIMESTAMP_NTZ",
    "VARIANT": "VARIANT",
}
# CHAR is left out: it is padded when written, so that what is read is not what was sent.
SIZED: Final = {"VARCHAR": "VARCHAR"}
DECIMAL: Final = ("DECIMAL", "DEC", "NUMERIC")
NESTED: Final = ("ARRAY", "MAP", "STRUCT")

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


def unknown_type(text: str) -> str:
    """Say that a word is no type, and which one was probably meant."""
    word = text.upper()
    known = [*PLAIN, *DECIMAL, *SIZED, *NESTED]
    near = _ELSEWHERE.get(word) or nearest(word, known)
    hint = f"did you mean {near}?" if near else f"there are: {', '.join(known)}"
    return f"{text} is no type that a stream's table can hold; {hint}"


# Delta stores a column name with any of these only under column mapping, a protocol upgrade.
_UNSTORABLE = re.compile(r"[ ,;{}()\n\t=.`]")

_COLUMNS = "write columns as `name TYPE [NOT NULL] [COMMENT 'text']`, separated by commas"
_BACKTICKS = "a name of other than letters, digits and _ needs backticks"

_TOKEN = re.compile(
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
    """One column of a stream's table, as the user declared it.

    Attributes:
        name: Its name, without quotes.
        type: Its type in Spark SQL, such as ``DECIMAL(10, 2)``.
        nullable: Whether a record may leave it out.
        comment: What the user says of it; empty when nothing.
    """

    name: str
    type: str
    nullable: bool
    comment: str

    def as_ddl(self) -> str:
        """Write it as Spark DDL."""
        comment = self.comment.replace("\\", "\\\\").replace("'", "\\'")
        said = (f"`{self.name}` {self.type}", "" if self.nullable else "NOT NULL")
        return " ".join(filter(None, (*said, f"COMMENT '{comment}'" if comment else "")))


def parse_columns(ddl: str) -> tuple[DeclaredColumn, ...]:
    """Read the columns of a Spark DDL string such as ``id BIGINT NOT NULL, name STRING``.

    Raises:
        ValueError: the text is not DDL, names a column twice or one that Delta cannot store.
    """
    reader = _Reader(ddl)
    if reader.is_at_end:
        raise ValueError(f"no columns; {_COLUMNS}")
    try:
        columns = reader.columns()
    except RecursionError:
        raise ValueError("types are nested too deeply") from None
    reader.expect_end()
    for column in columns:
        if column.name.startswith("_"):
            raise ValueError(f"column {column.name}: names with _ in front are Oncelake's own")
    return columns


class _Reader:
    """Recursive descent over the tokens of a DDL string."""

    def __init__(self, ddl: str) -> None:
        found = ((str(each.lastgroup), each.group()) for each in _TOKEN.finditer(ddl))
        self._tokens = [token for token in found if token[0] != "space"]
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._tokens)

    def columns(self) -> tuple[DeclaredColumn, ...]:
        found = [self._column()]
        while self._take(","):
            found.append(self._column())
        _refuse_bad_names(column.name for column in found)
        return tuple(found)

    def _column(self) -> DeclaredColumn:
        name = self._name()
        self._take(":")
        kind = self._type(name)
        required = self._take("NOT")
        if required:
            self._expect("NULL")
        return DeclaredColumn(name=name, type=kind, nullable=not required, comment=self._comment())

    def expect_end(self) -> None:
        if not self.is_at_end:
            found = self._tokens[self._at][1]
            raise ValueError(f"did not expect `{found}` after `{self._before()}`; {_COLUMNS}")

    def _name(self) -> str:
        kind, text = self._next("a column's name")
        if kind == "name":
            return text[1:-1].replace("``", "`")
        if kind != "word":
            raise ValueError(f"expected a column's name, found `{text}`")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
            raise ValueError(f"column {text}: write this name in backticks: `{text}`")
        return text

    def _type(self, column: str) -> str:
        kind, text = self._next(f"a type for column {column}")
        word = text.upper()
        if word in PLAIN:
            return PLAIN[word]
        if word in DECIMAL:
            return self._decimal()
        if word in SIZED:
            self._expect("(")
            size = self._number(minimum=1)
            self._expect(")")
            return f"{SIZED[word]}({size})"
        if word in NESTED:
            return self._nested(word, column)
        if kind != "word":
            raise ValueError(f"column {column}: expected a type, found `{text}`; {_BACKTICKS}")
        raise ValueError(f"column {column}: {unknown_type(text)}")

    def _decimal(self) -> str:
        precision, scale = 10, 0  # Spark's own default.
        if self._take("("):
            precision = self._number(minimum=1)
            scale = self._number() if self._take(",") else 0
            self._expect(")")
        if not scale <= precision <= 38:
            limits = "at most 38 digits, and no more than all of them behind the point"
            raise ValueError(f"DECIMAL({precision}, {scale}): {limits}")
        return f"DECIMAL({precision}, {scale})"

    def _nested(self, word: str, column: str) -> str:
        self._expect("<")
        inner = ", ".join(map(_written, self.columns())) if word == "STRUCT" else self._type(column)
        if word == "MAP":
            self._expect(",")
            inner += f", {self._type(column)}"
        self._expect(">")
        return f"{word}<{inner}>"

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
        found = not self.is_at_end and self._tokens[self._at][1].upper() == text
        self._at += found
        return found

    def _expect(self, text: str) -> None:
        if not self._take(text):
            found = "the end" if self.is_at_end else f"`{self._tokens[self._at][1]}`"
            raise ValueError(f"expected `{text}` after `{self._before()}`, found {found}")

    def _before(self) -> str:
        return " ".join(text for _, text in self._tokens[max(0, self._at - 3) : self._at])


def _refuse_bad_names(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if _UNSTORABLE.search(name):
            raise ValueError(f"column {name!r}: Delta stores no name with ` ,;{{}}()=.` in it")
        if name.lower() in seen:
            raise ValueError(f"column {name}: declared twice (Spark ignores case)")
        seen.add(name.lower())


def _written(field: DeclaredColumn) -> str:
    return f"{field.name}: {field.type}{'' if field.nullable else ' NOT NULL'}"
