"""A schema registry gets the requests that the docs list, and one that it refuses is told."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession
from typer.testing import Result

from tests.cli.shell import oncelake
from tests.rights.page import part_of_page
from tests.support.http_server import Handler, served
from tests.support.long import twins
from tests.support.registry import framed
from tests.support.secure_broker import unique
from tests.support.world import World, settings_in

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

# What decodes asks for a schema and those that it refers to; what writes Avro registers two.
_DECODING, _ENCODING = (
    re.findall(r"`((?:GET|POST) [^`]+)`", line)
    for line in part_of_page("Schema registry").splitlines()
    if "/schemas/" in line
)
_PLACEHOLDERS: Final = {"{id}": r"\d+", "{version}": r"\d+", "{subject}": r"[^/]+"}
_FIELDS: Final = (("id", "int"), ("name", ["null", "string"]), ("inner", "Inner"))


def _schema_of(name: str, *fields: tuple[str, object]) -> str:
    named = [{"name": field, "type": type_} for field, type_ in fields]
    return json.dumps({"type": "record", "name": name, "fields": named})


_INNER: Final = {"schema": _schema_of("Inner", ("a", "int")), "id": 9, "version": 1}
_REFERENCE: Final = {"name": "Inner", "subject": "inner", "version": 1}
_OUTER: Final = {"schema": _schema_of("Outer", *_FIELDS), "references": [_REFERENCE]}
_GOOD: Final = b"\x02\x00\x02"
_BAD: Final = _GOOD[:2]
# What is typed behind a command; ``out`` is a stream that writes Avro to a topic.
_WORDS: Final = {
    "run": ("{out}",),
    "verify": ("plain", "--whole"),
    "init": ("{topic}", "--dry-run"),
    "redrive": ("plain",),
    "replay": ("plain", "--from", "earliest"),
    "rebuild": ("plain",),
}
_COMMANDS: Final = ("run", "verify", "init", *twins("redrive", "replay", "rebuild"))
_SILENT: Final = ("status", "plan", *twins("doctor", "history", "ledger", "quarantine", "maintain"))


@dataclass
class Registry:
    """What is registered in it, what is asked of it, and what it refuses."""

    schemas: list[dict[str, Any]] = field(default_factory=list)
    refused: str = "^$"
    requests: list[str] = field(default_factory=list)


class _Answers(Handler):
    """Knows the two schemas, and gives an id to each that is registered: where it comes."""

    def __init__(self, registry: Registry, *arguments: Any) -> None:
        self._registry = registry
        super().__init__(*arguments)

    def get(self) -> None:
        number = self.path.partition("?")[0].rpartition("/")[2]
        self._answer(_INNER if "/subjects/" in self.path else self._registry.schemas[int(number)])

    def post(self) -> None:
        known = self._registry.schemas
        known.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer({"id": len(known) - 1})

    def _answer(self, known: dict[str, Any]) -> None:
        asked = f"{self.command} {self.path.partition('?')[0]}"
        self._registry.requests.append(asked)
        is_refused = re.fullmatch(self._registry.refused, asked)
        body = {"error_code": 40301, "message": "User is denied"} if is_refused else known
        self.answer(403 if is_refused else 200, json.dumps(body).encode())


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Streams of one topic in Avro, whose schema refers to another.

    Attributes:
        out: The one that writes to a topic, which is not made yet.
    """

    world: World
    registry: Registry
    out: str = ""

    def type(self, command: str, *words: str) -> Result:
        """Type a command."""
        return oncelake(
            command, *(word.format(topic=self.world.topic, out=self.out) for word in words)
        )

    def pattern(self, listed: str) -> str:
        """Return the regular expression of a request as the docs write it."""
        pattern = listed.replace("<topic>", f"{self.world.topic}.{self.out}")
        for name, meant in _PLACEHOLDERS.items():
            pattern = pattern.replace(name, meant)
        return pattern


@pytest.fixture(scope="module")
def ingested(
    kafka_address: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """Ingest ``plain``, with a record that goes to quarantine."""
    registry, folder = Registry([_OUTER]), tmp_path_factory.mktemp("rights")
    (folder / "dagster.yaml").touch()
    with served(partial(_Answers, registry)) as url:
        settings = settings_in(folder, kafka_address, schema_registry=url)
        with World.made(settings, spark) as world:
            world.send(framed(0, _GOOD), framed(0, _BAD))
            world.declare(name="plain", schema="id INT NOT NULL, name STRING", format="avro")
            world.write_declaration()
            world.run()
            yield Stage(world=world, registry=registry)


@pytest.fixture
def stage(ingested: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """The same, with a stream that has not written to its topic yet.

    At another address, so that no client of this process knows a schema yet.
    """
    world, out = ingested.world, unique("out")
    sink = {"kafka": {"topic": f"{world.topic}.{out}", "format": "avro"}}
    with served(partial(_Answers, ingested.registry)) as url:
        settings = world.settings.model_copy(update={"schema_registry": url})
        declared = {**world.declared, "name": out, "sink": sink}
        world = replace(world, settings=settings, declared=declared)
        world.write_declaration()
        world.set_environment(monkeypatch)
        ingested.registry.refused = "^$"
        ingested.registry.requests.clear()
        yield replace(ingested, world=world, out=out)


def listed(command: str) -> list[str]:
    """Return the requests of a command, as the docs write them."""
    return [*_DECODING, *(_ENCODING if command == "run" else ())]


@pytest.mark.parametrize("command", _COMMANDS)
def test_a_command_makes_the_listed_requests(stage: Stage, command: str) -> None:
    """It makes each of them, and no other."""
    result = stage.type(command, *_WORDS[command])

    patterns = [stage.pattern(each) for each in listed(command)]
    made = stage.registry.requests
    assert result.exit_code == 0, result.output
    assert [each for each in made if not any(re.fullmatch(at, each) for at in patterns)] == []
    assert [at for at in patterns if not any(re.fullmatch(at, each) for each in made)] == []


@pytest.mark.parametrize("command", _SILENT)
def test_other_commands_make_none(stage: Stage, command: str) -> None:
    """They decode nothing."""
    result = stage.type(command, "plain")

    assert (result.exit_code, stage.registry.requests) == (0, []), result.output


@pytest.mark.parametrize(
    ("command", "request_"),
    [
        *(("run", request_) for request_ in dict.fromkeys(listed("run")) if "POST" in request_),
        *twins(*(("run", request_) for request_ in _DECODING)),
        *((name, each) for name in _COMMANDS if name != "run" for each in _DECODING),
    ],
)
def test_a_refused_request_is_told(stage: Stage, command: str, request_: str) -> None:
    """One sentence has the registry, its answer and what to check."""
    stage.registry.refused = stage.pattern(request_)

    result = stage.type(command, *_WORDS[command])

    said = " ".join(result.output.split())
    assert result.exit_code == 5, said
    assert f"the schema registry at {stage.world.settings.schema_registry} does not" in said
    assert "403" in said
    assert "Next: check ONCELAKE_SCHEMA_REGISTRY" in said
