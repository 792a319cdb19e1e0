"""What a person got wrong, or should look at, is told; what was not seen is not green."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from oncelake.ingestion.declaration.formats import FORMATS
from oncelake.ingestion.errors import RefusedError
from oncelake.ingestion.lake.ledger import Ledger
from oncelake.ingestion.modes import keep_columns
from oncelake.ingestion.operations.failure import Failure
from oncelake.ingestion.operations.quarantine.remedies import REMEDIES, remedy_of
from oncelake.ingestion.pipeline import validate
from oncelake.ingestion.storage.location import Location
from tests.cli.shell import ORDERS, answer, declare, oncelake, quarantine, row
from tests.operations.test_inspect_quarantine import held

ORDERED = ORDERS + "sequence_by: [total]\n"


@pytest.mark.parametrize("command", ["status", "validate", "plan", "follow"])
@pytest.mark.parametrize("folder", ["empty", "missing"])
def test_no_declaration_is_bad_usage(home: Path, command: str, folder: str) -> None:
    """A folder without declarations, or none at all, is exit 2 with the folder that was read."""
    (home / "assets" / "streams" / "orders.yaml").unlink()
    if folder == "missing":
        (home / "assets" / "streams").rmdir()

    result = oncelake(command)

    problem = {"empty": "assets/streams holds no declaration", "missing": "there is no folder"}
    assert result.exit_code == 2
    assert f"no stream is declared: {problem[folder]}" in result.stderr
    assert "Next: write assets/streams/<stream>.yaml" in result.stderr


def test_a_run_without_its_declaration_is_bad_usage(home: Path) -> None:
    """A stream that is named and not declared is exit 2, with where it would be declared."""
    (home / "assets" / "streams" / "orders.yaml").unlink()

    assert oncelake("run", "orders").exit_code == 2


@pytest.mark.parametrize(
    ("name", "says"),
    [
        pytest.param("ONCELAKE_LAEK", "did you mean ONCELAKE_LAKE?", id="near"),
        pytest.param("ONCELAKE_XYZ", "docs/settings.md lists those there are", id="far"),
    ],
)
@pytest.mark.parametrize("place", ["environment", ".env"])
def test_a_misspelt_setting_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str, place: str
) -> None:
    """A variable that begins as ours and is none is named with the nearest, and not its value."""
    if place == ".env":
        (home / ".env").write_text(f"{name}=s3cret\n")
    else:
        monkeypatch.setenv(name, "s3cret")

    result = oncelake("validate")

    assert result.exit_code == 2
    assert f"{name}: there is no such setting; {says}" in result.stderr
    assert "s3cret" not in result.output


def test_a_reason_that_nothing_waits_for_is_answered_with_those_there_are(home: Path) -> None:
    """An empty answer to a misspelt reason would say that all is well."""
    quarantine("orders", held(1, "missing_key"), held(2, "bad_time"))

    result = oncelake("quarantine", "orders", "--reason", "missing_kye")

    assert result.exit_code == 2
    assert "nothing waits for the reason 'missing_kye'; there are: bad_time, missing_key" in (
        result.stderr
    )
    assert oncelake("quarantine", "orders", "--reason", "missing_key").exit_code == 0


def test_a_second_cause_of_one_reason_is_shown(home: Path) -> None:
    """The earliest records may all have the same detail; each is counted, the others together."""
    details = [*["total: expected INT"] * 9, "id: expected INT", *map(str, range(6))]
    rows = [
        held(offset, "wrong_type") | {"detail": detail} for offset, detail in enumerate(details)
    ]
    quarantine("orders", *rows, held(99, "missing_key"))

    result = oncelake("quarantine", "orders")

    lines = [line.strip() for line in result.stdout.partition("what to do")[2].splitlines()]
    assert "9 of these: total: expected INT" in lines
    assert "1 of these: id: expected INT" in lines
    assert "3 records with other details (--json has more)" in lines
    first, other = answer(oncelake("quarantine", "orders", "--json"))["reasons"]
    assert first["details"][0] == {"detail": "total: expected INT", "records": 9}
    assert sum(each["records"] for each in first["details"]) == first["records"] == 16
    assert other["details"] == [{"detail": None, "records": 1}]


def test_every_reason_has_its_remedy(home: Path) -> None:
    """Each code of engine and formats has a sentence that says what to do, and is printed."""
    modules = [validate, keep_columns, *(import_module(each.module) for each in FORMATS.values())]
    reasons = {reason for module in modules for reason in module.REASONS}
    quarantine("orders", held(1, "missing_key"), held(2, "of_an_older_engine"))

    result = oncelake("quarantine", "orders")

    assert set(REMEDIES) == reasons
    assert f"  missing_key: {REMEDIES['missing_key']}" in result.stdout
    assert f"  of_an_older_engine: {remedy_of('')}" in result.stdout
    groups = answer(oncelake("quarantine", "orders", "--json"))["reasons"]
    assert [each["remedy"] for each in groups] == [REMEDIES["missing_key"], remedy_of("")]


def test_plan_says_whatever_the_next_run_would_be_refused_for(home: Path) -> None:
    """A red batch stops the next run, so plan exits with 3, though the table need not change."""
    Ledger(Location.of(home / "lake" / "orders__ledger")).put(row(1, balanced=False))

    result = oncelake("plan", "orders")

    assert result.exit_code == 3
    assert "the ledger records a table" in result.stdout
    (plan,) = answer(oncelake("plan", "--json"))["plans"]
    assert [each["type"] for each in plan["refusals"]] == ["TableReplacedError"]


def test_plan_says_what_it_could_not_ask(home: Path) -> None:
    """Without Kafka the declarations can be planned; that more is not known is said."""
    result = oncelake("plan")

    assert result.exit_code == 0
    assert "orders: the first run will make the table" in result.stdout
    assert "what Kafka would refuse is not known: no Kafka to use" in result.stderr


def test_plan_does_not_pass_over_a_broken_file(home: Path) -> None:
    """A file that no run could read is told, and exits with 2."""
    declare(home, "bills", ORDERS.replace("keys", "kyes"))

    result = oncelake("plan")

    assert result.exit_code == 2
    assert "bills.yaml:3: kyes: unknown key" in result.stdout


@pytest.mark.parametrize("command", ["validate", "plan"])
def test_deletes_that_cannot_be_ordered_are_noticed(home: Path, command: str) -> None:
    """Who orders rows by a column and says nothing of null values is told where those go."""
    declare(home, "orders", ORDERED)

    told = oncelake(command)

    assert told.exit_code == 0
    assert "notice: a null value has no total, so that it deletes nothing" in told.stdout
    for policy in ("ignore", "quarantine"):
        declare(home, "orders", f"{ORDERED}tombstones: {policy}\n")
        assert "notice" not in oncelake(command).stdout
    declare(home, "orders", ORDERS + "sequence_by: [_timestamp]\n")
    assert "notice" not in oncelake(command).stdout


def test_notices_are_in_the_document_too(home: Path) -> None:
    """A program sees them, and the declaration is valid."""
    declare(home, "orders", ORDERED)

    (stream,) = answer(oncelake("validate", "--json"))["streams"]

    assert stream["valid"]
    assert len(stream["notices"]) == 1


def test_the_version_is_told() -> None:
    """``--version`` prints it and does nothing else."""
    result = oncelake("--version")

    assert result.exit_code == 0
    assert result.stdout.startswith("oncelake ")


def test_states_are_words(home: Path) -> None:
    """The state of a stream is no class name, of whatever kind its problem is."""
    kinds = [RefusedError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    kinds.remove(RefusedError)

    words = [Failure(stream="", type=each.__name__, message="", remedy="", exit_code=3).words
             for each in kinds]  # fmt: skip

    assert not [each for each in words if "error" in each or each.replace("Kafka", "") != each]
    assert "topic recreated" in words
    assert "Kafka does not answer" in oncelake("status").stdout
    assert "Error" not in oncelake("status").stdout


def test_the_embedded_kafka_is_not_started_beside_another(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``kafka up --if-used``, as ``make ui`` types it, starts nothing that nobody would use."""
    monkeypatch.setenv("ONCELAKE_KAFKA", "elsewhere:9092")

    result = oncelake("kafka", "up", "--if-used", "--json")

    assert result.exit_code == 0
    assert answer(result) == {"up": False, "used_by_other_commands": False}
    assert not (home / ".oncelake").exists()
