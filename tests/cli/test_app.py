"""The command line keeps its contract where neither Spark nor Kafka is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oncelake.ingestion.lake.ledger import Ledger
from oncelake.ingestion.storage.location import Location
from tests.cli.shell import ORDERS, answer, declare, oncelake, row

COMMANDS = (
    *("run", "status", "ledger", "verify", "doctor", "validate", "schema", "accept"),
    *("adopt-topic", "adopt-table", "reset", "unlock", "init", "audit"),
    *("new", "jars", "kafka up", "kafka down", "kafka status", "kafka send"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    """``--help`` of every command says more than its usage."""
    result = oncelake(*command.split(), "--help")

    assert result.exit_code == 0
    assert len(result.stdout.split()) > 25


def test_quick_commands_load_no_heavy_library(home: Path) -> None:
    """Help, validate and kafka status answer without pyspark and pyarrow in the process."""
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from oncelake.ingestion.cli.app import app\n"
        "for words in (['--help'], ['validate'], ['schema'], ['kafka', 'status']):\n"
        "    CliRunner().invoke(app, words)\n"
        "print({'pyspark', 'pyarrow', 'dagster'} & set(sys.modules) or 'none')\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == "none"


def test_nothing_is_logged_of_an_expression(home: Path) -> None:
    """What a library would log has no file and no field, and whoever runs a command would read it.

    Every command reads the expressions of all streams.
    """
    declare(home, "paths", f"{ORDERS}where: get_json_object(string(_key), '$.a.$b') = 1\n")
    declare(home, "shows", f"{ORDERS}where: SHOW TABLES\n")

    done = subprocess.run(
        [sys.executable, "-m", "ingestion", "status", "orders"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "orders" in done.stdout
    assert "JSON path" not in done.stdout + done.stderr
    assert "unsupported syntax" not in done.stdout + done.stderr


def test_validate_counts_sound_streams(home: Path) -> None:
    """A folder without mistakes exits with 0 and says how many streams there are."""
    result = oncelake("validate")

    assert (result.exit_code, result.stdout) == (0, "1 stream, all valid\n")


def test_validate_shows_where_a_file_is_wrong(home: Path) -> None:
    """Each mistake is a line with file, line and field, and the exit code is 2."""
    declare(home, "bills", ORDERS.replace("keys", "kyes"))

    result = oncelake("validate")

    assert result.exit_code == 2
    assert "bills.yaml:3: kyes:" in result.stdout
    assert "2 streams, 1 broken" in result.stdout


def test_validate_of_one_stream_ignores_the_others(home: Path) -> None:
    """A broken file does not make another one invalid; JSON says the same."""
    declare(home, "bills", ORDERS.replace("keys", "kyes"))

    assert oncelake("validate", "orders").exit_code == 0
    assert [each["valid"] for each in answer(oncelake("validate", "--json"))["streams"]] == [
        False,
        True,
    ]


def test_schema_is_a_json_schema_of_a_declaration(home: Path) -> None:
    """An editor gets one JSON document that knows the fields of a stream."""
    result = oncelake("schema")

    assert result.exit_code == 0
    assert {"topic", "schema", "keys"} <= set(answer(result)["properties"])


@pytest.mark.parametrize(
    "command", ["run", "status", "doctor", "ledger", "validate", "adopt-topic", "reset"]
)
def test_an_unknown_stream_is_bad_usage(home: Path, command: str) -> None:
    """A mistyped name exits with 2 and is told the nearest that exists, as JSON too."""
    words = [command, "ordrs"] if command == "validate" else [command, "ordrs", "--json"]

    result = oncelake(*words)

    assert result.exit_code == 2
    assert "did you mean `orders`?" in result.stderr
    if "--json" in words:
        assert answer(result)["error"]["type"] == "InvalidSpecError"


def test_a_name_that_leaves_the_lake_is_refused(home: Path) -> None:
    """A stream's name is never taken for a path."""
    assert oncelake("reset", "../orders", "--yes").exit_code == 2
    assert oncelake("ledger", "../orders").exit_code == 2


def test_ledger_lists_each_batch(home: Path) -> None:
    """The ledger's rows are printed with ranges, counts that are not zero, and the verdict."""
    Ledger(Location.of(home / "lake" / "orders__ledger")).put(
        row(1), row(2, balanced=False, accepted="known loss")
    )

    text = oncelake("ledger", "orders").stdout

    assert "orders-0 [0, 10)" in text
    assert "inserted 10" in text
    assert "gaps" not in text
    assert "known loss" in text


def test_ledger_as_json_keeps_every_column(home: Path) -> None:
    """``--last`` takes the newest rows; ranges and counts are objects, times ISO 8601."""
    Ledger(Location.of(home / "lake" / "orders__ledger")).put(row(1), row(2))

    (only,) = answer(oncelake("ledger", "orders", "--last", "1", "--json"))["rows"]

    assert only["seq"] == 2
    assert only["committed_at"] == "2026-01-01T12:02:00+00:00"
    assert only["counts"]["inserted"] == 10
    assert only["ranges"] == [
        {"topic": "orders", "partition": 0, "start": 10, "end": 20, "records": 10, "gaps": 0}
    ]


def test_status_reports_what_it_can_without_kafka(home: Path) -> None:
    """Without Kafka the rest is told, the lag is null, and the exit code is 5."""
    result = oncelake("status", "orders", "--json")

    assert result.exit_code == 5
    found = answer(result)
    assert (found["exists"], found["lag"], found["locked_by"]) == (False, None, None)
    assert [each["type"] for each in found["problems"]] == ["DependencyError"]


def test_status_reports_a_refusal(home: Path) -> None:
    """A table gone beside its ledger is refused, with the seq of its red batch; exit 3."""
    Ledger(Location.of(home / "lake" / "orders__ledger")).put(row(1, balanced=False))

    result = oncelake("status", "orders", "--json")

    assert result.exit_code == 3
    assert answer(result)["red"] == [1]
    assert answer(result)["problems"][0]["type"] == "TableReplacedError"


def test_reset_without_a_terminal_needs_a_yes(home: Path) -> None:
    """Nobody to ask means that nothing moves: exit 2, and with --yes it goes to the archive."""
    ledger = home / "lake" / "orders__ledger"
    Ledger(Location.of(ledger)).put(row(1))

    assert oncelake("reset", "orders").exit_code == 2
    assert ledger.exists()
    (moved,) = answer(oncelake("reset", "orders", "--yes", "--json"))["archived"]
    assert Path(moved).exists()
    assert not ledger.exists()


def test_kafka_status_says_that_other_brokers_are_used(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ONCELAKE_KAFKA set, nobody is left to think that the embedded Kafka is used."""
    monkeypatch.setenv("ONCELAKE_KAFKA", "elsewhere:9092")

    result = oncelake("kafka", "status", "--json")

    assert result.exit_code == 5
    assert answer(result) == {"up": False, "used_by_other_commands": False}
    assert "elsewhere:9092" in result.stderr
