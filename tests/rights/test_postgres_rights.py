"""Each command needs of PostgreSQL the privileges that the docs list, and says which it lacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

import psycopg
import pytest
from pydantic import SecretStr
from pyspark.sql import SparkSession
from typer.testing import Result

from tests.cli.shell import oncelake
from tests.rights.page import Right, documented
from tests.support.long import only_long, twins
from tests.support.secure_broker import unique
from tests.support.world import World, row, settings_in

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

# What a column of the table is about.
_COLUMNS: Final = ("schema", "orders", "oncelake_tables", "oncelake_notes")
_WORDS: Final = {
    **dict.fromkeys(("run", "status", "plan", "doctor", "verify", "history", "quarantine"), ()),
    **dict.fromkeys(("redrive", "maintain"), ()),
    "replay": ("--from", "earliest"),
    "erase": ("--key", '{"id": 2}', "--reason", "a test", "--yes"),
    "rebuild": (),
    "reset": ("--reason", "a test", "--yes"),
}
_LONG: Final = (
    *("plan", "doctor", "history", "quarantine"),
    *("redrive", "replay", "erase", "rebuild"),
)
_TYPED: Final = [*(each for each in _WORDS if each not in (*_LONG, "reset")), *twins(*_LONG)]
# These may need a right that the batch at hand does not.
_AS_A_RUN: Final = ("redrive", "replay")
# Much is done by then. Of an erase, which then cannot vacuum, a test of the table's own has it.
_LATE: Final = (("erase", "orders", "OWNER"), ("rebuild", "orders", "OWNER"))
RIGHTS: Final = documented("PostgreSQL", _COLUMNS)
_CASES: Final = [
    case
    for command in _TYPED
    if command not in _AS_A_RUN
    for case in ((command, *right) for right in sorted(RIGHTS[command]))
    if case not in _LATE
]
# Each costs a run up to its commit.
_SLOW: Final = [
    *(("run", "orders", privilege) for privilege in ("SELECT", "INSERT", "UPDATE")),
    *(("run", "oncelake_tables", "UPDATE"), ("run", "oncelake_notes", "INSERT")),
]
_TAKEN_AWAY: Final = [*(case for case in _CASES if case not in _SLOW), *twins(*_SLOW)]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stream whose rows are in a schema of its own, which the server's owner made."""

    world: World
    server: str
    schema: str
    numbers: Iterator[int]

    def execute(self, *statements: str) -> None:
        """Execute statements as the server's owner."""
        with closing(psycopg.connect(self.server, autocommit=True)) as connection:
            for statement in statements:
                connection.execute(statement.replace("{schema}", self.schema))

    def role(self, *rights: Right) -> str:
        """Make a role that has exactly these rights, and return its name."""
        role = unique("role")
        self.execute(
            f"CREATE ROLE {role} LOGIN",
            *(f"ALTER TABLE {{schema}}.{each} OWNER TO oncelake" for each in _COLUMNS[1:]),
            *(_grant(role, *right) for right in sorted(rights)),
        )
        return role

    def type_as(self, role: str, command: str, monkeypatch: pytest.MonkeyPatch) -> Result:
        """Type a command as a role; a run has a row to insert, one to update, one to delete."""
        if command == "run":
            number = next(self.numbers)
            self.world.send(row(1000 + number, "new"), row(2, f"{number}"))
            self.world.send(None, id=100 + number)
        self.world.set_environment(monkeypatch)
        monkeypatch.setenv("ONCELAKE_POSTGRES", self.server.replace("oncelake@", f"{role}@"))
        return oncelake(command, "orders", *_WORDS[command])


def assert_named(result: Result, role: str, lacking: str) -> None:
    """See that it is said who lacks a right, and on what."""
    said = " ".join(result.output.split())
    assert f"refuses it to {role}: " in said
    assert lacking in said
    assert "grant the rights of docs/rights.md" in said


