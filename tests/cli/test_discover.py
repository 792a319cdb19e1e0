"""What ``oncelake discover`` shows of the topics that it writes down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from oncelake.ingestion.declaration.files.loader import find_stream, load_streams
from tests.cli.shell import answer, oncelake
from tests.support.proof import find_problems
from tests.support.registry import framed
from tests.support.small_registry import SmallRegistry, small_registry
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


def test_a_topic_that_does_not_exist_names_the_one_that_was_meant(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slip in the topic's name is said to be one."""
    world.settings.streams.mkdir()
    (world.settings.streams / "shop.yaml").write_text(f"topic: {world.topic}s\nschema: registry\n")
    world.set_environment(monkeypatch)

    shown = oncelake("discover", "shop")

    assert shown.exit_code == 2
    assert f"'{world.topic}s'; did you mean `{world.topic}`? Next" in shown.output


@pytest.fixture
def registry(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallRegistry]:
    """A registry that the commands know."""
    with small_registry() as registry:
        world.settings = world.settings.model_copy(update={"schema_registry": registry.address})
        world.settings.streams.mkdir()
        world.set_environment(monkeypatch)
        yield registry


def of_json_schema(world: World, registry: SmallRegistry, **types: Any) -> Path:
    """Declare a stream with the columns of a JSON Schema; return its file."""
    schema = {"title": "T", "type": "object", "properties": types}
    registry.add(schema, "JSON", at=(f"{world.topic}-value", 1))
    return declare(world, schema="registry")


def declare(world: World, **fields: Any) -> Path:
    """Write the file of the stream, and declare the world's by what it comes to."""
    file = world.settings.streams / f"{world.topic}.yaml"
    declared = {"topic": world.topic, "format": "json_schema", "keys": ["id"], **fields}
    file.write_text(json.dumps(declared))
    return file


def test_a_number_of_json_schema_that_rounds_is_named(
    world: World, registry: SmallRegistry
) -> None:
    """The advice is followed, and then all digits are kept, and nothing is said any more."""
    number = {"type": "number"}
    of_json_schema(world, registry, id={"type": "integer"}, total=number, rate=number)
    first = " ".join(oncelake("discover", world.topic).output.split())
    declare(world, schema="registry", columns={"total": "DECIMAL(38, 9)"})
    registry.add(
        {"properties": {"id": {"type": "integer"}, "total": number, "more": number}},
        "JSON",
        at=(f"{world.topic}-value", 2),
    )
    second = " ".join(oncelake("discover", world.topic).output.split())
    spec = find_stream(world.settings.streams, world.topic)
    world.declare(**spec.model_dump(by_alias=True, exclude_unset=True))
    world.send(framed(1, b'{"id": 1, "total": 9007199254740993}'))

    world.run()

    for name in ("total", "rate"):
        assert f"`{name}` DOUBLE rounds: JSON Schema's `number`" in first
    assert "write the type in `columns`, such as DECIMAL(38, 9)" in first
    assert "`more` DOUBLE rounds" in second
    assert "`total` DOUBLE rounds" not in second
    assert [each["total"] for each in world.rows()] == [Decimal(9007199254740993)]
    assert find_problems(world) == ()


@pytest.mark.spark
def test_a_field_that_the_sink_cannot_name_is_read_as_the_advice_says(
    world: World, registry: SmallRegistry
) -> None:
    """By `select`, under another name, with the columns written out."""
    integer = {"type": "integer"}
    of_json_schema(world, registry, id=integer, **{"price (eur)": integer})
    shown = " ".join(oncelake("discover", world.topic).output.split())
    world.declare(
        format="json_schema",
        value_schema="id BIGINT, `price (eur)` BIGINT",
        schema="id BIGINT, price BIGINT",
        select={"price": "`price (eur)`"},
    )
    world.send(framed(1, b'{"id": 1, "price (eur)": 5}'))

    world.run()

    assert "price (eur) has no column: `sink: delta` cannot store the name; with" in shown
    assert "`select` gives it another: docs/transform.md, Rename fields" in shown
    assert world.rows() == [{"id": 1, "price": 5}]
    assert find_problems(world) == ()
