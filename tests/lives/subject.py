"""One stream under test: what is done to it, and what its commands must say while it is healthy."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from confluent_kafka import Message
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from oncelake.ingestion.errors import DONE, REFUSED
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.lives.oracle import Deed, Ledger, Life, follow
from tests.lives.shell import Answer, type_and_kill, type_words
from tests.lives.step import Step
from tests.lives.streams import ADDED, COLUMNS, CURABLE, KEYS, Kind, Record
from tests.support.rows import rows_by_delta_rs
from tests.support.world import World
from tests.trials.judge import differences
from tests.trials.oracle import Place, Row

# What no command may say of a table that nobody has harmed.
_ALARM = re.compile(
    r"is damaged|it cannot be read|\b(is|are) gone\b|by an older copy|, which wrote|which were \d"
)
_OF_A_RUN = list(Failpoint)[: list(Failpoint).index(Failpoint.DECIDED)]
_PLACES = {
    "rebuild": [*_OF_A_RUN, Failpoint.SWAP_BEGUN, Failpoint.SWAP_CLEARED],
    "maintain": [Failpoint.RETIRED, Failpoint.COMPACTED, Failpoint.VACUUMED],
    "erase": [Failpoint.DECIDED, Failpoint.SIDES_CLEARED, Failpoint.VACUUMED],
    "rewind": [Failpoint.LEDGER_HEALED, Failpoint.DECIDED, Failpoint.SIDES_CLEARED],
    "archive restore": [Failpoint.SWAP_BEGUN, Failpoint.SWAP_CLEARED],
}
# Killed, these are done again; after any other the next run heals.
_DONE_AGAIN = {"erase", "rebuild", "replay", "maintain"}


class BrokenPromiseError(Exception):
    """A command has broken a promise; the arguments are the promise, and what shows it."""


@dataclass(kw_only=True)
class Chronicle:
    """What happened in a life.

    Attributes:
        tell: Is told of each step.
        steps: Those that were played.
        step: What is being done now, in words.
        counts: Operations, deaths, damages and remedies, by name.
        promise: The one that was broken; empty while none is.
        fewest: The fewest steps that are known to break it.
    """

    tell: Callable[[str], object] = len
    steps: list[Step] = field(default_factory=list)
    step: str = "the first run"
    counts: Counter[str] = field(default_factory=Counter)
    promise: str = ""
    fewest: list[Step] = field(default_factory=list)


@dataclass(kw_only=True)
class Subject:
    """A stream, what was sent to its topic, and what its tables must hold.

    Attributes:
        clock: The second of the newest record.
        lenient: Columns that the declaration is lenient about by now.
        added: Columns that the declaration has got by now.
        is_wide: Whether its numbers are wide by now.
        entries: What is in the archive, and whether a key was erased since.
        is_hurt: Whether something is gone that the next run makes again.
    """

    kind: Kind
    world: World
    folder: Path
    chronicle: Chronicle
    clock: int
    step: Step = field(default_factory=Step)
    dice: random.Random = field(default_factory=lambda: random.Random(0))
    records: dict[Place, Record] = field(default_factory=dict)
    lenient: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    is_wide: bool = False
    entries: dict[str, bool] = field(default_factory=dict)
    is_hurt: bool = False
    life: Life = field(init=False)

    def __post_init__(self) -> None:
        """Declare the stream, and let it read its first records."""
        self.life = Life(kind=self.kind)
        self._declare()
        self._send(20)
        if self.kind.is_followed:
            answer = self.type("discover", self.name)
            self.expect(answer.code == DONE, "discover finds the columns of a schema", answer)
        self._do("run")

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.kind.name

    def path(self, table: str) -> Path:
        """Return where one of its tables lies."""
        return Path(getattr(self.world.paths, table))

    def begin(self, step: Step) -> None:
        """Take what a step has drawn, and send its records."""
        self.step, self.dice = step, random.Random(step.seed)
        self.chronicle.steps.append(step)
        self.chronicle.step = f"{self.name} {step.operation}, {step.records} sent, {step.engine}"
        os.environ["ONCELAKE_MERGE_ENGINE"] = step.engine
        if step.operation == "evolve":
            self.added = tuple(ADDED)[: len(self.added) + 1]
        self.is_wide |= step.operation == "widen"
        if step.operation in {"evolve", "widen"}:
            self._declare()
        self._send(step.records)

    def send(self) -> None:
        """Leave what was sent unread."""

    def run(self) -> None:
        """Read what was sent."""
        self._do("run")

    def evolve(self) -> None:
        """Read what was sent, with one column more."""
        self._do("run")

    def widen(self) -> None:
        """Read what was sent, with wider numbers."""
        self._do("run")

    def lose(self) -> None:
        """Lose what a run makes again: the state folder, the ledger, or both."""
        what = self.dice.choice([("state",), ("ledger",), ("state", "ledger")])
        self.chronicle.step += f" {' and '.join(what)}"
        if "state" in what:
            shutil.rmtree(self.world.settings.state, ignore_errors=True)
        if "ledger" in what:
            shutil.rmtree(self.path("ledger"))
        self.is_hurt = True
        self._do("run")
        self.is_hurt = False

    def restore(self) -> None:
        """Bring tables of the past back from the archive, unless a key was erased since."""
        if self.entries:
            entry = self.dice.choice(list(self.entries))
            code = REFUSED if self.entries[entry] else DONE
            with self._archiving():
                self._do("archive restore", entry, "--yes", code=code, restores=True)

    def redrive(self) -> None:
        """Send in again what waits, perhaps after the declaration was mended."""
        if self.dice.random() < 0.6:
            self.lenient = CURABLE[: len(self.lenient) + 1]
            self._declare()
        waiting = self.life.waiting
        reason = self.dice.choice(["", *waiting])
        # Of what is followed nothing is mended, so that there is nothing to refuse.
        is_refused = self.kind.is_partial and not self.kind.is_followed
        code = REFUSED if is_refused and waiting else DONE
        self._do("redrive", *(["--reason", reason] if reason else []), reason=reason, code=code)

    def erase(self) -> None:
        """Erase a key, more often one with quarantined records."""
        of_bad = {self.records[at].readable_key or KEYS[0] for at in self.life.state.waiting}
        key = self.dice.choice(sorted(of_bad) if of_bad and self.dice.random() < 0.6 else KEYS)
        code = DONE if self.life.state.next == self.life.reach else REFUSED
        words = ("--key", json.dumps({"id": key}), "--reason", "a request", "--yes")
        self._do("erase", *words, key=key, code=code)
        if code == DONE:
            self.entries = dict.fromkeys(self.entries, True)

    def replay(self) -> None:
        """Read again what was read, or the end of it."""
        was_read = {n: at for n, at in enumerate(self.life.state.next) if at}
        begin = {str(n): self.dice.randint(0, at) for n, at in was_read.items()}
        choices = ["earliest", json.dumps({self.world.topic: begin})] if begin else ["earliest"]
        text = self.dice.choice(choices)
        self._do("replay", "--from", text, code=REFUSED if self.kind.is_partial else DONE)

    def rewind(self) -> None:
        """Go back to a savepoint that can be reached."""
        if points := self.savepoints():
            seq = self.dice.choice(points)
            words = ("--to", f"seq:{seq}", "--reason", "a test", "--yes")
            self._do("rewind", *words, code=REFUSED if seq < self.life.barrier else DONE)

    def maintain(self) -> None:
        """Maintain, perhaps on a later day, when declared days are over."""
        if "maintenance" not in self.kind.declared or self.dice.random() < 0.6:
            self._do("maintain")
            return
        # An unread record may be older than a delete that is about to be forgotten.
        self._do("run")
        before = self._deletes()
        with _days_later(2):
            self._do("maintain", may_crash=False)
        # Of an entry with the same newest commit, nothing tells whether it still has the bytes.
        self.entries.clear()
        self.life.bare |= self.life.state.waiting.keys()
        self.life.has_forgotten |= self._deletes() < before

    def rebuild(self) -> None:
        """Make the tables anew."""
        dead = set(self.life.dead)
        with self._archiving():
            self._do("rebuild", "--reason", "a test")
        self.expect(dead <= self.life.dead, "healthy: rebuild brings erased records back")

    def savepoints(self) -> list[int]:
        """Return the savepoints that history names as reachable, but for where it stands."""
        points = self.type("history", self.name, "--json").document.get("savepoints", ())
        return [at["seq"] for at in points if at["reachable"] and at["seq"] != self.life.seq]

    def type(self, *words: str, crash_at: str = "", **deed: Any) -> Answer:
        """Type a command here, and follow what it has committed."""
        answer = type_words(*words, crash_at=crash_at)
        self._follow(**deed)
        promise = f"{words[0]} ends with an unexpected error: {answer.gist}"
        self.expect(not answer.is_unexpected, promise, answer)
        return answer

    def expect(self, is_kept: bool, promise: str, *evidence: object) -> None:
        """Make sure that a promise is kept.

        Raises:
            BrokenPromiseError: it is not.
        """
        if not is_kept:
            raise BrokenPromiseError(promise, *evidence)

    def look(self) -> None:
        """Type what looks at a healthy stream, and compare it with the oracle."""
        differing = list(differences(self._rows(), self.life.rows(self.records)))
        promise = "healthy: the table does not hold the oracle's rows"
        self.expect(not differing, promise, *differing)
        waiting, records = self.life.waiting, self.records
        status = self._healthy("status")
        unread = sum(offset >= self.life.state.next[part] for part, offset in records)
        shown = (status["quarantined"], status["lag"])
        self._equal("status", shown, (waiting.total(), unread))
        groups = self._healthy("quarantine")["reasons"]
        self._equal("quarantine", {it["reason"]: it["records"] for it in groups}, dict(waiting))
        if waiting:
            reason = self.dice.choice(list(waiting))
            waits = self._healthy("quarantine", "--reason", reason)["waiting"]
            self._equal("quarantine --reason", waits, waiting[reason])
        self._equal("ledger", ledger_of(self._healthy("ledger"), self.life), self.life.ledger)
        for name in ("history", "doctor"):
            self._healthy(name)
        if self._columns() >= self._declared_columns():
            self._prove_twice()
        else:
            # Behind a rewind or a restore, a column comes with the next run.
            proof = self.type("verify", self.name, "--json")
            is_named = proof.code == REFUSED and "do not have the same columns" in proof.err
            self.expect(is_named, "verify does not name a column that is not there yet", proof)

    def _prove_twice(self) -> None:
        """Prove from where the last proof stopped, and whole; the memory stays the first one's."""
        on = self._healthy("verify")
        memory = Path(self.world.paths.proof)
        kept = memory.with_name(f"{memory.name}.kept")
        if memory.exists():
            shutil.copytree(memory, kept, dirs_exist_ok=True)
        whole = self._healthy("verify", "--whole")
        shutil.rmtree(memory, ignore_errors=True)
        if kept.exists():
            kept.rename(memory)
        names = (
            "holds",
            "seq",
            "epoch",
            "delta_version",
            "records",
            "batches",
            "rows",
            "quarantined",
        )
        found, due = ({name: proof[name] for name in names} for proof in (on, whole))
        self._equal("a proof that goes on", found, due)

    def _healthy(self, name: str, *options: str) -> dict[str, Any]:
        answer = self.type(name, self.name, *options, "--json")
        command = " ".join([name, *options[:1]])
        promise = f"healthy: {command} exits {answer.code}: {answer.gist}"
        self.expect(not answer.code, promise, answer)
        self._refuse_alarm(f"healthy: {command}", answer)
        return answer.document

    def _refuse_alarm(self, who: str, answer: Answer) -> None:
        alarm = _ALARM.search(answer.err + answer.out)
        self.expect(alarm is None or self.is_hurt, f"{who} says {alarm and alarm[0]!r}", answer)

    def _equal(self, command: str, shown: object, due: object) -> None:
        promise = f"healthy: {command} does not say what the oracle says"
        self.expect(shown == due, promise, f"shown: {shown}", f"oracle: {due}")

    def _rows(self) -> list[Row]:
        """Read the table by delta-rs, in the shape of the folds."""
        names = [*COLUMNS, "_partition", "_offset", "_timestamp", *self.kind.columns]
        columns = [name for name in names if name in self._columns() or name not in ADDED]
        rows = rows_by_delta_rs(DeltaTable(self.path("data")), columns)
        for row in rows:
            row["_timestamp"] = round(row["_timestamp"].timestamp() * 1_000)
        return sorted((tuple(row.get(name) for name in names) for row in rows), key=repr)

    def _columns(self) -> set[str]:
        return {each.name for each in DeltaTable(self.path("data")).schema().fields}

    def _declared_columns(self) -> set[str]:
        """Return the columns that were added to the declaration, by the file if that has them."""
        if not self.kind.is_followed:
            return {*self.added}
        text = (self.world.settings.streams / f"{self.name}.topics.yaml").read_text()
        return {name for name in ADDED if f"`{name}`" in text}

    @contextmanager
    def _archiving(self) -> Iterator[None]:
        """Note what goes into the archive, but for tables that have forgotten deletes."""
        archive, has_forgotten = Path(self.world.paths.archive), self.life.has_forgotten
        before = set(archive.glob("*Z"))
        yield
        for entry in set(archive.glob("*Z")) - before if not has_forgotten else ():
            self.entries[entry.name] = False

    def _do(
        self, name: str, *words: str, code: int = DONE, may_crash: bool = True, **deed: Any
    ) -> None:
        """Type a command, perhaps after one like it has died; it must end with this code."""
        if self.life.has_forgotten and name in {"redrive", "replay", "rewind"}:
            # Each may send in a record that is older than a delete which is forgotten.
            name, words, code = "run", (), DONE
        self.chronicle.counts[name] += 1
        if may_crash and self._crash(name, *words, **deed) and name not in _DONE_AGAIN:
            name, words, code = "run", (), DONE
        answer = self.type(*name.split(), self.name, *words, **deed)
        if answer.code == REFUSED and "was cut short while it moved" in answer.err:
            code, answer = DONE, self.type("run", self.name, **deed)
        promise = f"healthy: {name} exits {answer.code}: {answer.gist}"
        self.expect(answer.code == code, promise, answer)
        self._refuse_alarm(f"healthy: {name}", answer)

    def _crash(self, name: str, *words: str, **deed: Any) -> bool:
        """Let a command die as drawn, and look at what it left before anything heals it."""
        way, places = self.step.death, _PLACES.get(name, _OF_A_RUN)
        place = places[self.step.place % len(places)]
        if not way:
            return False
        words = (*name.split(), self.name, *words)
        if way == "exception":
            answer = self.type(*words, crash_at=place, **deed)
        else:
            answer = type_and_kill(*words, place=place, way=way, folder=self.folder)
            self._follow(**deed)
        self.chronicle.counts[way if answer.has_crashed else "crash not reached"] += 1
        self.chronicle.step += f", {way} at {place}"
        for looking in ("status", "quarantine", "doctor"):
            answer = self.type(looking, self.name, "--json")
            self._refuse_alarm(f"after a crash: {looking}", answer)
        return True

    def _follow(self, **deed: Any) -> None:
        try:
            self.life = follow(
                self.life, self.path("data"), self.records, Deed(lenient=self.lenient, **deed)
            )
        except (DeltaError, OSError, ValueError, LookupError):
            # Of a table that is harmed there is nothing to follow.
            self.chronicle.counts["commits not readable"] += 1

    def _declare(self) -> None:
        if self.kind.is_followed:
            self.lenient = ()
        types = {"types": dict.fromkeys(self.lenient, "lenient")} if self.lenient else {}
        declared = self.kind.declared_with(self.added, is_wide=self.is_wide)
        self.world.declare(**declared, **types, name=self.name, quarantine_rate={"stop_above": 1})
        self.world.write_declaration()
        if self.kind.is_followed:
            file = self.world.settings.streams / f"{self.name}.yaml"
            of_schema = {"schema": "embedded", "columns": {"at": "INT NOT NULL"}}
            file.write_text(json.dumps({**json.loads(file.read_text()), **of_schema}))

    def _deletes(self) -> int:
        path = str(self.path("tombstones"))
        return int(DeltaTable(path).count()) if DeltaTable.is_deltatable(path) else 0

    def _send(self, count: int) -> None:
        """Send records; late ones only while every delete is remembered."""
        for _ in range(count):
            self.clock += 1
            late = not self.life.has_forgotten
            record = self.kind.record(
                self.dice, self.clock, may_be_late=late, added=self.added, is_wide=self.is_wide
            )
            self.world.producer.produce(
                self.world.topic,
                key=record.key,
                value=record.value,
                partition=record.place[0],
                timestamp=record.timestamp_ms,
                on_delivery=partial(self._keep, record),
            )
        assert self.world.producer.flush(30) == 0

    def _keep(self, record: Record, error: object, message: Message) -> None:
        assert error is None, error
        place = (record.place[0], message.offset() or 0)
        self.records[place] = replace(record, place=place)


def ledger_of(document: dict[str, Any], life: Life) -> Ledger:
    """Return kind and ranges of each batch of a life's table, as ``ledger --json`` has them."""
    return {
        row["seq"]: (
            row["kind"],
            tuple((it["partition"], it["start"], it["end"]) for it in row["ranges"]),
        )
        for row in document.get("rows", ())
        if row["table_id"] == life.table_id
    }


@contextmanager
def _days_later(days: int) -> Iterator[None]:
    """Set the clock of maintenance forward: what is kept for days is old at once."""

    class Later(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Later:
            return super().now(tz) + dt.timedelta(days=days)

    clock = SimpleNamespace(datetime=Later, timedelta=dt.timedelta, UTC=dt.UTC)
    with patch("oncelake.ingestion.operations.upkeep.maintain.dt", clock):
        yield
