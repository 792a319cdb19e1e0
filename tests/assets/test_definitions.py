"""The code location: what it loads, how fast, and what it leaves alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from oncelake.assets.definitions import definitions
from oncelake.resources.kafka import KafkaResource
from oncelake.resources.lake import LakeResource
from oncelake.resources.part import SettingsPart, settings_of
from oncelake.resources.spark import SparkResource
from tests.support.long import only_long

ROOT = Path(__file__).parents[2]
GOOD = "topic: orders\nschema: id INT NOT NULL\nkeys: [id]\n"


def declare(folder: Path, **files: str) -> None:
    """Write declarations into the streams' folder of a project."""
    streams = folder / "assets" / "streams"
    streams.mkdir(parents=True)
    for name, text in files.items():
        (streams / f"{name}.yaml").write_text(text)


def test_every_declared_stream_is_an_asset_of_one_job(tmp_path: Path) -> None:
    """One file makes asset and checks; jobs and sensor are the same for all; it all loads."""
    declare(tmp_path, orders=GOOD + "schedule: '*/5 * * * *'\n", bills=GOOD)

    found = definitions()

    dg.Definitions.validate_loadable(found)
    repository = found.get_repository_def()
    assert dg.AssetKey("orders") in repository.assets_defs_by_key
    named = {job.name for job in repository.get_all_jobs()} - {"__ASSET_JOB"}
    assert named == {"ingest_job", "operate_job", "follow_job", "verify_job", "maintain_job"}
    assert {"orders", "bills"} <= {
        key.to_user_string()
        for key in repository.get_job("ingest_job").asset_layer.selected_asset_keys
    }
    assert {"orders__quarantine", "orders__ledger"} <= {
        key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()
    }
    assert {each.name for each in repository.sensor_defs} == {"lag", "follow", "retention"}
    assert all(each.description for each in (*repository.sensor_defs, *repository.schedule_defs))
    assert repository.get_schedule_def("ingest_orders_schedule").execution_timezone == "UTC"


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param("topik: orders\n", id="unknown key"),
        pytest.param(GOOD + "schedule: '99 * * * *'\n", id="impossible schedule"),
    ],
)
def test_a_broken_declaration_takes_no_other_down(tmp_path: Path, wrong: str) -> None:
    """Beside a broken file the others load, and the broken stream's asset and job are there."""
    declare(tmp_path, orders=GOOD, broken=wrong)

    repository = definitions().get_repository_def()

    assert {dg.AssetKey("orders"), dg.AssetKey("broken")} <= set(repository.assets_defs_by_key)
    # The sensor starts it, so that the file's error is told.
    assert dg.AssetKey("broken") in repository.get_job("ingest_job").asset_layer.selected_asset_keys


def test_a_stream_that_is_called_as_a_part_of_ours_takes_nothing_down(tmp_path: Path) -> None:
    """The asset of `job` would be the job of all, a replay of `kafka` the topic of that name."""
    topic = "topic: replay\nbackfill_from: 2026-01-01\n" + GOOD.partition("\n")[2]
    declare(tmp_path, job=GOOD, kafka=topic, orders=topic)

    dg.Definitions.validate_loadable(definitions())


@pytest.mark.slow
def test_the_code_location_loads_fast_and_starts_nothing() -> None:
    """It costs little beside Dagster's own import, starts no JVM and no Great Expectations."""
    program = (
        "import sys, time; start = time.process_time(); import dagster; "
        "since = time.process_time(); import assets.definitions; "
        "dagsters, ours = since - start, time.process_time() - since; "
        "from pyspark import SparkContext; "
        "assert SparkContext._gateway is None; "
        "assert not {'great_expectations', 'pyarrow', 'deltalake', 'duckdb', 'pandas', "
        "'confluent_kafka'} & sys.modules.keys(); "
        "print(ours / dagsters)"
    )
    given = {**os.environ, "PYTHONPATH": str(ROOT)}
    given.pop("PYTHONDONTWRITEBYTECODE", None)

    def ratio() -> float:
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, check=True)
        return float(done.stdout)

    # What else the machine does may disturb one measurement, or two.
    assert any(ratio() < 2 for _ in range(3))


@pytest.mark.slow
@only_long
def test_great_expectations_can_be_imported_in_a_launched_run() -> None:
    """A process whose main module has no file, such as a launched run, survives the import."""
    program = (
        "from assets.checks.expectations import great_expectations as gx\nprint(gx().__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "GX_ANALYTICS_ENABLED": "false", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
    )

    assert done.stdout.decode().strip() == "great_expectations"


@pytest.mark.parametrize("resource", [KafkaResource, LakeResource, SparkResource])
def test_every_field_of_a_resource_is_described(resource: type[SettingsPart]) -> None:
    """The UI shows what each field means."""
    assert [name for name, field in resource.model_fields.items() if not field.description] == [
        name for name in resource.model_fields if name == "lake" and resource is SparkResource
    ]


def test_what_a_resource_is_given_wins_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A field left out comes from the environment; one that is given wins."""
    monkeypatch.setenv("ONCELAKE_KAFKA", "from-environment:9092")
    monkeypatch.setenv("ONCELAKE_LAKE", "from-environment")

    settings = settings_of(KafkaResource(address="given:9092"), LakeResource())

    assert settings.kafka.address == "given:9092"
    assert settings.lake == tmp_path / "from-environment"
