"""``oncelake audit``: did a pipeline of another tool lose anything?

    open the table → plan how the topic is read → the rows → the topic, up to its end as of now
         → decode with the engine's own decoders → one comparison in DuckDB → the report

Nothing is written but scratch in the state folder: no lock, no offset, nothing beside the table.
The engine's decoders are no second opinion on its own tables, which ``verify`` is for; they are one
on everybody else's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import pyarrow as pa
from confluent_kafka import Message

from oncelake.ingestion.errors import (
    DONE,
    REFUSED,
    WRONG,
    DependencyError,
    InvalidSpecError,
    counted,
)
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.offsets import Offsets, Range
from oncelake.ingestion.operations.audit.compare import AuditSample, Comparison
from oncelake.ingestion.operations.audit.declare import AuditRequest, Reading, plan_reading
from oncelake.ingestion.operations.audit.foreign_table import open_table
from oncelake.ingestion.operations.init.decode_sample import judge_here, table_of
from oncelake.ingestion.operations.init.sample import SampledRecord, partitions_of
from oncelake.ingestion.pipeline.plan import compile_plan
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.processes import scratch_of_this_process, sweep_scratch
from oncelake.ingestion.verify.columns.events import database_in

Tell = Callable[[str, int, int], None]

_RECORDS_AT_ONCE: Final = 50_000
# What is counted as unproven.
_UNPROVEN: Final = ("waiting", "gone", "split", "contested", "bad", "partial")
_FAULTS: Final = ("missing", "doubled", "different", "extra")


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditReport:
    """The result of an audit.

    Attributes:
        columns: The columns of the table that were compared.
        ranges: The offsets that were read.
        proven: Rows of the table that are as the records say.
        unproven: Records and rows of which that cannot be told; ``limits`` says why.
        unreadable: The records of these that cannot be decoded.
        is_judged: Whether any row shows how far the table was filled, or somebody said it.
        starting: Behind the newest record that rows show, by partition: from there on a stream that
            adopts the table would read. Empty where something is wrong, or rows do not tell.
        samples: Some of the faults, and of what is unproven, by kind.
        obstacles: Why the table cannot be judged, and what would help; then it is not called sound.
    """

    topic: str
    table: str
    mode: str
    keys: Sequence[str]
    columns: Sequence[str]
    ranges: Sequence[Range]
    records: int
    rows: int
    proven: int
    missing: int
    doubled: int
    different: int
    extra: int
    unproven: int
    unreadable: int
    is_judged: bool
    starting: Mapping[int, int]
    samples: Mapping[str, Sequence[AuditSample]]
    limits: Sequence[str]
    obstacles: Sequence[str]

    @property
    def faults(self) -> int:
        """How many rows are missing, doubled, different or extra."""
        return self.missing + self.doubled + self.different + self.extra

    @property
    def exit_code(self) -> int:
        """0 where all is there, 1 where not, 3 where that cannot be judged."""
        if self.faults and self.is_judged:
            return WRONG
        return REFUSED if self.obstacles else DONE


def audit(
    request: AuditRequest,
    settings: Settings,
    *,
    limit: int = 20,
    tell: Tell = lambda step, done, total: None,
) -> AuditReport:
    """Compare a topic with a table that another tool fills; changes neither.

    Args:
        limit: How many samples of each kind to return.
        tell: Called with the step, and how much of how much of it is done.

    Raises:
        InvalidSpecError: an option is wrong, or topic or table is not there.
        RefusedError: the table cannot be read.
        DependencyError: Kafka, the registry, or what keeps the table does not answer.
    """
    table = open_table(request.table, settings)
    reading = plan_reading(request, table, settings)
    topic = str(reading.spec.topic)
    scratch = scratch_of_this_process(settings.state)
    sweep_scratch(settings.state)
    with database_in(scratch) as database:
        comparison = Comparison(database, reading, table, request)
        tell("reading the table", 0, 1)
        rows = comparison.load_rows()
        tell("reading the table", 1, 1)
        # Its end is asked for after the rows, so that none is of a record behind it.
        kafka = Kafka(settings)
        ranges, first = _ranges(kafka, topic, request)
        records = _read_topic(kafka, comparison, reading, ranges, settings, tell)
        limits, is_thinned = _policy(kafka, topic)
        tell("comparing", 0, 1)
        counts, samples = comparison.judge(first, may_lack_some=is_thinned, limit=limit)
        reached = comparison.reached()
        tell("comparing", 1, 1)
        limits += [*comparison.limits, *comparison.rounded(), *comparison.unreadable()]
    if not request.place and 0 < counts["extra"] <= counts["bad"]:
        # Each may be the row of a record that cannot be read.
        counts["unreadable"] += counts.pop("extra")
        samples["unreadable"] += samples.pop("extra")
    # A value says where its row comes from only where no row has another like it.
    can_begin = reading.spec.mode == "upsert" or bool(request.place)
    report = AuditReport(
        topic=topic,
        table=table.where,
        mode=reading.spec.mode,
        keys=reading.keys,
        columns=comparison.columns,
        ranges=ranges,
        records=records,
        rows=rows,
        **{name: counts[name] for name in ("proven", "missing", "doubled", "different")},
        extra=counts["extra"] + counts["deleted"],
        unproven=sum(counts[name] for name in _UNPROVEN),
        unreadable=counts["bad"],
        is_judged=bool(counts["reached"] or request.until),
        starting={e.partition: max(e.start, reached.get(e.partition, 0)) for e in ranges},
        samples=_by_kind(samples),
        limits=[*limits, *_limits(counts)],
        obstacles=list(_obstacles(counts, rows, table.where, request.ignore_unreadable)),
    )
    is_sound = report.is_judged and not report.faults and not report.obstacles
    return report if is_sound and can_begin else replace(report, starting={})


def _read_topic(
    kafka: Kafka,
    comparison: Comparison,
    reading: Reading,
    ranges: Sequence[Range],
    settings: Settings,
    tell: Tell,
) -> int:
    """Give the records of ranges to a comparison; return how many there are, at least one."""
    records, total = 0, sum(map(len, ranges))
    left = kafka.messages_in(ranges)
    while messages := list(islice(left, _RECORDS_AT_ONCE)):
        comparison.add(*_decoded(messages, reading, settings), partitions=len(ranges))
        records += len(messages)
        tell("reading the topic", records, total)
    if not records:
        raise InvalidSpecError(
            f"topic {reading.spec.topic!r} at {kafka.address} holds no record to compare with. "
            "Next: run the same command once there are records, or with an earlier --since"
        )
    return records


def _by_kind(samples: Mapping[str, list[AuditSample]]) -> dict[str, list[AuditSample]]:
    kinds = {name: samples.get(name, []) for name in _FAULTS}
    kinds["extra"] = [*samples.get("deleted", []), *kinds["extra"]]
    others = (samples.get(name, []) for name in ("gone", "unreadable", "partial"))
    return {**kinds, "unproven": [each for some in others for each in some]}


def _limits(counts: Counter[str]) -> Iterator[str]:
    if waiting := counts["waiting"]:
        yield (
            f"{counted(waiting, 'record is', 'records are')} newer than all that the table shows "
            "of their partition: on the way, or lost since"
        )
    if gone := counts["gone"]:
        yield (
            f"{counted(gone, 'row')} may be of records that Kafka has deleted, or that were not to "
            "be read"
        )
    if contested := counts["contested"]:
        yield (
            f"{counted(contested, 'key was', 'keys were')} taken over by a row while another one "
            "had it, and not compared"
        )
    if partial := counts["partial"]:
        yield f"{counted(partial, 'row is', 'rows are')} of records that leave columns out"


def _obstacles(counts: Counter[str], rows: int, where: str, ignored: int) -> Iterator[str]:
    """Say why a table cannot be called sound, and what would help."""
    if not rows and (counts["missing"] or counts["waiting"]):
        yield f"{where} has no row: nothing was loaded, or all of it was lost"
    elif rows and not counts["reached"]:
        yield (
            "no row of the table is of any record of the topic. Next: make sure that --topic, "
            "--table and --keys belong together"
        )
    if split := counts["split"]:
        yield (
            f"{counted(split, 'key has', 'keys have')} records in several partitions, and nothing "
            "says which is the newest. Next: name a column that does with --order"
        )
    if (bad := counts["bad"]) > ignored:
        yield (
            f"{counted(bad, 'record')} cannot be read so. Next: say with --schema, --format and "
            "--key-format how they are encoded; or, if nobody can read them, accept them with "
            f"--ignore-unreadable {bad}"
        )


def _ranges(
    kafka: Kafka, topic: str, request: AuditRequest
) -> tuple[tuple[Range, ...], dict[int, int]]:
    """Return the offsets to read, and where partitions begin of which there was more."""
    partitions = partitions_of(topic, kafka)
    ends = kafka.stable_end(partitions)
    starts = kafka.earliest(partitions)
    if request.since:
        since = kafka.first_since(partitions, request.since)
        starts = Offsets({at: min(max(start, since[at]), ends[at]) for at, start in starts.items()})
    first = {at.partition: start for at, start in starts.items() if start}
    return starts.ranges_to(ends), first


def _policy(kafka: Kafka, topic: str) -> tuple[list[str], bool]:
    """Tell whether compaction may have removed records, where Kafka says it."""
    try:
        policy = kafka.topic_configs([topic])[topic]["cleanup.policy"]
    except DependencyError:
        return ["whether the topic is compacted may not be asked (DESCRIBE_CONFIGS)"], True
    return [], "compact" in policy


def _decoded(
    messages: Sequence[Message], reading: Reading, settings: Settings
) -> tuple[pa.Table, str]:
    """Return decoded records, and the query that gives each its disposition."""
    spec = reading.spec
    formats = (spec.format.options, spec.key_format.options)
    has_headers = any(each.reads_headers or each.uses_registry for each in formats)
    has_headers |= bool(spec.from_headers)
    read = [SampledRecord.of(each, with_headers=has_headers) for each in messages]
    records = table_of(str(spec.topic), read)
    validated = judge_here(records, compile_plan(spec), settings)
    return validated.here(), validated.sql
