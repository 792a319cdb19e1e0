"""Records of a topic, decoded many at once; those that are doubtful are classified one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.sql import identifier
from oncelake.ingestion.kafka.client import FIRST_MS, LAST_MS
from oncelake.ingestion.verify.columns import NotInColumnsError
from oncelake.ingestion.verify.columns.events import Events
from oncelake.ingestion.verify.columns.json_values import JsonReader
from oncelake.ingestion.verify.columns.types import from_json, json_type
from oncelake.ingestion.verify.fold.transform import Condition
from oncelake.ingestion.verify.read.record import Record
from oncelake.ingestion.verify.read.topic import record_of

# The bytes of a key that every sink takes.
_LONGEST_KEY: Final = 1_000


class Run:
    """Messages of one partition that one batch has read, as they follow one another."""

    __slots__ = ("messages", "partition", "seq")

    def __init__(self, seq: int, partition: int, messages: Sequence[Message]) -> None:
        self.seq, self.partition, self.messages = seq, partition, messages


class PlainRecords:
    """Adds the records of a stream to its events, as today's declaration reads them.

    Raises:
        NotInColumnsError: the declaration says more than a format, columns, keys and an order.
    """

    def __init__(self, spec: StreamSpec, events: Events) -> None:
        refuse_more(spec)
        self._events, self._run = events, events.database.execute
        self._register = events.database.register
        self._ignores_nulls = spec.tombstone_policy == "ignore"
        schema = pa.schema([pa.field(c.name, json_type(c.type)) for c in spec.columns])
        rejects = spec.extra_fields == "reject" or bool(spec.whole_columns)
        self._reader = JsonReader(schema, rejects=rejects)
        self._select = _selected(spec)

    def add(self, runs: Sequence[Run]) -> tuple[dict[int, int], dict[int, list[Record]]]:
        """Take records; return how many were ignored, and those that are doubtful, by batch."""
        messages = [message for run in runs for message in run.messages]
        if not messages:
            return {}, {}
        at = {
            "tp": np.repeat([r.partition for r in runs], [len(r.messages) for r in runs]),
            "seq": np.repeat([r.seq for r in runs], [len(r.messages) for r in runs]),
        }
        values = [message.value() for message in messages]
        kept = [value for value in values if value is not None]
        table, places = self._reader.read(kept)
        if len(kept) < len(values):
            there = [i for i, value in enumerate(values) if value is not None]
            places = pa.array(there, pa.int64()).take(places)
        decided = places.to_numpy()
        self._insert(table, decided, messages, at)
        left = np.ones(len(messages), dtype=bool)
        left[decided] = False
        left[self._doubtful(decided)] = True
        ignored: dict[int, int] = {}
        doubtful: dict[int, list[Record]] = {}
        for i in np.flatnonzero(left).tolist():
            seq = int(at["seq"][i])
            if values[i] is None and self._ignores_nulls:
                ignored[seq] = ignored.get(seq, 0) + 1
            else:
                doubtful.setdefault(seq, []).append(record_of(messages[i]))
        return ignored, doubtful

    def _insert(
        self,
        table: pa.Table,
        decided: np.ndarray[Any, Any],
        messages: Sequence[Message],
        at: Mapping[str, np.ndarray[Any, Any]],
    ) -> None:
        offsets = np.fromiter((m.offset() for m in messages), np.int64, len(messages))
        times = np.fromiter((m.timestamp()[1] for m in messages), np.int64, len(messages))
        given = {
            "_at": pa.array(decided),
            "_partition": pa.array(at["tp"][decided], pa.int32()),
            "_offset": pa.array(offsets[decided]),
            "_seq": pa.array(at["seq"][decided], pa.int64()),
            "_event": pa.array(times[decided]),
        }
        for name, column in given.items():
            table = table.append_column(name, column)
        self._register("read", table)
        self._run(f"CREATE OR REPLACE TEMP TABLE decoded AS {self._select}")
        self._events.add("(FROM decoded WHERE NOT _unknown)")

    def _doubtful(self, decided: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found = self._run("SELECT _at FROM decoded WHERE _unknown").fetchnumpy()["_at"]
        return np.asarray(found, dtype=np.int64)


def _selected(spec: StreamSpec) -> str:
    """Write the query that makes rows of what was read, and says which are doubtful."""
    columns = {column.name: from_json(column.name, column.type) for column in spec.columns}
    doubts = [f"coalesce({doubt}, FALSE)" for _, doubt in columns.values() if doubt != "FALSE"]
    needed = {
        *spec.never_null,
        *spec.sequence_by,
        *(c.name for c in spec.columns if not c.nullable),
    }
    doubts += [f"{columns[name][0]} IS NULL" for name in sorted(needed & columns.keys())]
    texts = [n for n in spec.keys if spec.types[n].word in {"STRING", "VARCHAR"}]
    sizes = " + ".join(f"strlen({identifier(name)})" for name in texts)
    doubts += [f"{sizes} > {_LONGEST_KEY}"] if texts else []
    doubts.append(f"_event NOT BETWEEN {FIRST_MS} AND {LAST_MS}")
    gone = "FALSE"
    if spec.apply_as_deletes:
        condition = Condition(
            "apply_as_deletes", spec.apply_as_deletes, tuple(spec.in_statements(spec.columns))
        )
        gone = f"coalesce({condition.expression}, FALSE)"
        # Letters whose case may be read in two ways.
        texts = [identifier(name) for name in condition.cased]
        doubts += [f"coalesce(strlen({name}) > length({name}), FALSE)" for name in texts]
    values = ", ".join(f"{value} AS {identifier(name)}" for name, (value, _) in columns.items())
    typed = (
        f"SELECT {values}, _at, _partition, _offset, _seq, "
        "make_timestamptz(_event * 1000) AS _timestamp, "
        f"({' OR '.join(doubts)}) IS NOT FALSE AS _unknown FROM read"
    )
    return f"SELECT *, CASE WHEN _unknown THEN FALSE ELSE {gone} END AS _gone FROM ({typed})"


def refuse_more(spec: StreamSpec) -> None:
    """Refuse a declaration that says more of a record than its format, columns, keys and order."""
    more = {
        "format": spec.format.type != "json" or spec.format.options.uses_registry,
        "from_headers, from_key": bool(spec.metadata_columns),
        "a transformation": bool(spec.where or spec.select or spec.transform or spec.value_ddl),
        "explode": bool(spec.explode),
        "route_by": spec.route is not None,
        "extra_fields: keep": spec.extra_fields == "keep",
        "apply_as_deletes": bool(spec.apply_as_deletes) and not spec.write_mode.has_deletes,
        "keys": any(spec.types[name].word == "BINARY" for name in spec.keys),
    }
    if found := [name for name, is_said in more.items() if is_said]:
        raise NotInColumnsError(f"{found[0]} is proven record by record")
