"""Plays a history to its end, and compares the tables with the database.

The database is the oracle. A difference is explained by records in quarantine that are about its
key, and that no later record has outdone, or by a run that was refused for what the history has.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from oncelake.ingestion.declaration.files.loader import load_streams, read_outlines
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.delta.features import has_feed
from oncelake.ingestion.delta.files import is_delta, read_delta
from oncelake.ingestion.errors import (
    IngestionError,
    KeyInTwoPartitionsError,
    RefusedError,
    SourceTruncatedError,
)
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.operations.discover import discover
from oncelake.ingestion.operations.proof.apply_transformation import spark_transformation
from oncelake.ingestion.operations.run import Run
from oncelake.ingestion.recovery.topics import as_of_its_table
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.verify import verify
from tests.database.connector import Connector, Sent
from tests.database.database import Change, Database, Row
from tests.database.declared import Image, Table
from tests.database.history import Alter, History, ReadAll, Restart, Snapshot, Truncate, described
from tests.database.shrink import smallest
from tests.database.statements import apply_here, evaluated_here
from tests.support import arrow_source
from tests.support.arrow_source import ArrowSession, without_spark
from tests.support.small_registry import SmallRegistry, small_registry
from tests.support.topics_in_memory import Cluster
from tests.support.world import changed, settings_in
from tests.trials.world import spark_of

# The worst first.
KINDS: Final = (
    *("wrong, and called proven", "wrong", "not balanced", "failed", "refused"),
    *("right, and called wrong", "not to be in quarantine"),
)
_NUMBERS: Final = count(1)


class Problem(NamedTuple):
    """What is not as it should be, of one table."""

    kind: str
    table: str
    what: str

    def __str__(self) -> str:
        """Say it in a line."""
        return f"{self.kind} ({self.table}): {self.what}"


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Where histories are played.

    Attributes:
        session: Spark's, or what stands for it.
        settings: Of every lake, but for its places.
        registry: Of schemas.
    """

    session: Any
    settings: Settings
    folder: Path
    registry: SmallRegistry

    @classmethod
    @contextmanager
    def made(cls, **settings: Any) -> Iterator[Ground]:
        """Make one; without Spark, unless its engine is to merge.

        It is in memory, where the machine has a folder there.
        """
        shared = Path("/dev/shm")
        parent = shared if shared.is_dir() else None
        with tempfile.TemporaryDirectory(prefix="histories-", dir=parent) as folder:
            base = settings_in(Path(folder), "localhost:1", **settings)
            with (
                small_registry() as registry,
                without_spark() as session,
                evaluated_here(),
                _spark(base) if base.merge_engine == "spark" else nullcontext(session) as chosen,
            ):
                base = base.model_copy(update={"schema_registry": registry.address})
                yield cls(session=chosen, settings=base, folder=Path(folder), registry=registry)


@contextmanager
def _spark(settings: Settings) -> Iterator[SparkSession]:
    """Start Spark, and let it have the records of topics in memory as frames of its own."""
    records_in = arrow_source.records_in
    with spark_of(settings) as spark:

        def frames_of(*arguments: Any) -> Any:
            return spark.createDataFrame(records_in(*arguments))

        with patch.object(arrow_source, "records_in", frames_of):
            yield spark


class HistoryError(AssertionError):
    """A history ended otherwise than the database."""


def hold(history: History, ground: Ground, *, is_told_short: bool = True) -> None:
    """Play a history to its end.

    Args:
        history: What is done.
        ground: Where.
        is_told_short: Whether to look for the fewest steps that end so.

    Raises:
        HistoryError: something is wrong there; has the steps, and what is wrong.
    """
    if not (problems := judge(history, ground)):
        return
    kind, kept = problems[0].kind, {history: problems}

    def ends_so(smaller: History) -> bool:
        kept[smaller] = judge(smaller, ground)
        return bool(kept[smaller]) and kept[smaller][0].kind == kind

    if is_told_short:
        history = smallest(history, ends_so)
    raise HistoryError("\n".join([described(history), *map(str, kept[history])]))


