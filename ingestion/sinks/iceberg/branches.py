"""Tables in a table: the one that a rebuild makes in a branch, and the older ones that tags keep.

A branch of Iceberg has snapshots, and nothing else of its own. So the columns, the partitions, the
order and the properties of its table stand in properties of the whole, whose names begin with the
branch's. Here are functions from metadata to metadata, and from updates to updates: whoever loads
the table of a branch sees one whose newest snapshot is the branch's, and what is committed to that
changes nothing of what others read. One commit lets a branch take the place of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    AssertRefSnapshotId,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)

from oncelake.ingestion.declaration.sinks import REBUILD

# Of a table in the lake's archive: behind this stands the name of the entry.
TAG: Final = "oncelake_archive_"
SEQ: Final = "oncelake.seq"
# The id of a table that is not the whole's, also when it has taken the whole's place.
TABLE_ID: Final = "oncelake.table-id"
# What of a table has a number in the whole.
_NUMBERS: Final = {
    "oncelake.schema-id": "current_schema_id",
    "oncelake.spec-id": "default_spec_id",
    "oncelake.order-id": "default_sort_order_id",
}
_SCHEMA, _SPEC, _ORDER = _NUMBERS
# These get the next number, whichever branch they are for.
_NUMBERED: Final = (AddSnapshotUpdate, AddSchemaUpdate, AddPartitionSpecUpdate, AddSortOrderUpdate)


def id_of(metadata: TableMetadata) -> str:
    """Return the id of a table."""
    return metadata.properties.get(TABLE_ID, str(metadata.table_uuid))


def shown(stored: TableMetadata, ref: str) -> TableMetadata | None:
    """Return the metadata of the table of a branch or tag; ``None`` where it has none."""
    if ref == MAIN_BRANCH:
        return stored
    own, head = _own(stored, ref), stored.refs.get(ref)
    if TABLE_ID not in own or (head is None and SEQ in own):
        return None  # Somebody else has dropped the branch.
    changed: dict[str, Any] = {
        "current_snapshot_id": head.snapshot_id if head else None,
        "refs": {MAIN_BRANCH: head} if head else {},
        "properties": {name: own[name] for name in own.keys() - _NUMBERS},
        **{field: int(own[name]) for name, field in _NUMBERS.items()},
    }
    return stored.model_copy(update=changed)


def _own(stored: TableMetadata, ref: str) -> dict[str, str]:
    start = f"{ref}."
    own = (each for each in stored.properties.items() if each[0].startswith(start))
    return {name.removeprefix(start): value for name, value in own}


def translated(
    updates: Iterable[TableUpdate], stored: TableMetadata, ref: str
) -> tuple[TableUpdate, ...]:
    """Return what a change of the table of a branch changes of the whole."""
    if ref == MAIN_BRANCH:
        return (*updates,)
    found, properties = list[TableUpdate](), dict[str, str]()
    for update in updates:
        match update:
            case SetSnapshotRefUpdate(ref_name="main"):
                found.append(update.model_copy(update={"ref_name": ref}))
            case SetPropertiesUpdate():
                properties |= update.updates
            case SetCurrentSchemaUpdate():
                # What is divided and sorted by new columns is checked against the current ones.
                found.append(update)
                properties[_SCHEMA] = str(update.schema_id)
            case SetDefaultSpecUpdate():
                properties[_SPEC] = str(update.spec_id)
            case SetDefaultSortOrderUpdate():
                properties[_ORDER] = str(update.sort_order_id)
            case _:
                found.append(update)
    # The newest was added by the same commit, whose requirements let nobody add another.
    added = [each.spec.spec_id for each in found if isinstance(each, AddPartitionSpecUpdate)]
    if properties.get(_SPEC) == "-1":
        properties[_SPEC] = str(added[-1])
    if _SCHEMA in properties:
        found.append(SetCurrentSchemaUpdate(schema_id=stored.current_schema_id))
    return *found, *_set(properties, ref)


def _set(properties: Mapping[str, str], ref: str) -> Iterator[TableUpdate]:
    if properties:
        named = {f"{ref}.{name}": value for name, value in properties.items()}
        yield SetPropertiesUpdate(updates=named)


def requirements(
    updates: Iterable[TableUpdate], stored: TableMetadata, ref: str
) -> Iterator[AssertRefSnapshotId]:
    """Yield which snapshots must be the newest for a commit to be made."""
    names = {ref}
    for update in updates if stored.snapshots else ():
        if isinstance(update, _NUMBERED):
            names |= {MAIN_BRANCH, REBUILD, *stored.refs}
        if isinstance(update, SetSnapshotRefUpdate | RemoveSnapshotRefUpdate):
            names.add(update.ref_name)
    for name in sorted(names):
        head = stored.refs.get(name)
        yield AssertRefSnapshotId(ref=name, snapshot_id=head.snapshot_id if head else None)


def swapped(stored: TableMetadata, tag: str | None) -> Iterator[TableUpdate]:
    """Yield what lets the rebuilt table take the place of the whole.

    Args:
        stored: Has both.
        tag: Keeps what was there, as a table of its own.
    """
    new, head = shown(stored, REBUILD), stored.refs.get(MAIN_BRANCH)
    assert new is not None, "there is no rebuilt table"
    assert new.current_snapshot_id is not None, "it has no commit"
    if tag and head:
        numbers = {name: str(getattr(stored, field)) for name, field in _NUMBERS.items()}
        kept = {
            name: stored.properties[name] for name in new.properties if name in stored.properties
        }
        yield _set_ref(tag, head.snapshot_id, SnapshotRefType.TAG)
        yield from _set({**kept, TABLE_ID: id_of(stored), **numbers}, tag)
    yield _set_ref(MAIN_BRANCH, new.current_snapshot_id, SnapshotRefType.BRANCH)
    yield SetCurrentSchemaUpdate(schema_id=new.current_schema_id)
    yield SetDefaultSpecUpdate(spec_id=new.default_spec_id)
    yield SetDefaultSortOrderUpdate(sort_order_id=new.default_sort_order_id)
    yield from removed(stored, REBUILD)
    for gone in _tags_in(stored) - stored.refs.keys():
        yield from removed(stored, gone)
    yield SetPropertiesUpdate(updates=new.properties)


def _tags_in(stored: TableMetadata) -> set[str]:
    names = (name.partition(".")[0] for name in stored.properties)
    return {name for name in names if name.startswith(TAG)}


def entry_of(tag: str) -> str:
    """Return the entry of the lake's archive whose rows a tag keeps; empty for one of others."""
    return tag.removeprefix(TAG).upper() if tag.startswith(TAG) else ""


def _set_ref(name: str, snapshot_id: int, type_: SnapshotRefType) -> SetSnapshotRefUpdate:
    no_age: dict[str, Any] = dict.fromkeys(
        ("max_ref_age_ms", "max_snapshot_age_ms", "min_snapshots_to_keep")
    )
    return SetSnapshotRefUpdate(ref_name=name, snapshot_id=snapshot_id, type=type_, **no_age)


def removed(stored: TableMetadata, ref: str) -> Iterator[TableUpdate]:
    """Yield what removes the table of a branch or tag, but for its snapshots."""
    if ref in stored.refs:
        yield RemoveSnapshotRefUpdate(ref_name=ref)
    if own := _own(stored, ref):
        yield RemovePropertiesUpdate(removals=[f"{ref}.{name}" for name in own])
