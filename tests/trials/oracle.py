"""What a table must hold, computed from the records of its topic by plain Python.

Neither engine nor proof is asked what a record says: it is decoded and folded here once more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

from confluent_kafka import Message

from oncelake.ingestion.declaration.spec import StreamSpec
from tests.support.committed import committed_records
from tests.support.traffic import GONE
from tests.support.world import World

# Of the columns of ``tests.support.world``.
_TYPES = {"id": int, "name": str | None, "at": int | None}
Place = tuple[int, int]
Row = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownRecord:
    """A record of which is known what it says.

    Attributes:
        place: Partition and offset.
        values: Its columns, by name.
    """

    place: Place
    values: Mapping[str, Any]
    is_delete: bool = False


Known = TypeVar("Known", bound=KnownRecord)


def by_key(records: Iterable[Known], order: Callable[[Known], Any]) -> Iterable[list[Known]]:
    """Return the records of each ``id``, in an order."""
    ranked = sorted(records, key=lambda it: (it.values["id"], order(it)))
    return (list(those) for _, those in groupby(ranked, lambda it: it.values["id"]))


def newest_per_key(
    records: Iterable[Known], order: Callable[[Known], Any] = lambda it: it.place
) -> Iterator[Known]:
    """Keep the newest record of each ``id``, unless that is a delete."""
    newest = (those[-1] for those in by_key(records, order))
    return (record for record in newest if not record.is_delete)


def expected_rows(world: World) -> list[Row]:
    """Fold the topic of an upsert or an append with the columns of ``tests.support.world``.

    Of what may be declared, ``apply_as_deletes`` is taken to name the records of ``GONE``.
    """
    topic = committed_records(world.settings, world.topic)
    known = (_known(message, world.spec) for message in topic)
    records = [record for record in known if record is not None]
    if world.spec.keys:
        order = world.spec.sequence_by
        by_order = newest_per_key(records, lambda it: (*map(it.values.get, order), it.place))
        records = list(by_order)
    return [tuple(record.values.values()) for record in records]


def _known(message: Message, spec: StreamSpec) -> KnownRecord | None:
    """Return what a record says; nothing where it belongs in quarantine."""
    value = message.value()
    is_tombstone = value is None
    try:
        read = json.loads((message.key() or b"{}") if value is None else value)
    except ValueError:
        return None
    values = {name: read.get(name) for name in _TYPES} if isinstance(read, dict) else {}
    is_refused = is_tombstone and spec.tombstone_policy != "delete"
    is_whole = all(isinstance(values.get(name), type_) for name, type_ in _TYPES.items())
    is_placed = all(values.get(name) is not None for name in spec.sequence_by)
    if is_refused or not is_whole or not is_placed:
        return None
    is_delete = is_tombstone or (bool(spec.apply_as_deletes) and values["name"] == GONE)
    place = (message.partition() or 0, message.offset() or 0)
    return KnownRecord(place=place, values=values, is_delete=is_delete)
