"""What each sink costs: a load of a million, and 10,000 changes into it.

    python -m bench.sinks [--scale 0.1] [--only SINK...]

All runs in one process, behind a first one that is not measured. CPU-seconds are those of this
process, its JVM, and PostgreSQL's server where that keeps the rows; the broker's are left out.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from bench.cpu import cpu_seconds
from bench.topic import ORDERS, Topic
from oncelake.ingestion.declaration.sinks import SINKS
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.local import broker
from oncelake.ingestion.operations.run import Run
from oncelake.ingestion.pipeline.spark.session import start_session
from oncelake.ingestion.settings import Settings, load_settings
from tests.support.postgres import postgres

_MILLION: Final = 1_000_000
_UPSERT: Final = {"schema": ORDERS, "keys": ["id"]}
# What reads, keeps a part, and writes other columns: Kafka's read, process, write.
_TRANSFORMED: Final = {
    "mode": "append",
    "value_schema": ORDERS,
    "where": "quantity > 1",
    "schema": "id BIGINT, city STRING, amount DOUBLE, updated_at TIMESTAMP",
    "select": {"city": "upper(city)", "amount": "price * quantity"},
}


class _Bench:
    """One topic of orders, and runs into every sink."""

    def __init__(self, settings: Settings, broker_pid: int) -> None:
        self._settings, self._broker = settings, broker_pid
        self._spark = start_session(settings)

    def measure(self, sink: str, scale: float) -> Iterator[tuple[str, int, float, float]]:
        """Yield what was done, how many records were read, and wall and CPU seconds of it."""
        topic = Topic(self._settings, f"orders_{sink}")
        upsert = {**_UPSERT, "topic": topic.name, "sink": sink}
        topic.insert(round(_MILLION * scale))
        yield "load", *self._run(f"orders_{sink}", upsert)
        topic.change(round(9_000 * scale), keys=round(9_000 * scale), inserts=round(1_000 * scale))
        yield "changes", *self._run(f"orders_{sink}", upsert)
        if sink in ("kafka", "delta"):
            appended = {**_TRANSFORMED, "topic": topic.name, "sink": sink}
            for how in ("first", "again"):
                what = f"`where` and `select`, append, {how}"
                yield what, *self._run(f"clean_{sink}_{how}", appended)

    def warm_up(self, sink: str) -> None:
        """Run once what is not measured: classes are loaded, and libraries opened."""
        topic = Topic(self._settings, f"first_{sink}")
        topic.insert(1_000)
        for _ in range(2):
            self._run(topic.name, {**_UPSERT, "topic": topic.name, "sink": sink})
            topic.insert(1_000)

    def _run(self, name: str, declared: dict[str, Any]) -> tuple[int, float, float]:
        spec = StreamSpec.model_validate({"name": name, **declared})
        run = Run(spec=spec, settings=self._settings, spark=lambda _: self._spark, run_id="bench")
        wall, cpu = time.perf_counter(), self._cpu()
        report = run.execute()
        wall, cpu = time.perf_counter() - wall, self._cpu() - cpu
        assert report.is_balanced, "the books must balance before a figure counts"
        return report.total("read"), wall, cpu

    def _cpu(self) -> float:
        return cpu_seconds(os.getpid()) - cpu_seconds(self._broker)


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="1 is a million records")
    parser.add_argument("--only", nargs="+", choices=tuple(SINKS), default=tuple(SINKS))
    asked = parser.parse_args()
    with _everything_it_needs() as bench:
        print("| sink | what | records | wall s | CPU s | records/CPU-s |")
        print("| --- | --- | --- | --- | --- | --- |")
        for sink in asked.only:
            bench.warm_up(sink)
            for what, records, wall, cpu in bench.measure(sink, asked.scale):
                figures = f"{records:,} | {wall:.1f} | {cpu:.1f} | {records / cpu:,.0f}"
                print(f"| {sink} | {what} | {figures} |", flush=True)


@contextmanager
def _everything_it_needs() -> Iterator[_Bench]:
    with tempfile.TemporaryDirectory() as folder, postgres(Path(folder)) as address:
        at = Path(folder)
        up = broker.up(at / "kafka", jars=load_settings().jars, tied_to_caller=True)
        try:
            settings = load_settings(
                kafka=up.address,
                lake=at / "lake",
                state=at / "state",
                postgres=SecretStr(address),
            )
            yield _Bench(settings, up.pid)
        finally:
            broker.down(at / "kafka")


if __name__ == "__main__":
    main()
