"""The memory of a proof, from which the next one goes on: files beside the stream's tables.

``proof.json`` says what was proven and when, and names Parquet files with the newest event of each
key, or with all events where each is a version: order, place and digest of the row. It is written
last and as a whole, so that a proof that dies leaves the memory before it. A memory is used only
where it is certainly of the table, the declaration and the batches that are proven now; any other
is not believed.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from oncelake.ingestion.declaration.spec import StreamSpec, fingerprint
from oncelake.ingestion.declaration.sql import OFFLINE, identifier
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.verify.columns import NotInColumnsError
from oncelake.ingestion.verify.columns.types import arrow_type
from oncelake.ingestion.verify.coverage import Coverage
from oncelake.ingestion.verify.read.snapshot import Batch, Snapshot

_FORMAT: Final = 2
_FILE: Final = "proof.json"
# The digest of the last certificate stands beside it.
LAST_CERTIFICATE: Final = "certificate"
_ROWS_OF_A_FILE: Final = 2_000_000


class ProofMemoryError(Exception):
    """A memory that is not used; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProofMemory:
    """The proven state.

    Attributes:
        proven_at: When, in ISO 8601.
        table_id, epoch, seq: The table, and the batch through which it was proven.
        rule: A digest of the declaration and of what hashes the rows.
        ledger: A digest of the batches.
        next: The offset behind the last that was read, by topic and partition.
        records, batches, rows, quarantined: What was counted.
        quarantine: A digest of what was in quarantine.
        good_today: How many records wait in quarantine that the declaration takes.
        unread: How many wait whose schema nobody knew.
        record_types: The names of record types that were applied, where the declaration has none.
        erased: Batches since then that have erased a key, which is not remembered any more.
        files: The files of events, with their digests.
    """

    proven_at: str
    table_id: str
    epoch: int
    seq: int
    rule: str
    ledger: str
    next: tuple[tuple[str, int, int], ...]
    records: int
    batches: int
    rows: int
    quarantined: int
    quarantine: int
    good_today: int = 0
    unread: int = 0
    record_types: tuple[str, ...] = ()
    erased: tuple[int, ...] = ()
    files: tuple[tuple[str, str], ...] = ()

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions that were read, in the order of their numbers."""
        return tuple(TopicPartition(topic, partition) for topic, partition, _ in self.next)

    @property
    def about(self) -> str:
        """Name the proof."""
        return f"the proof of {self.proven_at} through batch {self.seq}"


def load_memory(place: Location) -> ProofMemory | None:
    """Read what the last proof has left, if it is whole.

    Raises:
        ProofMemoryError: it is damaged, or of another version.
    """
    raw = (place / _FILE).read_if_there()
    if raw is None:
        return None
    try:
        document = json.loads(raw)
        said, digest = document["proof"], document["digest"]
        if document["format"] != _FORMAT:
            raise ProofMemoryError(f"is of format {document['format']}")
        if _digest(_canonical(said)) != digest:
            raise ProofMemoryError("is not as it was written")
        of_tuples = {name: tuple(map(tuple, said[name])) for name in ("next", "files")}
        of_tuples |= {name: tuple(said[name]) for name in ("erased", "record_types")}
        return ProofMemory(**{**said, **of_tuples})
    except (ValueError, KeyError, TypeError) as error:
        raise ProofMemoryError("is not as it was written") from error


def refuse_unfit(
    memory: ProofMemory, spec: StreamSpec, snapshot: Snapshot, coverage: Coverage
) -> None:
    """Refuse to go on from a memory of something else, or where a schema was unknown.

    A redrive may have sent in the records of that by now.

    Raises:
        ProofMemoryError: the table, the declaration, or what was read is not that which was proven;
            or records waited for a schema, and Kafka still has all.
    """
    batches = snapshot.batches
    if (memory.table_id, memory.epoch) != (snapshot.table_id, batches[-1].epoch if batches else 1):
        raise ProofMemoryError("is of another table")
    if memory.rule != rule_of(spec):
        raise ProofMemoryError("is of another declaration, or another version")
    if memory.ledger != ledger_digest(each for each in batches if each.seq <= memory.seq):
        raise ProofMemoryError("is of batches that were undone, or are no longer in the ledger")
    if memory.unread and not coverage.is_partial:
        raise ProofMemoryError("was of records whose schema nobody knew")


def events_of(memory: ProofMemory, place: Location) -> Iterator[pa.Table]:
    """Read the events of a memory.

    Raises:
        ProofMemoryError: a file is gone, or is not as it was written.
    """
    for name, digest in memory.files:
        raw = (place / name).read_if_there()
        if raw is None or _digest(raw) != digest:
            raise ProofMemoryError("is not as it was written")
        yield pq.read_table(pa.BufferReader(raw))


def save_memory(memory: ProofMemory, place: Location, events: pa.RecordBatchReader) -> None:
    """Put a memory, and its events, in the place of the one before.

    Raises:
        OSError: it cannot be written there.
    """
    files = []
    for part in tables_of(events, _ROWS_OF_A_FILE):
        sink = pa.BufferOutputStream()
        pq.write_table(part, sink, compression="zstd", use_dictionary=False)
        raw = sink.getvalue().to_pybytes()
        name = f"{uuid.uuid4().hex}.parquet"
        (place / name).put(raw)
        hit(Failpoint.PROOF_WRITTEN)
        files.append((name, _digest(raw)))
    said = {**asdict(memory), "files": files}
    document = {"format": _FORMAT, "proof": said, "digest": _digest(_canonical(said))}
    (place / _FILE).put_durably(json.dumps(document).encode())
    hit(Failpoint.PROOF_WRITTEN)
    forget(place, but={_FILE, *(name for name, _ in files)})


def forget_key(place: Location, spec: StreamSpec, key: pa.Table, *, seq: int) -> None:
    """Remove a key that batch ``seq`` has erased; where that cannot be told, the whole memory.

    Args:
        key: One row.
    """
    try:
        memory = load_memory(place)
        if memory is None or memory.rule != rule_of(spec) or {*key.column_names} != {*spec.keys}:
            forget(place)
            return
        with duckdb.connect(config=dict(OFFLINE)) as database:
            types = [pa.field(name, arrow_type(spec.types[name])) for name in spec.keys]
            database.register("key", key.select(spec.keys).cast(pa.schema(types)))
            parts = [*events_of(memory, place)]
            if parts:
                database.register("events", pa.concat_tables(parts))
                left = f"FROM events WHERE k NOT IN (SELECT {key_hash(spec.keys)} FROM key)"
                events = database.sql(left).to_arrow_reader(_ROWS_OF_A_FILE)
                memory = replace(memory, erased=(*memory.erased, seq))
                save_memory(memory, place, events)
    except (ProofMemoryError, NotInColumnsError):
        forget(place)


def forget(place: Location, *, but: Collection[str] = ()) -> None:
    """Remove a memory but for some files; the last certificate's digest tells of no key."""
    for name in place.files().keys() - {LAST_CERTIFICATE, *but}:
        (place / name).delete()


def key_hash(keys: Sequence[str]) -> str:
    """Write the hash of a key in DuckDB's SQL; a row without keys is known by its place."""
    return f"hash({', '.join(map(identifier, keys)) or '_partition, _offset'})"


def rule_of(spec: StreamSpec) -> str:
    """Return a digest of what decides which rows there must be, and of what hashes them."""
    return _digest(f"{fingerprint(spec)} {spec.ddl} DuckDB {duckdb.__version__}".encode())


def ledger_digest(batches: Iterable[Batch]) -> str:
    """Return a digest of what batches have read, and what became of it."""
    said = [(b.seq, b.kind, b.epoch, sorted(b.ranges), sorted(b.counts.items())) for b in batches]
    return _digest(_canonical(said))


def tables_of(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Put batches together, to at least so many rows."""
    kept: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if batch.num_rows:
            kept.append(batch)
            count += batch.num_rows
        if count >= rows:
            yield pa.Table.from_batches(kept)
            kept, count = [], 0
    if kept:
        yield pa.Table.from_batches(kept)


def _canonical(said: Any) -> bytes:
    return json.dumps(said, sort_keys=True).encode()


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
