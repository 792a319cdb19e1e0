"""The component: what a team's project declares of it, and that it stands beside what is there."""

from __future__ import annotations

import shutil
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from threading import Barrier
from typing import Any

import dagster as dg
import pytest
import yaml

from oncelake.assets.assets import Results, execute_stream
from oncelake.assets.component import Streams, write_files
from oncelake.assets.conditions import when_new_and_green
from oncelake.assets.doctor.runs import Runs
from oncelake.assets.scaffolder import StreamsParameters, StreamsScaffolder
from oncelake.assets.sensors import ingest_schedule, lag_sensor
from oncelake.assets.translation import ASKING, Translation
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.errors import SetupError
from oncelake.ingestion.kafka.offsets import Offsets, TopicPartition
from oncelake.ingestion.local.project import write_component
from oncelake.ingestion.operations.status.lag import LagReader
from oncelake.ingestion.operations.status.status import StatusReader, StreamStatus
from oncelake.ingestion.pipeline.report import RunReport
from oncelake.ingestion.settings import load_settings
from oncelake.resources.kafka import KafkaResource
from oncelake.resources.lake import LakeResource
from tests.assets.conftest import batch, declared, refusal_of, report
from tests.assets.test_assets import _no_table_and_no_waiting, engine
from tests.assets.test_embedding import COMPONENT, OWN, VARIABLES
from tests.support.world import ROOT, World, row

__all__ = ["_no_table_and_no_waiting"]
pytestmark = [
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run:DeprecationWarning"),
    # Dagster's own, of what it reads a project with and evaluates conditions by.
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
    pytest.mark.filterwarnings("ignore::dagster.PreviewWarning"),
    pytest.mark.filterwarnings("ignore:Parameter `include_sources`"),
]

ORDERS = "topic: orders\nschema: id INT NOT NULL, name STRING\nkeys: [id]\n"
KEY = dg.AssetKey(["lake", "raw", "orders"])
PAGE: dict[str, Any] = yaml.safe_load(COMPONENT)


class Project:
    """A team's project, with one component in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.defs = root / "shop" / "defs"
        self.at = self.defs / "ingest"
        (self.at / "streams").mkdir(parents=True)
        for file in (root / "shop", self.defs):
            (file / "__init__.py").touch()
        (root / "pyproject.toml").write_text(
            '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "shop"\n'
        )
        (self.at / "template_vars.py").write_text(VARIABLES)

    def declare(self, **files: str) -> None:
        """Write the files of streams."""
        for name, text in files.items():
            (self.at / "streams" / f"{name}.yaml").write_text(text)

    def load(self, page: dict[str, Any] = PAGE, **attributes: Any) -> dg.Definitions:
        """Load the project as Dagster does."""
        page = {**page, "attributes": {**page["attributes"], **attributes}}
        (self.at / "defs.yaml").write_text(yaml.safe_dump(page))
        for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
            del sys.modules[name]
        return dg.load_from_defs_folder(path_within_project=self.root)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """An empty project."""
    monkeypatch.setenv("ONCELAKE_LAKE", str(tmp_path / "lake"))
    monkeypatch.setenv("ONCELAKE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("ONCELAKE_KAFKA", "nowhere:1")
    monkeypatch.syspath_prepend(str(tmp_path / "project"))
    yield Project(tmp_path / "project")
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


def test_a_project_says_how_its_streams_stand_in_dagster(project: Project, tmp_path: Path) -> None:
    """Keys, group, condition, topics, names, states and owners are as the page says."""
    project.declare(orders=ORDERS + "group: sales\nbackfill_from: 2026-01-01\n")

    defs = project.load()

    dg.Definitions.validate_loadable(defs)
    graph = defs.resolve_asset_graph()
    assert {key.to_user_string() for key in graph.get_all_asset_keys()} == {
        "lake/raw/orders",
        "lake/raw/orders/replay",
        "lake/raw/orders__quarantine",
        "lake/raw/orders__ledger",
        "kafka/prod/orders",
    }
    node = graph.get(KEY)
    assert node.parent_keys == {dg.AssetKey(["kafka", "prod", "orders"])}
    assert graph.get(dg.AssetKey(["lake", "raw", "orders__ledger"])).parent_keys == {KEY}
    assert (node.group_name, list(node.owners)) == ("sales", ["team:sales"])
    assert node.automation_condition == dg.AutomationCondition.cron_tick_passed("0 * * * *")
    assert {check.asset_key for check in graph.asset_check_keys} == {KEY}
    repository = defs.get_repository_def()
    jobs = {job.name for job in repository.get_all_jobs()} - {"__ASSET_JOB"}
    assert {name.removeprefix("oncelake_") for name in jobs} == {
        "ingest_job", "operate_job", "follow_job", "verify_job", "maintain_job"
    }  # fmt: skip
    running = {
        each.name
        for each in repository.sensor_defs
        if each.default_status is dg.DefaultSensorStatus.RUNNING
    }
    assert running == {"oncelake_lag", "oncelake_retention", "oncelake_conditions"}
    references = node.metadata["dagster/code_references"].code_references
    assert [Path(each.file_path).name for each in references] == ["orders.yaml", "defs.yaml"]


@pytest.mark.parametrize("state", ["running", "stopped", None])
def test_conditions_have_the_sensor_that_the_page_starts(
    project: Project, state: str | None
) -> None:
    """Left out, it is Dagster's own, which is stopped."""
    project.declare(orders=ORDERS)
    sensors = {} if state is None else {"conditions": state}

    repository = project.load(sensors=sensors).get_repository_def()

    states = {each.name: each.default_status.value.lower() for each in repository.sensor_defs}
    own, of_dagster = states.get("oncelake_conditions"), "default_automation_condition_sensor"
    assert own == state
    assert states.get(of_dagster) == (None if state else "stopped")


