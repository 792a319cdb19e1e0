"""Where a stream's tables, lock and checkpoints lie: the only place that joins these paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import cast

from oncelake.ingestion.declaration.names import name_problem
from oncelake.ingestion.declaration.sinks import Ability, SinkSpec
from oncelake.ingestion.errors import InvalidSpecError, RefusedError
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_metadata import SideName
from oncelake.ingestion.tables.table import SinkTable

_WORKSHOPS = ".rebuild"


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamPaths:
    """The places of one stream; all but the checkpoints are of the lake.

    Attributes:
        lake: The lake that they are in.
        data: The folder that is named for the stream: its Delta table, where it is one.
        table: The table of its rows, whatever keeps it.
        sink: What keeps it, as declared.
        lock: The file whose kernel lock is the right to write.
        ledger_copy: The ledger as it was when commits last left the table's log.
        holder: Who holds that lock, for people.
        lease: The object that stands in for that lock, where the settings or a store say so.
        checkpoints: One folder a generation of the Spark checkpoint, on this machine.
        archive: Where tables are moved to that are taken away from the stream.
        workshop: The lake in which ``rebuild`` makes the tables anew.
        proof: What a proof of the stream remembers for the next.
        gate: Where a batch waits that was not published.
        restored: Where ``archive restore`` copies tables to, before they take their places.
        registration: What the table's entry in its catalog says; of a loss nothing follows.
    """

    stream: str
    settings: Settings
    lake: Location
    data: Location
    table: SinkTable
    sink: SinkSpec
    quarantine: Location
    tombstones: Location
    ledger: Location
    ledger_copy: Location
    lock: Location
    holder: Location
    lease: Location | None
    checkpoints: Path
    archive: Location
    workshop: Location
    proof: Location
    gate: Location
    restored: Location
    registration: Location

    @property
    def tables(self) -> tuple[Location, ...]:
        """The stream's Delta tables, whether they are there or not."""
        return (self.data, self.quarantine, self.tombstones, self.ledger)

    @property
    def sides(self) -> Mapping[SideName, Location]:
        """The side tables; what a redrive has sent in lies in the first."""
        return {"quarantine": self.quarantine, "tombstones": self.tombstones}

    @property
    def written(self) -> tuple[Path, ...]:
        """Every folder of this machine that a run writes to; each may be a volume of its own."""
        folders = (*self.tables, self.lock.parent)
        return (*(each.path for each in folders if each.is_local), self.checkpoints)

    @property
    def indexes(self) -> tuple[Path, Path]:
        """Where this machine indexes the table's keys, and those of one that is made beside it."""
        state = self.settings.state
        return state / "keys" / self.stream, state / "rebuild" / "keys" / self.stream

    @classmethod
    def of(cls, stream: str, settings: Settings, sink: SinkSpec | None = None) -> StreamPaths:
        """Return the places of a stream, whose rows are in the lake unless ``sink`` says where.

        Raises:
            InvalidSpecError: no stream can have that name, which might lead out of the lake.
        """
        if problem := name_problem(stream):
            raise InvalidSpecError(f"{stream!r}: {problem}. Next: oncelake status")
        sink = sink or SinkSpec()
        lake = Location.of(settings.lake, cache=settings.state / "mirror")
        locks = lake / ".locks"
        has_lease = settings.lock == "lease" or not lake.is_local
        return cls(
            stream=stream,
            settings=settings,
            lake=lake,
            data=lake / stream,
            sink=sink,
            table=_table_of(stream, sink, settings, lake),
            quarantine=lake / f"{stream}__quarantine",
            tombstones=lake / f"{stream}__tombstones",
            ledger=lake / f"{stream}__ledger",
            ledger_copy=lake / stream / "_ledger.copy",
            lock=locks / stream,
            holder=locks / f"{stream}.holder",
            lease=locks / f"{stream}.lease" if has_lease else None,
            checkpoints=settings.state / "checkpoints" / stream,
            archive=lake / ".archive" / stream,
            workshop=lake / _WORKSHOPS / stream,
            proof=lake / ".proofs" / stream,
            gate=lake / ".gate" / stream,
            restored=lake / ".restore" / stream,
            registration=lake / ".catalogs" / stream,
        )

    def at(self, sink: SinkSpec) -> StreamPaths:
        """Return the places of the same stream in the same lake, with its rows in another sink."""
        return StreamPaths.of(self.stream, self.settings, sink)


def refuse_unable(paths: StreamPaths, ability: Ability) -> None:
    """Make sure that a stream's sink is able to do something.

    Raises:
        RefusedError: it is not; says why.
    """
    if why := paths.sink.kind.cannot.get(ability):
        problem = f"{paths.table.where} cannot {ability}: {why}."
        raise RefusedError(paths.stream, problem, remedy="see docs/sinks.md")


def _table_of(stream: str, sink: SinkSpec, settings: Settings, lake: Location) -> SinkTable:
    """Open a stream's table by the module of its sink, whose library may be large."""
    if lake.parent.name == _WORKSHOPS and sink.name != "delta":
        # Where it shall take the place of another, it must be in the same catalog or schema.
        sink, lake = sink.beside(stream), lake.parent.parent
    module = import_module(sink.kind.module)
    return cast("SinkTable", module.open_table(stream, sink.declared, settings, lake))
