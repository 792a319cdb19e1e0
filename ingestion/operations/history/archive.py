"""The archive of a stream: what decisions took away can be looked at, brought back, and deleted."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from oncelake.ingestion.delta.integrity import translate_read_errors
from oncelake.ingestion.delta.log import DeltaLog
from oncelake.ingestion.errors import DamagedTableError, InvalidSpecError, RefusedError
from oncelake.ingestion.lake.archive import Archived, archived, swap_tables
from oncelake.ingestion.lake.ledger import Ledger, known_paths, refuse_newer_table
from oncelake.ingestion.lake.lock import held, refuse_lost_lease
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.operations.status.status import known_waiting
from oncelake.ingestion.recovery.standing import end_half_done
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.table import NamedTable

# An entry and an erase may be dated by the clocks of two hosts, or by one that was set back.
_CLOCKS_APART: Final = dt.timedelta(days=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchiveEntry:
    """One entry, as a person chooses by it; ``None`` is what could not be read.

    Attributes:
        waiting: Records of its quarantine that no redrive had sent in.
    """

    entry: str
    at: dt.datetime
    why: str
    tables: tuple[str, ...]
    rows: int | None
    waiting: int | None
    size_bytes: int


def list_archive(stream: str, settings: Settings) -> tuple[ArchiveEntry, ...]:
    """Describe what was taken away from a stream, oldest first."""
    paths = StreamPaths.of(stream, settings)
    return tuple(_describe(each, paths) for each in archived(paths))


def waiting_records(tables: Iterable[Location]) -> int:
    """Count the records that no redrive has sent in, in the quarantine among a stream's tables.

    They go wherever it goes: a rebuild, reset or restore takes them out of sight. What cannot be
    read is not counted.
    """
    return sum(known_waiting(table) or 0 for table in tables if table.name.endswith("__quarantine"))


def restore(stream: str, entry: str, settings: Settings, *, run_id: str) -> tuple[Location, ...]:
    """Put an entry's tables in place of the stream's; return where the present ones went.

    The entry stays in the archive, since a copy of it takes the place. A crash while copying leaves
    the stream as it was; one while the tables change places is finished by the next run.

    Raises:
        InvalidSpecError: there is no such entry.
        RefusedError: it is no whole stream, or a key has, or may have, been erased since.
        StreamLockedError: a run holds the stream.
    """
    paths = StreamPaths.of(stream, settings)
    chosen = _find(paths, entry)
    whole = {paths.data.name, paths.ledger.name}
    if not whole <= set(chosen.tables):
        raise RefusedError(
            stream,
            f"{entry} holds {', '.join(chosen.tables)}, and no whole stream: nothing was changed.",
            remedy=f"read it where it is: {chosen.path}",
        )
    _refuse_elsewhere(paths, chosen)
    with held(paths, run_id):
        end_half_done(paths)
        _refuse_unknown_commits(paths)
        _refuse_erased(paths, chosen)
        # Copies that another restore left before it came so far.
        still_held = partial(refuse_lost_lease, paths)
        paths.restored.delete_all(still_held)
        for table in chosen.tables:
            (chosen.path / table).copy_to(paths.restored / table, still_held)
        return swap_tables(paths, paths.restored, why=f"archive restore {entry}").archived


def prune(
    stream: str, entries: tuple[str, ...], settings: Settings, *, run_id: str
) -> tuple[ArchiveEntry, ...]:
    """Delete entries for good, and return what they were.

    Raises:
        InvalidSpecError: there is no such entry; nothing was deleted.
        RefusedError: one is what tells that a key was erased which an older entry may hold.
        StreamLockedError: a run holds the stream.
    """
    paths = StreamPaths.of(stream, settings)
    # Oldest first: a newer one alone may tell that a key was erased which an older one holds.
    chosen = sorted({e: _find(paths, e) for e in entries}.values(), key=lambda each: each.at)
    with held(paths, run_id):
        # What a newer version keeps an entry for is not known here; its ledger row may be to come.
        refuse_newer_table(known_paths(stream, settings, None))
        end_half_done(paths)
        _refuse_to_forget_erasures(paths, chosen)
        still_held = partial(refuse_lost_lease, paths)
        paths.restored.delete_all(still_held)
        described = tuple(_describe(each, paths) for each in chosen)
        for each in chosen:
            _drop_outside(each, paths)
            each.path.delete_all(still_held)
        return described


def _drop_outside(entry: Archived, paths: StreamPaths) -> None:
    """Remove the rows of an entry that the table of now keeps outside the lake."""
    tables = list[NamedTable]()
    with suppress(DamagedTableError):
        for ledger in (paths.ledger, entry.path / paths.ledger.name):
            for row in Ledger(ledger).rows()[-1:]:
                if isinstance(table := paths.at(row.declared_sink).table, NamedTable):
                    tables.append(table)
    if len(tables) > 1 and len({each.where for each in tables}) == 1:
        tables[0].drop_archived(entry.name)


def _find(paths: StreamPaths, entry: str) -> Archived:
    for each in archived(paths):
        if each.name == entry:
            return each
    raise InvalidSpecError(
        f"{paths.stream}: the archive has no {entry}. Next: oncelake archive list {paths.stream}"
    )


def _refuse_elsewhere(paths: StreamPaths, chosen: Archived) -> None:
    """Make sure that the rows are in the entry, and not in a table outside the lake."""
    rows = Ledger(chosen.path / paths.ledger.name).rows()
    if rows and rows[-1].sink != "delta":
        raise RefusedError(
            paths.stream,
            f"the rows of {chosen.name} are in a table of `sink: {rows[-1].sink}`, and not in the "
            "lake: nothing was changed.",
            remedy="read that table where it is",
        )


def _refuse_unknown_commits(paths: StreamPaths) -> None:
    """Make sure that a table outside the lake has no commit, such as an erase, beyond the ledger.

    Of a table in the lake, ``_erasures`` reads those.
    """
    rows = Ledger(paths.ledger).rows()
    if not rows or rows[-1].sink == "delta":
        return
    table = paths.at(rows[-1].declared_sink).table
    known = max(row.seq for row in rows if row.table_id == rows[-1].table_id)
    if (table.log().last_seq(paths.stream) or 0) > known:
        raise RefusedError(
            paths.stream,
            f"{table.where} has a commit behind batch {known} that the ledger lacks, which "
            "may have erased a key.",
            remedy=f"declare `sink: {rows[-1].sink}` again, and oncelake run {paths.stream}",
        )


def _refuse_erased(paths: StreamPaths, chosen: Archived) -> None:
    """Make sure that a restore does not bring back what was erased after the entry was archived."""
    erased = _erasures(paths.lake, paths)
    for each in archived(paths):
        if each.at > chosen.at:
            erased |= _known_erasures(each, paths)
    if _may_be_in(chosen, erased, paths):
        raise RefusedError(
            paths.stream,
            f"a key was erased after {chosen.name} was archived, which may still hold it.",
            remedy=f"oncelake archive prune {paths.stream} {chosen.name} --yes",
        )


def _refuse_to_forget_erasures(paths: StreamPaths, chosen: Sequence[Archived]) -> None:
    """Make sure that no entry outlives what tells that a key of it was erased."""
    kept = [each for each in archived(paths) if each not in chosen]
    for each in chosen:
        erased: dict[Any, dt.datetime] = {}
        # What cannot be read tells nothing any more.
        with suppress(DamagedTableError):
            erased = _erasures(each.path, paths)
        before = (other for other in kept if other.at < each.at)
        if older := " ".join(o.name for o in before if _may_be_in(o, erased, paths)):
            raise RefusedError(
                paths.stream,
                f"{each.name} alone may tell that a key was erased, which {older} may hold.",
                remedy=f"oncelake archive prune {paths.stream} {older} {each.name} --yes",
            )


def _may_be_in(entry: Archived, erased: Mapping[Any, dt.datetime], paths: StreamPaths) -> bool:
    """Tell whether an entry may hold a key that was erased: it does not know of it."""
    mine: Mapping[Any, dt.datetime] = {}
    with suppress(DamagedTableError):
        mine = _erasures(entry.path, paths)
    return any(at > entry.at - _CLOCKS_APART and each not in mine for each, at in erased.items())


def _known_erasures(entry: Archived, paths: StreamPaths) -> dict[Any, dt.datetime]:
    try:
        return _erasures(entry.path, paths)
    except DamagedTableError as error:
        raise RefusedError(
            paths.stream,
            f"whether a key was erased before {entry.name} was archived is not known: "
            f"{error.problem}",
            remedy=f"if none was, oncelake archive prune {paths.stream} {entry.name} --yes",
        ) from error


def _erasures(folder: Location, paths: StreamPaths) -> dict[Any, dt.datetime]:
    """Return when each key was erased, by its digest; until a run heals it, the log alone may tell.

    An erase that a rebuild took over was made when it was first.
    """
    rows = Ledger(folder / paths.ledger.name).rows()
    newest = max((row.delta_version for row in rows), default=-1)
    unknown = DeltaLog(folder / paths.data.name).newest_first(down_to=newest + 1)
    erased = {row.committed_at: row.erased or {} for row in rows if row.kind == "erase"}
    made = {each.committed_at: each.metadata for each in unknown}
    erased |= {at: note.erased or {} for at, note in made.items() if note and note.kind == "erase"}
    return {
        said.get("digest", at): dt.datetime.fromisoformat(said.get("at", f"{at}"))
        for at, said in erased.items()
    }


def _describe(each: Archived, paths: StreamPaths) -> ArchiveEntry:
    log = DeltaLog(each.path / paths.data.name)
    try:
        with translate_read_errors(log.path):
            rows = log.row_count() if log.exists else None
    except (DamagedTableError, OSError):
        rows = None
    return ArchiveEntry(
        entry=each.name,
        at=each.at,
        why=each.why or "unknown",
        tables=each.tables,
        rows=rows,
        waiting=known_waiting(each.path / paths.quarantine.name),
        size_bytes=sum(each.path.files().values()),
    )
