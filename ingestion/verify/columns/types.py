"""The types of columns in Arrow and DuckDB, and which values of JSON are certainly of theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from oncelake.ingestion.declaration.sql import identifier
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.verify.columns import NotInColumnsError
from oncelake.ingestion.verify.fold.transform import ARROW

_PLAIN: Final[Mapping[str, pa.DataType]] = {**ARROW, "FLOAT": pa.float32()}
# Those that JSON has only as text.
_AS_TEXT: Final = frozenset({"BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ"})
_YEAR: Final = "(1[6-9]|2[0-9])[0-9]{2}"
_DAY: Final = f"{_YEAR}-[0-9]{{2}}-[0-9]{{2}}"
_TIME: Final = r"([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6})?)?"
_ZONE: Final = "(Z|[+-](0[0-9]|1[0-4]):[0-5][0-9])"
# Texts about which no reader can be of another opinion.
_CERTAIN: Final[Mapping[str, str]] = {
    "BINARY": "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
    "DATE": _DAY,
    "TIMESTAMP": f"{_DAY}([T ]{_TIME}{_ZONE}?)?",
    "TIMESTAMP_NTZ": f"{_DAY}([T ]{_TIME})?",
}
# Of ISO 8601, as connectors write it.
ISO: Final[Mapping[str, str]] = {
    "TIMESTAMP": f"{_DAY}T{_TIME}{_ZONE}",
    "TIMESTAMP_NTZ": f"{_DAY}T{_TIME}",
}
# What a column holds: the years from 1 to 9999.
FIRST_SECOND, END_SECOND = -62_135_596_800, 253_402_300_800
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
_IN_DUCKDB: Final[Mapping[str, str]] = {
    "DATE": "DATE",
    "TIMESTAMP": "TIMESTAMPTZ",
    "TIMESTAMP_NTZ": "TIMESTAMP",
}


def arrow_type(type_: SqlType) -> pa.DataType:
    """Return the type of a table's column.

    Raises:
        NotInColumnsError: values of the type are compared one by one.
    """
    if type_.word == "DECIMAL":
        return pa.decimal128(type_.precision, type_.scale)
    if type_.word == "ARRAY":
        return pa.list_(arrow_type(type_.parts["element"]))
    if type_.word == "STRUCT":
        return pa.struct(
            [
                pa.field(name, arrow_type(part), nullable=name not in type_.required)
                for name, part in type_.parts.items()
            ]
        )
    if type_.word not in _PLAIN:
        raise NotInColumnsError(f"values of {type_} are compared one by one")
    return _PLAIN[type_.word]


def json_type(type_: SqlType) -> pa.DataType:
    """Return the type by which a value of JSON is read.

    Raises:
        NotInColumnsError: only the rule reads such a value.
    """
    if type_.word in _AS_TEXT:
        return pa.string()
    if type_.parts and type_.contains(*_AS_TEXT, "VARCHAR", "FLOAT", "MAP"):
        raise NotInColumnsError(f"values of {type_} are read one by one")
    return arrow_type(type_)


def from_json(name: str, type_: SqlType) -> tuple[str, str]:
    """Write what a value that was read by ``json_type`` is in the table, and when it is doubtful.

    Returns:
        Two expressions of DuckDB over a column of that name.
    """
    value, word = identifier(name), type_.word
    if word == "VARCHAR":
        return value, f"length({value}) > {type_.precision}"
    if type_.contains("DOUBLE", "FLOAT") and not type_.parts:
        return value, f"NOT isfinite({value})"
    if word not in _CERTAIN:
        return value, "FALSE"
    if word == "BINARY":
        is_certain = f"regexp_full_match({value}, '{_CERTAIN[word]}')"
        taken = f"CASE WHEN {is_certain} THEN from_base64({value}) END"
        return taken, f"{value} IS NOT NULL AND to_base64({taken}) IS DISTINCT FROM {value}"
    return from_text(name, _IN_DUCKDB[word], _CERTAIN[word])


def from_iso(name: str, type_: SqlType) -> tuple[str, str]:
    """Write the same of a moment that is a text as connectors write it."""
    return from_text(name, _IN_DUCKDB[type_.word], ISO[type_.word])


def from_text(name: str, type_: str, certain: str) -> tuple[str, str]:
    """Write the same of a text that is of a type of DuckDB where it matches what is certain."""
    is_certain = f"regexp_full_match({identifier(name)}, '{certain}')"
    return taken_if(name, is_certain, f"TRY_CAST({identifier(name)} AS {type_})")


def taken_if(name: str, is_certain: str, taken: str) -> tuple[str, str]:
    """Write the same of a value that is taken under a condition, and doubtful otherwise."""
    value = f"CASE WHEN {is_certain} THEN {taken} END"
    return value, f"{identifier(name)} IS NOT NULL AND {value} IS NULL"
