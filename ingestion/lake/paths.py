"""Where a stream's tables, lock and checkpoints lie: the only place that joins these paths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ingestion.settings import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamPaths:
    """The places of one stream.

    Attributes:
        lock: The file whose kernel lock is the right to write.
        ledger_copy: The ledger as it was when commits last left the table's log.
        holder: Who holds that lock, for people.
        lease: The file that stands in for that lock, where the settings say so.
        checkpoints: One folder a generation of the Spark checkpoint.
        archive: Where tables are moved to that are taken away from the stream.
        workshop: The lake in which ``rebuild`` makes the tables anew.
        restored: Where ``archive restore`` copies tables to, before they take their places.
    """

    stream: str
    data: Path
    quarantine: Path
    tombstones: Path
    ledger: Path
    ledger_copy: Path
    lock: Path
    holder: Path
    lease: Path | None
    checkpoints: Path
    archive: Path
    workshop: Path
    restored: Path

    @property
    def written(self) -> tuple[Path, ...]:
        """Every folder that a run writes to; each may be a volume of its own."""
        tables = (self.data, self.quarantine, self.tombstones, self.ledger)
        return (*tables, self.lock.parent, self.checkpoints)

    @classmethod
    def of(cls, stream: str, settings: Settings) -> StreamPaths:
        """Return the places of a stream, on this machine."""
        lake = settings.lake
        return cls(
            stream=stream,
            data=lake / stream,
            quarantine=lake / f"{stream}__quarantine",
            tombstones=lake / f"{stream}__tombstones",
            ledger=lake / f"{stream}__ledger",
            ledger_copy=lake / stream / "_ledger.copy",
            lock=lake / ".locks" / stream,
            holder=lake / ".locks" / f"{stream}.holder",
            lease=lake / ".locks" / f"{stream}.lease" if settings.lock == "lease" else None,
            checkpoints=settings.state / "checkpoints" / stream,
            archive=lake / ".archive" / stream,
            workshop=lake / ".rebuild" / stream,
            restored=lake / ".restore" / stream,
        )
