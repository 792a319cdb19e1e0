"""An external table of a Hive metastore, as Spark and others find a Delta table there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any
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
)


def entry_change(name: str, table: TableEntry, settings: Settings) -> EntryChange | None:
    """Compare an entry."""
    with _opened(settings) as client:
        from hive_metastore import ttypes

        place = name.split(".")
        try:
            found = client.get_table(*place)
        except ttypes.NoSuchObjectException:
            made = _described(_empty(*place), table)
            return EntryChange(MISSING, lambda: _call(settings, "create_table", made))
    path = (found.sd.serdeInfo.parameters or {}).get("path")
    table.refuse_another(path or found.sd.location, found.parameters or {})
    if (after := _described(deepcopy(found), table)) == found:
        return None
    # Otherwise the metastore counts the files, and calls them the table's.
    context = ttypes.EnvironmentContext(properties={"DO_NOT_UPDATE_STATS": "true"})
    alter = "alter_table_with_environment_context"
    return EntryChange(STALE, lambda: _call(settings, alter, *place, after, context))


def _empty(database: str, name: str) -> Any:
    from hive_metastore import ttypes

    serde = ttypes.SerDeInfo(name=name, parameters={})
    storage = ttypes.StorageDescriptor(serdeInfo=serde, numBuckets=-1, bucketCols=[], sortCols=[])
    return ttypes.Table(tableName=name, dbName=database, sd=storage)


def _described(entry: Any, table: TableEntry) -> Any:
    """Write a table into an entry; whatever is not of the table stays as it was."""
    from hive_metastore.ttypes import FieldSchema

    storage, serde = entry.sd, entry.sd.serdeInfo
    known = {each.name: each.comment for each in storage.cols or ()}
    storage.cols = [
        FieldSchema(name, type_, comment or known.get(name))
        for name, type_, comment in table.hive_columns
    ]
    storage.location, storage.inputFormat, storage.outputFormat = table.location, INPUT, OUTPUT
    serde.serializationLib, serde.parameters = SERDE, table.serde(serde.parameters or {})
    entry.tableType, entry.partitionKeys = "EXTERNAL_TABLE", []
    entry.parameters = table.parameters(entry.parameters or {})
    if table.comment:
        entry.parameters["comment"] = table.comment
    return entry


def _call(settings: Settings, name: str, *given: Any) -> None:
    with _opened(settings) as client:
        getattr(client, name)(*given)


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
