"""What the ledger must look like, and that each way of being wrong is named."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.tables.commit_metadata import UNKNOWN, CommitMetadata
from oncelake.ingestion.tables.table import SinkTable
from oncelake.ingestion.verify.compare import ledger
from oncelake.ingestion.verify.decode.coerce import UnprovableError
from oncelake.ingestion.verify.read.snapshot import Batch, LoggedCommit, Snapshot, read_log
from oncelake.ingestion.verify.verdict import Difference
from tests.verify.factories import P0, P1, batch, stretch, unlike

LEDGER = [batch(1, stretch(0, 4)), batch(2, stretch(4, 8)), batch(3, stretch(8, 8))]


def commit(of: Batch, **fields: Any) -> LoggedCommit:
    """Return the commit that a ledger row was made from; fields of its metadata can be changed."""
    metadata = {
        "oncelake": 1,
        "kind": of.kind,
        "seq": of.seq,
        "epoch": of.epoch,
        "run_id": of.run_id,
        **{name: getattr(of, name) for name in ("identity", "columns")},
        "counts": of.counts,
        "next": {},
        "ranges": [
            {**p.at._asdict(), "start": p.start, "end": p.end, "records": p.records, "gaps": p.gaps}
            for p in of.ranges
        ],
    }
    return LoggedCommit(
        version=fields.pop("version", of.delta_version),
        txn=fields.pop("txn", of.seq),
        metadata={**metadata, **fields},
    )


COMMITS = [commit(each) for each in LEDGER]


def messages(found: Iterable[Difference]) -> list[str]:
    """Return the differences as people see them."""
    return [str(each) for each in found]


def test_a_sound_ledger_has_no_difference() -> None:
    """Batches that follow one another and agree with their commits are in order."""
    begins = {(1, P0): 0}

    assert messages(ledger.broken_numbers(LEDGER, table_id="table")) == []
    assert messages(ledger.broken_ranges(LEDGER, begins)) == []
    assert messages(ledger.broken_books(LEDGER)) == []
    assert messages(ledger.broken_agreement(LEDGER, COMMITS, "s")) == []


def test_missing_doubled_and_foreign_batches_are_named() -> None:
    """Seqs run from 1 without a hole, each once, and all of one table."""
    rows = [LEDGER[0], LEDGER[2], LEDGER[2], unlike(LEDGER[1], table_id="another")]

    assert messages(ledger.broken_numbers(rows, table_id="table")) == [
        "batch 2: is of another table: expected table, found another",
        "batch 2: is not in the ledger",
        "batch 3: is in the ledger more than once",
    ]


@pytest.mark.parametrize(
    ("ranges", "found"),
    [
        ([(0, 4), (5, 8)], "leaves a hole after batch 1: expected 4"),
        ([(0, 4), (3, 8)], "leaves an overlap after batch 1: expected 4"),
        ([(1, 4), (4, 8)], "does not start where the stream began: expected 0"),
        ([(0, 4), (4, 3)], "ends before it starts"),
    ],
    ids=["hole", "overlap", "start", "backwards"],
)
def test_ranges_that_do_not_follow_are_named(ranges: list[tuple[int, int]], found: str) -> None:
    """Each range begins where the last of its partition ended, the first where the stream did."""
    rows = [batch(seq, stretch(*each)) for seq, each in enumerate(ranges, 1)]

    (problem,) = messages(ledger.broken_ranges(rows, {(1, P0): 0}))

    assert problem.endswith(found)


def test_each_epoch_and_each_partition_is_a_chain_of_its_own() -> None:
    """A new epoch begins anew; a partition that was added begins at 0."""
    rows = [
        batch(1, stretch(5, 9)),
        batch(2, kind="accept", epoch=2),
        batch(3, stretch(2, 4), stretch(0, 3, at=P1), epoch=2),
        batch(4, stretch(4, 6), stretch(4, 5, at=P1), epoch=2),
    ]

    found = messages(ledger.broken_ranges(rows, {(1, P0): 5, (2, P0): 2}))

    assert found == ["t-1 offset 4 · batch 4: its range t-1 [4, 5) leaves a hole after batch 3: "
                     "expected 3"]  # fmt: skip


def test_where_an_epoch_began_comes_from_the_commit_that_began_it() -> None:
    """The opening of the table, and an adoption, say their offsets; other commits do not."""
    opened = commit(batch(0), next={"t": {"0": 7}}, seq=0)
    adopted = commit(batch(3, kind="accept", epoch=2), next={"t": {"0": 2}})
    later = commit(batch(4, epoch=2), next={"t": {"0": 99}})

    assert ledger.begins_in([opened, commit(LEDGER[0]), adopted, later]) == {(1, P0): 7, (2, P0): 2}
    assert ledger.begins_in([later]) == {}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"balanced": False}, "its books do not balance"),
        ({"counts": {"offsets": 5}}, "offsets are not read + gaps"),
        ({"counts": {"stale": 1}}, "records read are not all accounted for"),
    ],
    ids=["red", "offsets", "records"],
)
def test_books_that_do_not_add_up_are_named(fields: dict[str, Any], found: str) -> None:
    """A red verdict, and counts that contradict a green one, are differences."""
    (problem,) = messages(ledger.broken_books([batch(1, stretch(0, 4), **fields)]))

    assert found in problem


def test_an_accepted_red_batch_is_no_difference() -> None:
    """What a person accepted is told elsewhere."""
    rows = [batch(1, stretch(0, 4), balanced=False, accepted="why", counts={"stale": 1})]

    assert messages(ledger.broken_books(rows)) == []


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"run_id": "another"}, "run_id"),
        ({"kind": "accept"}, "kind"),
        ({"epoch": 2}, "epoch"),
        ({"delta_version": 9}, "delta_version"),
        ({"ranges": (stretch(4, 9),)}, "ranges"),
        ({"ranges": (stretch(4, 8, records=3),)}, "ranges"),
        ({"counts": {**LEDGER[1].counts, "read": 3}}, "read"),
        ({"identity": {"cluster_id": "b"}}, "identity"),
        ({"columns": "id BIGINT"}, "columns"),
        ({"declaration": {"where": "id > 0"}}, "declaration"),
        ({"erased": {"digest": "b"}}, "erased"),
        ({"balanced": False, "accepted": "why"}, "accepted"),
    ],
    ids=[
        *("run", "kind", "epoch", "version", "range", "gaps", "count"),
        *("identity", "columns", "declaration", "erased", "accepted"),
    ],
)
def test_a_ledger_row_unlike_its_commit_is_named(changed: dict[str, Any], name: str) -> None:
    """Every field that ledger and commit share is compared."""
    rows = [LEDGER[0], unlike(LEDGER[1], **changed), LEDGER[2]]

    (problem,) = messages(ledger.broken_agreement(rows, COMMITS, "s"))

    assert problem.startswith(f"batch 2: its {name} is not its commit's: expected")


def test_an_acceptance_is_that_of_the_commit_that_gave_it() -> None:
    """A red batch is accepted by a later commit, and the ledger has that one's counts alone."""
    red = unlike(LEDGER[0], balanced=False, accepted="why")
    decision = batch(2, kind="accept", accepted="why")
    log = [COMMITS[0], commit(decision, reason="why", accepts=[1], counts={})]

    assert messages(ledger.broken_agreement([red, decision], log, "s")) == []
    changed = unlike(decision, accepted="because", counts={"altered": 1})
    assert messages(ledger.broken_agreement([red, changed], log, "s")) == [
        "batch 2: its accepted is not its commit's: expected why, found because",
        "batch 2: its altered is not its commit's: expected 0, found 1",
    ]