def _grant(role: str, on: str, privilege: str) -> str:
    if on == "schema":
        return f"GRANT {privilege} ON SCHEMA {{schema}} TO {role}"
    if privilege == "OWNER":
        return f"ALTER TABLE {{schema}}.{on} OWNER TO {role}"
    return f"GRANT {privilege} ON {{schema}}.{on} TO {role}"


@pytest.fixture(scope="module")
def stage(
    postgres_address: str,
    kafka_address: str,
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stage]:
    """Ingest as the server's owner."""
    folder, schema = tmp_path_factory.mktemp("rights"), unique("shop")
    (folder / "dagster.yaml").touch()
    settings = settings_in(folder, kafka_address, postgres=SecretStr(postgres_address))
    with World.made(settings, spark) as world:
        world.declare(name="orders", sink={"postgres": {"table": f"{schema}.orders"}})
        world.write_declaration()
        world.send(*(row(number, "a") for number in (2, *range(100, 200))), {"name": "of nobody"})
        world.run()
        yield Stage(world=world, server=postgres_address, schema=schema, numbers=count())


@pytest.mark.parametrize(("command", "on", "privilege"), _TAKEN_AWAY)
def test_a_command_says_which_right_is_missing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, command: str, on: str, privilege: str
) -> None:
    """The server names the table, or the schema; the message names the role and the remedy."""
    role = stage.role(*RIGHTS[command] - {(on, privilege)})

    result = stage.type_as(role, command, monkeypatch)
    if command == "rebuild":
        # The next one would delete what this has left.
        stage.world.rebuild()

    assert result.exit_code == (1 if command == "doctor" else 5), result.output
    assert_named(result, role, stage.schema if on == "schema" else on)


@pytest.mark.parametrize("command", _TYPED)
def test_a_command_needs_no_other_right(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """With what the docs list, and nothing else, it ends as it should."""
    result = stage.type_as(stage.role(*RIGHTS[command]), command, monkeypatch)

    assert result.exit_code == 0, result.output


@only_long
def test_the_first_run_makes_its_tables_and_owns_them(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may create them in the schema, and needs nothing else."""
    schema, role = unique("shop"), unique("role")
    stage.execute(
        f"CREATE ROLE {role} LOGIN",
        f"CREATE SCHEMA {schema}",
        f"GRANT USAGE ON SCHEMA {schema} TO {role}",
    )
    new = {"name": "made", "sink": {"postgres": {"table": f"{schema}.orders"}}}
    world = replace(stage.world, declared={**stage.world.declared, **new})
    world.write_declaration()
    world.set_environment(monkeypatch)
    monkeypatch.setenv("ONCELAKE_POSTGRES", stage.server.replace("oncelake@", f"{role}@"))

    refused = oncelake("run", "made")
    stage.execute(f"GRANT CREATE ON SCHEMA {schema} TO {role}")
    made = oncelake("run", "made")

    assert (refused.exit_code, made.exit_code) == (5, 0), refused.output + made.output
    assert_named(refused, role, f"schema {schema}")


@only_long
def test_tables_change_places_as_soon_as_their_owner_comes(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in the lake has moved by then; so this comes last here."""
    role = stage.role(*RIGHTS["rebuild"] - {("orders", "OWNER")})
    refused = stage.type_as(role, "rebuild", monkeypatch)
    assert refused.exit_code == 5, refused.output
    assert_named(refused, role, "owner of table orders")
    stage.world.run()
    needed = RIGHTS["reset"]
    for on, privilege in sorted(needed):
        role = stage.role(*needed - {(on, privilege)})
        refused = stage.type_as(role, "reset", monkeypatch)
        assert refused.exit_code == 5, refused.output
        assert_named(refused, role, stage.schema if on == "schema" else on)

    result = stage.type_as(stage.role(*needed), "reset", monkeypatch)

    assert result.exit_code == 0, result.output
