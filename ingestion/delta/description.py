"""How a Delta table is described in its log: columns and their types, properties, features."""

from __future__ import annotations

import datetime as dt
import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

from deltalake import DeltaTable

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_type
from oncelake.ingestion.declaration.partitions import DeclaredPartition
from oncelake.ingestion.declaration.sql import quoted
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.delta.commits import metadata_of
from oncelake.ingestion.delta.features import CLUSTERED, FEED, clustered_by
from oncelake.ingestion.delta.files import EXACT_DIGITS
from oncelake.ingestion.delta.partitions import (
    GENERATED,
    StoredPartition,
    computed,
    computed_field,
    partitions_of,
    stored,
)
from oncelake.ingestion.delta.vectors import FEATURE, PROPERTY
from oncelake.ingestion.tables.table import Layout, TableDefinition

# Commits from one checkpoint of the log to the next: Spark's own; delta-rs would write a tenth.
CHECKPOINT_INTERVAL: Final = 10
# Delta refuses to keep any of these.
_WITHOUT_STATISTICS: Final = ("BINARY", "BOOLEAN", "VARCHAR")
# Features that older protocols have by themselves, from a version of writers on.
_OF_VERSIONS: Final = (
    (2, ("appendOnly", "invariants")),
    (3, ("checkConstraints",)),
    (4, ("changeDataFeed", "generatedColumns")),
    (6, ("identityColumns",)),
)
# Features that readers need not know.
_OF_WRITERS: Final = (*chain.from_iterable(names for _, names in _OF_VERSIONS), *CLUSTERED)
# Features that a table must have for columns of a type.
_OF_TYPES: Final = {"timestamp_ntz": "timestampNtz", "variant": "variantType"}
_TYPE: Final = re.compile(r'"(?:t|keyT|valueT|elementT)ype": ?"(\w+)"')
# Delta's names of types, but for those that differ in their case alone.
_NAMES: Final = {
    "TINYINT": "byte",
    "SMALLINT": "short",
    "INT": "integer",
    "BIGINT": "long",
    "VARCHAR": "string",
}
# The columns of which files have statistics.
_STATISTICS: Final = "delta.dataSkippingStatsColumns"
_INDEXED: Final = "delta.dataSkippingNumIndexedCols"
_COLUMNS_INDEXED: Final = "32"
_TICKED: Final = re.compile(r"`((?:[^`]|``)+)`")
# Between commas.
_COLUMN: Final = re.compile(r"(?:`(?:[^`]|``)+`|[^,`])+")
# Where Spark notes a type with a VARCHAR in it.
_VARCHAR: Final = "__CHAR_VARCHAR_TYPE_STRING"
# Delta's own; commits must outlive the files that they name.
_LOG_DAYS: Final = 30


def first_commit(wanted: TableDefinition, properties: Mapping[str, str]) -> bytes:
    """Return the commit that makes a table, with properties beside those that all have."""
    now = time.time_ns() // 1_000_000
    made = {"timestamp": now, "operation": "CREATE TABLE", "operationParameters": {}}
    row = row_json(wanted.columns)
    names, fields = _divided_by(wanted.partitions, wanted.columns)
    actions = making(
        json.dumps({**row, "fields": [*row["fields"], *fields]}),
        {**_properties_of(wanted), **properties},
        features=[FEATURE] if wanted.deletion_vectors else [],
        description=wanted.description,
        partition_by=names,
        cluster_by=wanted.sort_by,
    )
    return "\n".join(map(json.dumps, ({"commitInfo": made}, *actions))).encode()


def making(
    schema: str,
    properties: Mapping[str, str],
    *,
    features: Sequence[str] = (),
    description: str | None = None,
    partition_by: Sequence[str] = (),
    cluster_by: Sequence[str] = (),
) -> tuple[dict[str, Any], ...]:
    """Return the actions that make a table of columns as JSON, with features beside theirs."""
    named, of_writers = [*features_of(schema), *features], _computing(schema)
    if FEED in properties:
        of_writers.append("changeDataFeed")
    of_writers += CLUSTERED if cluster_by else ()
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    if named or of_writers:
        protocol = _protocol(named, [*named, *of_writers, *_OF_VERSIONS[0][1]])
    metadata: dict[str, Any] = {
        "id": str(uuid.uuid4()),
        "description": description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": partition_by,
        "configuration": properties,
        "createdTime": time.time_ns() // 1_000_000,
    }
    clustered = [clustered_by(cluster_by)] if cluster_by else []
    return {"protocol": protocol}, {"metaData": metadata}, *clustered


