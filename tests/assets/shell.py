"""A Dagster home of a test's own, and the shell of somebody who works with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from oncelake.assets.assets import ingest_asset
from oncelake.ingestion.declaration.files.loader import DeclaredStream, load_streams
from oncelake.ingestion.settings import Settings
from oncelake.resources.kafka import KafkaResource
from oncelake.resources.lake import LakeResource
from oncelake.resources.spark import SparkResource
from tests.support.world import World, environment_of

ROOT = Path(__file__).parents[2]
STALLING = "tests.assets.stalling"

# As the project's own, with less patience.
DAGSTER_YAML = """
telemetry: {enabled: false}
nux: {enabled: false}
concurrency: {pools: {default_limit: 1, granularity: op}}
run_monitoring: {enabled: true, poll_interval_seconds: 2, free_slots_after_run_end_seconds: 2}
run_retries: {enabled: true, max_retries: 2, retry_on_asset_or_op_failure: false}
code_servers: {local_startup_timeout: 180}
"""
WORKSPACE = """
load_from:
  - python_module:
      module_name: tests.assets.stalling
      working_directory: {root}
      location_name: oncelake
"""


def make_home(folder: Path) -> Path:
    """Make a Dagster home with a workspace whose first run stalls."""
    folder.mkdir()
    (folder / "dagster.yaml").write_text(DAGSTER_YAML)
    (folder / "workspace.yaml").write_text(WORKSPACE.format(root=ROOT))
    return folder


def environment(world: World, home: Path) -> dict[str, str]:
    """Return what a shell has in which somebody works with that home."""
    return {**environment_in(world.settings, home), "STALLED": str(home / "stalled")}


def environment_in(settings: Settings, home: Path) -> dict[str, str]:
    """Return what a shell has in which these settings and that home hold."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**environment_of(settings), "DAGSTER_HOME": str(home), "PATH": path}


def reported_batches(home: Path, asset: str) -> list[tuple[bool, list[int]]]:
    """Return, of each materialization, whether it is recovered, and the seqs it speaks of."""
    with dg.DagsterInstance.from_config(str(home)) as instance:
        return reported_in(instance, asset)


def reported_in(instance: dg.DagsterInstance, asset: str) -> list[tuple[bool, list[int]]]:
    """Return, of each materialization, whether it is recovered, and the seqs it speaks of."""
    found = instance.fetch_materializations(dg.AssetKey(asset), limit=100, ascending=True)
    reported = []
    for record in found.records:
        event = record.asset_materialization
        assert event is not None
        last, batches = (int(str(event.metadata[it].value)) for it in ("seq", "batches"))
        seqs = list(range(last - batches + 1, last + 1))
        reported.append((bool(event.metadata["recovered"].value), seqs))
    return reported


def materialize(world: World, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    """Materialize the world's stream in this process, by the engine and the session's Spark."""
    path = world.settings.streams / f"{world.topic}.yaml"
    stream = DeclaredStream(name=world.topic, path=path, spec=world.spec, error=None)
    return materialize_assets([ingest_asset(stream)], world.settings, instance)


def assets_of(world: World) -> list[dg.AssetsDefinition]:
    """Return the assets of the streams of the world's one file."""
    streams = load_streams(world.settings.streams)
    return [ingest_asset(each, siblings=streams) for each in streams]


def materialize_assets(
    assets: Sequence[dg.AssetsDefinition],
    at: Settings,
    instance: dg.DagsterInstance,
    selection: dg.AssetSelection | Sequence[str] | None = None,
) -> dg.ExecuteInProcessResult:
    """Materialize assets of streams in this process, all or those selected."""
    lake = LakeResource(lake=str(at.lake), state=str(at.state), jars=str(at.jars))
    return dg.materialize(
        assets,
        instance=instance,
        raise_on_error=False,
        selection=selection,
        resources={
            "oncelake_kafka": KafkaResource(
                address=at.kafka.address, timeout_seconds=at.kafka_timeout_seconds
            ),
            "oncelake_lake": lake,
            "oncelake_spark": SparkResource(lake=lake, master=at.spark_master),
        },
    )


def failure_of(result: dg.ExecuteInProcessResult) -> str:
    """Return what a failed step says."""
    (event,) = (each for each in result.all_events if each.is_step_failure)
    data = event.step_failure_data.user_failure_data
    assert data is not None
    return str(data.description)


@contextmanager
def background_process(
    command: Sequence[str], *, log: Path, environment: Mapping[str, str]
) -> Iterator[None]:
    """Run a process while the block runs, and kill all of its group in the end."""
    with log.open("a") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
