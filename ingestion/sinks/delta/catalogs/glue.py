"""An entry of AWS Glue's data catalog, by which Athena finds a Delta table."""

from __future__ import annotations

import os
from collections.abc import Mapping
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
    TableEntry,
    is_of_delta,
    shortened,
)


def reconcile(name: str, table: TableEntry, settings: Settings, *, write: bool) -> str | None:
    """Compare an entry, and write it; Glue refuses that where another has come in between."""
    del settings
    if not table.location.startswith("s3://"):
        raise InvalidSpecError(f"Glue is for tables in S3, and this one is at {table.location}")
    glue, (database, name) = _client(), name.split(".")
    place = {"DatabaseName": database}
    try:
        entry = glue.get_table(**place, Name=name)["Table"]
    except glue.exceptions.EntityNotFoundException:
        if write:
            glue.create_table(**place, TableInput=_described({"Name": name}, table))
        return MISSING
    storage, parameters = entry.get("StorageDescriptor", {}), entry.get("Parameters", {})
    path = storage.get("SerdeInfo", {}).get("Parameters", {}).get("path")
    table.refuse_another(path or storage.get("Location"), is_delta=is_of_delta(parameters))
    # What Glue returns has more than what it takes.
    known = glue.meta.service_model.shape_for("TableInput").members
    before = {name: value for name, value in entry.items() if name in known}
    if (after := _described(before, table)) == before:
        return None
    if write:
        glue.update_table(**place, VersionId=entry["VersionId"], TableInput=after)
    return STALE


def _described(before: Mapping[str, Any], table: TableEntry) -> dict[str, Any]:
    """Write a table into an entry; whatever is not of the table stays as it was."""
    storage = before.get("StorageDescriptor", {})
    serde = storage.get("SerdeInfo", {})
    known = {column["Name"]: column for column in storage.get("Columns", ())}
    columns = [
        {**known.get(name, {}), "Name": name, "Type": type_, **_unless_empty(Comment=comment)}
        for name, type_, comment in table.hive_columns
    ]
    parameters = table.serde(serde.get("Parameters", {}))
    serde = {**serde, "SerializationLibrary": SERDE, "Parameters": parameters}
    formats = {"InputFormat": INPUT, "OutputFormat": OUTPUT, "SerdeInfo": serde}
    location = table.place(storage.get("Location"))
    return {
        **before,
        **_unless_empty(Description=shortened(table.comment, 2_048)),
        "TableType": "EXTERNAL_TABLE",
        "Parameters": table.parameters(before.get("Parameters", {})),
        # A partition of Delta's is none of Glue's, which would have to list its values.
        "PartitionKeys": [],
        "StorageDescriptor": {**storage, **formats, "Columns": columns, "Location": location},
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
    session = get_session()
    # Also for the client by which the session assumes a role.
    session.set_default_client_config(config)
    return session.create_client("glue", region_name=region)
