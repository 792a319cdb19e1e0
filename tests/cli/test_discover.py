"""What ``oncelake discover`` shows of the topics that it writes down."""

from __future__ import annotations

import pytest

from oncelake.ingestion.declaration.loader import load_streams
from tests.cli.shell import answer, oncelake
from tests.support.world import World

TYPED = """\
topic_pattern: '{topic}\\.(.*)'
table_per_topic: true
schema: id BIGINT NOT NULL
keys: [id]
"""


def test_topics_whose_columns_are_in_the_file_are_written_down(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command names each topic, and has no columns of it to show."""
    topic = world.add_topic(".users")
    world.settings.streams.mkdir()
    (world.settings.streams / "shop.yaml").write_text(TYPED.format(topic=world.topic))
    world.set_environment(monkeypatch)

    planned = answer(oncelake("discover", "shop", "--dry-run", "--json"))
    shown = oncelake("discover", "shop")

    assert planned["files"][0]["added"] == [topic]
    assert (shown.exit_code, f"{topic}: added, as shop_users" in shown.output) == (0, True)
    assert [each.name for each in load_streams(world.settings.streams)] == ["shop_users"]
