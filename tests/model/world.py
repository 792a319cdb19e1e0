"""One world: a cluster, a lake, the processes that are at work in it, and what may go wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.lake.ledger import LedgerRow, put_rows
from oncelake.ingestion.lake.lock import Holder
from oncelake.ingestion.modes.engines.choose import EngineName
from oncelake.ingestion.operations.decisions import accept, adopt_topic
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.quarantine.redrive import Redrive
from oncelake.ingestion.operations.run import Run
from oncelake.ingestion.recovery import standing
from oncelake.ingestion.recovery.position import Position
from tests.model import seams
from tests.model.cluster import TOPIC, Cluster
from tests.model.evolution import FOLLOWED, HOSTS, Shape, declared
from tests.model.lake import STREAM, Paths
from tests.model.process import Process

SPEC = StreamSpec.model_validate(
    {
        "name": STREAM,
        "topic": TOPIC,
        "schema": "id INT NOT NULL, at INT, n SMALLINT",
        "keys": ["id"],
        "sequence_by": ["at"],
        "apply_as_deletes": "at < 0",
    }
)
_ = (SPEC.columns, SPEC.subscribed)


def maintain(spec: StreamSpec, paths: Any, run_id: str) -> None:
    """Do what ``ingestion.operations.upkeep.maintain`` does to the files of side tables."""
    with seams.held(paths, Holder(run_id=run_id, pid=1, host="model", since="now")):
        old = {side: side.old_files() for side in paths.sides.values()}
        if _healed(spec, paths):
            for side, names in old.items():
                side.remove_files(names)


def erase(spec: StreamSpec, paths: Any, run_id: str) -> None:
    """Do what ``ingestion.operations.erase.erase`` does, of a key that has no rows."""
    with seams.held(paths, Holder(run_id=run_id, pid=1, host="model", since="now")):
        if position := _healed(spec, paths):
            written = {side: [*side.files] for side in paths.sides.values()}
            note = position.next_metadata(run_id, kind="erase")
            commit = paths.table.commit_note(note)
            for side, names in written.items():
                side.remove_files(names)
            put_rows(paths, LedgerRow.of(commit, position.table_id))


def _healed(spec: StreamSpec, paths: Any) -> Position | None:
    found = standing.heal_stream(spec, paths)
    found.refuse(*standing.OF_BATCHES)
    return found.position


Locking = Literal["kernel", "lease", "none"]


class World:
    """What a schedule acts upon.

    Attributes:
        follows: Whether the table follows the schemas of the records.
        shape: That of the newest schema.
        files: What each host has written down of the columns; see ``evolution.keep_columns``.
        hosts: On which a process runs, by its name.
        host: Where the next one does.
        locking: What keeps others out: the kernel's lock, which goes with its process; a lease,
            which a process may lose and go on; or nothing.
        engine: What the next run that chooses will commit by.
        checkpoint: Where Spark's own log says that the last query stood.
        zombies: Processes that have lost the lock without knowing, or need none.
        armed: Faults of Spark that the next process to come by takes.
        taken: Every fault that has happened, by kind, for the statistics.
        skipped: (seq, partition, offset) of records that Spark passed over in a committed batch.
        is_mended: Whether a redrive finds bad records good; a run never does.
        applied: The epoch and the places of the good records of every committed batch, by seq.
        read_in: How often each partition had lost its end when a committed batch read it, by seq.
        spoiled: Seqs whose batch a fault has spoiled, with the key whose winner was dropped, or
            ``None`` where a record was delivered twice.
    """

    def __init__(
        self, *, partitions: int = 2, locking: Locking = "kernel", follows: bool = False
    ) -> None:
        """Begin with an empty topic and no table."""
        self.follows = follows
        self.shape = Shape()
        self.files = [FOLLOWED.ddl] * HOSTS
        self.hosts: dict[str, int] = {}
        self.host = 0
        self.cluster = Cluster(partitions)
        self.paths = Paths()
        self.paths.world = self.paths.checkpoints = self
        self.paths.quarantine.world = self.paths.tombstones.world = self
        self.lock: str | None = None
        self.locking = locking
        self.engine: EngineName = "spark"
        self.merge_engine, self.reader = "auto", "spark"
        self.clock_ms = 0
        self.batch_limit = 3
        self.checkpoint: Offsets | None = None
        self.processes: list[Process] = []
        self.ended: list[Process] = []
        self.armed: set[str] = set()
        self.taken: dict[str, int] = {}
        self.skipped: set[tuple[int, int, int]] = set()
        self.spoiled: dict[int, int | None] = {}
        self.applied: dict[int, tuple[int, frozenset[tuple[int, int]]]] = {}
        self.read_in: dict[int, Mapping[int, int]] = {}
        self.is_mended = False
        self.zombies: set[str] = set()
        self.started = 0
        self.state = self.lake = "state"
        self.merge_engine = "auto"

    def now_ms(self) -> int:
        """Tell the time, which grows with every look unless somebody sets it back."""
        self.clock_ms += 1000
        return self.clock_ms

    def takes(self, fault: str) -> bool:
        """Take a fault that is armed."""
        if fault not in self.armed:
            return False
        self.armed.discard(fault)
        self.happens(fault)
        return True

    def happens(self, fault: str) -> None:
        """Note that a fault happened."""
        self.taken[fault] = self.taken.get(fault, 0) + 1

    @property
    def ledger(self) -> dict[tuple[str, int], LedgerRow]:
        """The ledger's rows."""
        return self.paths.ledger.rows

    @property
    def spec(self) -> StreamSpec:
        """The declaration, as the host has it."""
        return declared(self.files[self.host]) if self.follows else SPEC

    def start_run(self) -> Process:
        """Start a run of the stream."""
        run_id = self._next_id("run")
        run = Run(
            spec=self.spec,
            settings=self,  # type: ignore[arg-type]
            spark=lambda _: None,  # type: ignore[arg-type,return-value]
            run_id=run_id,
        )
        return self._started(run_id, run.execute)

    def start_accept(self) -> Process:
        """Let a person accept what the stream is refused for."""
        run_id = self._next_id("accept")
        me: Any = self
        spec = self.spec
        return self._started(run_id, lambda: accept(spec, me, reason="why", run_id=run_id))

    def start_adopt(self) -> Process:
        """Let a person adopt the topic as it is now."""
        run_id = self._next_id("adopt")
        me: Any = self
        spec = self.spec
        return self._started(run_id, lambda: adopt_topic(spec, me, run_id=run_id))

    def start_redrive(self) -> Process:
        """Let a person send in again what waits in quarantine."""
        run_id = self._next_id("redrive")
        redrive = Redrive(
            spec=self.spec,
            settings=self,  # type: ignore[arg-type]
            spark=lambda _: None,  # type: ignore[arg-type,return-value]
            run_id=run_id,
        )
        return self._started(run_id, redrive.execute)

    def start_rewind(self, seq: int) -> Process:
        """Let a person set the stream back."""
        run_id = self._next_id("rewind")
        me: Any = self
        spec = self.spec
        to = f"seq:{seq}"
        return self._started(run_id, lambda: rewind(spec, me, to=to, reason="why", run_id=run_id))

    def start_maintain(self) -> Process:
        """Let the files go that no log names, but for those of runs that may be at work."""
        run_id, spec = self._next_id("maintain"), self.spec
        return self._started(run_id, lambda: maintain(spec, self.paths, run_id))

    def start_erase(self) -> Process:
        """Let all files go that no log names, whoever may be at work."""
        run_id, spec = self._next_id("erase"), self.spec
        return self._started(run_id, lambda: erase(spec, self.paths, run_id))

    def sweep(self) -> list[Process]:
        """Take out the processes that have ended; a lock goes with its process."""
        ended = [each for each in self.processes if each.has_ended]
        for process in ended:
            self.processes.remove(process)
            if self.lock == process.name:
                self.lock = None
        return ended

    def _next_id(self, what: str) -> str:
        self.started += 1
        return f"{what}-{self.started}"

    def _started(self, name: str, body: Any) -> Process:
        process = Process(name, body)
        self.hosts[name] = self.host
        if self.locking == "none":
            self.zombies.add(name)
            self.happens("no lock")
        self.processes.append(process)
        process.advance()
        return process
