"""What a disk, or a hand, does to a stream's tables, and the way back that messages name."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deltalake import DeltaTable

from oncelake.ingestion.errors import REFUSED
from tests.lives.shell import Answer, remedies_in
from tests.lives.subject import Subject, ledger_of
from tests.support import damage
from tests.support.rows import rows_by_delta_rs

_MOST_REMEDIES = 4
_TABLES = ("quarantine", "tombstones", "ledger", "data")
_FILES: Mapping[str, Callable[[Path], Path]] = {
    "data file": damage.data_file,
    "newest commit": damage.newest_commit,
    "second newest commit": damage.second_newest_commit,
    "oldest commit": damage.oldest_commit,
    "checkpoint": damage.checkpoint,
}
# What is promised of the rows of a side table; of the data table, all.
_PROMISED = {
    "quarantine": ["_topic", "_partition", "_offset", "_seq", "key", "value", "redriven_seq"],
    "ledger": ["table_id", "seq", "kind", "ranges", "counts"],
}


@dataclass(kw_only=True)
class Harm:
    """One damage to one table of a stream.

    Attributes:
        copy: The whole table, as it was.
        file: The file that is damaged; ``None`` where the folder is gone.
        folder_id: Identifies the damaged table's folder, should another take its place.
        matters: Whether the table lacks what it must hold, or cannot be read.
        is_quiet: Whether nothing is promised before somebody reads the file.
    """

    table: str
    what: str
    path: Path
    copy: Path
    file: Path | None = None
    folder_id: int = 0
    matters: bool = True
    is_quiet: bool = False

    def restore(self) -> None:
        """Put back what was there, unless another table is in its place."""
        if self.file is None:
            shutil.rmtree(self.path, ignore_errors=True)
            shutil.copytree(self.copy, self.path)
        elif self.path.exists() and self.path.stat().st_ino == self.folder_id:
            shutil.copy2(self.copy / self.file.relative_to(self.path), self.file)


def _inflict(subject: Subject) -> Harm | None:
    """Harm one table, and find out whether that matters; ``None`` where there is no such file."""
    dice, stream = subject.dice, subject.name
    there = [name for name in _TABLES if DeltaTable.is_deltatable(str(subject.path(name)))]
    table = dice.choice(there)
    path, copy = subject.path(table), subject.folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy)
    harm = Harm(table=table, what="folder lost", path=path, copy=copy)
    if dice.random() < 0.45:
        shutil.rmtree(path)
    else:
        name, kind = dice.choice(list(_FILES)), dice.choice(damage.DAMAGES)
        try:
            harm.file = _FILES[name](path)
        except (IndexError, ValueError):
            return None
        damage.do(kind, harm.file)
        harm.what, harm.folder_id = f"{name} {kind}", path.stat().st_ino
        harm.is_quiet = name == "data file" and kind == "flipped"
    before = _content(table, copy, stream)
    is_nothing = not before[0] and table != "data"
    is_unread = harm.is_quiet and table != "data"
    harm.matters = before != _content(table, path, stream) and not is_nothing and not is_unread
    return harm


def _content(table: str, path: Path, stream: str) -> tuple[object, ...]:
    """Read what a table is for, and where it stands; one that cannot be read has no content."""
    try:
        opened = DeltaTable(path)
        rows = rows_by_delta_rs(opened, _PROMISED.get(table))
    except Exception as error:  # noqa: BLE001 (whatever a reader of a harmed table meets)
        return "unreadable", error
    return sorted(map(repr, rows)), opened.transaction_version(f"oncelake:{stream}")


def live_through_harm(subject: Subject) -> None:
    """Harm a stream, look at it, work on it, and bring it back by the copy or by the messages."""
    subject.type("run", subject.name)
    harm = _inflict(subject)
    if harm is None:
        return
    harmless = "" if harm.matters else ", harmless"
    subject.chronicle.step += f" {harm.table}: {harm.what}{harmless}"
    subject.chronicle.counts[f"harm: {harm.table}, {harm.what}{harmless}"] += 1
    # What goes into the archive from now on may be damaged.
    subject.entries.clear()
    answers = _look(subject, harm)
    # Whatever works on the stream writes a lost ledger again, and not only a run.
    if subject.dice.random() < 0.5 and not subject.life.has_forgotten and harm.table != "ledger":
        _work(subject, harm)
    if harm.matters and subject.dice.random() < 0.35:
        subject.chronicle.counts["restored from the copy"] += 1
        harm.restore()
    else:
        _recover(subject, harm, answers)
    answer = subject.type("run", subject.name)
    promise = f"restored {harm.table}: run exits {answer.code}: {answer.gist}"
    subject.expect(not answer.code, promise, answer)


def _recover(subject: Subject, harm: Harm, answers: Mapping[str, Answer]) -> None:
    """Run, or begin with what another command names, and follow the messages from there."""
    recovery = _Recovery(subject=subject, harm=harm)
    refusals = [answer for answer in answers.values() if answer.code]
    if refusals and subject.dice.random() < 0.5:
        recovery.add(subject.dice.choice(refusals))
    else:
        answer = subject.type("run", subject.name, "--json")
        _judge_run(subject, harm, answer, answers["status"])
        recovery.add(answer)
    has_succeeded = recovery.succeeds()
    promise = f"harmed {harm.table}: dead end: {recovery.story[-1].gist}"
    subject.expect(has_succeeded, promise, *recovery.story)
    if harm.file and (not harm.matters or harm.is_quiet):
        harm.restore()


def _look(subject: Subject, harm: Harm) -> Mapping[str, Answer]:
    """Check that nobody takes the harmed table for a healthy one."""
    names = ("status", "quarantine", "ledger", "history", "doctor", "verify")
    answers = {name: subject.type(name, subject.name, "--json") for name in names}
    proof, shown = answers["verify"], answers["quarantine"]
    waiting, waits = subject.life.waiting.total(), shown.document.get("waiting")
    if not harm.is_quiet and not shown.code and waits != waiting:
        what = f"quarantine says that {'other records wait' if waits else 'nothing waits'}"
        subject.expect(False, f"harmed {harm.table}: {what}", f"oracle: {waiting}", shown)
    is_proven = harm.matters and not proof.code
    subject.expect(not is_proven, f"harmed {harm.table}: verify proves", proof)
    return answers


def _work(subject: Subject, harm: Harm) -> None:
    """Try to change the harmed stream by something else than a run."""
    name = subject.dice.choice(["redrive", "replay", "maintain"])
    before = subject.life.seq
    answer = subject.type(name, subject.name, *(["--from", "earliest"] if name == "replay" else []))
    has_worked = not answer.code and subject.life.seq != before
    if harm.matters and not harm.is_quiet:
        subject.expect(not has_worked, f"harmed {harm.table}: {name} commits, exit 0", answer)


@dataclass(kw_only=True)
class _Recovery:
    """The way back that messages name, each typed as it is printed.

    Attributes:
        story: What was typed, and what it printed.
        named: Remedies that are still to be tried, those of the newest message first.
    """

    subject: Subject
    harm: Harm
    story: list[Answer] = field(default_factory=list)
    named: list[tuple[str, ...]] = field(default_factory=list)

    def succeeds(self) -> bool:
        """Follow a few remedies; tell whether the stream runs and is proven then."""
        for _ in range(_MOST_REMEDIES):
            if not self.named and self._is_proven():
                return True
            if not self._follow_one():
                return False
        return self._is_proven()

    def add(self, answer: Answer) -> None:
        """Take the remedies of a message, none a second time but the run."""
        self.story.append(answer)
        savepoint = f"seq:{max(self.subject.savepoints(), default=0)}"
        news = remedies_in(answer, self.subject.name, savepoint=savepoint)
        typed = {past.words for past in self.story if past.words[0] != "run"}
        named = dict.fromkeys([*news, *self.named])
        self.named = [words for words in named if words not in typed]

    def _is_proven(self) -> bool:
        for name in ("run", "verify"):
            answer = self.subject.type(name, self.subject.name, "--json")
            self.add(answer)
            if answer.code:
                return False
        return True

    def _follow_one(self) -> bool:
        last = self.story[-1]
        if not self.named and "restore" not in f"{last.err}{last.out}":
            return False
        words = self.named.pop(0) if self.named else ("restore",)
        self.subject.chronicle.counts[f"remedy {words[0]}"] += 1
        if words == ("restore",):
            self.harm.restore()
            return True
        answer = self.subject.type(*words)
        # What it was typed for is over, or it names what is to be done first.
        self.named = self.named if answer.code else []
        self.add(answer)
        return True


def _judge_run(subject: Subject, harm: Harm, answer: Answer, status: Answer) -> None:
    """Check that a run does not work as if nothing were, and that the status has foretold it."""
    is_surprise = answer.code == REFUSED and not status.code
    promise = f"harmed {harm.table}: status exits 0, run is refused: {answer.gist}"
    subject.expect(not is_surprise, promise, status, answer)
    if answer.code or not harm.matters or harm.is_quiet:
        return
    promise = f"harmed {harm.table}: run exits 0 as if nothing were"
    subject.expect(harm.table == "ledger", promise, answer)
    ledger = subject.type("ledger", subject.name, "--json")
    is_healed = ledger_of(ledger.document, subject.life) == subject.life.ledger
    subject.expect(is_healed, "harmed ledger: run exits 0, and has not healed it", answer, ledger)
    is_reported = answer.document["recovered"] or answer.document["notices"]
    subject.expect(bool(is_reported), "harmed ledger: run heals it, and does not say so", answer)
