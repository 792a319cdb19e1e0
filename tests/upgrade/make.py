"""Write the archive of this version: ``python -m tests.upgrade.make``.

Each stream has rows, deletes, a schema that was evolved and records in quarantine, and was left in
the middle of something, by SIGKILL.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.failpoints import Failpoint
from oncelake.ingestion.tables.format import engine_version
from tests.support.arrow_source import ArrowSession, without_spark
from tests.support.world import COLUMNS, World, row
from tests.trials.failpoints import PlannedCrash
from tests.trials.kills import run_to_its_end
from tests.upgrade.archive import ARCHIVES, FOLDER, alone, dump, pack, services
from tests.upgrade.shape import shape

SINKS: Final = ("delta", "iceberg", "postgres", "kafka")
EVOLVED: Final = f"{COLUMNS}, note STRING"
ROWS: Final = 40
# A redrive sends it in, once the column is lenient.
WAITING: Final = {"id": 5, "name": "v5", "at": "7"}
ERASE: Final = ["--key", '{"id": 3}', "--reason", "a test", "--yes"]
REASON: Final = ["--reason", "a test"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """A stream, and how it was left.

    Attributes:
        sink: What keeps its rows.
        place: Where its last command was killed; none was, if empty.
        command: That command, and its options.
        declared: What it declares beside the usual.
    """

    sink: str
    place: str = ""
    command: tuple[str, ...] = ("run",)
    declared: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The stream's name, and its topic's."""
        what = self.command[0] if self.command != ("run",) else self.declared.get("mode", "")
        return "_".join(filter(None, (self.sink, what, self.place)))

    @property
    def said(self) -> dict[str, Any]:
        """What an archive says of it."""
        return {"sink": self.sink, "command": list(self.command)}


def streams() -> list[Left]:
    """Return the streams of an archive."""
    places = (Failpoint.PREPARED, Failpoint.COMMITTED, Failpoint.PROJECTED)
    append = {"mode": "append", "keys": []}
    scd2 = {"mode": "scd2", "sequence_by": ["at"], "tombstones": "quarantine"}
    return [
        *(Left(sink=sink, place=str(at)) for sink in SINKS for at in places),
        *(Left(sink=sink, declared=append) for sink in SINKS),
        Left(sink="delta", declared=scd2),
        *(_left(sink, Failpoint.COMMITTED, "rebuild", *REASON) for sink in SINKS[:3]),
        *(_left(sink, Failpoint.SWAP_BEGUN, "rebuild", *REASON) for sink in SINKS[:3]),
        _left("delta", Failpoint.SWAP_CLEARED, "rebuild", *REASON),
        _left("delta", Failpoint.SIDES_CLEARED, "erase", *ERASE),
        _left("iceberg", Failpoint.DECIDED, "erase", *ERASE),
        _left("delta", Failpoint.DECIDED, "rewind", "--to", "seq:2", *REASON, "--yes"),
    ]


def _left(sink: str, place: Failpoint, *command: str) -> Left:
    return Left(sink=sink, place=str(place), command=command)


def fill(left: Left, settings: Settings, session: ArrowSession) -> None:
    """Let a stream have a past, and leave it."""
    world = World.over(left.name, settings, session)  # type: ignore[arg-type]
    world.create_topic(2)
    sink: Any = {"delta": {"key_index": True}} if left.name == "delta_projected" else left.sink
    world.declare(sink=sink, rewind_window_days=3650, **left.declared)
    if left.sink in {"delta", "iceberg"} and "mode" not in left.declared:
        world.declare(deletion_vectors=True)
    for partition in (0, 1):
        world.send(*(row(n, f"v{n}", 1) for n in range(partition, ROWS, 2)), partition=partition)
    world.run()
    is_upsert = "mode" not in left.declared
    world.send(row(2, "changed", 2), row(2, "changed again", 2), b"garbage")
    if is_upsert:
        world.send(None, partition=1, id=1)
    world.run()
    world.declare(schema=EVOLVED, schema_change="evolve")
    if is_upsert:
        world.send(WAITING, partition=1)
    world.send({**row(ROWS, "new", 3), "note": "evolved"})
    world.run()
    world.write_declaration()
    world.send({**row(4, "last", 4), "note": "unread"}, b"more garbage")
    if left.place:
        _kill(world, left)


def _kill(world: World, left: Left) -> None:
    world.operation = left.command
    visits = str(FOLDER / "logs" / f"visits-{left.name}")
    how, problems = run_to_its_end(
        world, PlannedCrash(place=left.place, nth=1, way="kill_group", visits=visits)
    )
    assert (how, problems) == ("killed", ()), f"{left.name}: {how} {problems}"


def make(archive: Path) -> None:
    """Fill a lake, and pack it."""
    with alone(), without_spark() as session:
        with services() as settings:
            settings.state.mkdir()
            for left in streams():
                began = time.monotonic()
                fill(left, settings, session)
                print(f"{left.name}: {time.monotonic() - began:.1f} s", file=sys.stderr)
            assert settings.postgres is not None
            dump(settings.postgres.get_secret_value())
        kept = {left.name: left.said for left in streams()}
        made_by = crc32(Path(__file__).read_bytes())
        manifest = {"oncelake": engine_version(), "streams": kept, "made by": made_by}
        pack(archive, {**manifest, "shape": shape()})


if __name__ == "__main__":
    path = ARCHIVES / f"{engine_version()}.tar.xz"
    make(path)
    print(f"{path.relative_to(Path.cwd())}: {path.stat().st_size:,} bytes")