def _properties_of(wanted: TableDefinition) -> dict[str, str]:
    """Return the properties of a new table.

    Statistics are kept of what rows are found by and the audit reads; of every other column they
    cost a third of the write.
    """
    types = {column.name: column.type for column in wanted.columns}
    keys = (name for name in wanted.keys if _has_statistics(types[name]))
    names = dict.fromkeys((*keys, "_offset", "_seq", *wanted.sort_by))
    return {
        _STATISTICS: ",".join(map(quoted, names)),
        **retention_properties(wanted.window),
        "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
        **({PROPERTY: "true"} if wanted.deletion_vectors else {}),
    }


def indexed_columns(properties: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the columns of which files have statistics: the first ones, or those that are named.

    Args:
        properties: The table's.
        names: Of all its columns.

    Returns:
        By its name, how a property names each. Of a field in a struct, the names on the way to it.
    """
    if (text := properties.get(_STATISTICS)) is None:
        count = int(properties.get(_INDEXED, _COLUMNS_INDEXED))
        return {name: quoted(name) for name in names[: count if count >= 0 else None]}
    written = [each.strip() for each in _COLUMN.findall(text)]
    ticked = map(_TICKED.fullmatch, written)
    return {
        is_one[1].replace("``", "`") if is_one else each.replace("`", ""): each
        for each, is_one in zip(written, ticked, strict=True)
    }


def row_json(columns: Sequence[DeclaredColumn]) -> dict[str, Any]:
    """Return columns as Delta keeps them: a NOT NULL of the columns themselves, and none deeper."""
    as_struct = SqlType(word="STRUCT", parts={column.name: column.type for column in columns})
    row: dict[str, Any] = _stored(as_struct)
    for field, column in zip(row["fields"], columns, strict=True):
        field["nullable"] = column.nullable
        if column.comment:
            field["metadata"]["comment"] = column.comment
        if column.type.contains("VARCHAR"):
            field["metadata"][_VARCHAR] = str(column.type)
    return row


def reshaped(table: DeltaTable, layout: Layout) -> tuple[str, list[dict[str, Any]]]:
    """Return columns as JSON, with what the table's own say, and the actions that set them."""
    known = {each.name: (each, json.loads(each.to_json())) for each in table.schema().fields}
    row = row_json(layout.columns)
    for field, column in zip(row["fields"], layout.columns, strict=True):
        if found := known.get(layout.renamed.get(column.name, column.name)):
            if stored_type(found[0]) == column.type:
                field["type"] = found[1]["type"]
            else:
                found[1]["metadata"].pop(_VARCHAR, None)
            field["metadata"] = {**found[1]["metadata"], **field["metadata"]}
    names = table.metadata().partition_columns
    fields = [known[name][1] for name in names if name in computed(partitions_in(table))]
    if layout.partitions is not None:
        names, fields = _divided_by(layout.partitions, layout.columns)
    row["fields"] += fields
    schema = json.dumps(row)
    by, properties = layout.sort_by or (), table.metadata().configuration
    to_be = [column.name for column in layout.columns]
    indexed = indexed_columns(properties, to_be)
    if _STATISTICS in properties or not {*by} <= indexed.keys():
        # Spark takes no name that is no column's, and none twice.
        kept = {name: text for name, text in indexed.items() if name.partition(".")[0] in to_be}
        more = {name: quoted(name) for name in by}
        properties = {_STATISTICS: ",".join({**kept, **more}.values())}
    features = (*features_of(schema), *_computing(schema), *(CLUSTERED if by else ()))
    described = metadata_of(table, properties, schema=schema, partition_by=names)
    clustered = [clustered_by(by)] if by else []
    return schema, [*with_features(table, *features), described, *clustered]


def partitions_in(table: DeltaTable) -> list[StoredPartition]:
    """Return how a table is partitioned."""
    if not table.metadata().partition_columns:
        return []
    return partitions_of(table, {each.name: stored_type(each) for each in table.schema().fields})


def columns_of(table: DeltaTable) -> tuple[DeclaredColumn, ...]:
    """Return a table's columns, as its log has them, but for those that only partition it."""
    without = computed(partitions_in(table))
    return tuple(
        DeclaredColumn(
            name=each.name,
            type=stored_type(each),
            nullable=each.nullable,
            comment=(each.metadata or {}).get("comment", ""),
        )
        for each in table.schema().fields
        if each.name not in without
    )


def stored_type(field: Any) -> SqlType:
    """Read the type of a field of Delta's log.

    Where a VARCHAR is in it, which is a STRING to everybody else, Spark notes the whole type.
    """
    as_sql = (field.metadata or {}).get(_VARCHAR)
    return _type_of(as_sql or json.loads(field.type.to_json()))


def retention_properties(window: dt.timedelta) -> dict[str, str]:
    """Return the properties of a table that can be rewound so far back."""
    days = window // dt.timedelta(days=1)
    return {
        "delta.deletedFileRetentionDuration": f"interval {days} days",
        "delta.logRetentionDuration": f"interval {max(_LOG_DAYS, days + 1)} days",
    }


def with_columns(table: DeltaTable, columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the actions that give a table more columns, as JSON with its own; none without any."""
    if len(columns["fields"]) == len(table.schema().fields):
        return []
    schema = json.dumps(columns)
    return [*with_features(table, *features_of(schema)), metadata_of(table, schema=schema)]


def with_features(table: DeltaTable, *features: str) -> list[dict[str, Any]]:
    """Return the action that raises a table's protocol for features, unless it has them."""
    protocol = table.protocol()
    of_version = (names for least, names in _OF_VERSIONS if protocol.min_writer_version >= least)
    known = {*(protocol.writer_features or chain.from_iterable(of_version))}
    # A preview of a feature is as good.
    if all({each, f"{each}-preview"} & known for each in features):
        return []
    for_readers = {*(protocol.reader_features or ()), *features} - {*_OF_WRITERS}
    return [{"protocol": _protocol(sorted(for_readers), sorted(known.union(features)))}]


def _protocol(for_readers: Sequence[str], for_writers: Sequence[str]) -> dict[str, Any]:
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": for_writers}
    if for_readers:
        protocol |= {"minReaderVersion": 3, "readerFeatures": for_readers}
    return protocol


def _computing(schema: str) -> list[str]:
    """Return the feature that writers must have for columns that the table computes."""
    return ["generatedColumns"] if GENERATED in schema else []


def _divided_by(
    partitions: Sequence[DeclaredPartition], columns: Sequence[DeclaredColumn]
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the columns that a table is partitioned by, and those as JSON that it computes."""
    types = {column.name: column.type for column in columns}
    fields = [computed_field(p, types[p.column]) for p in partitions if stored(p).is_computed]
    return [stored(each).name for each in partitions], fields


def features_of(schema: str) -> list[str]:
    """Return the features that a table must have for columns, as JSON."""
    types = {*_TYPE.findall(schema)}
    return [feature for type_, feature in _OF_TYPES.items() if type_ in types]


def _has_statistics(type_: SqlType) -> bool:
    """Tell whether Delta keeps statistics of a column, and delta-rs exact ones."""
    is_long = type_.word == "DECIMAL" and type_.precision > EXACT_DIGITS
    return type_.word not in _WITHOUT_STATISTICS and not is_long


def _stored(type_: SqlType) -> Any:
    """Return a type as Delta keeps it; anything below the columns may be null."""
    parts = {name: _stored(part) for name, part in type_.parts.items()}
    match type_.word:
        case "DECIMAL":
            return f"decimal({type_.precision},{type_.scale})"
        case "ARRAY":
            return {"type": "array", "elementType": parts["element"], "containsNull": True}
        case "MAP":
            of = {"keyType": parts["key"], "valueType": parts["value"]}
            return {"type": "map", **of, "valueContainsNull": True}
        case "STRUCT":
            return {
                "type": "struct",
                "fields": [
                    {"name": name, "type": part, "nullable": True, "metadata": {}}
                    for name, part in parts.items()
                ],
            }
    return _NAMES.get(type_.word, type_.word.lower())


def _type_of(stored: Any) -> SqlType:
    if isinstance(stored, str):
        try:
            return parse_type(stored)
        except ValueError:  # A type that no declaration can name.
            return SqlType(word=stored.upper())
    word = stored["type"].upper()
    if word == "STRUCT":
        parts = {field["name"]: field["type"] for field in stored["fields"]}
        required = {field["name"] for field in stored["fields"] if not field["nullable"]}
    elif word == "ARRAY":
        parts = {"element": stored["elementType"]}
        required = set() if stored["containsNull"] else {"element"}
    else:
        parts = {"key": stored["keyType"], "value": stored["valueType"]}
        required = set() if stored["valueContainsNull"] else {"value"}
    within = {name: _type_of(part) for name, part in parts.items()}
    return SqlType(word=word, parts=within, required=frozenset(required))