@pytest.mark.parametrize("module", ["oncelake", ".template_vars"])
def test_the_condition_behind_a_stream_is_a_template_variable(
    project: Project, module: str
) -> None:
    """A page names `oncelake` as its module, or one of its own that imports the condition."""
    project.declare(orders=ORDERS)
    own = project.at / "template_vars.py"
    own.write_text(f"{own.read_text()}\n\nfrom oncelake import when_new_and_green\n")
    translation = {"automation_condition": "{{ when_new_and_green }}"}
    page = {**PAGE, "template_vars_module": module, "post_processing": {}}

    graph = project.load(page, translation=translation).resolve_asset_graph()

    condition = graph.get(dg.AssetKey("orders")).automation_condition
    assert condition == when_new_and_green()


def test_streams_are_declared_inline(project: Project) -> None:
    """The project's file has the declarations; a wrong one is a broken asset, and no other's."""
    fields = {"topic": "orders", "schema": "id INT NOT NULL", "keys": ["id"], "group": "sales"}

    defs = project.load(streams={"orders": fields, "bills": {"topik": "bills"}})

    graph = defs.resolve_asset_graph()
    assert graph.get(KEY).group_name == "sales"
    bills = graph.get(dg.AssetKey(["lake", "raw", "bills"]))
    assert "topik" in (bills.description or "")
    again = project.load(streams={"orders": fields}).resolve_asset_graph().get(KEY)
    assert again.metadata["declared in"] != graph.get(KEY).metadata["declared in"]


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        pytest.param({"kafka": {"sasl_password": "x"}}, "sasl_password", id="a secret"),
        pytest.param({"lag": "running"}, "lag", id="an unknown attribute"),
        pytest.param({"sensors": {"lag": "on"}}, "running", id="an unknown state"),
        pytest.param({"streams": {"../orders": {}}}, "no name of a stream", id="a path"),
    ],
)
def test_a_wrong_attribute_is_named(
    project: Project, attributes: dict[str, Any], problem: str
) -> None:
    """What cannot be meant is refused when the project is loaded; a secret is, too."""
    with pytest.raises(Exception, match="Error while") as failed:
        project.load(**attributes)

    assert problem in "".join(traceback.format_exception(failed.value))


def test_processes_of_one_id_write_one_folder_at_once(tmp_path: Path) -> None:
    """Each file of a folder that several write is whole, and nothing else lies beside it."""
    content = b"topic: orders\n" * 1000
    together = Barrier(4)

    def write(nth: int) -> Path:
        together.wait()
        return write_files({"orders.yaml": content + str(nth).encode()}, tmp_path)

    with ThreadPoolExecutor(4) as threads:
        folders = {nth: {*threads.map(write, [nth] * 4)} for nth in range(100)}

    for nth, (folder,) in folders.items():
        assert [each.read_bytes() for each in folder.iterdir()] == [content + str(nth).encode()]


