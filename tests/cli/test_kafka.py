"""``oncelake kafka send``: what it refuses before it sends anything."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from oncelake.ingestion.cli.app import app
from oncelake.ingestion.local.produce import Line, offset_count
from tests.support.world import World


def test_a_line_is_a_key_and_a_value() -> None:
    """Only a line that ends with its colon is a tombstone."""
    assert Line.of(1, "a:b:c\n")[:2] == (b"a", b"b:c")
    assert Line.of(1, "a:\n")[:2] == (b"a", None)


@pytest.mark.kafka
@pytest.mark.parametrize("wrong", ["hello", '{"id": 1}', ":value"])
def test_a_line_without_a_key_sends_nothing(
    world: World, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even those before it; otherwise a typo would delete a row."""
    monkeypatch.setenv("ONCELAKE_KAFKA", str(world.settings.kafka.address))

    result = CliRunner().invoke(app, ["kafka", "send", world.topic], input=f"1:a\n\n{wrong}\n")

    assert result.exit_code == 2
    assert "line 3 is not key:value, and nothing was sent. Next: " in result.stderr
    assert offset_count(world.settings, world.topic) == 0


@pytest.mark.kafka
def test_no_topic_is_created_in_another_kafka(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ONCELAKE_KAFKA names may be production."""
    monkeypatch.setenv("ONCELAKE_KAFKA", str(world.settings.kafka.address))
    missing = f"{world.topic}-s"

    result = CliRunner().invoke(app, ["kafka", "send", missing], input="1:a\n")

    assert result.exit_code == 3
    assert f"topic '{missing}' does not exist" in result.stderr
    sent = CliRunner().invoke(app, ["kafka", "send", world.topic], input="1:a\n2:\n")
    assert "2 records sent to" in sent.stdout
