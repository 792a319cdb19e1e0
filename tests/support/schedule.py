"""In which order, and on which worker, tests run when there are several workers.

xdist hands out tests one by one, groups whole and largest first (``--dist loadgroup``). What is
dear to set up makes a group, so that one worker pays for it once; what is long comes before what is
short, so that no worker ends alone.
"""

from __future__ import annotations

import pytest

# By the fixture that starts it: the JVM of one worker serves all the tests that ask for it.
_SERVERS = {"registry_address": "schema registry", "frail_broker": "frail broker"}


def schedule(items: list[pytest.Item]) -> None:
    """Group the tests that share what is dear, and put the short ones last."""
    for item in items:
        group = _group_of(item)
        if group:
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=_rank)


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
