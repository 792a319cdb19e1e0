"""Write the archive of this version: ``python -m tests.upgrade.make``.

Each stream has rows, deletes where its mode takes them, a schema that was evolved and records in
quarantine. Most were left in the middle of something, by SIGKILL; at a gate a batch waits.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import pyarrow as pa
from deltalake import write_deltalake

from oncelake.ingestion.operations.audit.adopt import adopt_table
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.failpoints import Failpoint
from oncelake.ingestion.tables.arrow_types import arrow_schema
from oncelake.ingestion.tables.format import engine_version
from tests.support.arrow_source import ArrowSession, without_spark
from tests.support.gate import withheld_by
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
        what: What is special about it, where neither its command nor its mode says so.
        declared: What it declares beside the usual.
    """

    sink: str
    place: str = ""
    command: tuple[str, ...] = ("run",)
    what: str = ""
    declared: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The stream's name, and its topic's."""
        command = self.command[0] if self.command != ("run",) else ""
        what = self.what or command or self.declared.get("mode", "")
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
    fold = {"mode": "aggregate", "aggregates": {"records": "count(*)", "newest": "max(at)"}}
    gate = {"publish": "checked", "guard": {"growth": 2}}
    return [
        *(Left(sink=sink, place=str(at)) for sink in SINKS for at in places),
        *(Left(sink=sink, declared=append) for sink in SINKS),
        Left(sink="delta", declared=scd2),
        Left(sink="delta", declared=fold),
        Left(sink="delta", declared=gate, what="gate"),
        Left(sink="delta", what="adopted"),
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
    if left.what == "adopted":
        _adopt(world)
    world.run()
    is_upsert = "mode" not in left.declared
    world.send(row(2, "changed", 2), row(2, "changed again", 2), b"garbage")
    if is_upsert:
        world.send(None, partition=1, id=1)
    world.run()
    world.declare(schema=EVOLVED, schema_change="evolve")
    world.send(WAITING, partition=1)
    world.send({**row(ROWS, "new", 3), "note": "evolved"})
    world.run()
    world.write_declaration()
    last = {**row(4, "last", 4), "note": "unread"}
    world.send(*[last] * (9 if left.what == "gate" else 1), b"more garbage")
    if left.what == "gate":
        assert withheld_by(world) == ["guard.growth"]
    if left.place:
        _kill(world, left)


def _adopt(world: World) -> None:
    """Adopt a table that another loader has filled from the first half of each partition."""
    rows = [row(n, f"v{n}", 1) for n in range(ROWS // 2)]
    table = pa.Table.from_pylist(rows, arrow_schema(world.spec.columns))
    write_deltalake(str(world.paths.data), table)
    begin = json.dumps({"0": ROWS // 4, "1": ROWS // 4})
    adopt_table(world.spec, world.settings, starting=begin, reason="a test", run_id="adopt")


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
