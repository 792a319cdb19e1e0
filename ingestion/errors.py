"""The errors, sorted by what the operator should do about them.

    IngestionError
    ├── TerminalError                a rerun cannot help
    │   ├── InvalidSpecError         the declaration or the settings must be edited (exit 2)
    │   │   └── BadFieldError        a field of a declaration, as only Spark can tell
    │   ├── SetupError               something is missing on this machine (exit 2)
    │   ├── RecordsMissedError       Spark skipped records that the topic holds (exit 1)
    │   └── RefusedError             a person must decide first (exit 3); its kinds stand below
    └── TransientError               the same command may succeed later
        ├── StreamLockedError        another run holds the stream (exit 4)
        ├── TableBusyError           commits by others conflicted repeatedly (exit 5)
        └── DependencyError          Kafka, or the Spark JVM, does not answer (exit 5)
            ├── MissingRightError        Kafka, store or PostgreSQL refuse what a command needs
            ├── KafkaSettingsError       Kafka answers, and not to such settings (exit 2)
            ├── SinkUnavailableError          what keeps the rows does not answer
            └── StorageError             a volume is full, read-only or failing

A message names the stream, the expected and the actual state, and what to do next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import ClassVar, Final

DONE: Final = 0
WRONG: Final = 1
USAGE: Final = 2
REFUSED: Final = 3
LOCKED: Final = 4
UNREACHABLE: Final = 5

# Sentences that many messages end with.
AGAIN: Final = "run the same command again"
NOTHING_WRITTEN: Final = "Nothing was written, and no offset moved."
NOTHING_LOST: Final = (
    "Nothing is lost, and nothing is half done: what was not committed is read again."
)

# A declaration that is wrong comes last: it lost nothing, and it says the same on every run.
_PRECEDENCE: Final = (WRONG, REFUSED, UNREACHABLE, LOCKED, USAGE)


def first_exit_code(codes: Iterable[int]) -> int:
    """Return the code that a command over several streams exits with.

    A code outside the contract (128 + the number of a signal) gives way to one inside.
    """
    occurred = set(codes) - {DONE}
    return next((code for code in _PRECEDENCE if code in occurred), max(occurred, default=DONE))


class IngestionError(Exception):
    """Every error that the engine raises deliberately."""

    exit_code: ClassVar[int] = WRONG


class TerminalError(IngestionError):
    """A rerun cannot help: something must be changed or decided first."""


class TransientError(IngestionError):
    """The same command may succeed later."""


class InvalidSpecError(TerminalError):
    """A declaration or a setting is wrong; the message says where and what to write instead."""

    exit_code = USAGE


class BadFieldError(InvalidSpecError):
    """A field of a declaration is wrong, as Spark has found; its line is looked up later."""

    def __init__(self, stream: str, field: tuple[str, ...], problem: str) -> None:
        super().__init__(f"{stream}: {'.'.join(field)}: {problem}")
        self.stream = stream
        self.field = field
        self.problem = problem


def first_line(error: Exception) -> str:
    """Return what an error says first; other libraries add their own stack, or a query, to it."""
    return str(error).partition("\n")[0]


def harmless(text: str) -> str:
    """Write as an escape every character that is not plain, but for the ends of lines.

    Control characters would move a terminal's cursor or run its commands; marks of direction and
    characters without width would show a person something else than what is there.
    """
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def counted(number: int, one: str, many: str = "") -> str:
    """Write a number with its noun, in the plural where it is one.

    Args:
        one: The noun, and the words that agree with it, such as ``record waits``.
        many: The same in the plural; without it an ``s`` is put to it, or ``es`` to a ``ch``.
    """
    regular = f"{one}es" if one.endswith("ch") else f"{one}s"
    return f"{number:,} {one if number == 1 else many or regular}"


def nearest(word: str, choices: Collection[str], *, likeness: float = 0.6) -> str | None:
    """Return the choice that a person probably meant by ``word``; None when none is like it."""
    return next(iter(get_close_matches(word, choices, n=1, cutoff=likeness)), None)


def hint(word: str, choices: Collection[str]) -> str:
    """Ask, behind a sentence, whether the nearest choice was meant; empty where none is near."""
    near = nearest(word, choices)
    return f"; did you mean `{near}`?" if near else ""


def no_table_yet(stream: str) -> InvalidSpecError:
    """Return the error of an operation that needs the table which the first run makes."""
    return InvalidSpecError(f"{stream}: there is no table yet. Next: oncelake run {stream}")


def reset(stream: str) -> str:
    """Name the command that gives up a stream's table, and makes another."""
    return f"oncelake reset {stream} --yes, to ingest the topic again"


def not_installed(extra: str) -> SetupError:
    """Return the error of a sink, or of a catalog, without the packages of its extra."""
    return SetupError(
        f"a stream needs the extra `{extra}`, which is not installed. Next: make setup in a "
        f"clone, or pip install 'WHEEL[{extra}]' with the path of Oncelake's wheel"
    )


class SetupError(TerminalError):
    """Something this machine, or a cluster's, needs is missing; says what to install or run."""

    exit_code = USAGE


class RecordsMissedError(TerminalError):
    """The second client found a record that Spark did not deliver; nothing was committed."""


