"""The checks judge what a run leaves behind; none of them needs Spark."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from typer.testing import CliRunner

from oncelake.assets.checks.checks import (
    books_balance,
    check_results,
    check_specs,
    expectations,
    freshness,
    offsets_contiguous,
    quarantine_rate,
    retention,
    verified,
)
from oncelake.assets.checks.evidence import Evidence, RefusedRecords
from oncelake.assets.history import UnreportedBatches
from oncelake.ingestion.cli.app import app
from oncelake.ingestion.declaration.parts import Expectation
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.kafka.offsets import Offsets, TopicPartition
from oncelake.ingestion.kafka.retention import Headroom
from oncelake.ingestion.kafka.transactions import Stall
from oncelake.ingestion.lake.ledger import LedgerRow
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.operations.upkeep.retention import Retention
from oncelake.ingestion.pipeline.gate.expectations import ExpectationOutcome, outcome_of, query_for
from oncelake.ingestion.tables.commit_metadata import Kind
from tests.assets.conftest import NOW, batch, declared, report
from tests.support.world import settings_in

ERROR, WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN


def evidence(folder: Path, *batches: LedgerRow, **parts: Any) -> Evidence:
    """What is known after a run that committed ``batches``."""
    spec = declared(folder, **parts.pop("spec", {})).spec
    assert spec is not None
    given = {
        "spec": spec,
        "paths": StreamPaths.of(spec.name, settings_in(folder, "k:1")),
        "report": report(*batches, **parts.pop("report", {})),
        "table_id": "t",
        "ledger": batches,
        "unreported": UnreportedBatches(),
        "refused": (),
        "outcomes": None,
        "now": NOW,
    }
    return Evidence(**{**given, **parts})


def test_what_is_declared_too_bad_blocks_like_red_books(tmp_path: Path) -> None:
    """They fail the run, and keep everything downstream from running; no other check does."""
    asked = {"expectations": [{"type": "expect_column_to_exist", "column": "id"}], "verify": True}
    stream = declared(tmp_path, **asked)
    blocking = {spec.name: spec.blocking for spec in check_specs(stream)}

    assert blocking == {
        "books_balance": True,
        "offsets_contiguous": False,
        "quarantine_rate": True,
        "freshness": False,
        "retention": False,
        "expectations": True,
        "verified": False,
    }


def test_a_check_that_nobody_declared_does_not_exist(tmp_path: Path) -> None:
    """Expectations and the proof are checks of the streams whose files ask for them."""
    asked = {"expectations": [{"type": "expect_column_to_exist", "column": "id"}], "verify": True}
    plain, full = declared(tmp_path), declared(tmp_path, **asked)

    assert {spec.name for spec in check_specs(full)} - {
        spec.name for spec in check_specs(plain)
    } == {
        "expectations",
        "verified",
    }


def test_books_that_balance_pass(tmp_path: Path) -> None:
    """Batches without a problem pass."""
    assert books_balance(evidence(tmp_path, batch(1, 0, 5), batch(2, 5, 9))).passed


def test_a_red_batch_fails_with_its_seq_and_its_ranges(tmp_path: Path) -> None:
    """A batch that does not balance fails the check, with what a person needs to look it up."""
    result = books_balance(evidence(tmp_path, batch(1, 0, 5), batch(2, 5, 7, balanced=False)))

    assert (result.passed, result.severity) == (False, ERROR)
    assert "batch 2: records read 2 ≠ 1 accounted for. Next: " in str(result.description)
    (row,) = result.metadata["red"].value.records  # type: ignore[union-attr]
    assert (row.data["seq"], row.data["ranges"]) == (2, "orders-0 [5, 7)")


def test_an_earlier_red_batch_is_not_forgotten(tmp_path: Path) -> None:
    """A red batch of another run fails the check as well."""
    earlier, mine = batch(1, 0, 5, balanced=False), batch(2, 5, 9)

    assert not books_balance(evidence(tmp_path, mine, ledger=(earlier, mine))).passed


@pytest.mark.parametrize(
    ("ledger", "says"),
    [
        pytest.param((batch(1, 0, 5), batch(2, 5, 9)), "no hole", id="contiguous"),
        pytest.param((), "no hole", id="empty"),
        pytest.param((batch(1, 0, 5), batch(2, 6, 9)), "a hole [5, 6) between batch 1", id="hole"),
        pytest.param((batch(1, 0, 5), batch(2, 4, 9)), "an overlap [4, 5)", id="overlap"),
        pytest.param((batch(1, 0, 5), batch(2, 5, 8)), "batch 2 ends at 8, the table", id="short"),
    ],
)
def test_ranges_follow_one_another(
    tmp_path: Path, ledger: tuple[LedgerRow, ...], says: str
) -> None:
    """Ranges with a hole, an overlap, or an end before the table's next offset fail the check."""
    reached = Offsets({TopicPartition("orders", 0): 9})

    result = offsets_contiguous(evidence(tmp_path, ledger=ledger, report={"next": reached}))

    assert says in str(result.description)
    assert result.passed is (says == "no hole")


