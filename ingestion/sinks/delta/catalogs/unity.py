"""An external table of a Unity Catalog, by its open REST API.

Its API of tables makes one, and has nothing that changes the columns of one. To drop it and make
another would take the grants on it along, so columns are changed by the newer API of Delta tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import httpx
from httpx import codes

from oncelake.ingestion.errors import InvalidSpecError, SetupError
from oncelake.ingestion.settings import Settings, variable
from oncelake.ingestion.sinks.delta.catalogs.entry import (
    MISSING,
    SECONDS,
    STALE,
    TableEntry,
    comment_of,
    sql_type,
)

_LONGEST_ANSWER: Final = 300
_TABLE_OF_DELTA: Final = "delta/v1/catalogs/{}/schemas/{}/tables/{}"
# The table's own properties; the others of Delta are written by servers themselves.
_OURS: Final = re.compile(r"delta\.(?!last|min|feature\.)")
_CAMEL: Final = ("elementType", "containsNull", "keyType", "valueType", "valueContainsNull")
_KEBAB: Final = {name: re.sub("([A-Z])", r"-\1", name).lower() for name in _CAMEL}


def reconcile(name: str, table: TableEntry, settings: Settings, *, write: bool) -> str | None:
    """Compare an entry, and write it; the server refuses that where it is another table's."""
    ask = partial(_ask, settings)
    if (entry := ask("GET", f"tables/{name}")) is None:
        if write:
            ask("POST", "tables", _new_entry(name, table))
        return MISSING
    is_delta = entry.get("data_source_format") == "DELTA"
    table.refuse_another(entry.get("storage_location"), is_delta=is_delta)
    if (update := _update_of(entry, table)) is None:
        return None
    try:
        if write:
            ask("POST", _TABLE_OF_DELTA.format(*name.split(".")), update)
    except httpx.HTTPStatusError as error:
        if error.response.status_code not in {codes.BAD_REQUEST, codes.NOT_FOUND}:
            raise
        raise InvalidSpecError(
            f"it shows the columns of before, since it did not take others ({error}); what reads "
            "Delta takes them from the table itself"
        ) from error
    return STALE


def _new_entry(full_name: str, table: TableEntry) -> dict[str, Any]:
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


def _type_and_comment(column: Mapping[str, Any]) -> tuple[Any, str]:
    """Read the type of a column, which Spark writes with the column around it, and the comment."""
    stored = json.loads(column.get("type_json") or "null")
    type_ = stored["type"] if isinstance(stored, dict) and "name" in stored else stored
    return type_, column.get("comment") or ""


def _update_of(entry: Mapping[str, Any], table: TableEntry) -> dict[str, Any] | None:
    """Return the body of the request that an entry needs, if it needs one."""
    # Spark makes an entry without any columns.
    columns = sorted(entry.get("columns") or (), key=lambda column: column.get("position", 0))
    # A person's comments stay where the table has none.
    kept = {it["name"]: {"comment": it["comment"]} for it in columns if it.get("comment")}
    fields = [{**it, "metadata": kept.get(it["name"], {}) | it["metadata"]} for it in table.fields]
    comment = table.comment or entry.get("comment") or ""
    properties = (entry.get("properties") or {}).items()
    known = table.properties.keys()
    ours = {name: value for name, value in properties if name in known or _OURS.match(name)}
    by = {name: at for at, name in enumerate(table.partitioned_by)}
    shows = [(it["name"], *_type_and_comment(it), it.get("partition_index")) for it in columns]
    wanted = [(it["name"], it["type"], comment_of(it), by.get(it["name"])) for it in fields]
    if [shows, ours, entry.get("comment") or ""] == [wanted, table.properties, comment]:
        return None
    renamed = json.loads(json.dumps(fields), object_hook=_in_kebab_case)
    updates = [
        {"action": "set-columns", "columns": {"type": "struct", "fields": renamed}},
        {"action": "set-partition-columns", "partition-columns": list(by)},
        {"action": "set-properties", "updates": table.properties},
        {"action": "remove-properties", "removals": sorted({*ours} - {*table.properties})},
        {"action": "set-table-comment", "comment": comment},
    ]
    requirement = {"type": "assert-table-uuid", "uuid": entry["table_id"]}
    return {"requirements": [requirement], "updates": updates}


def _in_kebab_case(named: Mapping[str, Any]) -> dict[str, Any]:
    """Name the parts of a type as the API of Delta tables does, which refuses the log's names."""
    return {_KEBAB.get(name, name): value for name, value in named.items()}


def _ask(settings: Settings, method: str, path: str, body: Any = None) -> Any:
    """Send a request, and return the answer; ``None`` where what is read is not there."""
    if settings.unity is None:
        raise SetupError(f"{variable('unity')} is not set")
    url = f"{settings.unity.rstrip('/')}/api/2.1/unity-catalog/{path}"
    token = settings.unity_token.get_secret_value() if settings.unity_token else ""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    # Without TLS the token goes to this machine alone, and to no proxy that the environment names.
    with httpx.Client(timeout=SECONDS, trust_env=url.startswith("https:")) as client:
        answer = client.request(method, url, json=body, headers=headers)
    if answer.status_code == codes.NOT_FOUND and body is None:
        return None
    if not answer.is_success:
        # A server may quote what it was sent, and break the lines of what it says.
        says = " ".join(answer.text.replace(token or "***", "***").split())[:_LONGEST_ANSWER]
        problem = f"HTTP {answer.status_code} to {method} {path}: {says}"
        raise httpx.HTTPStatusError(problem, request=answer.request, response=answer)
    return answer.json()