class RefusedError(TerminalError):
    """Continuing could lose or corrupt data, so a person must decide.

    Attributes:
        remedy: The command, or the edit, that resolves it; by default the usual one of the kind.
    """

    exit_code = REFUSED
    usual_remedy: ClassVar[str] = ""

    def __init__(self, stream: str, problem: str, *, remedy: str = "") -> None:
        remedy = remedy or self.usual_remedy.format(stream=stream, reset=reset(stream))
        if not remedy:
            raise TypeError(f"{type(self).__name__} has no usual remedy: name one")
        super().__init__(f"{stream}: {problem} Next: {remedy}")
        self.stream = stream
        self.problem = problem
        self.remedy = remedy


class NewerFormatError(RefusedError):
    """A newer version of Oncelake wrote the stream's tables, in a format unknown to this one."""


class TopicRecreatedError(RefusedError):
    """The topic was deleted and created again: its offsets belong to other records now."""


class ClusterChangedError(RefusedError):
    """Another Kafka cluster answers at the configured address."""


class TopicMissingError(RefusedError):
    """A declared topic does not exist on the cluster."""


class TopicTruncatedError(RefusedError):
    """A partition ends before the table's next offset: it lost records that were read."""


class OffsetsExpiredError(RefusedError):
    """Retention has deleted records that were never read."""


class IdentityChangedError(RefusedError):
    """Keys or order differ from those the table was written with."""


class SchemaChangedError(RefusedError):
    """The table's columns are not the declared ones."""


class ForeignTableError(RefusedError):
    """The table holds rows, and none of our commits is in its log."""

    usual_remedy = (
        "oncelake adopt-table {stream} takes it over; or rename the file, or move it away"
    )


class TableReplacedError(RefusedError):
    """The ledger names a table that is gone, or that another has replaced."""

    usual_remedy = "restore the table; or move what is in its place away, and {reset}"


class TableRolledBackError(RefusedError):
    """The ledger has batches that the table no longer has: an older copy was restored."""

    usual_remedy = "restore the newer files, or {reset}"

    def __init__(self, stream: str, table: object, *, seq: int, known: int, version: int) -> None:
        super().__init__(
            stream,
            f"{table} ends with seq {seq}, and the ledger has seq {known} (version {version}): the "
            "table was replaced by an older copy, or its newest commits are gone.",
        )


class TableRestoredError(RefusedError):
    """Somebody restored the table to an older version after our last commit."""


class TableAlteredError(RefusedError):
    """Somebody else changed the table's rows after our last commit."""


class RewindError(RefusedError):
    """The stream cannot be set back to the savepoint that was asked for."""


class TableSettingsError(RefusedError):
    """A property or feature of the table breaks the guarantee."""


class DamagedTableError(RefusedError):
    """A file of a table is missing, cut short, or changed."""

    usual_remedy = "restore it from a backup; if there is none, {reset}"

    @classmethod
    def of(cls, stream: str, table: object, what: str, *, remedy: str = "") -> DamagedTableError:
        """Say of a table what is not as it was written."""
        return cls(stream, f"{table} is damaged: {what}.", remedy=remedy)


class SideTableIncompleteError(RefusedError):
    """Quarantine or tombstones lack rows that a committed batch wrote there."""


class OffsetsUnknownError(RefusedError):
    """Neither the table's log nor the ledger has the offsets that were read."""


class UnfitStorageError(RefusedError):
    """The lake's file system lacks what one writer and atomic commits need."""


class UnbalancedBatchError(RefusedError):
    """An earlier batch does not balance, and no person has accepted it."""


class KeyInTwoPartitionsError(RefusedError):
    """One key came from two partitions, and no declared order says which is newer."""


class SeveralRecordTypesError(RefusedError):
    """A topic's records are of several types, and the declaration names none."""


class TooManyBadRecordsError(RefusedError):
    """More of a batch's records are bad than may go to quarantine."""


class BatchWithheldError(RefusedError):
    """A batch does not meet what its declaration asks, and is not published."""

    exit_code = WRONG


class SourceTruncatedError(RefusedError):
    """The source has emptied a table, and a person must decide what becomes of its rows here."""


class OffsetHoleError(RefusedError):
    """A batch would skip offsets that the table does not hold."""


class BatchTooLargeError(RefusedError):
    """A batch does not fit the memory of the process that would merge it; a run takes Spark."""


class NotReplayableError(RefusedError):
    """The mode folds records into rows, so a record that is read again would be counted twice."""


class CommitConflictError(RefusedError):
    """The table already has our seq, with other ranges."""

    usual_remedy = "oncelake status {stream}, then run again from the table's offsets"


class StreamLockedError(TransientError):
    """Another run holds the stream's lock."""

    exit_code = LOCKED


class TableBusyError(TransientError):
    """Commits by others conflicted repeatedly while a batch was being written."""

    exit_code = UNREACHABLE

    @classmethod
    def meanwhile(cls, name: str) -> TableBusyError:
        """Say of a stream, or a table, that others have committed first."""
        return cls(
            f"{name}: somebody else changed the table meanwhile. Nothing was changed. Next: {AGAIN}"
        )


class DependencyError(TransientError):
    """A service outside this process does not answer in time."""

    exit_code = UNREACHABLE


class MissingRightError(DependencyError):
    """Kafka, a store or PostgreSQL refuses what a command needs; the message names what."""


class KafkaSettingsError(DependencyError):
    """Protocol, login or certificates are not those that the brokers expect: edit the settings.

    A password that is being changed everywhere may be right again soon.
    """

    exit_code = USAGE


class SinkUnavailableError(DependencyError):
    """The store or server of a stream's rows does not answer, or not as it should."""


class StorageError(DependencyError):
    """A volume is full, read-only or failing; the message names it."""
