"""The lake's archive: what is taken away from a stream is moved there, until a person prunes it.

Where all tables of a stream go, and others may come, a file beside the entries says what is to be
done: killed anywhere, that goes on where it was.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from oncelake.ingestion.declaration.sinks import SinkSpec
from oncelake.ingestion.delta.log_files import log_files
from oncelake.ingestion.errors import (
    DamagedTableError,
    MissingRightError,
    RefusedError,
    StreamLockedError,
    TableReplacedError,
)
from oncelake.ingestion.lake.lock import refuse_lost_lease
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.withheld import forget_withheld
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.storage.location import Location, ObjectChangedError, Tag
from oncelake.ingestion.tables.format import known, marks, refuse_newer
from oncelake.ingestion.tables.table import NamedTable, foreign_table

_STAMP = "%Y%m%dT%H%M%S%fZ"
_WHY = "WHY"


def archive_table(
    paths: StreamPaths, tables: Iterable[Location], *, why: str
) -> tuple[Location, ...]:
    """Move tables, in this order, into a folder that is named for the time; return where they went.

    A table that is not there is passed over; ``why`` is written down beside the others.
    """
    return _move(paths, tables, new_entry(), why)


def new_entry() -> str:
    """Return a name of the archive for what goes into it now."""
    return dt.datetime.now(dt.UTC).strftime(_STAMP)


def _move(
    paths: StreamPaths, tables: Iterable[Location], entry: str, why: str
) -> tuple[Location, ...]:
    archive, moved = paths.archive / entry, []
    for table in tables:
        if table.exists():
            (archive / _WHY).put(why.encode())
            _move_table(paths, table, archive / table.name)
            moved.append(archive / table.name)
    return tuple(moved)


def _move_table(paths: StreamPaths, table: Location, to: Location) -> None:
    """Move a table, unless this run slept past its lease: another one may have moved it by now."""
    refuse_lost_lease(paths)
    table.move_to(to, partial(refuse_lost_lease, paths))
    for place in (table, to):
        log_files(place).forget()


@dataclass(frozen=True, kw_only=True, slots=True)
class Archived:
    """The tables that one decision took away from a stream.

    Attributes:
        at: When, in UTC.
        tables: The tables, by the names that they had in the lake.
        why: What took them away, and the reason that a person gave; empty where none is known.
    """

    path: Location
    at: dt.datetime
    tables: tuple[str, ...]
    why: str

    @property
    def name(self) -> str:
        """The name by which a person means it."""
        return self.path.name


def archived(paths: StreamPaths) -> tuple[Archived, ...]:
    """Return what was taken away from a stream, oldest first."""
    folders = (paths.archive / name for name in paths.archive.folders())
    return tuple(found for folder in folders if (found := _archived(folder)))


def _archived(folder: Location) -> Archived | None:
    try:
        at = dt.datetime.strptime(folder.name, _STAMP).replace(tzinfo=dt.UTC)
    except ValueError:
        return None
    why = ""
    with suppress(OSError):
        why = (folder / _WHY).read().decode()
    return Archived(path=folder, at=at, tables=folder.folders(), why=why)


@dataclass(frozen=True, kw_only=True, slots=True)
class Swapped:
    """Where the tables of a stream went.

    Attributes:
        archived: Places in the lake's archive.
        renamed: What a table outside the lake is called now.
    """

    archived: tuple[Location, ...] = ()
    renamed: str | None = None

    @property
    def named(self) -> list[str]:
        """Name all of them."""
        return [*map(str, self.archived), *filter(None, [self.renamed])]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Swap:
    """A stream's tables on their way into the archive.

    Attributes:
        entry: The folder of the archive that they go into, and the name of a table outside.
        source: The folder of the lake whose tables take their places, if any do.
        sink: Whose table gives up its place, where that is outside the lake.
        is_cleared: Whether all have gone, so that what lies in their places is new.
    """

    entry: str
    why: str
    source: str | None
    sink: Mapping[str, Any] = field(default_factory=dict)
    is_cleared: bool = False

    def to_json(self) -> bytes:
        """Write it as the journal holds it."""
        return json.dumps(asdict(self) | marks()).encode()


def swap_tables(paths: StreamPaths, new: Location | None = None, *, why: str) -> Swapped:
    """Archive a stream's tables, and put those of a folder of the lake, if given, in their places.

    A table outside the lake changes places with the one beside it. Needs the stream's lock. Returns
    where the old tables went, by an earlier swap that was cut short, too; their checkpoints are
    dropped.

    Raises:
        RefusedError: the table must keep its name. Nothing was changed.
        MissingRightError: the role may not give it another. Nothing was changed.
    """
    earlier = finish_swap(paths)
    if new is None:
        refuse_kept_name(paths)
    refuse_lost_lease(paths)
    forget_withheld(paths)
    swap = _Swap(
        entry=new_entry(),
        why=why,
        source=new.key.removeprefix(f"{paths.lake.key}/") if new else None,
        sink=paths.sink.model_dump(mode="json", exclude_unset=True),
    )
    _swap_file(paths).create(swap.to_json())
    now = finish_swap(paths)
    return Swapped(
        archived=(*earlier.archived, *now.archived), renamed=now.renamed or earlier.renamed
    )


def refuse_kept_name(paths: StreamPaths) -> None:
    """Make sure that the table is nobody else's with rows, and can be given another name.

    Raises:
        ForeignTableError: it is somebody else's, outside the lake.
        RefusedError: it keeps its name.
    """
    kind, table = paths.sink.kind, paths.table
    if not (kind.has_names or kind.keeps_name):
        return
    log = table.log()
    try:
        is_ours = log.exists and log.last_seq(paths.stream) is not None
    except DamagedTableError:
        if kind.keeps_name:
            raise
        # Whose the table is, its renaming looks at by itself.
        return
    if kind.has_names and log.exists and not (is_ours or log.is_empty):
        raise foreign_table(table)
    if kind.keeps_name and is_ours:
        ways = kind.keeps_name.format(table=paths.sink.table_of(paths.stream))
        raise RefusedError(
            paths.stream,
            f"{table.where} holds batches of this stream, and a topic cannot be renamed.",
            remedy=f"{ways}; then run the same command again",
        )


def finish_swap(paths: StreamPaths) -> Swapped:
    """Go on with a swap that was cut short, if one was, and return where old tables went just now.

    Needs the stream's lock. One whose first step is refused is given up.
    """
    found, moved = _read_swap(paths), Swapped()
    if found is None:
        return moved
    swap, tag = found
    hit(Failpoint.SWAP_BEGUN)
    # The ledger goes last: it is what a table that is gone is missed by.
    tables = (paths.tombstones, paths.quarantine, paths.data, paths.ledger)
    if not swap.is_cleared:
        refuse_lost_lease(paths)
        outside, renamed = paths.at(SinkSpec.model_validate(swap.sink)).table, None
        try:
            if isinstance(outside, NamedTable):
                renamed = outside.set_aside(swap.entry, is_replaced=swap.source is not None)
        except (RefusedError, MissingRightError):
            # Nothing has moved; kept, it would refuse every later run as well.
            refuse_lost_lease(paths)
            _swap_file(paths).delete()
            raise
        archived = _move(paths, tables, swap.entry, swap.why)
        moved = Swapped(archived=archived, renamed=renamed)
        for cache in (paths.checkpoints, *paths.indexes):
            shutil.rmtree(cache, ignore_errors=True)
        try:
            _swap_file(paths).replace(replace(swap, is_cleared=True).to_json(), tag)
        except ObjectChangedError:
            raise StreamLockedError(
                f"{paths.stream}: another run goes on with `{swap.why}`. Next: wait for it to end"
            ) from None
    hit(Failpoint.SWAP_CLEARED)
    if swap.source is not None:
        source = paths.lake / swap.source
        for place in tables:
            if (source / place.name).exists():
                _move_table(paths, source / place.name, place)
        source.delete_all(partial(refuse_lost_lease, paths))
    refuse_lost_lease(paths)
    _swap_file(paths).delete()
    return moved


def is_half_swapped(paths: StreamPaths) -> bool:
    """Tell whether tables are on their way into the archive, or to their places."""
    return _read_swap(paths) is not None


def refuse_half_swapped(paths: StreamPaths) -> None:
    """Make sure that no table is on its way into the archive, or to its place.

    Raises:
        TableReplacedError: one is.
    """
    if found := _read_swap(paths):
        raise TableReplacedError(
            paths.stream,
            f"`{found[0].why}` was cut short while it moved the tables.",
            remedy=f"oncelake run {paths.stream}, or any command that writes: it moves the rest "
            "first",
        )


def _read_swap(paths: StreamPaths) -> tuple[_Swap, Tag] | None:
    try:
        content, tag = _swap_file(paths).read_tagged()
    except FileNotFoundError:
        return None
    said = json.loads(content)
    refuse_newer(paths.stream, _swap_file(paths), said)
    return _Swap(**known(_Swap, said)), tag


def _swap_file(paths: StreamPaths) -> Location:
    return paths.archive / "SWAP"
