"""Whether the ledger's batches follow one another, agree with the log, and count right; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Final

from oncelake.ingestion.errors import counted
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.lake.ledger import written_seqs
from oncelake.ingestion.verify.decode.coerce import UnprovableError
from oncelake.ingestion.verify.fold.rule import Recount
from oncelake.ingestion.verify.read.snapshot import (
    FOLDED,
    Batch,
    LoggedCommit,
    OffsetRange,
    reasons_in,
)
from oncelake.ingestion.verify.verdict import Difference

MOVING: Final = ("ingest", "accept", "adopt")
DISPOSITIONS: Final = (
    *("inserted", "updated", "deleted", "deleted_absent", "superseded", "stale", "unchanged"),
    *("ignored", "filtered", "quarantined", "overlap", "routed_elsewhere", "unrouted"),
)
# Of these a batch's records say alone how many there are.
_RECOUNTED: Final = (
    *("ignored", "filtered", "routed_elsewhere", "unrouted"),
    *("quarantined", "superseded", "exploded"),
)
_WITH_IDENTITY: Final = frozenset(
    {"identity", "columns", "erased", "declaration", "adopted", "last"}
)
Begins = Mapping[tuple[int, TopicPartition], int]

_wrong = partial(Difference, "ledger")


def begins_in(commits: Iterable[LoggedCommit]) -> Begins:
    """Return where each epoch began, as far as the commits that began them are left."""
    begins: dict[tuple[int, TopicPartition], int] = {}
    known = set()
    for metadata in (commit.metadata for commit in commits if commit.metadata):
        epoch = metadata["epoch"]
        is_first = metadata["seq"] == 0 or (metadata["kind"] == "accept" and epoch - 1 in known)
        if is_first and epoch not in known:
            for topic, offsets in metadata["next"].items():
                for partition, offset in offsets.items():
                    begins[epoch, TopicPartition(topic, int(partition))] = offset
        known.add(epoch)
    return begins


def refuse_unknown_kinds(batches: Iterable[Batch]) -> None:
    """Raise ``UnprovableError`` for a batch whose kind this proof does not know."""
    for batch in batches:
        if batch.kind not in {*MOVING, *FOLDED, "schema", "rewind", "erase", "truncate"}:
            raise UnprovableError(f"batch {batch.seq} is a {batch.kind}, which is not provable")


def broken_books(batches: Iterable[Batch]) -> Iterator[Difference]:
    """Name the batches whose verdict is red, or whose counts do not add up."""
    for batch in batches:
        counts = Counter(batch.counts)
        if not batch.balanced and batch.accepted is None:
            yield _wrong("its books do not balance, and nobody has accepted that", seq=batch.seq)
        if batch.kind not in FOLDED or not batch.balanced:
            continue
        wrong_counts = partial(_wrong, seq=batch.seq, found=str(batch.counts))
        if batch.kind == "redrive" and (counts["offsets"] or counts["gaps"]):
            yield wrong_counts("a redrive reads no offsets")
        if batch.kind != "redrive" and counts["offsets"] != counts["read"] + counts["gaps"]:
            yield wrong_counts("offsets are not read + gaps")
        if counts["read"] + counts["exploded"] != sum(counts[name] for name in DISPOSITIONS):
            yield wrong_counts("records read are not all accounted for")


def broken_numbers(
    batches: Sequence[Batch], *, table_id: str, unknown: Sequence[int] = ()
) -> Iterator[Difference]:
    """Name seqs that are missing or come twice, and rows of another table.

    Of the missing ones those that are ``unknown`` are in no log either.
    """
    if unknown:
        yield _wrong(
            f"neither ledger nor log has seq {written_seqs(unknown)}, so that nothing tells what "
            "was read; restore the ledger from a backup, or rebuild"
        )
    for batch in batches:
        if batch.table_id != table_id:
            found = batch.table_id
            yield _wrong("is of another table", seq=batch.seq, expected=table_id, found=found)
    counted = Counter(batch.seq for batch in batches if batch.table_id == table_id)
    for seq in range(1, max(counted, default=0) + 1):
        if counted[seq] != 1 and seq not in unknown:
            what = "is not in the ledger" if not counted[seq] else "is in the ledger more than once"
            yield _wrong(what, seq=seq)


def broken_ranges(batches: Sequence[Batch], begins: Begins) -> Iterator[Difference]:
    """Name the holes and overlaps between the ranges of an epoch, by partition.

    A partition that is not in ``begins`` was added since and began at 0, unless no commit tells of
    its epoch at all.
    """
    reads: dict[tuple[int, TopicPartition], list[tuple[int, OffsetRange]]] = {}
    for batch in batches:
        for part in batch.ranges if batch.kind in MOVING else ():
            reads.setdefault((batch.epoch, part.at), []).append((batch.seq, part))
            if part.end < part.start:
                yield _broken(batch.seq, part, "ends before it starts")
    begun = {epoch for epoch, _ in begins}
    for (epoch, at), parts in sorted(reads.items()):
        seq, first = parts[0]
        begin = begins.get((epoch, at), 0)
        if epoch in begun and first.start != begin:
            yield _broken(seq, first, "does not start where the stream began", str(begin))
        for (before, earlier), (seq, later) in pairwise(parts):
            if later.start != earlier.end:
                what = "a hole" if later.start > earlier.end else "an overlap"
                yield _broken(seq, later, f"leaves {what} after batch {before}", str(earlier.end))


def unread_replays(batches: Sequence[Batch]) -> Iterator[Difference]:
    """Name the ranges that were replayed, and that no batch of their epoch had read."""
    read: dict[tuple[int, TopicPartition], OffsetRange] = {}
    for batch in batches:
        for part in (part for part in batch.ranges if part.span):
            known = read.get((batch.epoch, part.at))
            if batch.kind in MOVING:
                begun = known or part
                read[batch.epoch, part.at] = begun._replace(end=part.end)
            elif batch.kind == "replay" and not (
                known and known.start <= part.start <= part.end <= known.end
            ):
                yield _broken(batch.seq, part, "was replayed, and had not been read before")


def broken_agreement(
    batches: Sequence[Batch],
    commits: Sequence[LoggedCommit],
    stream: str,
    *,
    dropped: Sequence[Batch] = (),
) -> Iterator[Difference]:
    """Name the disagreements of ledger and log, as far as the log reaches, oldest commit first.

    Of the commits that the log no longer has, some were ``dropped``, since no reader needs them.
    """
    rows, reasons = {batch.seq: batch for batch in batches}, reasons_in(commits)
    last = max(rows, default=0)
    ours = [commit for commit in commits if commit.is_ours]
    yield from _broken_txns(ours)
    for commit in ours:
        if 0 < commit.seq <= last and commit.seq not in rows:
            what = f"its commit, version {commit.version}, has no ledger row"
            yield _wrong(what, seq=commit.seq)
        elif commit.seq in rows and commit.metadata is not None:
            yield from _unlike(rows[commit.seq], commit, reasons)
    oldest = min((commit.version for commit in commits), default=0)
    there = {commit.seq for commit in ours} | {batch.seq for batch in dropped}
    for batch in batches:
        if batch.delta_version >= oldest and batch.seq not in there:
            what = (
                f"the log has no commit of it; the ledger says version {batch.delta_version}; "
                f"restore the log from a backup, or oncelake rebuild {stream}, if its sink can"
            )
            yield _wrong(what, seq=batch.seq)


def torn(unfinished: Iterable[LoggedCommit], stream: str) -> Iterator[Difference]:
    """Name the commits that a crash left without a ledger row, and what heals them."""
    for commit in unfinished:
        what = (
            f"version {commit.version} is committed, is not in the ledger, and no run holds the "
            f"stream; oncelake run {stream} heals it"
        )
        yield _wrong(what, seq=commit.seq)


def miscounts(batch: Batch, recount: Recount) -> Iterator[Difference]:
    """Compare the counts of a batch that is covered as a whole with those of its records."""
    counts, ranges = batch.counts, [part for part in batch.ranges if part.span]
    for part in ranges:
        records = recount.records[part.at]
        pairs = (("records", records, part.records), ("gaps", part.span - records, part.gaps))
        for name, expected, found in pairs:
            if expected != found:
                yield _miscount(batch, f"{name} in {part}", expected, found)
    # What a replay leaves out lies within its ranges; what an ingest does, before them.
    before = counts.get("overlap", 0) if batch.kind == "ingest" else 0
    span, overlap = sum(part.span for part in ranges), before
    # Ranges are what was new; offsets, read and gaps count what was read again as well.
    again, read = counts.get("offsets", 0) - span, recount.records.total()
    # A redrive reads no offsets, so that nothing can be missing between them.
    in_ranges = 0 if batch.kind == "redrive" else read
    expected_counts = {
        "offsets": span + again * bool(overlap),
        "read": read + overlap,
        "gaps": span - in_ranges + (again - overlap) * bool(overlap),
        **{name: recount.counts[name] for name in _RECOUNTED},
    }
    if batch.kind != "ingest":
        expected_counts["overlap"] = recount.counts["overlap"]
    if not recount.doubtful:
        expected_counts |= recount.extra
    for name, expected in expected_counts.items():
        least = expected - (recount.doubtful_left if name == "exploded" else 0)
        if not least <= counts.get(name, 0) <= expected:
            yield _miscount(batch, name, expected, counts.get(name, 0))
    if recount.undeclared > (found := counts.get("extra_fields", 0)):
        yield _miscount(batch, "extra_fields, at least", recount.undeclared, found)
    yield from _miscounted_winners(batch, recount)


def _broken_txns(ours: Sequence[LoggedCommit]) -> Iterator[Difference]:
    for commit in ours:
        if commit.txn is None or commit.metadata is None:
            missing = "txn" if commit.txn is None else "metadata"
            what = f"version {commit.version} is a commit of ours without its {missing}"
            yield _wrong(what, seq=commit.seq)
        elif commit.txn != commit.metadata["seq"]:
            what = f"version {commit.version} records another txn than its metadata's seq"
            expected, txn = str(commit.metadata["seq"]), str(commit.txn)
            yield _wrong(what, seq=commit.seq, expected=expected, found=txn)
    for earlier, later in pairwise([commit for commit in ours if commit.txn is not None]):
        if (later.txn or 0) <= (earlier.txn or 0):
            what = f"the txn of version {later.version} does not grow"
            yield _wrong(what, expected=f"above {earlier.txn}", found=str(later.txn))


def _unlike(
    batch: Batch, commit: LoggedCommit, reasons: Mapping[int, str | None]
) -> Iterator[Difference]:
    told = commit.fields_of_batch(reasons)
    # A row whose identity was not known has none of these either.
    lacking = () if batch.identity else _WITH_IDENTITY
    identity = {name: batch.identity.get(name) for name in told["identity"]}
    is_there = replace(batch, identity=identity)
    pairs = {name: (told[name], getattr(is_there, name)) for name in told.keys() - lacking}
    pairs["ranges"] = _written(commit.ranges), _written(batch.ranges)
    counts = Counter((commit.metadata or {}).get("counts", {}))
    # What an erase removes is counted by its commit.
    names = () if told["kind"] == "erase" else batch.counts
    for name in {*counts, *names}:
        pairs[name] = (counts[name], batch.counts.get(name, 0))
    for name, (expected, found) in sorted(pairs.items()):
        if expected != found:
            what = f"its {name} is not its commit's"
            yield _wrong(what, seq=batch.seq, expected=str(expected), found=str(found))


def _written(ranges: Iterable[OffsetRange]) -> str:
    return ", ".join(
        f"{part} with {counted(part.records, 'record')}, {counted(part.gaps, 'gap')}"
        for part in sorted(ranges)
    )


def _broken(seq: int, part: OffsetRange, what: str, expected: str | None = None) -> Difference:
    return _wrong(f"its range {part} {what}", *part.at, part.start, seq=seq, expected=expected)


def _miscounted_winners(batch: Batch, recount: Recount) -> Iterator[Difference]:
    total = 0
    for name in ("inserted", "updated", "deleted", "deleted_absent", "stale", "unchanged"):
        found, least = batch.counts.get(name, 0), recount.dispositions[name]
        total += found
        if not least <= found <= least + recount.doubtful:
            yield _miscount(batch, name, least, found)
    winners = recount.dispositions.total() + recount.doubtful
    if not winners - recount.doubtful_left <= total <= winners:
        yield _miscount(batch, "winners accounted for", winners, total)


def _miscount(batch: Batch, name: str, expected: int, found: int) -> Difference:
    what = f"{name}, counted again"
    return Difference("dispositions", what, seq=batch.seq, expected=str(expected), found=str(found))
