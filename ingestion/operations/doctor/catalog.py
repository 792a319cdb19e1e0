"""What a doctor asks an Iceberg catalog: does it answer, is the namespace there, what may we do?

It changes nothing: whether files may be written shows only when a run does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from oncelake.ingestion.declaration.catalogs import DeltaCatalog
from oncelake.ingestion.declaration.sinks import IcebergSink
from oncelake.ingestion.errors import DependencyError, MissingRightError, TerminalError
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.operations.doctor import findings as kinds
from oncelake.ingestion.operations.doctor.findings import Finding
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.delta.catalogs.register import compare_entry, reason
from oncelake.ingestion.storage.location import Location

if TYPE_CHECKING:
    from oncelake.ingestion.sinks.iceberg.catalog import CatalogEntry

# What a server of REST may offer, by its name in pyiceberg.
_COMMITS, _RENAMES, _MAKES = "V1_UPDATE_TABLE", "V1_RENAME_TABLE", "V1_CREATE_NAMESPACE"


def examine_entry(catalog: DeltaCatalog, paths: StreamPaths) -> Iterator[Finding]:
    """Say what is wrong with the entry of a stream's Delta table; of no table there is none."""
    entry, stream = catalog.where_of(paths.stream), paths.stream
    try:
        if what := compare_entry(catalog, paths):
            yield kinds.WRONG_ENTRY.of(stream, "as its catalog says", entry=entry, what=what)
    except Exception as error:  # noqa: BLE001 (each client has errors of its own)
        is_final = isinstance(error, TerminalError)
        kind = kinds.IMPOSSIBLE_ENTRY if is_final else kinds.SILENT_ENTRY
        yield kind.of(stream, reason(error), entry=entry)


def examine_catalog(stream: str, sink: IcebergSink, settings: Settings) -> Iterator[Finding]:
    """Say what is wrong with the catalog of a stream; the lake's own is a file of the lake.

    Raises:
        IngestionError: it cannot be asked.
    """
    from oncelake.ingestion.sinks.iceberg.catalog import CatalogEntry

    entry = CatalogEntry.of(stream, sink, Location.of(settings.lake))
    if entry.folder is not None:
        return
    facts = {"catalog": entry.catalog, "namespace": ".".join(entry.identifier[:-1])}
    try:
        yield from _examine(stream, entry, facts)
    except MissingRightError as error:
        yield kinds.CLOSED_CATALOG.of(stream, str(error), **facts)
    except DependencyError as error:
        yield kinds.SILENT_CATALOG.of(stream, str(error), **facts)


def _examine(stream: str, entry: CatalogEntry, facts: dict[str, str]) -> Iterator[Finding]:
    namespace = entry.identifier[:-1]
    with entry.session() as catalog:
        offered = entry.offered_by(catalog)
        if offered is not None and _COMMITS not in offered:
            yield kinds.CATALOG_WITHOUT_COMMITS.of(stream, entry.where, **facts)
        if offered is not None and _RENAMES not in offered:
            yield kinds.CATALOG_WITHOUT_RENAMES.of(stream, entry.where, **facts)
        if catalog.namespace_exists(namespace):
            catalog.list_tables(namespace)
        elif offered is not None and _MAKES not in offered:
            yield kinds.NO_NAMESPACE.of(stream, entry.where, **facts)
        else:
            yield kinds.NEW_NAMESPACE.of(stream, entry.where, **facts)