def test_side_assets_are_left_out(project: Project) -> None:
    """Without them there is the stream and its topic, and no link to what is not there."""
    project.declare(orders=ORDERS)

    graph = project.load(side_assets=False).resolve_asset_graph()

    assert {key.to_user_string() for key in graph.get_all_asset_keys()} == {
        "lake/raw/orders",
        "kafka/prod/orders",
    }
    assert not {"quarantine", "ledger"} & graph.get(KEY).metadata.keys()


def test_it_stands_beside_what_a_team_has(project: Project) -> None:
    """Definitions with an executor, and with things of the same names, merge with it."""
    project.declare(orders=ORDERS)

    @dg.asset(deps=[KEY])
    def kafka(spark: dg.ResourceParam[str]) -> None:
        """Something of the team's own."""

    @dg.op
    def follow() -> None:
        """An op of the team's own."""

    @dg.job
    def follow_job() -> None:
        follow()

    @dg.sensor(job=follow_job)
    def lag() -> None:
        """A sensor of the team's own."""

    team = dg.Definitions(
        assets=[kafka],
        jobs=[follow_job],
        sensors=[lag],
        resources={"spark": "theirs", "kafka": "theirs", "lake": "theirs"},
        executor=dg.multiprocess_executor,
    )

    merged = dg.Definitions.merge(team, project.load())

    dg.Definitions.validate_loadable(merged)
    repository = merged.get_repository_def()
    theirs, ours = (repository.get_job(name) for name in ("__ASSET_JOB", "oncelake_ingest_job"))
    assert theirs.executor_def is dg.multiprocess_executor
    assert ours.executor_def is dg.in_process_executor
    assert {node.name for node in repository.get_job("oncelake_operate_job").nodes} == {"operate"}


@pytest.mark.parametrize("prefix", ["other_", ""])
def test_several_components_stand_in_one_code_location(project: Project, prefix: str) -> None:
    """Prefixes tell apart all that they bring; a topic that both read is one asset."""
    project.declare(orders=ORDERS)
    other = project.defs / "other"
    shutil.copytree(project.at, other)
    translation = {"key_prefix": ["other"]}
    own = {"jobs": {"prefix": prefix}, "translation": translation, "topic_assets": False}
    attributes = {**PAGE["attributes"], **own, "sensors": {}, "lake": str(project.root / "other")}
    page = {**PAGE, "attributes": attributes, "post_processing": {}}
    (other / "defs.yaml").write_text(yaml.safe_dump(page))

    defs = project.load()

    dg.Definitions.validate_loadable(defs)
    repository, graph = defs.get_repository_def(), defs.resolve_asset_graph()
    sensors = {each.name for each in repository.sensor_defs}
    assert {"oncelake_lag", "oncelake_retention", f"{prefix}lag", f"{prefix}retention"} <= sensors
    for key, lake in (
        (KEY, "oncelake_oncelake_lake"),
        (dg.AssetKey(["other", "orders"]), f"{prefix}oncelake_lake"),
    ):
        assert graph.get(key).parent_keys == {dg.AssetKey(["kafka", "prod", "orders"])}
        assert lake in repository.assets_defs_by_key[key].required_resource_keys


