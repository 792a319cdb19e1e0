"""The entry of a Delta table in its catalog: the one place that writes it, behind commits.

It is never a part of the promise. Whatever goes wrong is a notice, and the next run tries again.
What the entry says is remembered in the lake, so that nothing is asked where nothing has changed;
that is a cache, whose loss costs one request.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, cast

from oncelake.ingestion.declaration.catalogs import DeltaCatalog
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.delta.files import is_delta
from oncelake.ingestion.errors import first_line
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.delta.catalogs.entry import EntryChange, TableEntry


def register(spec: StreamSpec, settings: Settings, *, anew: bool = False) -> tuple[str, ...]:
    """Let the entry of a stream, which nobody need hold, say what its table is behind a commit.

    Args:
        spec: The stream.
        settings: Where its table is, and its catalog.
        anew: Whether the catalog is asked even where the entry is known to say so.

    Returns:
        A notice, where that failed.
    """
    if (catalog := spec.sink.catalog) is None:
        return ()
    paths, where = StreamPaths.of(spec.name, settings, spec.sink), catalog.where_of(spec.name)
    try:
        table = TableEntry.of(paths.data)
        servers = settings.unity, settings.hive_metastore, os.environ.get("AWS_REGION")
        known = {"digest": table.digest(where, *servers)}
        if anew or _remembered(paths) != known:
            if change := _change_of(catalog, paths, table):
                change.make()
            paths.registration.put(json.dumps(known).encode())
    except Exception as error:  # noqa: BLE001 (the rows are committed, whatever a catalog does)
        problem = f"the entry {where} is not up to date: {reason(error)}; the next run tries again"
        with suppress(Exception):
            paths.registration.put(json.dumps({"problem": problem}).encode())
        return (problem,)
    return ()


def registration_notices(paths: StreamPaths) -> tuple[str, ...]:
    """Say why the last registration failed, if it did; asks no catalog."""
    known = _remembered(paths) if paths.sink.catalog else {}
    return tuple(text for name, text in known.items() if name == "problem")


def compare_entry(catalog: DeltaCatalog, paths: StreamPaths) -> EntryChange | None:
    """Ask a catalog whether a stream's entry says what its table is; nothing is changed."""
    if not is_delta(paths.data):
        return None
    return _change_of(catalog, paths, TableEntry.of(paths.data))


def reason(error: Exception) -> str:
    """Say what a catalog's client raised; Thrift's errors say it in an attribute."""
    text = getattr(error, "message", None) or first_line(error) or type(error).__name__
    return str(text).rstrip(".")


def _change_of(catalog: DeltaCatalog, paths: StreamPaths, table: TableEntry) -> EntryChange | None:
    """Ask by the catalog's own module, whose library may be large, or not be there."""
    module: Any = import_module(f"{__package__}.{catalog.kind}")
    change = module.entry_change(catalog.name_of(paths.stream), table, paths.settings)
    return cast("EntryChange | None", change)


def _remembered(paths: StreamPaths) -> Mapping[str, str]:
    with suppress(OSError, ValueError):
        return cast("Mapping[str, str]", json.loads(paths.registration.read()))
    return {}
