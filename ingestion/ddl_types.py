"""The types that a stream's table can hold, in every spelling that Spark accepts."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

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
    near = [_ELSEWHERE[word]] if word in _ELSEWHERE else get_close_matches(word, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
    return f"{text} is no type that a stream's table can hold; {hint}"