def test_a_component_of_ones_own_says_more(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's subclass is a component, with the same attributes."""
    project.declare(orders=ORDERS)
    (project.root / "shop" / "streams.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, "shop.streams", raising=False)

    graph = project.load({**PAGE, "type": "shop.streams.ShopStreams"}).resolve_asset_graph()

    assert graph.get(KEY).tags["shop"] == "europe"


class Recorded(Streams):
    """A team's own component: a spec and a body of its own around ours."""

    reports: list[RunReport | BaseException]

    def get_asset_spec(self, stream: DeclaredStream) -> dg.AssetSpec:
        """Add a tag."""
        return super().get_asset_spec(stream).merge_attributes(tags={"shop": "sold"})

    def execute(self, context: dg.AssetExecutionContext, stream: DeclaredStream) -> Results:
        """Let an engine stand in that ends as told."""
        yield from execute_stream(
            context,
            stream,
            engine=lambda *parts: engine(self.reports.pop(0))(*parts),
            translation=self._translation,
        )


def prefixed(**more: Any) -> Translation:
    """Return what stands everywhere when keys have a prefix."""
    return Translation(keys={"orders": KEY}, prefix="oncelake_", **more)


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[..., dg.Definitions]:
    """Definitions of a stream under a prefix, whose runs end as they are told."""
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "orders.yaml").write_text(ORDERS)

    def load(*reports: RunReport | BaseException, **more: Any) -> dg.Definitions:
        component = Recorded(
            streams="streams",
            translation=lambda spec, stream: spec.replace_attributes(
                key=spec.key.with_prefix(["lake", "raw"])
            ),
            **more,
        )
        component.reports = list(reports)
        return component.definitions(tmp_path)

    return load


def run(defs: dg.Definitions, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    """Run the job of all streams."""
    job = defs.resolve_job_def("ingest_job")
    return job.execute_in_process(instance=instance, raise_on_error=False)


def version(instance: dg.DagsterInstance) -> str | None:
    """Return the data version of the newest materialization."""
    event = instance.get_latest_materialization_event(KEY)
    assert event is not None
    assert event.asset_materialization is not None
    return (event.asset_materialization.tags or {}).get("dagster/data_version")


def test_everything_a_run_tells_has_the_key_of_the_translation(
    recorded: Callable[..., dg.Definitions], instance: dg.DagsterInstance
) -> None:
    """Materialization, checks, recovered batches and side tables stand under the prefix."""
    lost = batch(1, 0, 5)
    defs = recorded(report(batch(2, 5, 9), recovered=(lost,)))

    result = run(defs, instance)

    assert result.success
    assert defs.resolve_asset_graph().get(KEY).tags["shop"] == "sold"
    checks = result.get_asset_check_evaluations()
    assert {each.asset_key for each in checks} == {KEY}
    assert len(checks) == 5
    told = instance.fetch_materializations(dg.AssetKey(["lake", "raw", "orders__ledger"]), limit=5)
    assert len(told.records) == 1
    assert not instance.get_latest_materialization_event(dg.AssetKey("orders"))


def test_a_run_that_found_nothing_leaves_the_data_version(
    recorded: Callable[..., dg.Definitions], instance: dg.DagsterInstance
) -> None:
    """It changes with what is read, and with nothing else."""
    defs = recorded(report(batch(1, 0, 5)), report(seq=1), report(batch(2, 5, 9)))
    seen = []
    for _ in range(3):
        assert run(defs, instance).success
        seen.append(version(instance))

    assert seen[0] == seen[1] != seen[2]
    assert None not in seen


def test_a_refusal_is_remembered_under_the_key(
    recorded: Callable[..., dg.Definitions],
    instance: dg.DagsterInstance,
    tmp_path: Path,
) -> None:
    """Sensor and schedule find it where the run has left it."""
    defs, settings = recorded(SetupError("no jars here")), load_settings()
    stream = DeclaredStream(
        name="orders",
        path=tmp_path / "streams" / "orders.yaml",
        spec=declared(tmp_path).spec,
        error=None,
    )

    result = run(defs, instance)

    assert not result.success
    assert refusal_of(stream, instance, settings) is None
    assert refusal_of(stream, instance, settings, prefixed()) is not None


def test_a_sensor_asks_for_the_key_and_the_job_of_the_translation(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is asked for, and what is observed, stand where the definitions say."""
    stream = declared(tmp_path, schedule="*/5 * * * *", sensor=True)
    topics = {"topic_key": lambda topic: dg.AssetKey(["prod", topic])}
    translation = prefixed(**topics)
    monkeypatch.setattr(LagReader, "read", lambda self, specs: {"orders": {"orders": 7}})
    monkeypatch.setattr("oncelake.assets.sensors.standing_refusal", lambda *_, **__: None)
    monkeypatch.setenv("ONCELAKE_STREAMS", str(tmp_path))
    kafka, lake = translation.resource_keys(ASKING)
    resources = {kafka: KafkaResource(), lake: LakeResource()}
    with dg.build_sensor_context(instance=instance, resources=resources) as context:
        tick = lag_sensor([stream], translation)(context)
    with (
        dg.instance_for_test() as stored,
        dg.build_schedule_context(stored, resources=resources) as context,
    ):
        schedule = ingest_schedule(stream, translation)
        assert schedule is not None
        due = schedule(context)

    assert isinstance(tick, dg.SensorResult)
    (wished,) = tick.run_requests or ()
    for request in (wished, due):
        assert isinstance(request, dg.RunRequest)
        assert request.asset_selection == [KEY]
        assert request.job_name == "oncelake_ingest_job"
    assert [event.asset_key for event in tick.asset_events] == [dg.AssetKey(["prod", "orders"])]


def test_runs_are_of_the_stream_of_their_key(instance: dg.DagsterInstance) -> None:
    """The sensor knows the keys; a shell takes the last part; another's key is no stream's."""
    made = dg.DagsterRun(job_name="j", asset_selection=frozenset({KEY}))
    other = dg.DagsterRun(job_name="j", asset_selection=frozenset({dg.AssetKey(["x", "orders"])}))

    known = Runs(instance, load_settings(), ["orders"], prefixed())
    shell = Runs(instance, load_settings(), ["orders"])

    assert (known.streams_of(made), known.streams_of(other)) == (["orders"], [])
    assert shell.streams_of(made) == ["orders"]


def test_checks_are_executed_without_a_run(
    recorded: Callable[..., dg.Definitions],
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """**Execute** judges where the stream stands; nothing is read, and nothing materialized."""
    defs = recorded(report(batch(1, 0, 5)))
    assert run(defs, instance).success
    status = StreamStatus(stream="orders", table="/lake/orders", lag=3, delta_version=2)
    status.position = _Position()  # type: ignore[assignment]
    monkeypatch.setattr(StatusReader, "read_status", lambda self, declared: status)
    keys = [dg.AssetCheckKey(KEY, name) for name in ("offsets_contiguous", "freshness")]

    result = dg.materialize(
        list(defs.assets or ()),
        instance=instance,
        selection=dg.AssetSelection.checks(*keys),
        resources=defs.resources,
    )

    found = {each.check_name: each for each in result.get_asset_check_evaluations()}
    assert found.keys() == {"offsets_contiguous", "freshness"}
    assert found["freshness"].metadata["lag"].value == 3
    assert len(instance.fetch_materializations(KEY, limit=5).records) == 1


class _Position:
    seq, epoch, next = 1, 1, Offsets({TopicPartition("orders", 0): 5})


def scaffold(project: Project, **parameters: str) -> dg.Definitions:
    """Make a component as `dg scaffold defs` does, and load the project."""
    StreamsScaffolder().scaffold(
        dg.ScaffoldRequest(
            type_name="oncelake.Streams",
            target_path=project.at,
            scaffold_format="yaml",
            project_root=project.root,
            params=StreamsParameters(**parameters),
        )
    )
    return dg.load_from_defs_folder(path_within_project=project.root)


def test_dg_finds_the_component_by_its_entry_point(project: Project) -> None:
    """What the package registers has it under its short name, and it can be scaffolded alone."""
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (module,) = package["entry-points"]["dagster_dg_cli.registry_modules"].values()

    defs = scaffold(project)

    assert f"{module}.Streams" == "oncelake.Streams"
    assert import_module(module).Streams is Streams
    assert "ingest_lag" in {each.name for each in defs.get_repository_def().sensor_defs}


def test_components_that_are_scaffolded_load_beside_one_another(project: Project) -> None:
    """Each has its own name before those of its jobs, sensors and resources."""
    scaffold(project)
    write_component(project.defs / "clicks")
    project.at = project.defs / "from-us"
    project.at.mkdir()

    repository = scaffold(project).get_repository_def()

    sensors = {each.name for each in repository.sensor_defs}
    assert {"ingest_lag", "clicks_lag", "from_us_lag"} <= sensors


@pytest.mark.kafka
def test_a_topic_that_is_missing_is_one_sentence(
    project: Project, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that `dg` made is gone again, so that the corrected command finds none."""
    world.send(row(1, "a"))
    monkeypatch.setenv("ONCELAKE_KAFKA", str(world.settings.kafka.address))
    (project.at / "streams").rmdir()
    (project.at / "template_vars.py").unlink()

    with pytest.raises(SystemExit, match=f"^oncelake: topic '{world.topic}-s' does not exist"):
        scaffold(project, topics=f"{world.topic}-s")

    assert not project.at.exists()


@pytest.mark.kafka
def test_streams_are_proposed_for_topics(
    project: Project,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each topic that is named has a file, and its asset; it is said as `init` says it."""
    world.send(row(1, "a"), row(2, "b"))
    monkeypatch.setenv("ONCELAKE_KAFKA", str(world.settings.kafka.address))

    defs = scaffold(project, topics=world.topic)

    assert dg.AssetKey(world.topic) in defs.resolve_asset_graph().get_all_asset_keys()
    said = capsys.readouterr().out
    assert "written, from 2 records" in said
    assert "2 of 2 records would be applied" in said
