"""Five streams, the records that are sent to them, and the rows that these make.

Whoever makes a record knows what must become of it, so the folds here decode nothing: plain Python
over what was sent, which shares no line with engine or proof.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from re import sub
from typing import Any

from tests.trials.oracle import KnownRecord, Row, by_key, newest_per_key

PARTITIONS = 2
KEYS = tuple(f"k{number}" for number in range(12))
# Columns that a declaration gets one by one, while the stream runs.
ADDED = {"colour": "STRING", "weight": "INT"}
COLUMNS = ("id", "name", "at", "amount", "size", *ADDED)
# A declaration that takes numbers in quotes here cures records that it refused before.
CURABLE = ("amount", "size")
_SCHEMA = "id STRING NOT NULL, name STRING, at INT NOT NULL, amount INT, size INT"
_OF: Mapping[str, Sequence[Any]] = {"colour": ["red", "blue", None], "weight": range(9)}
_GONE = "gone"
_UNREADABLE = {"malformed_json": b'{"id": "k1"', "not_an_object": b"[1]"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Record(KnownRecord):
    """One record of a life, and what must become of it.

    The offset of its place is -1 before it is sent; its values are the columns of ``COLUMNS``, null
    where it was sent before the column was declared.

    Attributes:
        items: Elements, of the stream that explodes them.
        fault: Why it is quarantined; empty for a good one.
        cure: The column whose leniency makes it good.
    """

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    items: tuple[int, ...]
    fault: str = ""
    cure: str = ""

    def fault_with(self, lenient: Collection[str]) -> str:
        """Return why a declaration with these lenient columns quarantines it."""
        return "" if self.cure in lenient else self.fault

    @property
    def readable_key(self) -> str | None:
        """The key of a row, as far as it can be read of the raw bytes."""
        written = (b'"id": "k', b'"id":"k')
        is_in_value = any(each in (self.value or b"") for each in written)
        is_in_value = is_in_value and self.fault not in {*_UNREADABLE, "malformed_debezium"}
        return self.values["id"] if self.key or is_in_value else None

    @property
    def row(self) -> Row:
        """What every mode writes of it."""
        return (*(self.values[name] for name in COLUMNS), *self.place, self.timestamp_ms)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One of the five.

    Attributes:
        declared: Its declaration, without the topic.
        columns: What the fold gives, as columns of the table, behind those of every mode.
        fold: Makes the rows of good records.
        faults: Why a null value, a record without ``at``, and one without its key are quarantined.
        is_partial: Whether the order of arrival decides, so that nothing can be sent in again.
        is_followed: Whether the columns come from a schema in each record, as Debezium writes it.
    """

    name: str
    declared: Mapping[str, Any]
    fold: Callable[[Iterable[Record]], Iterable[Row]]
    columns: tuple[str, ...] = ()
    faults: tuple[str, str, str] = ("", "missing_required", "missing_key")
    is_partial: bool = False
    is_followed: bool = False

    @property
    def is_append(self) -> bool:
        """Tell whether it explodes arrays, and rows have no key."""
        return "explode" in self.declared

    def declared_with(self, added: Collection[str], *, is_wide: bool) -> dict[str, Any]:
        """Return the declaration with columns more, or wider ones, as the next run has them."""
        more = "".join(f", {name} {ADDED[name]}" for name in added)
        fields = self.declared.keys() & {"schema", "value_schema"}
        return {
            **self.declared,
            **{
                field: sub(r"\bINT\b", "BIGINT" if is_wide else "INT", self.declared[field] + more)
                for field in fields
            },
            "schema_change": "evolve",
        }

    def record(
        self,
        dice: random.Random,
        clock: int,
        *,
        may_be_late: bool,
        added: Collection[str],
        is_wide: bool = False,
    ) -> Record:
        """Make a record of the second ``clock``, or of an earlier one."""
        at = clock - dice.randrange(1, 60) if may_be_late and dice.random() < 0.25 else clock
        values = {"id": dice.choice(KEYS), "name": dice.choice(["a", "b", None]), "at": at}
        values |= {"amount": dice.choice([None, at]), "size": dice.randrange(9)}
        values |= dict.fromkeys(ADDED) | {name: dice.choice(_OF[name]) for name in added}
        items = tuple(dice.randrange(-1, 4) for _ in range(dice.randrange(4)))
        wire: dict[str, Any] = {
            name: value for name, value in values.items() if name not in ADDED or name in added
        }
        wire |= {"items": items} if self.is_append else {}
        raw, fields = self._changed(dice, values, wire)
        if self.is_followed and raw is not None:
            raw, fields = _enveloped(raw, fields, wide_columns=is_wide)
        has_key, anywhere = raw is None or dice.random() < 0.5, dice.randrange(PARTITIONS)
        return Record(
            place=(KEYS.index(values["id"]) % PARTITIONS if self.is_partial else anywhere, -1),
            timestamp_ms=at * 1_000,
            key=json.dumps({"id": values["id"]}).encode() if has_key else None,
            value=raw,
            values=values,
            items=items,
            **fields,
        )

    def _changed(
        self, dice: random.Random, values: dict[str, Any], wire: dict[str, Any]
    ) -> tuple[bytes | None, dict[str, Any]]:
        """Make a delete or a bad record of some; return the value to send, and what it is."""
        luck, fields = dice.random(), dict[str, Any]()
        if luck < 0.10:
            return None, {"is_delete": True, "fault": self.faults[0]}
        if luck < 0.14:
            fault, raw = dice.choice(list(_UNREADABLE.items()))
            return raw, {"fault": fault}
        if luck < 0.28 and not self.is_append:
            fields, wire["name"] = {"is_delete": True}, _GONE
        elif luck < 0.36:
            cure = dice.choice(CURABLE)
            fields, values[cure], wire[cure] = {"fault": "wrong_type", "cure": cure}, 7, "7"
        elif luck < 0.38:
            fields, wire["name"] = {"fault": "wrong_type"}, 5
        elif luck < 0.43:
            nth = dice.randrange(1, 3)
            fields = {"fault": self.faults[nth]}
            del wire[("at", "id")[nth - 1]]
            # An array without elements would be left out before its record is found wanting.
            wire |= {"items": [1]} if self.is_append else {}
        return json.dumps(wire).encode(), fields


