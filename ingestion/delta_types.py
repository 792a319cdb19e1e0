"""Types as Delta's log writes them, in the words of a declaration, so that the two compare."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

_WORDS: Final = {
    "byte": "TINYINT",
    "short": "SMALLINT",
    "integer": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "string": "STRING",
    "binary": "BINARY",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamp_ntz": "TIMESTAMP_NTZ",
    "variant": "VARIANT",
}
# Where Spark notes the length of a VARCHAR, which is a STRING to everybody else.
VARCHAR: Final = "__CHAR_VARCHAR_TYPE_STRING"


def as_declared(type_json: str, metadata: Mapping[str, Any] | None = None) -> str:
    """Return a type of Delta's log, in JSON, as ``ingestion.ddl`` writes a declared one."""
    length = (metadata or {}).get(VARCHAR)
    return str(length).upper() if length else _written(json.loads(type_json))


def without_nulls(declared: str) -> str:
    """Return a declared type without what it says of nulls within, which no table enforces."""
    return re.sub(r" NOT NULL\b", "", declared)


def _written(kind: Any) -> str:
    if isinstance(kind, str):
        decimal = re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", kind)
        if decimal:
            return f"DECIMAL({decimal[1]}, {decimal[2]})"
        return _WORDS.get(kind, kind.upper())
    if kind["type"] == "array":
        return f"ARRAY<{_written(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"MAP<{_written(kind['keyType'])}, {_written(kind['valueType'])}>"
    fields = (f"{each['name']}: {_written(each['type'])}" for each in kind["fields"])
    return f"STRUCT<{', '.join(fields)}>"
