"""Streams whose topics Dagster keeps, as the state of a component, in a project of two."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster.components import DefsStateConfigArgs
from dagster.components.utils.project_paths import get_local_state_path
from dagster_shared.serdes.objects.models.defs_state_info import DefsStateManagementType

from oncelake.assets.state import StateBackedStreams
from oncelake.ingestion.declaration.files.loader import outlines_in
from oncelake.ingestion.declaration.files.topics import KEPT_BY, FoundTopic, write_topics
from oncelake.ingestion.errors import DependencyError, InvalidSpecError
from tests.assets.test_component import ORDERS, Project, project
from tests.support.long import only_long, twins
from tests.support.world import ROOT, World, environment_of, row

__all__ = ["project"]
pytestmark = [
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
    pytest.mark.filterwarnings("ignore::dagster.PreviewWarning"),
]

DEFINITIONS = """
from pathlib import Path
import dagster as dg


@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""
SHOP = """
topic_pattern: '{topic}\\.(.*)'
table_per_topic: true
schema: id BIGINT NOT NULL, name STRING
keys: [id]
discover: auto
"""
MODULE = ("-m", "shop.definitions")
LOCAL = {"management_type": "LOCAL_FILESYSTEM", "refresh_if_dev": False}
STATE_BACKED: dict[str, Any] = {
    "type": "oncelake.StateBackedStreams",
    "attributes": {"streams": "streams"},
}