def _enveloped(
    raw: bytes, fields: dict[str, Any], *, wide_columns: bool
) -> tuple[bytes, dict[str, Any]]:
    """Write a record as a change of Debezium's, with its schema; nothing here is lenient."""
    if fields.get("fault") in _UNREADABLE:
        return raw, {"fault": "malformed_debezium"}
    if fields.get("fault") == "wrong_type":
        fields = {"fault": "type_mismatch"}
    row, whole = json.loads(raw), "int64" if wide_columns else "int32"
    types = {name: "string" if name in {"id", "name", "colour"} else whole for name in row}
    described = [{"field": name, "type": type_, "optional": True} for name, type_ in types.items()]
    side = {"type": "struct", "field": "after", "fields": described, "optional": True}
    document = {
        "schema": {"type": "struct", "fields": [side]},
        "payload": {"op": "c", "after": row},
    }
    return json.dumps(document, separators=(",", ":")).encode(), fields


def _newest(records: Iterable[Record]) -> Iterable[Row]:
    """Keep the newest record of each key, by Kafka's time and then by place."""
    newest = newest_per_key(records, lambda it: (it.timestamp_ms, it.place))
    return (record.row for record in newest)


def _versions(records: Iterable[Record]) -> Iterable[Row]:
    """Give each version of a key its end: when the next event of the key came."""
    for those in by_key(records, lambda it: (it.values["at"], it.place)):
        ends = [*(after.values["at"] for after in those[1:]), None]
        for record, end in zip(those, ends, strict=True):
            if not record.is_delete:
                yield (*record.row, record.values["at"], end, end is None)


def _elements(records: Iterable[Record]) -> Iterable[Row]:
    """Give each element that the ``where`` lets pass a row."""
    for record in records:
        rows = ((*record.row, item, index) for index, item in enumerate(record.items))
        yield from (row for row in rows if row[-2] > 0)


def _last_values(records: Iterable[Record]) -> Iterable[Row]:
    """Keep each column's last value that was not null, since the key's last delete."""
    for those in by_key(records, lambda it: it.place):
        kept: dict[str, Any] = {}
        for record in those:
            news = {name: value for name, value in record.values.items() if value is not None}
            kept = {} if record.is_delete else {**kept, **news}
        if kept:
            yield (*map(kept.get, COLUMNS), *those[-1].row[len(COLUMNS) :])


_KEYED = {"schema": _SCHEMA, "keys": ["id"], "apply_as_deletes": f"name = '{_GONE}'"}
_AGED = {
    "rewind_window_days": 1,
    "maintenance": {"keep_quarantine_days": 1, "keep_tombstones_days": 1},
}
_EXPLODED = {
    "value_schema": f"{_SCHEMA}, items ARRAY<INT>",
    "schema": f"{_SCHEMA}, items INT",
    "explode": "items",
    "where": "items > 0",
}
KINDS = (
    Kind(name="upserts", declared=_KEYED | _AGED | {"sequence_by": ["_timestamp"]}, fold=_newest),
    Kind(
        name="versions",
        declared=_KEYED | _AGED | {"mode": "scd2", "sequence_by": ["at"]},
        columns=("valid_from", "valid_to", "current"),
        fold=_versions,
        faults=("tombstone_without_order", "missing_order", "missing_key"),
    ),
    Kind(
        name="elements",
        declared=_EXPLODED | {"mode": "append", "keys": []},
        columns=("items", "_index"),
        fold=_elements,
        faults=("unexpected_tombstone", "missing_required", "missing_required"),
    ),
    Kind(
        name="partials",
        declared=_KEYED | {"ignore_null_updates": True},
        fold=_last_values,
        is_partial=True,
    ),
    Kind(
        name="followed",
        declared={
            **_KEYED,
            "format": {"type": "debezium", "schemas": True},
            "sequence_by": ["_timestamp"],
            "tombstones": "delete",
        },
        fold=_newest,
        is_partial=True,
        is_followed=True,
    ),
)
