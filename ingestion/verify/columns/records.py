"""Records of a topic, decoded many at once; those that are doubtful are classified one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.sql import identifier
from oncelake.ingestion.kafka.client import headers_of
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.columns import NotInColumnsError
from oncelake.ingestion.verify.columns.avro_values import UNDECLARED, AvroReader
from oncelake.ingestion.verify.columns.debezium_values import DELETES, EnvelopeReader, from_envelope
from oncelake.ingestion.verify.columns.events import Events
from oncelake.ingestion.verify.columns.json_values import JsonReader
from oncelake.ingestion.verify.columns.types import from_json, json_type
from oncelake.ingestion.verify.decode import ID_HEADER, OTHER_ID_HEADERS
from oncelake.ingestion.verify.fold.transform import Condition
from oncelake.ingestion.verify.read.record import FIRST_MS, LAST_MS, Record
from oncelake.ingestion.verify.read.topic import record_of

# The bytes of a key that every sink takes.
_LONGEST_KEY: Final = 1_000
_MOST_OFFSETS: Final = 1 << 46
_OF_A_MOVE: Final = frozenset({"__debezium.oldkey", "__debezium.newkey"})
_OF_IDS: Final = frozenset(each.format("value") for each in (ID_HEADER, *OTHER_ID_HEADERS))
# A record has no time that a column can have.
_NO_TIME: Final = f"_event NOT BETWEEN {FIRST_MS} AND {LAST_MS}"
Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Run(NamedTuple):
    """Messages of one partition that one batch has read, as they follow one another."""

    seq: int
    partition: int
    messages: Sequence[Message]


class Decoding(NamedTuple):
    """How the values of a stream are decoded at once.

    Attributes:
        reader: Reads their bytes.
        select: The query over what was ``read`` that makes rows, and says which are doubtful.
    """

    reader: JsonReader | AvroReader
    select: str


class Records:
    """Adds the records of a stream to its events, as today's declaration reads them.

    Attributes:
        undeclared: How many of them have fields that no column names, by batch.
    """

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
        may_move = bool(spec.moved_by) or spec.unavailable == "keep"
        self._headers = _OF_A_MOVE if may_move else frozenset[str]()
        self._headers |= _OF_IDS if spec.format.options.uses_registry else frozenset()
        # The row of a delete that stays has such fields, too.
        self._has_row = "TRUE" if spec.deletes == "soft" else "NOT _gone"
        self.undeclared = Counter[int]()
        self._reader, self._select = decoding
        self._kept_back = np.array([_place(*each) for each in kept_back], np.int64)

    @property
    def record_types(self) -> set[str]:
        """The names of record types that were read, where the declaration names none."""
        return self._reader.record_types

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
        lengths = [len(run.messages) for run in runs]
        partitions = np.repeat([run.partition for run in runs], lengths)
        offsets = np.fromiter((m.offset() for m in messages), np.int64, len(messages))
        # What the rule is to decide is not read here, as it may be nothing of the format.
        waits = np.isin(_place(partitions, offsets), self._kept_back)
        if self._headers:
            named = (_has_header(message, self._headers) for message in messages)
            waits |= np.fromiter(named, bool, len(messages))
        kept = [
            (i, value) for i in np.flatnonzero(~waits).tolist() if (value := values[i]) is not None
        ]
        table, places = self._reader.read([value for _, value in kept])
        places = pa.array([i for i, _ in kept], pa.int64()).take(places)
        given: dict[str, Any] = {
            "_at": np.arange(len(messages)),
            "_partition": partitions.astype(np.int32),
            "_offset": offsets,
            "_seq": np.repeat([run.seq for run in runs], lengths).astype(np.int64),
            "_event": np.fromiter((m.timestamp()[1] for m in messages), np.int64, len(messages)),
        }
        decided = places.to_numpy()
        for name, column in given.items():
            table = table.append_column(name, pa.array(column[decided]))
        self._register("read", table)
        self._run(f"CREATE OR REPLACE TEMP TABLE decoded AS {self._select}")
        self._events.add("(FROM decoded WHERE NOT _unknown)")
        is_counted = f"NOT _unknown AND _undeclared AND {self._has_row}"
        counts = f"SELECT _seq, count(*) FROM decoded WHERE {is_counted} GROUP BY _seq"
        self.undeclared.update(dict(self._run(counts).fetchall()))
        found: Any = self._run("SELECT _at FROM decoded WHERE NOT _unknown").fetchnumpy()
        return np.asarray(found["_at"], np.int64)


def _place(partition: Any, offset: Any) -> Any:
    """Return one number for a partition and an offset, or for arrays of them."""
    return partition * _MOST_OFFSETS + offset


def _has_header(message: Message, names: Collection[str]) -> bool:
    """Tell whether a record has a header of these, or headers that cannot be read."""
    headers = headers_of(message)
    return headers is None or any(name in names for name, _ in headers)


def decoding_of(spec: StreamSpec, settings: Settings) -> Decoding:
    """Return how the values of a stream are decoded at once; settings say where schemas are.

    Raises:
        NotInColumnsError: the declaration says more of a record than its format, columns, keys and
            order, or its format is not decoded at once.
    """
    refuse_more(spec)
    reader: JsonReader | AvroReader
    deletes = undeclared = "FALSE"
    if spec.format.type == "avro":
        reader, undeclared = AvroReader(spec, settings), UNDECLARED
        columns = {column.name: (identifier(column.name), "FALSE") for column in spec.columns}
    elif spec.format.type == "debezium":
        taken = {column.name: from_envelope(spec, column) for column in spec.columns}
        reader, deletes = EnvelopeReader(spec, {n: each.type for n, each in taken.items()}), DELETES
        columns = {name: (each.value, each.doubt) for name, each in taken.items()}
    else:
        columns = {column.name: from_json(column.name, column.type) for column in spec.columns}
        schema = pa.schema([pa.field(c.name, json_type(c.type)) for c in spec.columns])
        rejects = spec.extra_fields == "reject" or bool(spec.whole_columns)
        reader = JsonReader(schema, rejects=rejects)
    values = {name: value for name, (value, _) in columns.items()}
    gone, doubts = deletes_of(spec, values)
    # Null is no doubt.
    doubts += [doubt for _, doubt in columns.values()] + lacking(spec, values, deletes)
    is_unknown = " OR ".join(f"coalesce({doubt}, FALSE)" for doubt in (*doubts, _NO_TIME))
    selected = ", ".join(f"{value} AS {identifier(name)}" for name, value in values.items())
    return Decoding(
        reader,
        f"""
            SELECT *, CASE WHEN _unknown THEN FALSE WHEN _deletes THEN TRUE
                           ELSE coalesce({gone}, FALSE) END AS _gone
            FROM (
                SELECT {selected}, _at, _partition, _offset, _seq, {deletes} AS _deletes,
                       {undeclared} AS _undeclared, make_timestamptz(_event * 1000) AS _timestamp,
                       {is_unknown} AS _unknown
                FROM read
            )
        """,
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
        # Debezium by a registry, and Avro without one.
        "format": spec.format.type not in {"json", "debezium", "avro"}
        or spec.format.options.uses_registry != (spec.format.type == "avro"),
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
