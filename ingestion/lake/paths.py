"""Where a stream's tables, lock and checkpoints lie: the only place that joins these paths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ingestion.lake.location import Location
from ingestion.settings import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamPaths:
    """The places of one stream; all but the checkpoints are of the lake.

    Attributes:
        lake: The lake that they are in.
        lock: The file whose kernel lock is the right to write.
        ledger_copy: The ledger as it was when commits last left the table's log.
        holder: Who holds that lock, for people.
        lease: The object that stands in for that lock, where the settings or a store say so.
        lease_seconds: How long that holds when its holder no longer renews it.
        checkpoints: One folder a generation of the Spark checkpoint, on this machine.
        archive: Where tables are moved to that are taken away from the stream.
        workshop: The lake in which ``rebuild`` makes the tables anew.
        restored: Where ``archive restore`` copies tables to, before they take their places.
    """

    stream: str
    lake: Location
    data: Location
    quarantine: Location
    tombstones: Location
    ledger: Location
    ledger_copy: Location
    lock: Location
    holder: Location
    lease: Location | None
    lease_seconds: float
    checkpoints: Path
    archive: Location
    workshop: Location
    restored: Location

    @property
    def written(self) -> tuple[Path, ...]:
        """Every folder of this machine that a run writes to; each may be a volume of its own."""
        tables = (self.data, self.quarantine, self.tombstones, self.ledger, self.lock.parent)
        return (*(each.path for each in tables if each.is_local), self.checkpoints)

    @classmethod
    def of(cls, stream: str, settings: Settings) -> StreamPaths:
        """Return the places of a stream."""
        lake = Location.of(settings.lake, cache=settings.state / "mirror")
        locks = lake / ".locks"
        has_lease = settings.lock == "lease" or not lake.is_local
        return cls(
            stream=stream,
            lake=lake,
            data=lake / stream,
            quarantine=lake / f"{stream}__quarantine",
            tombstones=lake / f"{stream}__tombstones",
            ledger=lake / f"{stream}__ledger",
            ledger_copy=lake / stream / "_ledger.copy",
            lock=locks / stream,
            holder=locks / f"{stream}.holder",
            lease=locks / f"{stream}.lease" if has_lease else None,
            lease_seconds=settings.lease_seconds,
            checkpoints=settings.state / "checkpoints" / stream,
            archive=lake / ".archive" / stream,
            workshop=lake / ".rebuild" / stream,
            restored=lake / ".restore" / stream,
        )
