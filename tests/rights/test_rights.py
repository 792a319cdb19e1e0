"""Each command runs with exactly the rights that the docs list, and says which one is missing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest
from confluent_kafka import OFFSET_END
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from pyspark.sql import SparkSession

from oncelake.ingestion.cli.app import app
from oncelake.ingestion.declaration.sinks import KafkaSink
from oncelake.ingestion.errors import MissingRightError
from oncelake.ingestion.operations.follow.follow import Follow
from oncelake.ingestion.operations.status.lag import LagReader
from oncelake.ingestion.pipeline.spark.session import SharedSpark
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.kafka.table import TopicTable, open_table
from oncelake.ingestion.storage.location import Location
from oncelake.testing import make
from tests.cli.shell import oncelake
from tests.rights.page import Right, documented
from tests.support.long import only_long, twins
from tests.support.secure_broker import SecureBroker, unique
from tests.support.world import World, changed, environment_of, row, settings_in

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

# Which resource a column of the table is about.
_COLUMNS: Final = ("source", "rows", "notes", "ids")
# What is left of a right that is taken away in half.
_WEAKER: Final = {"READ": "DESCRIBE", "WRITE": "DESCRIBE"}
# A doctor has found something; a plan says that the lag is not known, and needs the table.
_ENDS: Final = {
    **{("doctor", resource): 1 for resource in _COLUMNS},
    ("plan", "source"): 0,
}
# What is typed behind a command; ``out`` has `sink: kafka`, and ``plain`` has none.
_WORDS: Final = {
    **dict.fromkeys(
        ("run", "verify", "status", "plan", "doctor", "history", "batch", "maintain"), ("out",)
    ),
    **dict.fromkeys(("redrive", "rebuild", "ledger", "quarantine"), ("plain",)),
    "init": ("{topic}", "--dry-run"),
    "audit": (
        *("--topic", "{topic}", "--table", "{lake}/plain", "--schema", "id INT, name STRING"),
        *("--mode", "append", "--offset-columns", "_partition,_offset"),
        *("--deletes", "id IS NULL"),
    ),
    "replay": ("plain", "--from", "earliest"),
    "rewind": ("plain", "--to", "seq:1", "--reason", "a test", "--yes"),
    "erase": ("plain", "--key", '{"id": 1}', "--reason", "a test", "--yes"),
    "reset": ("plain", "--reason", "a test", "--yes"),
    "accept": ("out", "--reason", "a test"),
    "adopt-topic": ("out", "--reason", "a test", "--yes"),
}
# What looks as `status` does, takes long, or changes what others look at; some come last.
_LONG: Final = ("plan", "doctor", "maintain", "redrive", "replay", "rebuild", "rewind", "erase")
_LAST: Final = ("accept", "adopt-topic", "reset")
_TYPED: Final = [
    *(each for each in _WORDS if each not in (*_LONG, *_LAST)),
    *twins(*_LONG),
]
RIGHTS: Final = documented("Kafka", _COLUMNS)
_CASES: Final = [
    (command, *right) for command in _TYPED for right in sorted(RIGHTS[command], reverse=True)
]
# Each costs a run, but for the first the same as the others: with Spark, up to the end.
_TAKEN_AWAY: Final = [
    *(case for case in _CASES if case[0] != "run" or case[1] == "source"),
    *twins(*(case for case in _CASES if case[0] == "run" and case[1] != "source")),
]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Two streams of one topic on a broker that asks for rights, each ingested once."""

    broker: SecureBroker
    world: World
    rows: str

    def settings_of_user(self, *rights: Right) -> Settings:
        """Return the settings of a new user who has exactly these rights."""
        user = unique("user")
        login = self.broker.add_user(user)
        resources = {
            "source": (ResourceType.TOPIC, self.world.topic, ResourcePatternType.LITERAL),
            "rows": (ResourceType.TOPIC, self.rows, ResourcePatternType.LITERAL),
            "notes": (ResourceType.TOPIC, f"{self.rows}.oncelake", ResourcePatternType.LITERAL),
            "ids": (ResourceType.TRANSACTIONAL_ID, "oncelake-", ResourcePatternType.PREFIXED),
        }
        bindings = [
            AclBinding(
                *resources[resource],
                f"User:{user}",
                "*",
                AclOperation[operation],
                AclPermissionType.ALLOW,
            )
            for resource, operation in rights
        ]
        for made in self.broker.admin.create_acls(bindings).values() if bindings else ():
            made.result(10)
        changes = {"kafka": self.broker.address("scram"), **login}
        return changed(self.world.settings, **changes)

    def name_of(self, resource: str) -> str:
        """Return what a message calls a resource."""
        return {
            "source": f"topic '{self.world.topic}'",
            "rows": f"topic '{self.rows}'",
            "notes": f"topic '{self.rows}.oncelake'",
            "ids": "transactional ids that begin with 'oncelake-'",
        }[resource]


