"""End many processes that have worked on a stream, and count those that did not end with 0.

python -m tests.ends [--reads 200] [--ledger 200] [--verify 200] [--runs 200] [--records 200000]
                     [--minutes M] [--results FILE] [--report]

Threads that outlive the work can abort a process while it ends, once in a while: only many ends
show that they do not. An end costs a second, one of a run with a batch half a minute.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.progress import track

from tests.support.world import ROOT, World, row, settings_in
from tests.trials.main import parser_of, within
from tests.trials.record import PROOFS, print_counts, print_evidence, results_of_engine
from tests.trials.world import broker_in, folder_of_its_own, open_world

STREAM: Final = "ends"
_PARTITIONS: Final = 3
_PREAMBLE: Final = f"""
from deltalake import DeltaTable
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.settings import load_settings
paths = StreamPaths.of("{STREAM}", load_settings())
"""
# One for each function that reads rows by Arrow.
_READS: Final[Mapping[str, str]] = {
    "open_rows": """
from oncelake.ingestion.delta.files import open_rows
from oncelake.ingestion.storage.location import Location
table = open_rows(paths.data).to_table()
""",
    "count_rows": """
import pyarrow.compute as pc
from oncelake.ingestion.delta.integrity import count_rows
count = count_rows(paths.data, pc.field("_seq") == 1)
""",
    "highest_epoch": """
from oncelake.ingestion.delta.log import (DeltaLog)
epoch = DeltaLog(paths.data).highest_epoch()
""",
    "Ledger.rows": """
from oncelake.ingestion.lake.ledger import Ledger
rows = Ledger(paths.ledger).rows()
""",
    "inspect quarantine": f"""
from oncelake.ingestion.operations.quarantine.inspect import inspect
inspection = inspect("{STREAM}", paths)
""",
    "the proof's ledger": """
from oncelake.ingestion.verify.read.snapshot import read_ledger
batches = read_ledger(paths.ledger)
""",
    "the proof's rows": """
from oncelake.ingestion.delta.files import scan_rows
from oncelake.ingestion.verify.read.snapshot import rows_in
rows = list(rows_in(scan_rows(paths.data, ["id", "name"])))
""",
    "the proof's rows, abandoned": """
from oncelake.ingestion.delta.files import scan_rows
from oncelake.ingestion.verify.read.snapshot import rows_in
rows = rows_in(scan_rows(paths.data, ["id", "name"]))
first = next(rows)
""",
    "head": """
from oncelake.ingestion.delta.files import open_rows
from oncelake.ingestion.storage.location import Location
rows = open_rows(paths.data).head(10)
""",
}


class Ending(NamedTuple):
    """A kind of process, and how many of it are to end.

    Attributes:
        words: What Python is given.
        before: Is done before each.
    """

    name: str
    words: Sequence[str]
    ends: int
    before: Callable[[], object] = lambda: None


def main() -> int:
    """End processes of every kind, and return 1 when one of them did not end with 0."""
    counts = dict.fromkeys(("reads", "ledger", "verify", "runs"), 200)
    parser = parser_of(
        "tests.ends", __doc__, results=PROOFS / "ends.jsonl", records=200_000, **counts
    )
    options = parser.parse_args()
    results = results_of_engine(options.results)
    if not options.report:
        with _stream(options.records) as world:
            kinds = [
                Ending(name, ["-c", _PREAMBLE + code], options.reads)
                for name, code in _READS.items()
            ]
            for name, count in (("ledger", options.ledger), ("verify", options.verify)):
                kinds.append(Ending(f"oncelake {name}", ["-m", "ingestion", name, STREAM], count))
            send = partial(_send, world, range(1_000))
            kinds.append(Ending("oncelake run", world.command[1:], options.runs, send))
            for kind in within(options.minutes, kinds):
                results.add(_end(kind, world))
    recorded = results.read()
    codes: dict[str, Counter[str]] = {}
    for each in recorded:
        codes.setdefault(each["name"], Counter()).update(each["codes"])
    print_counts("exit codes", codes)
    return print_evidence(recorded, "name")


@contextmanager
def _stream(records: int) -> Iterator[World]:
    """Ingest ``records`` once, in a lake that goes with the block."""
    with folder_of_its_own("ends") as folder, broker_in(folder / "kafka") as address:
        settings = settings_in(folder, address, kafka_timeout_seconds=60)
        world = open_world(settings, STREAM, partitions=_PARTITIONS)
        world.write_declaration()
        _send(world, range(records))
        subprocess.run(world.command, env=world.environment(), cwd=ROOT, check=True)
        yield world


def _send(world: World, ids: Sequence[int]) -> None:
    """Send a record for each id; every hundredth is no JSON, and goes into quarantine."""
    for partition in range(_PARTITIONS):
        mine = (id_ for id_ in ids if id_ % _PARTITIONS == partition)
        records = (row(id_, f"name {id_}", id_) if id_ % 100 else b"{" for id_ in mine)
        world.send(*records, partition=partition)


def _end(kind: Ending, world: World) -> dict[str, Any]:
    """End so many processes of a kind, and count their exit codes."""
    codes, evidence = Counter[str](), []
    console = Console(stderr=True)
    for _ in track(range(kind.ends), description=kind.name, console=console, transient=True):
        kind.before()
        ended = subprocess.run(
            [sys.executable, *kind.words],
            cwd=ROOT,
            env=world.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        codes[str(ended.returncode)] += 1
        if ended.returncode:
            evidence.append(ended.stderr[-2000:])
    return {"name": kind.name, "codes": codes, "evidence": evidence}


if __name__ == "__main__":
    sys.exit(main())