@pytest.mark.parametrize(
    ("quarantined", "passed", "severity"),
    [
        pytest.param(1, True, WARN, id="at the limit"),
        pytest.param(2, False, WARN, id="above warn"),
        pytest.param(6, False, ERROR, id="above fail"),
    ],
)
def test_too_many_bad_records_turn_the_check(
    tmp_path: Path, quarantined: int, passed: bool, severity: dg.AssetCheckSeverity
) -> None:
    """The share of quarantined records warns above one limit, and fails above the other."""
    rate = {"warn_above": 0.1, "fail_above": 0.5}
    of_run = batch(1, 0, 10, quarantined=quarantined)

    refused = (RefusedRecords(reason="bad_json", records=quarantined),)
    result = quarantine_rate(
        evidence(tmp_path, of_run, spec={"quarantine_rate": rate}, refused=refused)
    )

    assert (result.passed, result.severity) == (passed, severity)
    assert f"bad_json {quarantined}" in str(result.description)


def test_what_is_declared_stands_behind_what_was_measured(tmp_path: Path) -> None:
    """Dagster sorts a check's figures by name, and plots numbers: a limit is a text, and last."""
    spec = declared(tmp_path, freshness_minutes=20).spec
    assert spec is not None
    found = evidence(tmp_path, batch(1, 0, 10, quarantined=2), spec={"freshness_minutes": 20})

    told = {
        check.__name__: check(found).metadata for check in (quarantine_rate, freshness, retention)
    }

    assert [max(metadata) for metadata in told.values()] == ["what_is_declared"] * 3
    assert [metadata["what_is_declared"].value for metadata in told.values()] == [
        "warns above 0, fails above 0.1",
        "20 minutes",
        "a quarter of the topic's retention",
    ]


@pytest.mark.parametrize("kind", ["replay", "redrive"])
def test_records_that_are_read_again_do_not_dilute_the_share(tmp_path: Path, kind: Kind) -> None:
    """A day that is replayed is a million good records beside an hour that is half bad."""
    again = replace(batch(1, 0, 1_000_000), kind=kind)
    bad = batch(2, 0, 100, quarantined=50)

    result = quarantine_rate(evidence(tmp_path, again, bad))

    assert (result.passed, result.metadata["rate"].value) == (False, 0.5)


@pytest.mark.parametrize(
    ("waiting", "rate", "says"),
    [
        (40, 0.4, "40 waiting in all"),
        (10, 0.1, "10 waiting in all"),
        (0, 0, "0 records"),
        (None, 0.4, "40"),
    ],
)
def test_a_run_that_finds_nothing_tells_what_is_so_now(
    tmp_path: Path, waiting: int | None, rate: float, says: str
) -> None:
    """The last records that were read count until a redrive has sent them in."""
    read = (batch(1, 0, 1_000), batch(2, 1_000, 1_100, quarantined=40))

    result = quarantine_rate(evidence(tmp_path, ledger=read, waiting=waiting))

    assert result.metadata["rate"].value == rate
    assert result.passed is (rate == 0)
    assert says in str(result.description)


def test_a_run_without_records_has_no_bad_ones(tmp_path: Path) -> None:
    """Nothing read is a rate of zero."""
    assert quarantine_rate(evidence(tmp_path)).passed


