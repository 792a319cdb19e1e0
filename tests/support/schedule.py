"""In which order, and on which worker, tests run when there are several workers.

Tests are handed out module by module: what one of them has made a JVM compile, load and start, the
next find done. Modules that ask for the same dear server make one group, so that one worker pays
for it once; what is long comes before what is short, so that no worker ends alone. xdist's own
``loadgroup`` would do, but groups nothing with pytest 9.2 (pytest-xdist issue 1386), and says
nothing; so workers write their groups down for the scheduler.
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
    """Hands out whole groups; a test without one belongs to its module's."""

    _groups: dict[str, str] | None = None

    def schedule(self) -> None:
        """Read the groups as soon as every worker has collected, and hand out tests."""
        if self._groups is None and self.collection_is_completed:
            self._groups = json.loads(_groups_file().read_text())
            _groups_file().unlink()
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        assert self._groups is not None
        return self._groups.get(nodeid) or nodeid.partition("::")[0]


def pytest_configure_node(node: Any) -> None:
    """Tell a worker where to write its groups."""
    node.workerinput["groups_file"] = str(_groups_file())


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    """Hand out tests by those groups."""
    return GroupScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Write down which tests share what is dear, and put the short ones last.

    One worker alone goes in the order of the files. A test whose ``engine`` is ``spark`` has one,
    and its streams read a broker: that engine takes what Spark's query has read.
    """
    for item in items:
        if getattr(item, "callspec", None) and item.callspec.params.get("engine") == "spark":
            item.add_marker(pytest.mark.spark)
            if "settings" in item.fixturenames:  # type: ignore[attr-defined]
                item.add_marker(pytest.mark.kafka)
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
    """Return the group of those who share a server with a test."""
    fixtures = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    return next((group for fixture, group in _SERVERS.items() if fixture in fixtures), None)


def _rank(item: pytest.Item) -> int:
    """Rank slow tests first, and those last that need neither Spark nor Kafka."""
    if item.get_closest_marker("slow"):
        return 0
    return 1 if item.get_closest_marker("spark") or item.get_closest_marker("kafka") else 2
