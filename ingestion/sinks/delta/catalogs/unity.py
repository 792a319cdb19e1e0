"""An external table of a Unity Catalog, by its open REST API.

Its API of tables makes one, and has nothing that changes the columns of one. To drop it and make
another would take the grants on it along, so columns are changed by the newer API of Delta tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import httpx

from oncelake.ingestion.errors import InvalidSpecError, SetupError
from oncelake.ingestion.settings import Settings, variable
from oncelake.ingestion.sinks.delta.catalogs.entry import (
    MISSING,
    SECONDS,
    STALE,
    EntryChange,
    TableEntry,
    comment_of,
    sql_type,
)

_LONGEST_ANSWER: Final = 300


def entry_change(name: str, table: TableEntry, settings: Settings) -> EntryChange | None:
    """Compare an entry."""
    ask = partial(_ask, settings)
    if (found := ask("GET", f"tables/{name}")) is None:
        return EntryChange(MISSING, lambda: ask("POST", "tables", _made(name, table)))
    formats = {"table_type": found.get("data_source_format")}
    table.refuse_another(found.get("storage_location"), formats)
    # Spark makes an entry without any.
    shown = found.get("columns") or ()
    columns = [(each["name"], _type_in(each), each.get("comment")) for each in shown]
    wanted = [(each["name"], each["type"], comment_of(each) or None) for each in table.fields]
    has_properties = table.properties.items() <= (found.get("properties") or {}).items()
    if columns == wanted and has_properties:
        return None
    return EntryChange(STALE, lambda: _update(ask, name, found["table_id"], table))


def _made(full_name: str, table: TableEntry) -> dict[str, Any]:
    return {
        **dict(zip(("catalog_name", "schema_name", "name"), full_name.split("."), strict=True)),
        "table_type": "EXTERNAL",
        "data_source_format": "DELTA",
        "storage_location": table.location,
        "comment": table.comment,
        "properties": table.properties,
        "columns": [_column(table, at) for at in range(len(table.fields))],
    }


def _column(table: TableEntry, at: int) -> dict[str, Any]:
    field, by = table.fields[at], table.partitioned_by
    name, stored = field["name"], field["type"]
    word, _, digits = (stored if isinstance(stored, str) else stored["type"]).partition("(")
    precision, _, scale = digits.rstrip(")").partition(",")
    column = {
        "name": name,
        "position": at,
        "nullable": field["nullable"],
        "type_text": sql_type(stored),
        "type_json": json.dumps(field),
        "type_name": "INT" if word == "integer" else word.upper(),
        "comment": comment_of(field) or None,
    }
    if digits:
        column |= {"type_precision": int(precision), "type_scale": int(scale)}
    return {**column, "partition_index": by.index(name)} if name in by else column


def _type_in(column: Mapping[str, Any]) -> Any:
    """Read a column's type; it is alone, or in the column as Spark writes it."""
    found = json.loads(column.get("type_json") or "null")
    return found["type"] if isinstance(found, dict) and "name" in found else found


def _update(ask: partial[Any], full_name: str, table_id: str, table: TableEntry) -> None:
    catalog, schema, name = full_name.split(".")
    body = {
        "requirements": [{"type": "assert-table-uuid", "uuid": table_id}],
        "updates": [
            {"action": "set-columns", "columns": {"type": "struct", "fields": table.fields}},
            {"action": "set-partition-columns", "partition-columns": table.partitioned_by},
            {"action": "set-properties", "updates": table.properties},
        ],
    }
    try:
        ask("POST", f"delta/v1/catalogs/{catalog}/schemas/{schema}/tables/{name}", body)
    except OSError as error:
        raise InvalidSpecError(
            f"it shows the columns of before, since it did not take others ({error}); what reads "
            "Delta takes them from the table itself"
        ) from error


def _ask(settings: Settings, method: str, path: str, body: Any = None) -> Any:
    """Send a request, and return the answer; ``None`` where what is read is not there."""
    if settings.unity is None:
        raise SetupError(f"{variable('unity')} is not set")
    url = f"{settings.unity.rstrip('/')}/api/2.1/unity-catalog/{path}"
    token = settings.unity_token.get_secret_value() if settings.unity_token else ""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = httpx.request(method, url, json=body, headers=headers, timeout=SECONDS)
    if answer.status_code == httpx.codes.NOT_FOUND and body is None:
        return None
    if not answer.is_success:
        # A server may quote what it was sent.
        says = answer.text.replace(token or "***", "***")[:_LONGEST_ANSWER]
        raise OSError(f"HTTP {answer.status_code} to {method} {path}: {says}")
    return answer.json()