def test_a_row_of_an_earlier_version_lacks_what_the_ledger_did_not_keep() -> None:
    """Without an identity it is compared in what it has."""
    earlier = unlike(LEDGER[1], identity={})

    assert messages(ledger.broken_agreement([LEDGER[0], earlier, LEDGER[2]], COMMITS, "s")) == []


def test_a_commit_without_row_and_a_row_without_commit_are_named() -> None:
    """As far as the log reaches, each has the other."""
    assert messages(ledger.broken_agreement([LEDGER[0], LEDGER[2]], COMMITS, "s")) == [
        "batch 2: its commit, version 3, has no ledger row"
    ]
    assert messages(ledger.broken_agreement(LEDGER, [COMMITS[0], COMMITS[2]], "s")) == [
        "batch 2: the log has no commit of it; the ledger says version 3; restore the log from a "
        "backup, or oncelake rebuild s, if its sink can"
    ]


def test_what_the_log_no_longer_holds_is_no_difference() -> None:
    """Commits that have aged out are remembered by the ledger alone."""
    assert messages(ledger.broken_agreement(LEDGER, COMMITS[1:], "s")) == []


def test_of_commits_that_no_reader_needs_some_may_be_gone() -> None:
    """Behind a checkpoint the ledger stands for a commit that is gone; beyond it nothing does."""
    gaps = Snapshot(
        table_id="table",
        version=4,
        ledger=tuple(LEDGER),
        commits=(COMMITS[0], COMMITS[2]),
        unfinished=(),
        holder=None,
        checkpoint=3,
    )
    torn = LoggedCommit(version=3, txn=None, metadata=None, altered="it is cut short")

    assert gaps.dropped == (LEDGER[1],)
    assert messages(ledger.broken_agreement(LEDGER, gaps.commits, "s", dropped=gaps.dropped)) == []
    assert replace(gaps, checkpoint=2).dropped == ()
    assert replace(gaps, commits=tuple(COMMITS[:2]), checkpoint=4).dropped == ()
    assert replace(gaps, commits=(), checkpoint=4).dropped == ()
    assert replace(gaps, commits=(*gaps.commits, torn)).dropped == ()


