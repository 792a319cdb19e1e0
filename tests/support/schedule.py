"""In which order, and on which worker, tests run when there are several workers.

Tests are handed out one by one, groups whole and largest first. What is dear to set up makes a
group, so that one worker pays for it once; what is long comes before what is short, so that no
worker ends alone. xdist's own ``loadgroup`` would do, but groups nothing with pytest 9.2
(pytest-xdist issue 1386), and says nothing; so workers write their groups down for the scheduler.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# By the fixture that starts it: the JVM of one worker serves all the tests that ask for it.
_SERVERS = {
    "registry_address": "schema registry",
    "frail_broker": "frail broker",
    "secure_broker": "secure broker",
    "spark_cluster": "Spark cluster",
}
_FIRST_WORKER = "gw0"


class GroupScheduling(LoadScopeScheduling):
    """Hands out whole groups; a test without one is a group of its own."""

    _groups: dict[str, str] | None = None

    def schedule(self) -> None:
        """Read the groups as soon as every worker has collected, and hand out tests."""
        if self._groups is None and self.collection_is_completed:
            self._groups = json.loads(_groups_file().read_text())
            _groups_file().unlink()
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        assert self._groups is not None
        return self._groups.get(nodeid, nodeid)


def pytest_configure_node(node: Any) -> None:
    """Tell a worker where to write its groups."""
    node.workerinput["groups_file"] = str(_groups_file())


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    """Hand out tests by those groups."""
    return GroupScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Write down which tests share what is dear, and put the short ones last.

    One worker alone goes file by file.
    """
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None:
        return
    if worker["workerid"] == _FIRST_WORKER:
        groups = {item.nodeid: group for item in items if (group := _group_of(item))}
        Path(worker["groups_file"]).write_text(json.dumps(groups))
    items.sort(key=_rank)


def _groups_file() -> Path:
    """Return the file by which the workers of this process tell it their groups."""
    return Path(tempfile.gettempdir()) / f"test-groups-{os.getpid()}.json"


def _group_of(item: pytest.Item) -> str | None:
    """Return what a test shares with others: a server, or a fixture of its module."""
    fixtures = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    for fixture, group in _SERVERS.items():
        if fixture in fixtures:
            return group
    if any(definitions[-1].scope == "module" for definitions in fixtures.values()):
        return item.nodeid.partition("::")[0]
    return None


def _rank(item: pytest.Item) -> int:
    """Rank slow tests first, and those last that need neither Spark nor Kafka."""
    if item.get_closest_marker("slow"):
        return 0
    return 1 if item.get_closest_marker("spark") or item.get_closest_marker("kafka") else 2
