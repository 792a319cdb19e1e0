"""What many streams cost Dagster: loading them, a tick of the sensor, and one stream's run.

    python -m bench.many [STREAMS]

Each stream has a topic and a table, and nothing is unread. CPU-seconds of whole processes, children
included, beside those of a project of one stream.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final
from unittest.mock import patch

import dagster as dg
from confluent_kafka.admin import AdminClient, NewTopic

from oncelake.ingestion.declaration.files.loader import load_streams
from oncelake.ingestion.local import broker
from oncelake.ingestion.operations.run import Run
from oncelake.ingestion.pipeline.spark.session import start_session
from oncelake.ingestion.settings import load_settings

STREAMS: Final = 1_000
_ROOT: Final = Path(__file__).parents[1]
_DECLARED: Final = {"schema": "id BIGINT NOT NULL, name STRING, at TIMESTAMP", "keys": ["id"]}
_LOAD: Final = "import assets.definitions as d; d.defs.get_repository_def().get_all_jobs()"


def declare(folder: Path, count: int) -> None:
    """Write the files of as many streams."""
    folder.mkdir(parents=True)
    for number in range(count):
        fields = {"topic": f"shop.orders.{number}", **_DECLARED}
        (folder / f"orders_{number}.yaml").write_text(json.dumps(fields))


def seconds_of(*command: str) -> float:
    """Return the CPU-seconds of a process and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=_ROOT, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def seconds_of_ticks() -> list[float]:
    """Tick three times, a minute apart as the sensor sees it; return the CPU-seconds of each."""
    from oncelake.assets.definitions import defs

    sensor = defs.get_repository_def().get_sensor_def("lag")
    cursor, spent, now = None, [], time.time()
    with dg.DagsterInstance.ephemeral() as instance:
        for minute in range(3):
            resources = defs.get_repository_def().get_top_level_resources()
            began = time.process_time()
            with (
                patch("time.time", return_value=now + minute * 60),
                dg.build_sensor_context(
                    instance=instance, cursor=cursor, resources=resources
                ) as context,
            ):
                found = sensor.evaluate_tick(context)
            cursor = found.cursor
            assert not found.run_requests, found.run_requests
            spent.append(time.process_time() - began)
    return spent


def main() -> None:
    """Measure, and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else STREAMS
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for number in (1, count):
            declare(scratch / str(number), number)
        address = broker.up(
            scratch / "kafka", jars=load_settings().jars, tied_to_caller=True
        ).address
        os.environ |= {
            "ONCELAKE_KAFKA": address,
            "ONCELAKE_LAKE": str(scratch / "lake"),
            "ONCELAKE_STATE": str(scratch / "state"),
            "ONCELAKE_STREAMS": str(scratch / str(count)),
            "DAGSTER_HOME": str(scratch),
        }
        try:
            prepare(address)
            for number in (1, count):
                os.environ["ONCELAKE_STREAMS"] = str(scratch / str(number))
                load = seconds_of(sys.executable, "-c", _LOAD)
                run = ["-m", "dagster", "asset", "materialize", "--select", "orders_0"]
                run_one = seconds_of(sys.executable, *run, "-m", "assets.definitions")
                print(f"{number:>6} streams: load {load:.1f}, run of one {run_one:.1f} CPU-s")
            first, *quiet = seconds_of_ticks()
            print(f"        a tick: {first:.1f} CPU-s, then {max(quiet):.1f}")
        finally:
            broker.down(scratch / "kafka")


def prepare(address: str) -> None:
    """Create each stream's topic, and its table by an empty run."""
    streams = load_streams(load_settings().streams)
    admin = AdminClient({"bootstrap.servers": address})
    topics = [each.spec.topic for each in streams if each.spec is not None and each.spec.topic]
    for created in admin.create_topics([NewTopic(name, 1, 1) for name in topics]).values():
        created.result(60)
    settings = load_settings()
    session = start_session(settings)
    for each in streams:
        spec = each.require_spec()
        Run(spec=spec, settings=settings, spark=lambda _: session, run_id="bench").execute()
    session.stop()


if __name__ == "__main__":
    main()
