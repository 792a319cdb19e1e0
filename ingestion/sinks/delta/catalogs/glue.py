"""An entry of AWS Glue's data catalog, by which Athena finds a Delta table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from oncelake.ingestion.errors import InvalidSpecError, not_installed
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.delta.catalogs.entry import (
    INPUT,
    MISSING,
    OUTPUT,
    SECONDS,
    SERDE,
    STALE,
    EntryChange,
    TableEntry,
)


def entry_change(name: str, table: TableEntry, settings: Settings) -> EntryChange | None:
    """Compare an entry; its change is refused by Glue where another has come in between."""
    del settings
    if not table.location.startswith("s3://"):
        raise InvalidSpecError(f"Glue is for tables in S3, and this one is at {table.location}")
    glue, (database, name) = _client(), name.split(".")
    place = {"DatabaseName": database}
    try:
        found = glue.get_table(**place, Name=name)["Table"]
    except glue.exceptions.EntityNotFoundException:
        made = _described({"Name": name}, table)
        return EntryChange(MISSING, partial(glue.create_table, **place, TableInput=made))
    storage = found.get("StorageDescriptor", {})
    path = storage.get("SerdeInfo", {}).get("Parameters", {}).get("path")
    table.refuse_another(path or storage.get("Location"), found.get("Parameters", {}))
    # What Glue returns has more than what it takes.
    known = glue.meta.service_model.shape_for("TableInput").members
    before = {each: value for each, value in found.items() if each in known}
    if (after := _described(before, table)) == before:
        return None
    place["VersionId"] = found["VersionId"]
    return EntryChange(STALE, partial(glue.update_table, **place, TableInput=after))


def _described(before: Mapping[str, Any], table: TableEntry) -> dict[str, Any]:
    """Write a table into an entry; whatever is not of the table stays as it was."""
    storage = before.get("StorageDescriptor", {})
    serde = storage.get("SerdeInfo", {})
    known = {each["Name"]: each for each in storage.get("Columns", ())}
    columns = [
        {**known.get(name, {}), "Name": name, "Type": type_, **_unless_empty(Comment=comment)}
        for name, type_, comment in table.hive_columns
    ]
    serde_parameters = table.serde(serde.get("Parameters", {}))
    serde = {**serde, "SerializationLibrary": SERDE, "Parameters": serde_parameters}
    formats = {"InputFormat": INPUT, "OutputFormat": OUTPUT, "SerdeInfo": serde}
    return {
        **before,
        **_unless_empty(Description=table.comment[:2_048]),
        "TableType": "EXTERNAL_TABLE",
        "Parameters": table.parameters(before.get("Parameters", {})),
        # A partition of Delta's is none of Glue's, which would have to list its values.
        "PartitionKeys": [],
        "StorageDescriptor": {
            **storage,
            **formats,
            "Columns": columns,
            "Location": table.location,
        },
    }


def _unless_empty(**text: str) -> dict[str, str]:
    return {name: value for name, value in text.items() if value}


def _client() -> Any:
    try:
        from botocore.config import Config
        from botocore.session import get_session
    except ImportError as error:
        raise not_installed("glue") from error
    retries = {"total_max_attempts": 1}
    config = Config(connect_timeout=SECONDS, read_timeout=SECONDS, retries=retries)
    # The store's clients read it, too; botocore itself knows AWS_DEFAULT_REGION alone.
    region = os.environ.get("AWS_REGION")
    return get_session().create_client("glue", region_name=region, config=config)
