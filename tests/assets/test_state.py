"""Streams whose topics Dagster keeps, as the state of a component, in a project of two."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster.components import DefsStateConfigArgs
from dagster_shared.serdes.objects.models.defs_state_info import DefsStateManagementType

from oncelake.assets.state import StateBackedStreams
from oncelake.ingestion.declaration.files.loader import outlines_in
from oncelake.ingestion.declaration.files.topics import KEPT_BY, FoundTopic, write_topics
from oncelake.ingestion.errors import InvalidSpecError
from tests.assets.test_component import ORDERS, Project, project
from tests.support.long import twins
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
STATE_BACKED: dict[str, Any] = {
    "type": "oncelake.StateBackedStreams",
    "attributes": {"streams": "streams"},
}


class Team:
    """Two components in a project, and the shell of somebody who works with it."""

    def __init__(self, root: Path, world: World, storage: str) -> None:
        self.world, self.root, self.defs = world, root, root / "shop" / "defs"
        state = {"management_type": storage, "refresh_if_dev": False}
        self.add("shop", SHOP.format(topic=world.topic), STATE_BACKED, defs_state=state)
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
    """What a refresh finds is read by `dg` and by runs; a topic that is gone keeps its stream."""
    team = Team(tmp_path / "team", world, storage)
    users = world.add_topic(".users", row(1, "a"), row(2, "b"))
    unknown = team.streams()
    team.type("dg", "utils", "refresh-defs-state")
    found = team.streams()
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


def test_without_a_state_the_files_beside_the_declarations_count(project: Project) -> None:
    """A team that begins to keep a state has the topics that `oncelake discover` has written."""
    project.declare(shop=SHOP.format(topic="t"))
    found = FoundTopic(name="t.users", id="1", first_seen="2026-01-01")
    write_topics(project.at / "streams" / "shop.yaml", [found])

    graph = project.load(STATE_BACKED).resolve_asset_graph()

    assert dg.AssetKey("shop_users") in graph.get_all_asset_keys()


def test_what_is_not_known_yet_names_the_command_that_asks(project: Project) -> None:
    """The asset is there, and says what refreshes the state; nobody writes into its copies."""
    project.declare(shop=SHOP.format(topic="t"), orders=ORDERS)

    graph = project.load(STATE_BACKED).resolve_asset_graph()

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
