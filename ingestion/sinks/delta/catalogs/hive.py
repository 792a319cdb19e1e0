"""An external table of a Hive metastore, as Spark and others find a Delta table there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
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
    TableEntry,
    is_of_delta,
)

# Otherwise the metastore lists the files, which may be many, and calls all of them the table's.
_WITHOUT_STATISTICS: Final = {"DO_NOT_UPDATE_STATS": "true"}


def reconcile(name: str, table: TableEntry, settings: Settings, *, write: bool) -> str | None:
    """Compare an entry, and write it; a metastore does not see that another has come in between."""
    database, name = name.split(".")
    # Hadoop, by which metastores and their users read, knows S3 by this scheme.
    table = replace(table, location=re.sub("^s3://", "s3a://", table.location))
    with _opened(settings) as client:
        from hive_metastore import ttypes

        try:
            # Newer metastores have no `get_table`.
            request = ttypes.GetTableRequest(dbName=database, tblName=name)
            entry = client.get_table_req(request).table
        except ttypes.NoSuchObjectException:
            if write:
                client.create_table(_described(_empty(database, name), table))
            return MISSING
        path = (entry.sd.serdeInfo.parameters or {}).get("path")
        is_delta = is_of_delta(entry.parameters or {})
        table.refuse_another(path or entry.sd.location, is_delta=is_delta)
        if (after := _described(deepcopy(entry), table)) == entry:
            return None
        if write:
            context = ttypes.EnvironmentContext(properties=_WITHOUT_STATISTICS)
            client.alter_table_with_environment_context(database, name, after, context)
        return STALE


def _empty(database: str, name: str) -> Any:
    from hive_metastore import ttypes

    serde = ttypes.SerDeInfo(name=name, parameters={})
    storage = ttypes.StorageDescriptor(serdeInfo=serde, numBuckets=-1, bucketCols=[], sortCols=[])
    return ttypes.Table(tableName=name, dbName=database, sd=storage, parameters=_WITHOUT_STATISTICS)


def _described(entry: Any, table: TableEntry) -> Any:
    """Write a table into an entry; whatever is not of the table stays as it was."""
    from hive_metastore.ttypes import FieldSchema

    storage, serde = entry.sd, entry.sd.serdeInfo
    known = {column.name: column.comment for column in storage.cols or ()}
    storage.cols = [
        FieldSchema(name, type_, comment or known.get(name))
        for name, type_, comment in table.hive_columns
    ]
    storage.location = table.place(storage.location)
    storage.inputFormat, storage.outputFormat = INPUT, OUTPUT
    serde.serializationLib, serde.parameters = SERDE, table.serde(serde.parameters or {})
    entry.tableType, entry.partitionKeys = "EXTERNAL_TABLE", []
    entry.parameters = table.parameters(entry.parameters or {})
    if table.comment:
        entry.parameters["comment"] = table.comment
    return entry


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