class Team:
    """Two components in a project, and the shell of somebody who works with it."""

    def __init__(self, root: Path, world: World, storage: str) -> None:
        self.world, self.root, self.defs = world, root, root / "shop" / "defs"
        state = {"defs_state": LOCAL} if storage == LOCAL["management_type"] else {}
        self.add("shop", SHOP.format(topic=world.topic), STATE_BACKED, **state)
        plain = f"topic: {world.topic}\nschema: id BIGINT NOT NULL\nkeys: [id]\n"
        own = {"lake": str(root / "own"), "jobs": {"prefix": "own_"}, "streams": "streams"}
        self.add("sales", plain, {"type": "oncelake.Streams", "attributes": own})
        for file in (root / "shop", self.defs):
            (file / "__init__.py").touch()
        (root / "shop" / "definitions.py").write_text(DEFINITIONS)
        (root / "pyproject.toml").write_text(
            '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "shop"\n'
        )
        (root / "home").mkdir()
        (root / "home" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")

    def add(self, name: str, stream: str, page: dict[str, Any], **attributes: Any) -> None:
        """Write a component."""
        folder = self.defs / name / "streams"
        folder.mkdir(parents=True)
        (folder / f"{name}.yaml").write_text(stream)
        page = {**page, "attributes": {**page["attributes"], **attributes}}
        (folder.parent / "defs.yaml").write_text(yaml.safe_dump(page))

    def type(self, *words: str, kafka: str | None = None) -> str:
        """Type a command, and return what it says."""
        environment = {**environment_of(self.world.settings), "DAGSTER_HOME": f"{self.root}/home"}
        environment |= {"PYTHONPATH": f"{ROOT}:{self.root}", "ONCELAKE_READER": "librdkafka"}
        environment |= {"ONCELAKE_KAFKA": kafka} if kafka else {}
        done = subprocess.run(
            [str(Path(sys.executable).parent / words[0]), *words[1:]],
            cwd=self.root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def streams(self) -> set[str]:
        """Return the assets of streams that are there, without a Kafka that answers."""
        listed = json.loads(self.type("dg", "list", "defs", "--json", kafka="127.0.0.1:1"))
        keys = {each["asset_key"] for each in listed["assets"]}
        return {key for key in keys if "/" not in key and "__" not in key}


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("storage", ["VERSIONED_STATE_STORAGE", *twins("LOCAL_FILESYSTEM")])
def test_topics_that_dagster_keeps_are_streams_without_kafka(
    world: World, tmp_path: Path, storage: str
) -> None:
    """What a refresh finds is read by `dg` and by runs; a topic that is gone keeps its stream.

    In the instance's storage a state outlives the host and the clone that it was found by.
    """
    team = Team(tmp_path / "team", world, storage)
    users = world.add_topic(".users", row(1, "a"), row(2, "b"))
    unknown = team.streams()
    team.type("dg", "utils", "refresh-defs-state")
    found = team.streams()
    shutil.rmtree(world.settings.state / "declared")
    if storage != LOCAL["management_type"]:
        shutil.rmtree(team.defs / ".local_defs_state", ignore_errors=True)
    both = "key:shop_users or key:sales"
    team.type("dagster", "asset", "materialize", "--select", both, *MODULE)
    world.admin.delete_topics([users])[users].result(30)
    world.add_topic(".bills")

    team.type("dg", "utils", "refresh-defs-state")

    assert unknown == {"shop", "sales"}
    assert found == {"shop_users", "sales"}
    assert team.streams() == {"shop_users", "shop_bills", "sales"}
    team.type("dg", "check", "defs", kafka="127.0.0.1:1")
    assert not list(team.defs.rglob("*.topics.yaml"))


def graph_of(project: Project, **attributes: Any) -> dg.AssetGraph:
    """Load the project with an instance, as `dg` and Dagster's processes do."""
    with dg.instance_for_test():
        return project.load(STATE_BACKED, **attributes).resolve_asset_graph()


def test_without_a_state_the_files_beside_the_declarations_count(project: Project) -> None:
    """A team that begins to keep a state has the topics that `oncelake discover` has written."""
    project.declare(shop=SHOP.format(topic="t"))
    found = FoundTopic(name="t.users", id="1", first_seen="2026-01-01")
    write_topics(project.at / "streams" / "shop.yaml", [found])

    graph = graph_of(project)

    assert dg.AssetKey("shop_users") in graph.get_all_asset_keys()


def test_what_is_not_known_yet_names_the_command_that_asks(project: Project) -> None:
    """The asset is there, and says what refreshes the state; nobody writes into its copies."""
    project.declare(shop=SHOP.format(topic="t"), orders=ORDERS)

    graph = graph_of(project)

    command = "Next: dg utils refresh-defs-state --defs-state-key 'Streams[shop.defs/ingest[0]]'"
    assert command in (graph.get(dg.AssetKey("shop")).description or "")
    (copy,) = project.root.parent.rglob(KEPT_BY)
    assert [each.is_automatic for each in outlines_in(copy.parent)] == [False]
    assert dg.AssetKey("orders") in graph.get_all_asset_keys()


def test_a_state_that_forgets_topics_is_refused() -> None:
    """In the memory of a code server, nobody would know of a topic that is gone."""
    at_load = DefsStateConfigArgs(
        management_type=DefsStateManagementType.LEGACY_CODE_SERVER_SNAPSHOTS
    )

    with pytest.raises(InvalidSpecError, match="Next: write management_type: VERSIONED"):
        StateBackedStreams(defs_state=at_load)


def keep(project: Project, state: bytes) -> dict[str, Any]:
    """Write the state of a component; return where it says that it is."""
    kept = project.defs / ".local_defs_state" / "sales" / "state"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(state)
    return {"defs_state": {**LOCAL, "key": "sales"}}


NO_STATES = [b"[]", b"{", b"\xff", b'{"shop.topics.yaml": 1}']


@pytest.mark.parametrize("state", NO_STATES, ids=["a list", "half of it", "no text", "a number"])
def test_a_state_that_cannot_be_read_says_how_to_go_on(project: Project, state: bytes) -> None:
    """Nothing is loaded as if no topic were known."""
    project.declare(shop=SHOP.format(topic="t"), orders=ORDERS)
    given = keep(project, state)

    with pytest.raises(Exception, match="Error while") as error:
        graph_of(project, **given)

    (cause,) = (each for each in causes_of(error.value) if isinstance(each, InvalidSpecError))
    assert "not as it was written. Next: restore it, or name another key in defs_state" in str(
        cause
    )


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and what it comes from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def test_a_line_that_cannot_be_read_breaks_the_streams_that_need_it(project: Project) -> None:
    """Their asset says how to go on; streams whose files say all stand as before."""
    project.declare(shop=SHOP.format(topic="t"), orders=ORDERS)

    graph = graph_of(project, **keep(project, b'{"shop.topics.yaml": "- {}"}'))

    says = graph.get(dg.AssetKey("shop")).description or ""
    assert "shop.topics.yaml:1: not as it was written" in says
    assert "name another key in defs_state" in says
    assert "Next: " not in (graph.get(dg.AssetKey("orders")).description or "")


class Refreshed:
    """A component whose state is refreshed in this process."""

    def __init__(self, world: World, root: Path) -> None:
        self.streams, self.at = root / "streams", root / "kept"
        self.streams.mkdir()
        self.world = world
        self.declare("shop", SHOP.format(topic=world.topic))

    def declare(self, name: str, text: str) -> None:
        """Write a declaration."""
        (self.streams / f"{name}.yaml").write_text(text)

    def refresh(self, kafka: str | None = None) -> str:
        """Refresh the state, and return it."""
        settings = self.world.settings
        StateBackedStreams(
            streams=str(self.streams),
            lake=str(settings.lake),
            state=str(settings.state),
            kafka={"address": kafka or settings.kafka.address},
        ).write_state_to_path(self.at)
        return self.at.read_text()


@pytest.fixture
def refreshed(world: World, tmp_path: Path) -> Refreshed:
    """A component that has found one topic."""
    world.add_topic(".users")
    component = Refreshed(world, tmp_path)
    assert f"{world.topic}.users" in component.refresh()
    return component


@pytest.mark.kafka
def test_a_refresh_that_finds_no_topic_fails_and_keeps_the_state(refreshed: Refreshed) -> None:
    """A slip in a name, or a right that is missing, is no state without that stream."""
    before = refreshed.at.read_text()
    refreshed.declare("bills", SHOP.format(topic=f"{refreshed.world.topic}s"))
    refreshed.world.add_topic(".bills")

    with pytest.raises(
        InvalidSpecError, match=r"(?m)^bills\.yaml: no topic at .* Next: create one"
    ):
        refreshed.refresh()

    assert refreshed.at.read_text() == before


@pytest.mark.kafka
def test_a_refresh_keeps_a_state_that_it_cannot_read(refreshed: Refreshed) -> None:
    """What was known is not forgotten; the message says by which key to begin anew."""
    refreshed.at.write_text('{"shop.topics.yaml": "- {}"}')

    with pytest.raises(InvalidSpecError, match="name another key in defs_state"):
        refreshed.refresh()

    assert refreshed.at.read_text() == '{"shop.topics.yaml": "- {}"}'


@pytest.mark.kafka
def test_a_refresh_without_kafka_keeps_the_state(
    refreshed: Refreshed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails, and whoever loads the state knows what was known."""
    before = refreshed.at.read_text()
    monkeypatch.setenv("ONCELAKE_KAFKA_TIMEOUT_SECONDS", "3")

    with pytest.raises(DependencyError):
        refreshed.refresh(kafka="127.0.0.1:1")

    assert refreshed.at.read_text() == before


@pytest.mark.kafka
@pytest.mark.parametrize("meanwhile", ["removed", "renamed", "broken"])
def test_what_is_known_of_a_file_outlives_a_refresh_without_it(
    refreshed: Refreshed, meanwhile: str
) -> None:
    """Another branch, or another name for a while, forgets no topic that is gone."""
    world, file = refreshed.world, refreshed.streams / "shop.yaml"
    users, text = f"{world.topic}.users", file.read_text()
    world.admin.delete_topics([users])[users].result(30)
    world.add_topic(".bills")
    refreshed.refresh()
    other = file.rename(refreshed.streams / "store.yaml")
    if meanwhile != "renamed":
        other.unlink()
    refreshed.declare("orders", ORDERS)
    if meanwhile == "broken":
        refreshed.declare("shop", "topic_pattern: [")

    refreshed.refresh()
    other.unlink(missing_ok=True)
    refreshed.declare("shop", text)
    known = json.loads(refreshed.refresh())["shop.topics.yaml"]

    assert users in known
    assert f"{world.topic}.bills" in known


@pytest.mark.kafka
@pytest.mark.parametrize("state", NO_STATES)
def test_a_refresh_that_needs_no_state_keeps_one_that_it_cannot_read(
    refreshed: Refreshed, state: bytes
) -> None:
    """The file that needs it may come back."""
    (refreshed.streams / "shop.yaml").unlink()
    refreshed.declare("orders", ORDERS)
    refreshed.at.write_bytes(state)

    with pytest.raises(InvalidSpecError, match=r"not as it was written\. Next: restore it"):
        refreshed.refresh()

    assert refreshed.at.read_bytes() == state


def test_components_of_one_project_have_states_of_their_own(project: Project) -> None:
    """Two of one file, and one of another folder, with files of one name."""
    documents = {"one": "streams", "two": "more"}
    pages = [page_of(prefix, streams) for prefix, streams in documents.items()]
    (project.at / "defs.yaml").write_text(yaml.safe_dump_all(pages))
    other = project.defs / "other"
    folders = [*(project.at / each for each in documents.values()), other / "streams"]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "shop.yaml").write_text(SHOP.format(topic="t"))
    (other / "defs.yaml").write_text(yaml.safe_dump(page_of("three", "streams")))
    unknown = load_all(project)
    keys = {
        key.path[0]: (unknown.get(key).description or "").split("'")[1]
        for key in unknown.get_all_asset_keys()
        if key.path[-1] == "shop"
    }
    for prefix, key in keys.items():
        name = f"t.of_{prefix}"
        line = FoundTopic(name=name, id="1", first_seen="2026-01-01").line()
        state = get_local_state_path(key, project.root)
        state.write_text(json.dumps({"shop.topics.yaml": line}))

    found = load_all(project).get_all_asset_keys()

    assert len({*keys.values()}) == 3
    streams = {key.to_user_string() for key in found if key.path[-1].startswith("shop")}
    assert {each for each in streams if "__" not in each} == {
        "one/shop_of_one", "two/shop_of_two", "three/shop_of_three"
    }  # fmt: skip


def page_of(prefix: str, streams: str) -> dict[str, Any]:
    """Return the page of a component that stands beside others."""
    given = {"streams": streams, "defs_state": LOCAL, "jobs": {"prefix": f"{prefix}_"}}
    given |= {"translation": {"key_prefix": prefix}, "topic_assets": False}
    return {"type": STATE_BACKED["type"], "attributes": given}


def load_all(project: Project) -> dg.AssetGraph:
    """Load the project's components as they are written."""
    with dg.instance_for_test():
        return dg.load_from_defs_folder(path_within_project=project.root).resolve_asset_graph()


@pytest.mark.kafka
@pytest.mark.slow
@only_long
def test_one_command_refreshes_the_states_of_all_components(world: World, tmp_path: Path) -> None:
    """Each finds its own topics, and none of another."""
    team = Team(tmp_path / "team", world, "VERSIONED_STATE_STORAGE")
    apart = {"jobs": {"prefix": "market_"}, "topic_assets": False}
    team.add("market", SHOP.format(topic=f"{world.topic}_market"), STATE_BACKED, **apart)
    world.add_topic(".users")
    world.add_topic("_market.stalls")
    team.type("dg", "utils", "refresh-defs-state")

    assert team.streams() == {"shop_users", "market_stalls", "sales"}


def test_a_state_that_is_refreshed_at_each_load_needs_kafka(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`refresh_if_dev` asks at once, in `dagster dev` and `dg`; without it nobody does."""
    monkeypatch.setenv("DAGSTER_IS_DEV_CLI", "1")
    monkeypatch.setenv("ONCELAKE_KAFKA_TIMEOUT_SECONDS", "3")
    project.declare(shop=SHOP.format(topic="t"), orders=ORDERS)
    without = graph_of(project)

    with pytest.raises(Exception, match="Error while"):
        graph_of(project, defs_state={**LOCAL, "refresh_if_dev": True})

    assert dg.AssetKey("orders") in without.get_all_asset_keys()
