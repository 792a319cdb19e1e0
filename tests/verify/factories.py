"""What the tests of the proof share: a small stream, its records, its batches, and their fold."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.coverage import Coverage
from oncelake.ingestion.verify.fold.classify import Classifier, Classifiers
from oncelake.ingestion.verify.fold.fold import Fold
from oncelake.ingestion.verify.fold.rule import FoldContext, Recount
from oncelake.ingestion.verify.read.record import Record, Row
from oncelake.ingestion.verify.read.snapshot import Batch, OffsetRange
from oncelake.ingestion.verify.read.spill import SpillStore

DDL = "id BIGINT NOT NULL, name STRING, at INT"
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def declared(**fields: Any) -> StreamSpec:
    """Return a small stream, ordered by ``at`` unless told otherwise."""
    base = {"name": "s", "topic": "t", "schema": DDL, "keys": "id", "sequence_by": "at"}
    return StreamSpec.model_validate({**base, **fields})


def record(offset: int, value: object, *, partition: int = 0, key: bytes | None = None) -> Record:
    """Return a record whose value is bytes, nothing, or an object to be written as JSON."""
    raw = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    return Record("t", partition, offset, 1_000 * offset, key, raw)


def stretch(start: int, end: int, *, at: TopicPartition = P0, records: int = -1) -> OffsetRange:
    """Return a range that is full of records unless told otherwise."""
    records = end - start if records < 0 else records
    return OffsetRange(at, start, end, records, end - start - records)


def batch(seq: int, *ranges: OffsetRange, **fields: Any) -> Batch:
    """Return a sound batch of inserts; ``counts`` given replace those of the same name."""
    read, gaps = sum(r.records for r in ranges), sum(r.gaps for r in ranges)
    counts = {"offsets": read + gaps, "read": read, "gaps": gaps, "inserted": read}
    given = {
        "table_id": "table",
        "seq": seq,
        "kind": "ingest",
        "epoch": 1,
        "run_id": f"run-{seq}",
        "delta_version": seq + 1,
        "ranges": ranges,
        "balanced": True,
        "accepted": None,
        "identity": {"cluster_id": "a"},
    }
    return Batch(**{**given, **fields, "counts": {**counts, **fields.get("counts", {})}})


def full_coverage(**fields: Any) -> Coverage:
    """Return a coverage of everything from offset 0 on."""
    begin = {P0: 0, P1: 0}
    return Coverage(**{"epoch": 1, "earliest": begin, "begin": begin, "is_ordered": True, **fields})


@contextmanager
def remembering() -> Iterator[SpillStore]:
    """Lend a store."""
    with tempfile.TemporaryDirectory() as folder, SpillStore.in_folder(Path(folder)) as store:
        yield store


def folding(
    spec: StreamSpec, store: SpillStore, coverage: Coverage, settings: Settings | None = None
) -> FoldContext:
    """Return what a fold works with; settings say where a registry is."""
    classifiers = Classifiers(spec, partial(Classifier, epoch=coverage.epoch, settings=settings))
    return FoldContext(spec=spec, classifiers=classifiers, store=store, coverage=coverage)


class Folded:
    """Batches folded one after the other, each the list of its records."""

    def __init__(
        self,
        *batches: list[Record],
        spec: StreamSpec | None = None,
        coverage: Coverage | None = None,
        declarations: Mapping[int, Mapping[str, Any]] | None = None,
        settings: Settings | None = None,
    ) -> None:
        """Fold them, some by what their commits note of the declaration."""
        spec, coverage = spec or declared(), coverage or full_coverage()
        with remembering() as store:
            fold = Fold(folding(spec, store, coverage, settings))
            self.recounts: list[Recount] = [
                fold.batch(batch(seq, declaration=(declarations or {}).get(seq)), [records])
                for seq, records in enumerate(batches, 1)
            ]
            newest = [each for chunk in fold.rule.rows().chunks() for each in chunk.values()]
            self.rows: list[Row] = sorted(
                (each.row for each in newest if each.row is not None),
                key=lambda row: [(value is None, value) for value in row],
            )
            self.deleted = sum(each.row is None for each in newest)
            self.bad = {
                (each.partition, each.offset): each.reason
                for chunk in fold.bad.chunks()
                for each in chunk.values()
            }

    def dispositions(self, seq: int = 1) -> dict[str, int]:
        """Return the dispositions of a batch's winners."""
        return dict(self.recounts[seq - 1].dispositions)


def unlike(each: Batch, **fields: Any) -> Batch:
    """Return a batch with some fields changed."""
    return replace(each, **fields)
