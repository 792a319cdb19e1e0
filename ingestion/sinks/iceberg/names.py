"""The names that Iceberg's library for Spark reserves, and those by which our columns go instead.

Columns are known by their ids, in data files and manifests too: only schemas have their names. So
a table is renamed where it is loaded and where it is committed to, and nothing else knows of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate, TableUpdate

# MetadataColumns of Iceberg 1.12: Spark cannot read a column of such a name, nor `SELECT *`.
_FOR_SPARK: Final = {"_partition": "_oncelake_partition", "_deleted": "_oncelake_deleted"}
_OWN: Final = {name: own for own, name in _FOR_SPARK.items()}


def with_own_names(metadata: TableMetadata) -> TableMetadata:
    """Return a table's metadata with our own names of its columns."""
    schemas = [_renamed(schema, _OWN) for schema in metadata.schemas]
    return metadata.model_copy(update={"schemas": schemas})


def for_spark(schema: Schema) -> Schema:
    """Return a schema with names that Spark can read."""
    return _renamed(schema, _FOR_SPARK)


def updates_for_spark(updates: Iterable[TableUpdate]) -> Iterator[TableUpdate]:
    """Yield the updates of a commit with names that Spark can read."""
    for each in updates:
        if isinstance(each, AddSchemaUpdate):
            yield AddSchemaUpdate(schema_=for_spark(each.schema_))
        else:
            yield each


def renaming(metadata: TableMetadata, *, is_for_spark: bool) -> Iterator[TableUpdate]:
    """Yield what gives the columns of a table the names that are wanted; nothing if it has them.

    Args:
        metadata: As it is stored.
    """
    current = metadata.schema()
    wanted = _renamed(current, _FOR_SPARK if is_for_spark else _OWN)
    if wanted is current:
        return
    for schema in metadata.schemas:
        if schema == wanted:
            yield SetCurrentSchemaUpdate(schema_id=schema.schema_id)
            return
    id_ = max(schema.schema_id for schema in metadata.schemas) + 1
    yield AddSchemaUpdate(schema_=wanted.model_copy(update={"schema_id": id_}))
    yield SetCurrentSchemaUpdate(schema_id=id_)


def _renamed(schema: Schema, names: Mapping[str, str]) -> Schema:
    if not names.keys() & {field.name for field in schema.fields}:
        return schema
    fields = (
        field.model_copy(update={"name": names.get(field.name, field.name)})
        for field in schema.fields
    )
    return Schema(
        *fields, schema_id=schema.schema_id, identifier_field_ids=schema.identifier_field_ids
    )