def test_the_ledger_stands_for_batches_of_records_alone() -> None:
    """The topic confirms what it says of these; nothing confirms a decision, or a second row."""
    first, second, third = LEDGER
    gaps = Snapshot(
        table_id="table",
        version=4,
        ledger=(first, second, third, unlike(second, seq=4)),
        commits=(COMMITS[0], COMMITS[2]),
        unfinished=(),
        holder=None,
        checkpoint=3,
    )
    decisions = [unlike(second, kind="accept"), unlike(second, kind="erase")]

    assert [each.seq for each in gaps.dropped] == [second.seq]
    assert replace(gaps, ledger=(first, unlike(second, accepted="why"), third)).dropped
    for decision in (*decisions, unlike(second, accepted="why", balanced=False)):
        assert replace(gaps, ledger=(first, decision, third)).dropped == ()


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"txn": 1}, "records another txn than its metadata's seq"),
        ({"txn": None}, "is a commit of ours without its txn"),
    ],
    ids=["another", "none"],
)
def test_a_txn_that_is_not_the_seq_is_named(changed: dict[str, Any], found: str) -> None:
    """The transaction id and the metadata of a commit say one number."""
    problems = messages(
        ledger.broken_agreement(LEDGER[:2], [COMMITS[0], commit(LEDGER[1], **changed)], "s")
    )

    assert found in problems[0]


def test_txns_that_do_not_grow_are_named() -> None:
    """A seq that was committed again is a second commit of the same batch."""
    again = commit(LEDGER[0], version=4)

    problems = messages(ledger.broken_agreement(LEDGER[:2], [*COMMITS[:2], again], "s"))

    assert "the txn of version 4 does not grow: expected above 2, found 1" in problems


def test_a_note_that_does_not_match_its_own_checksum_is_not_believed() -> None:
    """Whatever keeps it, and where the checksum is gone."""
    made = CommitMetadata(
        kind="ingest",
        seq=1,
        run_id="r",
        epoch=1,
        identity=UNKNOWN,
        columns="id INT",
        next=Offsets(),
    )
    sound, bare = made.to_json(), json.loads(made.to_json())
    del bare["check"]
    notes = [sound, json.dumps(bare), sound.replace("id INT", "id BIGINT")]
    table = SimpleNamespace(
        stream="s", where="t", notes=lambda through: [(n, 1, note) for n, note in enumerate(notes)]
    )

    logged = read_log(cast(SinkTable, table), through=3)

    assert [(each.txn, each.altered) for each in logged] == [
        (1, ""),
        (None, "the note of version 1 does not match its own checksum"),
        (None, "the note of version 2 does not match its own checksum"),
    ]


def test_a_commit_that_nobody_finished_is_named_with_its_cure() -> None:
    """What a crash left is healed by the next run."""
    (problem,) = messages(ledger.torn([COMMITS[2]], "orders"))

    assert "oncelake run orders heals it" in problem


def test_a_kind_that_is_not_known_is_no_verdict() -> None:
    """What a batch of another kind did cannot be judged by rules made for these."""
    with pytest.raises(UnprovableError, match="batch 1 is a swap"):
        ledger.refuse_unknown_kinds([batch(1, kind="swap")])


def test_what_nobody_had_read_cannot_be_replayed() -> None:
    """A replay lies within what earlier batches have read; else its rows are from nowhere."""
    read, again, beyond = stretch(4, 8), stretch(5, 8), stretch(0, 6)
    rows = [batch(1, read), batch(2, again, kind="replay"), batch(3, beyond, kind="replay")]

    (problem,) = messages(ledger.unread_replays(rows))

    assert "batch 3" in problem
    assert "had not been read before" in problem
