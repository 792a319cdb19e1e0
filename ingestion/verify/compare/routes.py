"""The equation across the streams of one file: of the records of a range, each is somewhere once.

    records = sum over the streams
                  (records - routed_elsewhere - unrouted - tombstones_shared - schema_unknown)
              + tombstones_shared + unrouted + schema_unknown

It holds between two places at which all of the streams have stood, under the routes of today. A
stream that has read later may know schemas that were unknown to others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from oncelake.ingestion.declaration.routes import Route
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.verify.compare.ledger import MOVING
from oncelake.ingestion.verify.read.snapshot import Batch, without_undone
from oncelake.ingestion.verify.verdict import Difference

_COUNTS: Final = ("routed_elsewhere", "unrouted", "tombstones_shared", "schema_unknown")
# The next offset of each partition.
_Place = frozenset[tuple[TopicPartition, int]]


def counts_across(
    route: Route, ledgers: Mapping[str, Sequence[Batch]]
) -> Mapping[str, Mapping[str, int]]:
    """Return what each stream counted of the records that all of them have read; empty of none.

    Args:
        route: That of any of the streams.
        ledgers: The batches of each, by seq.
    """
    points = {stream: _points(batches, _of_all(route)) for stream, batches in ledgers.items()}
    common = set.intersection(*({*each} for each in points.values()))
    if len(common) < 2:
        return {}
    first, *_, last = sorted(common, key=lambda place: sum(offset for _, offset in place))
    names = ("records", *_COUNTS)
    return {
        stream: {name: each[last][name] - each[first][name] for name in names}
        for stream, each in points.items()
    }


def terms_of(counts: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return both sides of the equation: ``records``, and what they are in all."""
    one = next(iter(counts.values()))
    own = {
        stream: each["records"] - sum(each[name] for name in _COUNTS)
        for stream, each in counts.items()
    }
    most = {name: max(each[name] for each in counts.values()) for name in _COUNTS[1:]}
    terms = {"records": one["records"], **own, **most}
    least = min(each["schema_unknown"] for each in counts.values())
    left = terms["schema_unknown"] + 2 * one["records"] - sum(terms.values())
    return {**terms, "schema_unknown": max(least, min(left, terms["schema_unknown"]))}


def broken_equation(
    counts: Mapping[str, Mapping[str, int]], *, may_be_thinned: Callable[[], bool]
) -> Iterator[Difference]:
    """Name what the streams of one file do not agree about, or what is nowhere or in two places.

    Args:
        counts: As ``counts_across`` returns them.
        may_be_thinned: Tells whether a stream that reads later may find fewer records.
    """
    if not counts:
        return
    may_differ = _spread(each["schema_unknown"] for each in counts.values())
    for name in ("records", "unrouted"):
        found = {stream: each[name] for stream, each in counts.items()}
        if _spread(found.values()) > (may_differ if name == "unrouted" else 0):
            if name == "records" and may_be_thinned():
                return
            what = f"of the same offsets the streams of the file have other counts of {name}"
            yield Difference("ledger", what, found=_written(found))
            return
    records, *others = (terms := terms_of(counts)).values()
    if records != sum(others):
        what = "of the records that all streams of the file have read, some are nowhere or twice"
        yield Difference("ledger", what, expected=str(records), found=_written(terms))


def _spread(counts: Iterable[int]) -> int:
    known = {*counts}
    return max(known) - min(known)


def _points(batches: Sequence[Batch], of_all: Any) -> dict[_Place, Counter[str]]:
    """Return what a stream had counted each time that it stood somewhere, since today's routes."""
    points: dict[_Place, Counter[str]] = {}
    total, at = Counter[str](), dict[TopicPartition, int]()
    epoch = batches[-1].epoch if batches else 0
    for batch in without_undone(batches):
        if batch.kind not in MOVING or batch.epoch != epoch:
            continue
        starts = {part.at: part.start for part in batch.ranges}
        points.setdefault(_place({**starts, **at}), Counter(total))
        at |= {part.at: part.end for part in batch.ranges}
        if batch.kind == "ingest" and _of_all((batch.declaration or {}).get("route")) != of_all:
            points, total = {}, Counter()
            continue
        total["records"] += sum(part.records for part in batch.ranges)
        total.update({name: batch.counts.get(name, 0) for name in _COUNTS})
        points[_place(at)] = Counter(total)
    return points


def _place(at: Mapping[TopicPartition, int]) -> _Place:
    return frozenset((partition, offset) for partition, offset in at.items() if offset)


def _of_all(route: Route | Mapping[str, Any] | None) -> Any:
    """Return what the routes of all streams of a file have in common."""
    if route is None:
        return None
    parsed = route if isinstance(route, Route) else Route.model_validate(route)
    return parsed.model_copy(update={"stream": ""})


def _written(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
