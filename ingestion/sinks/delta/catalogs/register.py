"""The entry of a Delta table in its catalog: the one place that writes it, behind commits.

It is never a part of the promise. Whatever goes wrong is a notice, and a later run tries again.
What the entry says is remembered in the lake, so that nothing is asked where nothing has changed;
that is a cache, whose loss costs one request.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from importlib import import_module
from math import inf
from threading import Thread
from typing import Any, Final, cast

from oncelake.ingestion.declaration.catalogs import DeltaCatalog
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.delta.files import is_delta
from oncelake.ingestion.errors import first_line
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.delta.catalogs.entry import TableEntry

# No command waits longer for a catalog, and after a failure no run asks it for a while.
_MOST_SECONDS: Final = 15.0
_PAUSE_SECONDS: Final = 60.0
# By these variables (AWS_…) its clients find Glue.
_OF_AWS: Final = ("REGION", "DEFAULT_REGION", "PROFILE", "ENDPOINT_URL", "ENDPOINT_URL_GLUE")


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
    digest = ""
    try:
        table = TableEntry.of(paths.data)
        servers = (os.environ.get(f"AWS_{name}") for name in _OF_AWS)
        digest = table.digest(where, settings.unity, settings.hive_metastore, *servers)
        known = _remembered(paths)
        if not anew and known.get("digest") == digest and time.time() < known.get("until", inf):
            return registration_notices(paths)
        # If this process dies once the entry is written, nobody takes it for what it was before.
        paths.registration.delete()
        _reconcile(catalog, paths, table, write=True)
        _remember(paths, digest=digest)
    except Exception as error:  # noqa: BLE001 (the rows are committed, whatever a catalog does)
        problem = f"the entry {where} is not up to date: {reason(error)}; a later run tries again"
        _remember(paths, digest=digest, problem=problem, until=time.time() + _PAUSE_SECONDS)
        return (problem,)
    return ()


def registration_notices(paths: StreamPaths) -> tuple[str, ...]:
    """Say why the last registration failed, if it did; asks no catalog."""
    known = _remembered(paths) if paths.sink.catalog else {}
    return (known["problem"],) if "problem" in known else ()


def compare_entry(catalog: DeltaCatalog, paths: StreamPaths) -> str | None:
    """Say what is wrong with a stream's entry, by asking its catalog; nothing is changed."""
    if not is_delta(paths.data):
        return None
    return _reconcile(catalog, paths, TableEntry.of(paths.data), write=False)


def reason(error: Exception) -> str:
    """Say what a catalog's client raised; Thrift's errors say it in an attribute."""
    text = getattr(error, "message", None) or first_line(error) or type(error).__name__
    return str(text).rstrip(".")


def _reconcile(
    catalog: DeltaCatalog, paths: StreamPaths, table: TableEntry, *, write: bool
) -> str | None:
    """Compare an entry by the catalog's own module, whose library may be large, or not be there.

    A thread waits for the catalog: a client's time-out bounds a read, of which an answer has many.
    """
    module: Any = import_module(f"{__package__}.{catalog.kind}")
    name, outcome = catalog.name_of(paths.stream), Future[str | None]()

    def answer() -> None:
        try:
            outcome.set_result(module.reconcile(name, table, paths.settings, write=write))
        except Exception as error:  # noqa: BLE001 (whoever waits raises it)
            outcome.set_exception(error)

    Thread(target=answer, name=f"catalog of {paths.stream}", daemon=True).start()
    wait([outcome], _MOST_SECONDS)
    if not outcome.done():
        raise TimeoutError(f"timed out: it has not ended its answer in {_MOST_SECONDS:.0f} seconds")
    return outcome.result()


def _remember(paths: StreamPaths, **known: object) -> None:
    with suppress(Exception):
        paths.registration.put(json.dumps(known).encode())


def _remembered(paths: StreamPaths) -> Mapping[str, Any]:
    with suppress(OSError, ValueError):
        return cast("Mapping[str, Any]", json.loads(paths.registration.read()))
    return {}