@pytest.mark.parametrize(
    ("limit", "lag", "minutes", "unknown", "passed"),
    [
        pytest.param(20, 0, None, "", True, id="nothing unread"),
        pytest.param(40, 5, 30, "", True, id="not for long"),
        pytest.param(40, 5, 180, "", False, id="for too long"),
        pytest.param(20, 5, 1, "", True, id="just come"),
        pytest.param(20, 5, None, "", True, id="no record"),
        pytest.param(20, 5, None, "Kafka refuses", False, id="unknown"),
        pytest.param(None, 5, 180, "Kafka refuses", True, id="not declared"),
    ],
)
def test_records_that_wait_too_long_warn(
    tmp_path: Path, limit: int | None, lag: int, minutes: int | None, unknown: str, passed: bool
) -> None:
    """What counts is the age of the oldest unread record, whenever the last commit was."""
    declared_limit = {} if limit is None else {"freshness_minutes": limit}
    spec = declared(tmp_path, **declared_limit).spec
    assert spec is not None
    oldest = None if minutes is None else NOW - dt.timedelta(minutes=minutes)
    measured = Retention(spec=spec, oldest_unread=oldest, unknown=unknown)

    result = freshness(
        evidence(
            tmp_path,
            batch(1, 0, 5),
            spec=declared_limit,
            report={"lag": lag},
            retention=measured if lag else None,
        )
    )

    assert (result.passed, result.severity) == (passed, WARN)
    assert ("not declared" in str(result.description)) is (limit is None)


@pytest.mark.parametrize(
    ("seconds", "passed", "severity"),
    [
        pytest.param(3600, True, WARN, id="as declared"),
        pytest.param(3599, False, WARN, id="low"),
        pytest.param(899, False, ERROR, id="critical"),
    ],
)
def test_headroom_below_the_warning_turns_the_check(
    tmp_path: Path, seconds: float, passed: bool, severity: dg.AssetCheckSeverity
) -> None:
    """It warns while nothing is lost; the freshness check tells of the headroom, too."""
    spec = declared(tmp_path, retention_warning="1 hour").spec
    assert spec is not None
    at = TopicPartition("orders", 3)
    least = Headroom(at=at, offset=7, limit="time", seconds=seconds, of_seconds=7200)
    found = evidence(tmp_path, batch(1, 0, 5), retention=Retention(spec=spec, least=least))

    result = retention(found)

    assert (result.passed, result.severity) == (passed, severity)
    assert "orders-3: Kafka may delete unread offset 7 in" in str(result.description)
    assert result.metadata["headroom_seconds"].value == seconds
    assert str(least) in str(freshness(found).description)


def test_a_headroom_that_is_unknown_is_no_pass(tmp_path: Path) -> None:
    """Who may not ask for it is told so, and is not told that all is well."""
    spec = declared(tmp_path).spec
    assert spec is not None
    unknown = Retention(spec=spec, unknown="Kafka refuses")

    result = retention(evidence(tmp_path, batch(1, 0, 5), retention=unknown))

    assert (result.passed, result.severity) == (False, WARN)
    assert "the retention headroom is unknown: Kafka refuses" in str(result.description)


def test_nothing_unread_is_enough_headroom(tmp_path: Path) -> None:
    """A run that has read all asks nobody, and passes."""
    assert retention(evidence(tmp_path, batch(1, 0, 5))).passed


def outcome(**fields: Any) -> ExpectationOutcome:
    """One expectation that is not met, unless told otherwise."""
    base = {"expectation": "expect_x", "severity": "critical", "on": "column=id", "success": False}
    return ExpectationOutcome(**{**base, **fields})


def test_a_transaction_that_hides_records_warns(tmp_path: Path) -> None:
    """A stall warns where nothing seems unread, and where no freshness is declared."""
    at = TopicPartition("orders", 3)
    stall = Stall(at=at, offset=41, since=NOW, holder="producer id 7", remedy="abort it")

    result = freshness(evidence(tmp_path, batch(1, 0, 5), report={"stalls": (stall,)}))

    assert (result.passed, result.severity) == (False, WARN)
    assert str(result.description).startswith(
        "orders-3 cannot be read beyond offset 41 since 2026-01-01 12:00:00 UTC: producer id 7 "
        "holds a transaction open there. Next: abort it"
    )


@pytest.mark.parametrize(
    ("outcomes", "passed", "severity"),
    [
        pytest.param((outcome(success=True),), True, ERROR, id="met"),
        pytest.param((outcome(),), False, ERROR, id="critical"),
        pytest.param((outcome(severity="warning"),), False, WARN, id="warning"),
        pytest.param((outcome(severity="info", error="no column"),), False, ERROR, id="unknown"),
    ],
)
def test_expectations_fail_by_their_severity(
    tmp_path: Path,
    outcomes: tuple[ExpectationOutcome, ...],
    passed: bool,
    severity: dg.AssetCheckSeverity,
) -> None:
    """Only a critical expectation fails hard, and so does one that could not be evaluated."""
    result = expectations(evidence(tmp_path, batch(1, 0, 5), outcomes=outcomes))

    assert (result.passed, result.severity) == (passed, severity)


