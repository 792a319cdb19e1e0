"""What a redrive goes by: epochs, fingerprints, and the proof's own idea of what was sent in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from oncelake.ingestion.declaration.spec import fingerprint
from oncelake.ingestion.lake.books import imbalances
from oncelake.ingestion.pipeline.redrive_batch import epochs_of
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.format import engine_version
from oncelake.ingestion.verify.compare.ledger import miscounts
from oncelake.ingestion.verify.fold.fold import Fold
from oncelake.ingestion.verify.fold.redrives import Redrives
from tests.cli.shell import row
from tests.support.quarantine import as_quarantine
from tests.verify.factories import (
    batch,
    declared,
    folding,
    full_coverage,
    record,
    remembering,
    stretch,
)


def test_epochs_come_from_the_ledger() -> None:
    """What lies before the oldest row that is remembered is of the first epoch, which loses."""
    rows = [row(seq, epoch=epoch) for seq, epoch in ((3, 1), (4, 2), (5, 2))]

    first, second = epochs_of(rows)

    assert [first.has(seq) for seq in (1, 3, 4)] == [True, True, False]
    assert [second.has(seq) for seq in (3, 4, 99)] == [False, True, True]
    assert [each.number for each in epochs_of(rows[1:])] == [1, 2]


@pytest.mark.parametrize(
    ("fields", "is_same"),
    [
        pytest.param({"description": "x", "max_offsets_per_trigger": 1}, True, id="about runs"),
        pytest.param({"quarantine_rate": {"stop_above": 1.0}}, True, id="the breaker"),
        pytest.param({"schema": "id BIGINT, name STRING, at INT"}, False, id="schema"),
        pytest.param({"tombstones": "ignore"}, False, id="tombstones"),
    ],
)
def test_a_fingerprint_changes_with_what_validates_a_record(
    fields: dict[str, Any], *, is_same: bool
) -> None:
    """A field that decides nothing about a record leaves it as it is."""
    assert (fingerprint(declared()) == fingerprint(declared(**fields))) == is_same


def test_a_redrive_reads_no_offsets() -> None:
    """Its records must be accounted for all the same, and its offsets be none."""
    counts = {"offsets": 0, "read": 3, "gaps": 0, "inserted": 2, "stale": 1}

    def wrong(**more: int) -> int:
        found = imbalances({**counts, **more}, rows_of_seq=2, rows_expected=2, kind="redrive")
        return len(found)

    assert (wrong(), wrong(offsets=3), wrong(stale=0), wrong(gaps=1)) == (0, 1, 1, 1)
    assert imbalances(counts, rows_of_seq=2, rows_expected=2) != ()


_SCHEMA = pa.schema(
    [
        *(("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64())),
        *(("_seq", pa.int64()), ("redriven_seq", pa.int64())),
        *(("declaration", pa.string()), ("engine_version", pa.string())),
    ]
)


def held(offset: int, mark: int | None, by: str = "then") -> dict[str, Any]:
    """Return a row of a quarantine, read by batch 1."""
    place = {"_topic": "t", "_partition": 0, "_offset": offset, "_seq": 1}
    return {**place, "redriven_seq": mark, "declaration": by, "engine_version": engine_version()}


def test_the_proof_folds_a_record_where_it_was_sent_in(tmp_path: Path) -> None:
    """A marked record is bad at its own batch and applied at its redrive; others wait, or not."""
    write_deltalake(
        tmp_path / "q",
        as_quarantine(
            pa.Table.from_pylist(
                [held(1, 2), held(2, None), held(3, None, "now"), held(4, None), held(9, 1)],
                _SCHEMA,
            )
        ),
    )
    batches = {1: batch(1, stretch(0, 5)), 2: batch(2, kind="redrive", counts={"offsets": 0})}
    coverage = full_coverage(batches=batches)
    records = [record(n, {"id": n, "name": "x", "at": 1}) for n in range(5)]
    with remembering() as store:
        redrives = Redrives(folding(declared(), store, coverage), declaration="now")
        false_marks = list(redrives.learn(Location.of(tmp_path / "q")))
        fold = Fold(folding(declared(), store, coverage), redrives=redrives)

        first = fold.batch(batches[1], [records])
        second = fold.batch(batches[2], redrives.of(batches[2]))

        seqs = {
            each.offset: each.seq for chunk in fold.rule.rows().chunks() for each in chunk.values()
        }
        can_recount = redrives.can_recount(batches[2])
        limits = list(redrives.limits())
    assert (first.records.total(), first.counts["quarantined"], dict(first.dispositions)) == (
        5,
        3,
        {"inserted": 2},
    )
    assert (second.records.total(), second.counts["quarantined"], dict(second.dispositions)) == (
        1,
        0,
        {"inserted": 1},
    )
    assert seqs == {0: 1, 1: 2, 3: 1}
    assert ["is marked as redriven by batch 1" in each.what for each in false_marks] == [True]
    assert can_recount
    assert limits == [
        "2 records in quarantine were bad for another declaration or engine, or without a schema, "
        "and can be applied today, by oncelake redrive"
    ]
    counts = {"offsets": 0, "gaps": 0, "read": 1, "inserted": 1}
    assert list(miscounts(batch(2, kind="redrive", counts=counts), second)) == []
    assert list(miscounts(batch(2, kind="redrive", counts={**counts, "read": 2}), second)) != []


def test_the_proof_stops_before_what_is_not_in_the_ledger(tmp_path: Path) -> None:
    """Rows and marks of a batch that was projected, and not recorded yet, do not count."""
    rows = [held(1, 2), held(2, None), held(3, 3), {**held(4, None), "_seq": 3}]
    write_deltalake(tmp_path / "q", as_quarantine(pa.Table.from_pylist(rows, _SCHEMA)))
    batches = {1: batch(1, stretch(0, 5)), 2: batch(2, kind="redrive")}
    with remembering() as store:
        redrives = Redrives(
            folding(declared(), store, full_coverage(batches=batches)), declaration="now"
        )
        false_marks = list(redrives.learn(Location.of(tmp_path / "q")))

        records = [record(n, {"id": n, "name": "x", "at": 1}) for n in range(1, 5)]
        classified, kept, redriven = redrives.partition(records, 1)

    offsets = [[each.offset for each in part] for part in (classified, kept, redriven)]
    assert (offsets, false_marks) == ([[4], [2, 3], [1]], [])
