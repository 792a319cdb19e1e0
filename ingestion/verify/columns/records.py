"""Records of a topic, decoded many at once; those that are doubtful are classified one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.sql import identifier
from oncelake.ingestion.kafka.client import headers_of
from oncelake.ingestion.verify.columns import NotInColumnsError
from oncelake.ingestion.verify.columns.debezium_values import DELETES, EnvelopeReader, from_envelope
from oncelake.ingestion.verify.columns.events import Events
from oncelake.ingestion.verify.columns.json_values import JsonReader
from oncelake.ingestion.verify.columns.types import from_json, json_type
from oncelake.ingestion.verify.fold.transform import Condition
from oncelake.ingestion.verify.read.record import FIRST_MS, LAST_MS, Record
from oncelake.ingestion.verify.read.topic import record_of

# The bytes of a key that every sink takes.
_LONGEST_KEY: Final = 1_000
_MOST_OFFSETS: Final = 1 << 46
_OF_A_MOVE: Final = frozenset({"__debezium.oldkey", "__debezium.newkey"})
# Doubts about any record: it has no time that a column can have, or the rule is to decide.
_OF_ALL: Final = (f"_event NOT BETWEEN {FIRST_MS} AND {LAST_MS}", "_waits")
Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Run(NamedTuple):
    """Messages of one partition that one batch has read, as they follow one another."""

    seq: int
    partition: int
    messages: Sequence[Message]


class Reader(Protocol):
    """Reads values of one format into columns."""

    def read(self, values: Sequence[bytes]) -> tuple[pa.Table, pa.Array]:
        """Return the columns of the values that are not doubtful, and where those values are."""


class Decoding(NamedTuple):
    """How the values of a stream are decoded at once.

    Attributes:
        reader: Reads their bytes.
        columns: What each declared column is, in DuckDB's SQL over what was read.
        doubts: Conditions over what was read by which a record is doubtful; null is no doubt.
        deletes: A condition over what was read by which a record says that it is a delete.
        gone: A condition over the declared columns by which a record is a delete.
    """

    reader: Reader
    columns: Mapping[str, str]
    doubts: Sequence[str]
    deletes: str = "FALSE"
    gone: str = "FALSE"

    def select(self) -> str:
        """Write the query over ``read`` that makes rows, and says which are doubtful."""
        values = ", ".join(f"{value} AS {identifier(n)}" for n, value in self.columns.items())
        doubts = [f"coalesce({doubt}, FALSE)" for doubt in (*self.doubts, *_OF_ALL)]
        return f"""
            SELECT *, CASE WHEN _unknown THEN FALSE WHEN _deletes THEN TRUE
                           ELSE coalesce({self.gone}, FALSE) END AS _gone
            FROM (
                SELECT {values}, _at, _partition, _offset, _seq, {self.deletes} AS _deletes,
                       make_timestamptz(_event * 1000) AS _timestamp,
                       {" OR ".join(doubts)} AS _unknown
                FROM read
            )
        """


class Records:
    """Adds the records of a stream to its events, as today's declaration reads them."""

    def __init__(
        self,
        spec: StreamSpec,
        decoding: Decoding,
        events: Events,
        kept_back: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Take how they are decoded; those at some partitions and offsets are doubtful."""
        self._events, self._run = events, events.database.execute
        self._register = events.database.register
        self._ignores_nulls = spec.tombstone_policy == "ignore"
        self._may_move = bool(spec.moved_by) or spec.unavailable == "keep"
        self._reader, self._select = decoding.reader, decoding.select()
        self._kept_back = np.array([_place(*each) for each in kept_back], np.int64)

    def add(self, runs: Sequence[Run]) -> tuple[Counter[int], dict[int, list[Record]]]:
        """Take records; return how many were ignored, and those that are doubtful, by batch."""
        messages = [message for run in runs for message in run.messages]
        ignored, doubtful = Counter[int](), dict[int, list[Record]]()
        if not messages:
            return ignored, doubtful
        seqs = np.repeat([r.seq for r in runs], [len(r.messages) for r in runs])
        values = [message.value() for message in messages]
        left = np.ones(len(messages), bool)
        left[self._decided(runs, messages, values)] = False
        for i in np.flatnonzero(left).tolist():
            if values[i] is None and self._ignores_nulls:
                ignored[int(seqs[i])] += 1
            else:
                doubtful.setdefault(int(seqs[i]), []).append(record_of(messages[i]))
        return ignored, doubtful

    def _decided(
        self, runs: Sequence[Run], messages: Sequence[Message], values: Sequence[bytes | None]
    ) -> Numbers:
        """Add the records that are not doubtful; return which they are."""
        kept = [value for value in values if value is not None]
        table, places = self._reader.read(kept)
        if len(kept) < len(values):
            there = [i for i, value in enumerate(values) if value is not None]
            places = pa.array(there, pa.int64()).take(places)
        lengths = [len(run.messages) for run in runs]
        partitions = np.repeat([run.partition for run in runs], lengths)
        offsets = np.fromiter((m.offset() for m in messages), np.int64, len(messages))
        given: dict[str, Any] = {
            "_at": np.arange(len(messages)),
            "_partition": partitions.astype(np.int32),
            "_offset": offsets,
            "_seq": np.repeat([run.seq for run in runs], lengths).astype(np.int64),
            "_event": np.fromiter((m.timestamp()[1] for m in messages), np.int64, len(messages)),
            "_waits": np.isin(_place(partitions, offsets), self._kept_back),
        }
        if self._may_move:
            given["_waits"] |= np.fromiter(map(_is_moved, messages), bool, len(messages))
        decided = places.to_numpy()
        for name, column in given.items():
            table = table.append_column(name, pa.array(column[decided]))
        self._register("read", table)
        self._run(f"CREATE OR REPLACE TEMP TABLE decoded AS {self._select}")
        self._events.add("(FROM decoded WHERE NOT _unknown)")
        found: Any = self._run("SELECT _at FROM decoded WHERE NOT _unknown").fetchnumpy()
        return np.asarray(found["_at"], np.int64)


def _place(partition: Any, offset: Any) -> Any:
    """Return one number for a partition and an offset, or for arrays of them."""
    return partition * _MOST_OFFSETS + offset


def _is_moved(message: Message) -> bool:
    """Tell whether headers name another key of the row, or cannot be read."""
    headers = headers_of(message)
    return headers is None or any(name in _OF_A_MOVE for name, _ in headers)


def decoding_of(spec: StreamSpec) -> Decoding:
    """Return how the values of a stream are decoded at once.

    Raises:
        NotInColumnsError: the declaration says more of a record than its format, columns, keys and
            order, or its format is not decoded at once.
    """
    refuse_more(spec)
    reader: Reader
    if spec.format.type == "debezium":
        taken = {column.name: from_envelope(spec, column) for column in spec.columns}
        reader, deletes = EnvelopeReader(spec, {n: each.type for n, each in taken.items()}), DELETES
        columns = {name: (each.value, each.doubt) for name, each in taken.items()}
    else:
        columns = {column.name: from_json(column.name, column.type) for column in spec.columns}
        schema = pa.schema([pa.field(c.name, json_type(c.type)) for c in spec.columns])
        rejects = spec.extra_fields == "reject" or bool(spec.whole_columns)
        reader, deletes = JsonReader(schema, rejects=rejects), "FALSE"
    values = {name: value for name, (value, _) in columns.items()}
    gone, doubts = deletes_of(spec, values)
    doubts += [doubt for _, doubt in columns.values()]
    return Decoding(
        reader=reader,
        columns=values,
        doubts=[*doubts, *lacking(spec, values, deletes)],
        deletes=deletes,
        gone=gone,
    )


def lacking(spec: StreamSpec, values: Mapping[str, str], deletes: str) -> list[str]:
    """Write when a record may have no row: without a column that it needs, or with a long key.

    A delete needs key and order alone; where its row stays, what it lacks the Kafka key may have.
    """
    needed = {*spec.never_null, *spec.sequence_by} & values.keys()
    required = {column.name for column in spec.columns if not column.nullable} - needed
    texts = [n for n in spec.keys if spec.types[n].word in {"STRING", "VARCHAR"}]
    sizes = " + ".join(f"strlen({values[name]})" for name in texts)
    nulls = [f"{values[name]} IS NULL" for name in sorted(needed)]
    nulls += [f"{values[name]} IS NULL AND NOT {deletes}" for name in sorted(required)]
    if spec.deletes == "soft":
        nulls += [f"{value} IS NULL AND {deletes}" for value in values.values()]
    nulls += [] if spec.write_mode.has_deletes else [deletes]
    return [*nulls, f"{sizes} > {_LONGEST_KEY}"] if texts else nulls


def deletes_of(spec: StreamSpec, values: Mapping[str, str]) -> tuple[str, list[str]]:
    """Write which records ``apply_as_deletes`` selects, and of which that is doubtful."""
    if not spec.apply_as_deletes:
        return "FALSE", []
    columns = tuple(spec.in_statements(spec.columns))
    condition = Condition("apply_as_deletes", spec.apply_as_deletes, columns)
    # Letters whose case may be read in two ways.
    return condition.expression, [
        f"strlen({values[n]}) > length({values[n]})" for n in condition.cased
    ]


def refuse_more(spec: StreamSpec) -> None:
    """Refuse a declaration that says more of a record than its format, columns, keys and order."""
    more = {
        "format": spec.format.type not in {"json", "debezium"} or spec.format.options.uses_registry,
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