@pytest.fixture(scope="module")
def stage(
    secure_broker: SecureBroker, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """Ingest by the door without security."""
    folder = tmp_path_factory.mktemp("rights")
    (folder / "dagster.yaml").touch()
    settings = settings_in(folder, secure_broker.plaintext)
    with World.made(settings, spark) as world:
        world.send(row(1, "a"), row(2, "b"), {"name": "of nobody"})
        for name, sink in (("plain", "delta"), ("out", {"kafka": {"topic": f"{world.topic}.out"}})):
            world.declare(name=name, sink=sink, publish="checked")
            world.run()
            world.write_declaration()
        yield Stage(broker=secure_broker, world=world, rows=f"{world.topic}.out")


def without(rights: frozenset[Right], resource: str, operation: str) -> frozenset[Right]:
    """Take a right away, or cut it to one that it implies."""
    weaker = {(resource, _WEAKER[operation])} if operation in _WEAKER else set()
    return rights - {(resource, operation)} | weaker


def run_as(stage: Stage, monkeypatch: pytest.MonkeyPatch, command: str, *rights: Right) -> Any:
    """Run a command as a new user with these rights."""
    for name, value in environment_of(stage.settings_of_user(*rights)).items():
        if name.startswith("ONCELAKE_"):
            monkeypatch.setenv(name, value)
    if command == "run":
        stage.world.send(row(3, "c"))
    return oncelake(
        command,
        *(
            each.format(topic=stage.world.topic, lake=stage.world.settings.lake)
            if "{t" in each or "{l" in each
            else each
            for each in _WORDS[command]
        ),
    )


@pytest.mark.parametrize("command", _TYPED)
def test_a_command_needs_no_other_right(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """With what the docs list, and nothing else, it ends as it should."""
    result = run_as(stage, monkeypatch, command, *RIGHTS[command])

    assert (result.exit_code, "lacks" in result.output) == (0, False), result.output


def test_the_sensor_needs_no_other_right(stage: Stage) -> None:
    """It counts what is unread; with less, it has a run started, which says what is missing."""
    spec = stage.world.spec
    rights = RIGHTS["lag"]

    def lag(*granted: Right) -> object:
        return LagReader(stage.settings_of_user(*granted)).read([spec])[spec.name]

    assert lag(*rights) is not None
    for resource, operation in sorted(rights):
        assert lag(*without(rights, resource, operation)) is None, (resource, operation)


def test_a_first_run_needs_the_right_to_make_its_topics(stage: Stage) -> None:
    """Beside a run's rights it takes those, and without one the topic is named."""
    new = replace(stage, rows=unique("made"))
    rights = RIGHTS["run"] | {("rows", "CREATE"), ("notes", "CREATE")}

    def opened(*granted: Right) -> TopicTable:
        sink = KafkaSink(topic=new.rows)
        return open_table("made", sink, new.settings_of_user(*granted), Location.of("/no"))

    for resource in ("rows", "notes"):
        said = f"lacks CREATE on {new.name_of(resource)}"
        with pytest.raises(MissingRightError, match=said):
            make(opened(*rights - {(resource, "CREATE")}))
    make(opened(*rights))


def test_every_command_is_listed() -> None:
    """A new command has its row; one that is gone has none."""
    groups = {each.name for each in app.registered_groups} - {"kafka"}
    commands = {
        each.name or str(each.callback and each.callback.__name__).replace("_", "-")
        for each in app.registered_commands
    }

    assert {*RIGHTS} == {*commands, *groups, "lag"}


@pytest.mark.parametrize(("command", "resource", "operation"), _TAKEN_AWAY)
def test_a_command_says_which_right_is_missing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, command: str, resource: str, operation: str
) -> None:
    """Of a right that is taken away, or cut to one that it implies, the user is told by name."""
    left = without(RIGHTS[command], resource, operation)

    result = run_as(stage, monkeypatch, command, *left)

    assert result.exit_code == _ENDS.get((command, resource), 5), result.output
    said = " ".join(result.output.split())
    assert f"lacks {operation} on {stage.name_of(resource)}" in said


@only_long
@pytest.mark.parametrize("command", ["accept", "adopt-topic"])
def test_a_decision_needs_no_other_right(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """A loss is accepted, or a topic that was made again is adopted, and each right is needed."""
    if command == "accept":
        stage.world.send(row(4, "lost"))
        stage.world.forget_before(0, OFFSET_END)
    else:
        stage.world.delete_topic()
        stage.world.create_topic()
    rights = RIGHTS[command]

    for resource, operation in sorted(rights):
        refused = run_as(stage, monkeypatch, command, *without(rights, resource, operation))
        assert refused.exit_code == 5, refused.output
        said = " ".join(refused.output.split())
        # The output topic, which may not be written to either, may stand before that of the notes.
        assert f"lacks {operation} on " in said
        assert stage.name_of(resource).removeprefix("topic ") in said
    result = run_as(stage, monkeypatch, command, *rights)

    assert result.exit_code == 0, result.output


@only_long
def test_following_needs_the_rights_of_a_run(stage: Stage) -> None:
    """Whoever follows asks Kafka for the lag as well; each right that is missing is named."""
    rights = RIGHTS["follow"]

    for resource, operation in sorted(rights):
        code, said = follow_as(stage, *without(rights, resource, operation))
        assert (code, f"lacks {operation} on {stage.name_of(resource)}" in said) == (5, True), said

    assert follow_as(stage, *rights)[0] == 0


def follow_as(stage: Stage, *rights: Right) -> tuple[int, str]:
    """Follow as a new user until something is told; return the exit code, and what was told."""
    told: list[str] = []
    stop = threading.Event()

    def tell(_: object, what: object) -> None:
        told.append(str(what))
        stop.set()

    stage.world.send(row(3, "c"))
    code = Follow(
        settings=stage.settings_of_user(*rights),
        spark=SharedSpark(lambda _: stage.world.spark),
        run_id="follow",
        on_report=tell,
        on_failure=tell,
        streams=["out"],
        every_seconds=0.5,
        for_seconds=300,
        stop=stop,
    ).execute()
    return code, " ".join(told)


@only_long
def test_a_reset_needs_no_right(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in the lake is archived without a word to Kafka."""
    result = run_as(stage, monkeypatch, "reset")

    assert result.exit_code == 0, result.output