@dataclass
class Play:
    """A history as it is played: the database, the topic, and the streams that read it."""

    history: History
    ground: Ground
    folder: Path
    database: Database = field(default_factory=Database)
    problems: list[Problem] = field(default_factory=list)
    refused: dict[str, RefusedError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the topic, and write the declaration."""
        cluster = Cluster()
        # Tables of a server are beside those of other histories.
        self.topic = f"t{next(_NUMBERS)}"
        cluster.create(self.topic, self.history.setup.source.partitions, {})
        places = {"lake": "lake", "state": "state", "streams": "streams"}
        update = {name: self.folder / folder for name, folder in places.items()}
        self.settings = changed(self.ground.settings, kafka=cluster.address, **update)
        setup, registry = self.history.setup, self.ground.registry
        self.connector = Connector(setup, self.database, cluster, self.topic, registry)
        self.settings.streams.mkdir(parents=True)
        file = self.settings.streams / f"{self.topic}.yaml"
        file.write_text(json.dumps(self.history.setup.file(self.topic)))

    def play(self) -> None:
        """Do all that happens, and let the streams read it."""
        for step in self.history.steps:
            if isinstance(step, ReadAll):
                self.run()
            elif isinstance(step, Alter):
                self.database.alter(step.what)
            elif isinstance(step, Restart):
                self.connector.restart(step.count)
            elif isinstance(step, Truncate):
                self.connector.capture(self.database.truncate())
            elif isinstance(step, Snapshot):
                self.connector.capture(self.database.snapshot())
            else:
                self.connector.capture(self.database.commit(step.statements))
        self.run()

    def stream(self, table: Table) -> StreamSpec:
        """Return the stream of a table."""
        is_routed = self.history.setup.declared.is_routed
        return self.specs[f"{self.topic}_{table.name}" if is_routed else self.topic]

    def paths(self, table: Table) -> StreamPaths:
        """Return the places of a table."""
        spec = self.stream(table)
        return StreamPaths.of(spec.name, self.settings, spec.sink)

    @cached_property
    def specs(self) -> dict[str, StreamSpec]:
        """The streams, by name."""
        folder = self.settings.streams
        if self.history.setup.declared.schema != "written":
            for outline in read_outlines(folder / f"{self.topic}.yaml"):
                discover(outline, self.settings).write()
        return {each.name: each.require_spec() for each in load_streams(folder)}

    def run(self) -> None:
        """Let the streams read what is there."""
        if not self.connector.sent and self.history.setup.declared.schema != "written":
            return  # Nothing tells the columns yet.
        for table in self.history.setup.declared.tables:
            if table.name in self.refused:
                continue
            try:
                report = Run(
                    spec=self.stream(table),
                    settings=self.settings,
                    spark=lambda _: self.ground.session,
                    run_id="r",
                ).execute()
            except RefusedError as error:
                self.refused[table.name] = error
                if not self._may_refuse(error):
                    self.problems.append(Problem("refused", table.name, str(error)))
            except IngestionError as error:
                self.problems.append(Problem("failed", table.name, repr(error)))
                self.refused[table.name] = RefusedError("t", "failed", remedy="none")
            else:
                if not report.is_balanced:
                    self.problems.append(Problem("not balanced", table.name, str(report.batches)))

    def _may_refuse(self, error: RefusedError) -> bool:
        setup = self.history.setup
        if isinstance(error, SourceTruncatedError):
            is_one = setup.source.partitions == 1
            on_truncate = setup.declared.on_truncate
            may = on_truncate == "stop" or (on_truncate == "apply" and not is_one)
            return may and any(change.op == "t" for change in self.database.log)
        is_shared = setup.source.kafka_key == "shard" and setup.source.partitions > 1
        is_unordered = not setup.declared.is_ordered
        return isinstance(error, KeyInTwoPartitionsError) and is_shared and is_unordered


def judge(history: History, ground: Ground) -> list[Problem]:
    """Play a history, and return what is wrong in the end, the worst first."""
    folder = Path(tempfile.mkdtemp(dir=ground.folder))
    try:
        return sorted(_problems(history, ground, folder), key=lambda each: KINDS.index(each.kind))
    except Exception as error:  # noqa: BLE001 (the shortest history that does so tells why)
        return [Problem("failed", "t", "".join(traceback.format_exception(error)[-4:]))]
    finally:
        shutil.rmtree(folder)


def _problems(history: History, ground: Ground, folder: Path) -> list[Problem]:
    play = Play(history, ground, folder)
    play.play()
    tables = history.setup.declared.tables
    return [*play.problems, *(each for table in tables for each in judged(play, table))]


def judged(play: Play, table: Table) -> Iterator[Problem]:
    """Yield what is wrong with a table in the end."""
    if not play.connector.sent:
        return
    if not play.paths(table).table.log().exists:
        if table.name not in play.refused:
            yield Problem("failed", table.name, "there is no table")
        return
    apply = apply_here if isinstance(play.ground.session, ArrowSession) else spark_transformation
    verdict = verify(play.stream(table), play.settings, apply_transformation=apply)
    waiting: set[int] = set()
    for at in sorted(
        waiting_records(play, table), key=lambda at: play.connector.sent[at].change.number
    ):
        # A key of which one record waits may keep others waiting.
        keys = play.connector.sent[at].change.keys
        is_behind = bool(keys & waiting)
        waiting |= keys
        if not is_behind and not _may_wait(play, table, play.connector.sent[at]):
            what = f"{play.connector.sent[at].value} is in quarantine"
            yield Problem("not to be in quarantine", table.name, what)
    wrong = [] if table.name in play.refused else [*_differences(play, table)]
    if wrong:
        kind = "wrong, and called proven" if verdict.holds else "wrong"
        yield Problem(kind, table.name, "; ".join(wrong))
    elif not verdict.holds:
        why = "; ".join((verdict.headline, *map(str, verdict.differences)))
        yield Problem("right, and called wrong", table.name, why)


def _told_otherwise(play: Play, table: Table) -> Iterator[str]:
    """Yield the rows to which the changes come that a table's feed tells, if it has no such."""
    paths = play.paths(table)
    if not (is_delta(paths.data) and has_feed(read_delta(paths.data))):
        return
    names = [*play.history.setup.source.keys, *("_partition", "_offset", "_seq")]
    told = Counter[tuple[Any, ...]]()
    for change in pa.table(DeltaTable(paths.data.path).load_cdf(0)).to_pylist():
        comes = change["_change_type"] in ("insert", "update_postimage")
        told[tuple(change[name] for name in names)] += 1 if comes else -1
    rows = (row for part in paths.table.scan(names) for row in part.to_pylist())
    told.subtract(tuple(row[name] for name in names) for row in rows)
    if differing := {row: count for row, count in told.items() if count}:
        yield f"the feed comes to other rows: {differing}"


def _differences(play: Play, table: Table) -> Iterator[str]:
    """Yield how a table differs from the database, where nothing explains it."""
    yield from _told_otherwise(play, table)
    if table.mode == "append":
        yield from _of_events(play, table)
        return
    setup = play.history.setup
    rows = play.database.by_key.values()
    due = [setup.expected(row) for row in rows if setup.declared.has(table, row)]
    found = rows_of(play, table)
    keys = setup.source.keys
    counts = Counter(tuple(row[name] for name in keys) for row in found)
    yield from (f"{key} has {count} rows" for key, count in counts.items() if count > 1)
    by_key = [{tuple(row[name] for name in keys): row for row in side} for side in (due, found)]
    expected, present = by_key
    if differing := {
        key for key in expected.keys() | present.keys() if expected.get(key) != present.get(key)
    }:
        explained = {tuple(setup.source.key_of(key).values()) for key in _explained(play, table)}
        stale = [*_stale(play, table)]
        for key in sorted(differing - explained):
            if key in expected or present[key] not in stale:
                yield f"key {key}: expected {expected.get(key)}, found {present.get(key)}"


def _of_events(play: Play, table: Table) -> Iterator[str]:
    """Yield how a table that has every event differs from what was sent."""
    setup, waiting = play.history.setup, waiting_records(play, table)
    rows: list[Image] = []
    for at, sent in play.connector.sent.items():
        row = _row_of(sent)
        if row is not None and at not in waiting and setup.declared.has(table, row):
            image = setup.expected(row)
            left_out = sent.change.unsent if _leaves_out(play) else ()
            rows.append({**image, **dict.fromkeys(left_out)})
    due, found = (Counter(map(_text, side)) for side in (rows, rows_of(play, table)))
    if due != found:
        yield f"expected also {[*(due - found)]}, found also {[*(found - due)]}"


def _leaves_out(play: Play) -> bool:
    source = play.history.setup.source
    return source.writes == "debezium" and source.identity != "full"


def _row_of(sent: Sent) -> Row | None:
    """Return the row that a record is to a table of events; a mark of a delete is one, too."""
    if sent.value is None:
        return None
    change, op = sent.change, sent.value.get("payload", sent.value).get("op")
    return None if op in ("d", "t") else change.after or change.before


def _text(row: Image) -> str:
    return json.dumps(row, sort_keys=True)


def rows_of(play: Play, table: Table) -> list[Image]:
    """Read the rows that a table has now, of the columns that the database knows."""
    marks = {"soft": ["_deleted"], "scd2": ["current"]}.get(table.mode, [])
    columns, paths = play.history.setup.columns, play.paths(table)
    known = as_of_its_table(play.stream(table), paths).types
    names = [*(name for name in columns if name in known), *marks]
    rows = [row for part in paths.table.scan(names) for row in part.to_pylist()]
    # What has no column, or no field within one, is found nowhere.
    rows = [{**dict.fromkeys(columns), **row} for row in rows]
    for row in rows:
        if (addr := row.get("addr")) is not None:
            # PostgreSQL has the text of its JSON.
            fields = json.loads(addr) if isinstance(addr, str) else addr
            row["addr"] = {"city": None, "zip": None, **fields}
    if table.mode == "soft":
        rows = [row for row in rows if not row.pop("_deleted")]
    if table.mode == "scd2":
        rows = [row for row in rows if row.pop("current")]
    return rows


def waiting_records(play: Play, table: Table) -> set[tuple[int, int]]:
    """Return partition and offset of the records that wait."""
    place = play.paths(table).quarantine
    if not is_delta(place):
        return set()
    names = ["_partition", "_offset", "redriven_seq"]
    rows = DeltaTable(str(place)).to_pyarrow_table(columns=names).to_pylist()
    return {(r["_partition"], r["_offset"]) for r in rows if r["redriven_seq"] is None}


def _may_wait(play: Play, table: Table, sent: Sent) -> bool:
    """Tell whether the docs have a reason why a record is in quarantine."""
    setup, change = play.history.setup, sent.change
    if sent.value is None:
        return sent.is_repeated or table.mode == "append"
    if change.op == "t" or (change.unsent and _leaves_out(play)):
        return True
    routes = [setup.declared.table_of(row) for row in (change.before, change.after) if row]
    is_delete = _row_of(sent) is None
    if None in routes or (is_delete and table.mode == "append"):
        return True
    if any(_is_untold(play, table, each) for each in _leavings(play, change)):
        return True
    if change.is_move and _is_late(play, change):
        return True
    # What the source has not sent of the old row may be needed.
    may_lack = setup.source.writes == "debezium" and setup.source.identity != "full"
    return may_lack and (change.is_move or (setup.declared.is_routed and change.op != "c"))


def _leavings(play: Play, change: Change) -> Iterator[Change]:
    """Yield a change that leaves its key to another row, and those like it before.

    A record of another table waits for none, so that only a later one may wait here. Of several
    partitions, the delete by which the other row left may not have been read yet.
    """
    is_spread = play.history.setup.source.partitions > 1
    taken = {c.after.key for c in play.connector.changes if c.is_move and c.after and c.holder}
    earlier = play.connector.changes if play.history.setup.declared.is_routed else ()
    for each in (change, *(each for each in earlier if each.number < change.number)):
        if each.leaves is None or each.leaves != change.leaves:
            continue
        if not each.is_vacated or (is_spread and each.leaves in taken):
            yield each


def _is_late(play: Play, change: Change) -> bool:
    """Tell a move upon a row whose delete, of another partition, may have been read before."""
    later = (each for each in play.connector.changes if each.number > change.number)
    is_spread = play.history.setup.source.partitions > 1
    return is_spread and any(change.after and each.leaves == change.after.key for each in later)


def _is_untold(play: Play, table: Table, change: Change) -> bool:
    """Tell whether nobody can know by the row before that it is this one which leaves a key.

    A table holds the newest row of a key: that one may be meant where it has all values that are
    told, unless it is another row which is alike.
    """
    row, source = change.before, play.history.setup.source
    assert row is not None, "it leaves a key"
    if source.identity != "full":
        return True
    newest = _newest(play, change)
    if newest is None or newest.after is None:
        return False
    spec = play.stream(table)
    known = as_of_its_table(spec, play.paths(table)).types.keys() - {*source.keys}
    told, there, pushed = (
        {n: v for n, v in source.image(each, change.altered).items() if n in known}
        for each in (row, newest.after, newest.holder or newest.after)
    )
    if newest.after.identity == row.identity:
        return newest.holder is None or pushed != there
    if newest.op == "u" and not newest.is_move:
        # The other row's update has taken the place of this one.
        return True
    # What ``where`` leaves out tells nothing that ``select`` computes.
    untold = {*spec.select} if spec.leaves_by_where else set()
    tells = (name for name, value in told.items() if value and name not in untold)
    return told != there and all(there[name] == told[name] for name in tells)


def _newest(play: Play, change: Change) -> Change | None:
    """Return the newest change before this one that has given the key a row."""
    earlier = (each for each in play.connector.changes if each.number < change.number)
    key = change.leaves
    return next((c for c in reversed([*earlier]) if c.after and c.after.key == key), None)


def _explained(play: Play, table: Table) -> set[int]:
    """Return the keys about which a record waits that is newer than all that was applied.

    A truncate must wait in the table's own quarantine; any other record may be of a sibling.
    """
    setup, changes = play.history.setup, play.connector.changes
    last = _decided(changes, _leaves_out(play))
    # While it waits which of two rows has left a key, a delete of it may be the other one's.
    last_row = _decided(changes, _leaves_out(play), is_row=True)
    explained: set[int] = set()
    for each in setup.declared.tables:
        for at in waiting_records(play, each):
            sent = play.connector.sent[at]
            may_wait = each.name == table.name and setup.declared.on_truncate == "quarantine"
            if sent.is_repeated or (sent.change.op == "t" and not may_wait):
                continue
            is_contested = sent.change.is_move or not sent.change.is_vacated
            number, decided = sent.change.number, last_row if is_contested else last
            explained |= {key for key in sent.change.keys if number >= decided.get(key, 0)}
            explained |= _inherited(play, sent.change)
            if sent.change.is_move:
                explained |= _left_behind(play, sent.change)
    return explained


def _left_behind(play: Play, waits: Change) -> set[int]:
    """Return the keys that a row has left since, one of whose moves waits, or has had all along.

    The table does not have it there, so that its delete takes the row which has the key.
    """
    assert waits.after is not None, "it has another key"
    row = waits.after.identity
    later = [each for each in play.connector.changes if each.number > waits.number]
    own = (change for change in later if change.before and change.before.identity == row)
    keys = {change.leaves for change in own if change.leaves is not None}
    is_told = any(change.after is not None and change.after.identity == row for change in later)
    return keys if is_told else keys | {waits.after.key}


def _inherited(play: Play, waits: Change) -> set[int]:
    """Return the keys to which a row, of which a change waits, took columns that were left out."""
    keys, inherited = {*waits.keys}, set[int]()
    for change in play.connector.changes if _leaves_out(play) else ():
        if change.number <= waits.number or change.after is None:
            continue
        if change.unsent and change.is_move and change.leaves in keys:
            inherited.add(change.after.key)
            keys.add(change.after.key)
        elif not change.unsent:
            keys.discard(change.after.key)
            inherited.discard(change.after.key)
    return inherited


def _stale(play: Play, table: Table) -> Iterator[Image]:
    """Yield the rows that a truncate would have deleted that waits."""
    if play.history.setup.declared.on_truncate == "quarantine":
        for at in waiting_records(play, table):
            yield from map(play.history.setup.expected, play.connector.sent[at].change.alive)


def _decided(
    changes: Sequence[Any], leaves_out: bool, *, is_row: bool = False
) -> Mapping[int, int]:
    """Return the last change of each key that says all of its row, or that it has none.

    With ``is_row``, only those that say a row.
    """
    last: dict[int, int] = {}
    for change in changes:
        if change.after is not None and not (leaves_out and change.unsent):
            last[change.after.key] = change.number
        if change.leaves is not None and change.is_vacated and not is_row:
            last[change.leaves] = change.number
        last |= dict.fromkeys((row.key for row in change.alive), change.number)
    return last
