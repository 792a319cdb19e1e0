"""Runs of every contender on one broker: each in a folder of its own, metered and checked."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from ruamel.yaml import YAML

from bench.cpu import Cost, run_metered
from bench.fold import Fold
from bench.topic import Topic
from oncelake.ingestion.settings import Settings

_ROOT: Final = Path(__file__).parents[1]
PEERS: Final = _ROOT / ".venv-bench" / "bin" / "python"
Figures = dict[str, dict[str, dict[str, Any]]]


class Contender(NamedTuple):
    """Somebody who loads a topic into a table.

    Attributes:
        command: The process, but for the stream and the folders.
        environment: What it sets beside everybody's environment.
    """

    command: tuple[str, ...]
    environment: dict[str, str]


_MODULE: Final = (sys.executable, "-m", "bench.contenders")
CONTENDERS: Final = {
    "Oncelake": Contender((*_MODULE, "oncelake"), {}),
    "Oncelake, Spark's MERGE": Contender(
        (*_MODULE, "oncelake"), {"ONCELAKE_MERGE_ENGINE": "spark"}
    ),
    "Oncelake, deletion vectors": Contender(
        (*_MODULE, "oncelake"), {"BENCH_DELETION_VECTORS": "1"}
    ),
    "naive Spark": Contender((*_MODULE, "naive"), {}),
    "delta-rs by hand": Contender((sys.executable, "-m", "bench.peers", "delta_rs"), {}),
    "dlt": Contender((str(PEERS), "-m", "bench.peers", "dlt"), {}),
}
ENGINES: Final = tuple(CONTENDERS)[:2]
SPARK: Final = (*ENGINES, "naive Spark")
# Who merges into a table that Oncelake has loaded.
MERGING: Final = tuple(CONTENDERS)[:3]


@dataclass
class Runner:
    """Runs contenders and keeps their figures, by contender, part and ``cold`` or ``warm``."""

    settings: Settings
    scratch: Path
    chosen: tuple[str, ...] = tuple(CONTENDERS)
    figures: Figures = field(default_factory=dict)

    def contenders(self, among: tuple[str, ...] = tuple(CONTENDERS)) -> tuple[str, ...]:
        """Return those that were chosen and can run here."""
        chosen = (name for name in among if name in self.chosen)
        return tuple(name for name in chosen if name != "dlt" or PEERS.exists())

    def alike(self, among: tuple[str, ...] = tuple(CONTENDERS)) -> tuple[str, ...]:
        """Leave out the one whose tables begin like Oncelake's own."""
        return tuple(name for name in self.contenders(among) if name != MERGING[-1])

    def declare(self, name: str, ddl: str, **more: Any) -> tuple[Topic, Fold]:
        """Declare a stream, and create its topic."""
        folder = self.scratch / "streams"
        folder.mkdir(exist_ok=True)
        stream = {"topic": name, "schema": ddl, "keys": ["id"], "sequence_by": ["updated_at"]}
        with (folder / f"{name}.yaml").open("w") as file:
            YAML().dump({**stream, **more}, file)
        topic = Topic(self.settings, name)
        return topic, Fold(topic, ddl, self.scratch)

    def cold(self, name: str, part: str, fold: Fold, *, rounds: int = 1) -> None:
        """Measure whole processes; the table of the last is what the contender has from now on."""
        costs = []
        for number in range(rounds):
            folder = self._copy(name, fold, number)
            costs.append(self._run(name, fold, [folder], as_command=True)._asdict())
        self.note(name, part, "cold", costs)
        base = self._base(name, fold)
        shutil.rmtree(base, ignore_errors=True)
        base.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(base)
        self._clean()

    def warm(self, name: str, part: str, fold: Fold, *, of: str = "", rounds: int = 3) -> None:
        """Measure repetitions in one process, but for the first if there are more.

        Args:
            of: Whose table to begin with, if not the contender's own.
        """
        folders = [self._copy(of or name, fold, number) for number in range(rounds)]
        whole = self._run(name, fold, folders)
        costs = [json.loads((folder / "cost.json").read_text()) for folder in folders]
        if sum(cost["cpu"] for cost in costs) > 1.1 * whole.cpu:
            raise SystemExit(f"{name}: counted twice: {costs} of {whole}")
        self.note(name, part, "warm", costs[1:] or costs)
        self._clean()

    def _run(self, name: str, fold: Fold, folders: list[Path], *, as_command: bool = False) -> Cost:
        """Run a process, and check the tables that it leaves."""
        contender, stream = CONTENDERS[name], fold.topic.name
        command = [*contender.command, stream, *map(str, folders)]
        environment = {**self.environment(folders[0]), **contender.environment}
        if as_command and "oncelake" in contender.command:
            command = [sys.executable, "-m", "ingestion", "run", stream]
        cost = run_metered(command, environment, self.scratch / "log")
        for folder in folders:
            fold.check(folder / "lake" / stream, name)
        return cost

    def note(self, name: str, part: str, how: str, costs: list[dict[str, Any]]) -> None:
        """Keep the median of some figures of a contender, and print it."""
        middle = {
            key: round(statistics.median(cost[key] for cost in costs), 3)
            for key, value in costs[0].items()
            if isinstance(value, float)
        }
        middle |= {key: value for key, value in costs[0].items() if key not in middle}
        self.figures.setdefault(name, {})[f"{part}, {how}"] = middle
        print(f"{name}: {part}, {how}: {middle}", flush=True)

    def environment(self, folder: Path) -> dict[str, str]:
        """Return everybody's environment; whatever a person has set is for their own lake."""
        ours = {name: text for name, text in os.environ.items() if not name.startswith("ONCELAKE_")}
        return {
            **ours,
            "PYTHONPATH": str(_ROOT),
            "ONCELAKE_KAFKA": self.settings.bootstrap_servers(),
            "ONCELAKE_JARS": str(self.settings.jars),
            "ONCELAKE_STREAMS": str(self.scratch / "streams"),
            "ONCELAKE_LAKE": str(folder / "lake"),
            "ONCELAKE_STATE": str(folder / "state"),
            "RUNTIME__DLTHUB_TELEMETRY": "false",
        }

    def _base(self, name: str, fold: Fold) -> Path:
        return self.scratch / "tables" / name / fold.topic.name

    def _copy(self, name: str, fold: Fold, number: int) -> Path:
        """Copy what a contender has so far of a topic; at first that is an empty folder."""
        base, copy = self._base(name, fold), self.scratch / "runs" / str(number)
        if base.exists():
            shutil.copytree(base, copy, symlinks=True)
        copy.mkdir(parents=True, exist_ok=True)
        return copy

    def _clean(self) -> None:
        shutil.rmtree(self.scratch / "runs", ignore_errors=True)
