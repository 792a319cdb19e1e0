"""``oncelake erase``: every trace of a key out of a stream's tables, and a certificate of it.

    lock → where does the table stand? → heal → one commit without the key's rows, with its digest
         → tombstones and quarantine → VACUUM of every older version, and their log → ledger

That one commit is the intent, too: an erase that dies behind it is in the ledger as not complete,
which every run says, and the same command finishes it. What is read again of the topic (`replay`,
`redrive`) leaves the key's earlier records out.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.delta.commits import delete_rows
from oncelake.ingestion.delta.files import is_delta, open_rows
from oncelake.ingestion.delta.vacuum import remove_unreferenced
from oncelake.ingestion.errors import IngestionError, RefusedError, no_table_yet
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.offsets import Offsets, Range
from oncelake.ingestion.lake.archive import archived
from oncelake.ingestion.lake.erasure import COMPLETE, COMPLETES, said_of, unfinished
from oncelake.ingestion.lake.ledger import LedgerRow, copy_ledger, put_rows, standing_rows
from oncelake.ingestion.lake.lock import held, refuse_lost_lease
from oncelake.ingestion.lake.paths import StreamPaths, refuse_unable
from oncelake.ingestion.lake.quarantine import remove_payloads
from oncelake.ingestion.lake.withheld import forget_withheld
from oncelake.ingestion.operations.erase.key import is_of_key, parse_key
from oncelake.ingestion.pipeline.erased import at_places
from oncelake.ingestion.recovery.position import Position
from oncelake.ingestion.recovery.standing import OF_BATCHES, heal_stream
from oncelake.ingestion.recovery.topics import as_of_its_table
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.storage.processes import sweep_scratch
from oncelake.ingestion.tables.commit_log import DELETED
from oncelake.ingestion.tables.commit_metadata import MOVING
from oncelake.ingestion.tables.table import ErasableTable
from oncelake.ingestion.verify.columns.memory import forget_key


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """The result of an erase, with what it could not reach.

    Attributes:
        row: Its row in the ledger, whose counts say how much was erased.
        unreadable: Records in quarantine whose key cannot be read; they may be of the key.
        archived: Tables in the lake's archive, which may hold the key.
        in_kafka: What Kafka still holds of all that was read; records of the key may be among it,
            whether or not a trace of it was here. ``None`` where Kafka did not answer.
    """

    row: LedgerRow
    unreadable: int
    archived: tuple[Location, ...]
    in_kafka: tuple[Range, ...] | None

    @property
    def has_erased(self) -> bool:
        """Tell whether this erase, or one of the key that it ended, may have had a trace of it."""
        traces = ("erased_rows", "erased_tombstones", "erased_quarantined")
        counts = self.row.counts
        return any(map(counts.get, traces)) or any(name.startswith(COMPLETES) for name in counts)


def erase(
    spec: StreamSpec,
    settings: Settings,
    *,
    key: str,
    reason: str,
    run_id: str,
    tell: Callable[[str], None] = lambda step: None,
) -> Certificate:
    """Erase a key from table, history, quarantine, tombstones, and all older versions of them.

    Args:
        key: JSON: the columns of ``keys``; in a stream without keys any columns.

    Raises:
        InvalidSpecError: there is no table, or the key does not fit it.
        RefusedError: the mode folds records of many keys, or a table is damaged.
        TableBusyError: somebody else changed the table meanwhile.
        StreamLockedError: a run holds the stream.
    """
    _refuse_folds(spec)
    paths = StreamPaths.of(spec.name, settings, spec.sink)
    refuse_unable(paths, "erase")
    with held(paths, run_id):
        standing = heal_stream(spec, paths)
        if (position := standing.position) is None:
            raise no_table_yet(spec.name)
        standing.refuse(*OF_BATCHES)
        _refuse_rewound(spec.name, position, standing.rows)
        erasing = _Erasing.of(spec, paths, parse_key(spec, paths.table, key))
        if obstacle := erasing.table.obstacle:
            remedy = f"leave the key out by `where`, and oncelake rebuild {spec.name}"
            raise RefusedError(spec.name, f"{obstacle}.", remedy=remedy)
        tell(f"{spec.name}: rows…")
        forget_withheld(paths, spec.publish.branch)
        row = erasing.commit(position, reason=reason, run_id=run_id)
        tell(f"{spec.name}: tombstones and quarantine…")
        row, unreadable = erasing.clear_side_tables(row)
        # The proof of now needs it: the version before is about to go.
        put_rows(paths, row)
        copy_ledger(paths)
        # It has a hash of each key. A proof that goes on meanwhile finds the batch in the ledger.
        forget_key(paths.proof, as_of_its_table(spec, paths), erasing.key, seq=row.seq)
        tell(f"{spec.name}: older versions…")
        row = erasing.drop_versions(row)
        again = {f"{COMPLETES}{seq}": 1 for seq in erasing.begun_before(standing.rows)}
        row = replace(row, counts={**row.counts, **again, COMPLETE: 1})
        put_rows(paths, row)
        copy_ledger(paths)
    return Certificate(
        row=row,
        unreadable=unreadable,
        archived=_archived(paths),
        in_kafka=_still_in_kafka(settings, position.next),
    )


def _remove_unreferenced(side: Location, written: Collection[str]) -> int:
    """Remove what no log names of a side table, also where it is not a table yet.

    Of the key, too, may be what a run has left that can commit no more now.
    """
    if is_delta(side):
        return remove_unreferenced(side, written, is_fenced=False)
    for name in written:
        (side / name).delete()
    return sum(name.endswith(".parquet") for name in written)


def _archived(paths: StreamPaths) -> tuple[Location, ...]:
    """Return the folders of former tables, in which the key may still be."""
    tables = [each.path / name for each in archived(paths) for name in each.tables]
    return (*tables, *[paths.workshop] * paths.workshop.exists())


def _still_in_kafka(settings: Settings, reached: Offsets) -> tuple[Range, ...] | None:
    try:
        return Kafka(settings).earliest(reached).ranges_below(reached)
    except IngestionError:
        return None


def _refuse_folds(spec: StreamSpec) -> None:
    if spec.mode == "aggregate":
        raise RefusedError(
            spec.name,
            "`mode: aggregate` folds records of many keys into a group, so that one key cannot be "
            "removed from it.",
            remedy=f"leave it out by `where` in {spec.file}, and oncelake rebuild {spec.name}",
        )


def _refuse_rewound(stream: str, position: Position, rows: Sequence[LedgerRow]) -> None:
    """Make sure that no record of the key, once read, is still to be read again."""
    standing = {row.seq for row in standing_rows(rows)}
    now = position.identity.topic_ids
    undone = [
        part.range
        for row in rows
        if row.seq not in standing and row.kind in MOVING
        for part in row.ranges
        if row.identity.topic_ids.get(part.range.topic) == now.get(part.range.topic)
    ]
    behind = {
        part.topic_partition
        for part in undone
        if position.next.get(part.topic_partition, 0) < part.end
    }
    if behind:
        raise RefusedError(
            stream,
            f"after a rewind, {', '.join(map(str, sorted(behind)))} will be read again: records of "
            "the key there would come back.",
            remedy=f"oncelake run {stream}, then erase",
        )


@dataclass(frozen=True, slots=True)
class _Erasing:
    """The steps of one erase.

    Attributes:
        key: Has one row.
        written: What lay in the table's folder before the commit.
        beside: The same of each side table. A process that sleeps past its lease behind its
            commit must not remove what its successor is about to name.
    """

    spec: StreamSpec
    paths: StreamPaths
    table: ErasableTable
    key: pa.Table
    written: frozenset[str]
    beside: Mapping[Location, frozenset[str]]

    @classmethod
    def of(cls, spec: StreamSpec, paths: StreamPaths, key: pa.Table) -> _Erasing:
        """Read what is there, before anything is committed."""
        table = paths.table
        assert isinstance(table, ErasableTable), "a sink that cannot erase was refused"
        beside = {side: frozenset(side.files()) for side in paths.sides.values()}
        return cls(spec, paths, table, key, table.written_files(), beside)

    def commit(self, position: Position, *, reason: str, run_id: str) -> LedgerRow:
        """Commit the table without the key's rows; return the ledger row so far."""
        deletes = self._tombstones_by_seq()
        lost = {f"tombstones_erased.{seq}": n for seq, n in deletes.items()}
        metadata = replace(
            position.next_metadata(run_id, kind="erase", counts=lost),
            reason=reason,
            erased=said_of(self.key.to_pylist()[0], position.next),
        )
        commit = self.table.erase(self.key, metadata)
        hit(Failpoint.DECIDED)
        row = LedgerRow.of(commit, position.table_id)
        erased = {
            "erased_rows": commit.metrics.get(DELETED, 0),
            "erased_tombstones": sum(lost.values()),
        }
        return replace(row, counts={**row.counts, **erased})

    def clear_side_tables(self, row: LedgerRow) -> tuple[LedgerRow, int]:
        """Remove the key from tombstones and quarantine; return how many records are unreadable."""
        counts = dict(row.counts)
        refuse_lost_lease(self.paths)
        if counts["erased_tombstones"]:
            delete_rows(self.paths.tombstones, self.key, before=row.seq)
        places, unreadable = self._quarantined()
        where = " OR ".join(
            f"(_seq = {seq} AND ({at_places(rows)}))" for seq, rows in places.items()
        )
        quarantine = self.paths.quarantine
        counts["erased_quarantined"] = (
            remove_payloads(quarantine, where, f"erased, batch {row.seq}", redriven=True)
            if where
            else 0
        )
        hit(Failpoint.SIDES_CLEARED)
        return replace(row, counts=counts), unreadable

    def drop_versions(self, row: LedgerRow) -> LedgerRow:
        """Remove all that is left of the versions that held the key."""
        refuse_lost_lease(self.paths)
        files = sum(_remove_unreferenced(*each) for each in self.beside.items())
        files += self.table.remove_older_versions(self.written)
        # There, whole batches may be left of runs that were killed.
        state = self.paths.settings.state
        sweep_scratch(state, even_if_young=True)
        # And what a rebuild saw of the tables that it made in a store.
        for table in self.paths.tables:
            for mirror in (state / "rebuild" / "mirror").glob(f"{table.name}-{'[0-9a-f]' * 16}"):
                shutil.rmtree(mirror, ignore_errors=True)
        # Which has hashes of keys, even if it is no longer declared.
        for index in self.paths.indexes:
            with suppress(FileNotFoundError):
                shutil.rmtree(index)
        return replace(row, counts={**row.counts, "erased_files": files})

    def begun_before(self, rows: Sequence[LedgerRow]) -> list[int]:
        """Return the earlier erasures of the same key that died before their end."""
        (values,) = self.key.to_pylist()
        return [
            each.seq
            for each in unfinished(rows)
            if set(each.digest.columns) == set(values)
            and each.digest.is_of(values[name] for name in each.digest.columns)
        ]

    def _tombstones_by_seq(self) -> Counter[int]:
        """Count the deletes of the key that are remembered, by the batch that wrote them."""
        path = self.paths.tombstones
        if not self.spec.keys or not is_delta(path):
            return Counter()
        names = self.key.column_names
        found = open_rows(path).to_table(columns=[*names, "_seq"])
        # Outside the lake a type may be kept by a wider one.
        key = self.key.cast(found.select(names).schema)
        return Counter(found.join(key, names, join_type="inner")["_seq"].to_pylist())

    def _quarantined(self) -> tuple[dict[int, list[dict[str, Any]]], int]:
        """Return the key's records in quarantine by batch, and how many cannot be told."""
        path, unreadable = self.paths.quarantine, 0
        places: dict[int, list[dict[str, Any]]] = {}
        if not is_delta(path):
            return places, 0
        dataset = open_rows(path)
        names = ["_seq", "_topic", "_partition", "_offset", "key", "value", "removed"]
        for batch in dataset.to_batches(columns=names, batch_size=1_000):
            for row in batch.to_pylist():
                found = is_of_key(self.spec, self.key, raw_key=row["key"], raw_value=row["value"])
                if found:
                    places.setdefault(row["_seq"], []).append(row)
                elif found is None:
                    unreadable += not row["removed"]
        return places, unreadable
