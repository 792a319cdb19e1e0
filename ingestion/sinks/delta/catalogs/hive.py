"""An external table of a Hive metastore, as Spark and others find a Delta table there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Final
from urllib.parse import urlsplit

from oncelake.ingestion.errors import SetupError, not_installed
from oncelake.ingestion.settings import Settings, variable
from oncelake.ingestion.sinks.delta.catalogs.entry import (
    INPUT,
    MISSING,
    OUTPUT,
    SECONDS,
    SERDE,
    STALE,
    EntryChange,
    TableEntry,
    spelled,
)

# Otherwise the metastore lists the files, which may be many, and calls all of them the table's.
_WITHOUT_STATISTICS: Final = {"DO_NOT_UPDATE_STATS": "true"}


def entry_change(name: str, table: TableEntry, settings: Settings) -> EntryChange | None:
    """Compare an entry."""
    with _opened(settings) as client:
        from hive_metastore import ttypes

        place = name.split(".")
        made = _described(_empty(*place), table)
        try:
            found = client.get_table(*place)
        except ttypes.NoSuchObjectException:
            return EntryChange(MISSING, lambda: _write(settings, "create_table", made))
    path = (found.sd.serdeInfo.parameters or {}).get("path")
    table.refuse_another(path or found.sd.location, found.parameters or {})
    if (after := _described(deepcopy(found), table)) == found:
        return None
    alter = "alter_table_with_environment_context"
    context = ttypes.EnvironmentContext(properties=_WITHOUT_STATISTICS)
    return EntryChange(STALE, lambda: _write(settings, alter, *place, after, context))


def _empty(database: str, name: str) -> Any:
    from hive_metastore import ttypes

    serde = ttypes.SerDeInfo(name=name, parameters={})
    storage = ttypes.StorageDescriptor(serdeInfo=serde, numBuckets=-1, bucketCols=[], sortCols=[])
    return ttypes.Table(tableName=name, dbName=database, sd=storage, parameters=_WITHOUT_STATISTICS)


def _described(entry: Any, table: TableEntry) -> Any:
    """Write a table into an entry; whatever is not of the table stays as it was."""
    from hive_metastore.ttypes import FieldSchema

    storage, serde = entry.sd, entry.sd.serdeInfo
    known = {each.name: each.comment for each in storage.cols or ()}
    storage.cols = [
        FieldSchema(name, type_, comment or known.get(name))
        for name, type_, comment in table.hive_columns
    ]
    if spelled(storage.location or "") != spelled(table.location):
        storage.location = table.location
    storage.inputFormat, storage.outputFormat = INPUT, OUTPUT
    serde.serializationLib, serde.parameters = SERDE, table.serde(serde.parameters or {})
    entry.tableType, entry.partitionKeys = "EXTERNAL_TABLE", []
    entry.parameters = table.parameters(entry.parameters or {})
    if table.comment:
        entry.parameters["comment"] = table.comment
    return entry


def _write(settings: Settings, call: str, *given: Any) -> None:
    with _opened(settings) as client:
        getattr(client, call)(*given)


@contextmanager
def _opened(settings: Settings) -> Iterator[Any]:
    if settings.hive_metastore is None:
        raise SetupError(f"{variable('hive_metastore')} is not set")
    try:
        from hive_metastore import ThriftHiveMetastore
        from thrift.protocol.TBinaryProtocol import TBinaryProtocol
        from thrift.transport import TSocket, TTransport
    except ImportError as error:
        raise not_installed("iceberg,hive") from error
    server = urlsplit(settings.hive_metastore)
    socket = TSocket.TSocket(server.hostname, server.port)
    socket.setTimeout(SECONDS * 1000)
    transport = TTransport.TBufferedTransport(socket)
    transport.open()
    try:
        yield ThriftHiveMetastore.Client(TBinaryProtocol(transport))
    finally:
        transport.close()