def test_what_could_not_be_evaluated_is_no_pass() -> None:
    """A result that came with an exception is an error, whatever it says of success."""
    declared_ = Expectation.model_validate({"type": "expect_column_to_exist", "column": "nope"})

    found = outcome_of(declared_, success=True, result={}, raised="no column nope", table="t")

    assert (found.success, found.error) == (False, "no column nope")


@pytest.mark.parametrize(
    ("sink", "asked"),
    [
        ("delta", "Spark"),
        ("iceberg", "Spark, where the table's catalog is set up"),
        ("postgres", "PostgreSQL"),
    ],
)
def test_a_missed_expectation_gives_its_query(tmp_path: Path, sink: str, asked: str) -> None:
    """Whoever is told to look at rows need not find out how to find them."""
    query = "SELECT * FROM somewhere WHERE id IS NULL"
    found = evidence(
        tmp_path, batch(1, 0, 5), spec={"sink": sink}, outcomes=(outcome(query=query),)
    )

    result = expectations(found)

    assert f". Next: query those rows in {asked}, by {query}; correct" in str(result.description)


def test_a_query_is_written_for_what_answers_it() -> None:
    """What PostgreSQL keeps is asked in its own SQL; a topic cannot be asked."""
    query = "SELECT * FROM `s`.`t` WHERE (s IS NOT NULL) AND (NOT (s RLIKE '^a'))"

    assert query_for("delta", query) == query_for("iceberg", query) == query
    assert query_for("postgres", query) == (
        """SELECT * FROM "s"."t" WHERE (NOT s IS NULL) AND (NOT (s ~ '^a'))"""
    )
    assert query_for("kafka", query) == ""


def test_examples_are_few_and_short() -> None:
    """The UI shows three values at most, each shortened: metadata is no copy of the table."""
    declared_ = Expectation.model_validate({"type": "expect_column_to_exist", "column": "name"})
    values = [letter * 500 for letter in "abcdef"]

    found = outcome_of(
        declared_, success=False, result={"partial_unexpected_list": values}, raised="", table="t"
    )

    assert found.examples.count("…") == 3
    assert len(found.examples) < 200


NEVER_PROVEN = "orders: Kafka does not answer"
EXPECTED = [{"type": "expect_column_to_exist", "column": "id"}]
PLAIN = StreamSpec.model_validate(
    {"name": "orders", "topic": "orders", "schema": "id INT NOT NULL", "keys": ["id"]}
)
RED, BAD, LATE = batch(1, 0, 9, balanced=False), batch(1, 0, 9, quarantined=9), batch(1, 0, 9)
FAILED: dict[str, tuple[tuple[LedgerRow, ...], dict[str, Any]]] = {
    "books_balance": ((RED,), {}),
    "offsets_contiguous": ((batch(1, 0, 5), batch(2, 6, 9)), {}),
    "quarantine_rate": ((BAD,), {}),
    "freshness": (
        (LATE,),
        {
            "spec": {"freshness_minutes": 1},
            "report": {"lag": 3},
            "retention": Retention(spec=PLAIN, unknown="Kafka refuses it"),
        },
    ),
    "expectations": ((LATE,), {"spec": {"expectations": EXPECTED}, "outcomes": (outcome(),)}),
    "retention": ((LATE,), {"retention": Retention(spec=PLAIN, unknown="Kafka refuses it")}),
    "verified": ((LATE,), {"spec": {"verify": True}, "proof": NEVER_PROVEN}),
}


@pytest.mark.parametrize("name", FAILED)
def test_a_failed_check_says_what_to_do(tmp_path: Path, name: str) -> None:
    """It ends with what is next, and the commands that it names are there."""
    rows, parts = FAILED[name]
    (result,) = (
        each
        for each in check_results(evidence(tmp_path, *rows, **parts))
        if each.check_name == name
    )

    _, has_next, remedy = str(result.description).partition(". Next: ")
    commands = re.findall(r"oncelake (\w+) orders", remedy)
    assert (result.passed, bool(has_next)) == (False, True)
    assert commands or name == "expectations"
    for command in commands:
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0


def test_a_remedy_that_is_there_is_not_followed_by_another(tmp_path: Path) -> None:
    """What a refused proof advises is not contradicted by the check."""
    found = evidence(tmp_path, spec={"verify": True}, proof="busy. Next: wait for it to end")

    assert str(verified(found).description).count("Next: ") == 1
