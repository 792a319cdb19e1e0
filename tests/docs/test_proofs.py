"""The page of reliability has the sums of the recorded proofs."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.world import ROOT

PAGE = (ROOT / "docs" / "reliability.md").read_text()
FIELDS = {"date": str, "version": str, "proof": str, "trials": int, "found": int, "command": str}


def lines(path: Path) -> list[dict[str, Any]]:
    """The documents of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def rows(heading: str) -> list[list[str]]:
    """The cells of the table whose header begins with some words."""
    table = PAGE.partition(f"\n| {heading} |")[2].partition("\n\n")[0]
    return [re.split(r" *\| *", row.strip("| ")) for row in table.splitlines()[2:]]


PROOFS = lines(ROOT / "tests" / "records" / "proofs.jsonl")
NONE = "\N{EN DASH}"
TRIALS, PLANTED = rows("proof | what is done"), rows("proof | what is planted")


@pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: f"{proof['proof']}, {proof['date']}")
def test_a_recorded_proof_has_its_fields(proof: dict[str, Any]) -> None:
    """Each line says when, of which version, what, how often, what was found, and the command."""
    assert {name: type(proof.get(name)) for name in FIELDS} == FIELDS
    assert proof["trials"] >= 0


@pytest.mark.parametrize("row", TRIALS, ids=lambda row: row[0])
def test_the_page_has_the_sums_of_the_trials(row: list[str]) -> None:
    """Trials of the newest version and of all, what was found, and the bounds that follow."""
    proof, _, trials, all_trials, found, bound, _ = row
    every = [line for line in PROOFS if line["proof"] == proof]
    newest = [line for line in every if line["version"] == every[-1]["version"]]
    of_newest, of_all = (sum(line["trials"] for line in some) for some in (newest, every))
    bounded = [of_newest] if any(line["found"] for line in every) else [of_newest, of_all]

    assert [trials, all_trials] == [f"{of_newest:,}", f"{of_all:,}"]
    assert found == str(sum(line["found"] for line in every))
    assert sum(line["found"] for line in newest) == 0
    assert bound in {NONE, ", ".join(f"{300 / count:.2g} %" for count in bounded)}


@pytest.mark.parametrize("row", PLANTED, ids=lambda row: row[0])
def test_the_page_has_the_sums_of_the_planted_bugs(row: list[str]) -> None:
    """How many the newest version was given, and how many of them no test noticed."""
    proof, _, planted, missed, _ = row
    every = [line for line in PROOFS if line["proof"] == proof]
    newest = [line for line in every if line["version"] == every[-1]["version"]]

    assert planted == str(sum(line["trials"] for line in newest))
    assert missed == str(sum(line["found"] for line in newest))


def test_every_recorded_proof_is_on_the_page() -> None:
    """No proof is left out, and none is made up."""
    assert {row[0] for row in (*TRIALS, *PLANTED)} == {line["proof"] for line in PROOFS}


def test_the_page_has_the_numbers_of_the_bugs() -> None:
    """The table of what found them is counted from the list."""
    counted = {row[0].partition(":")[0]: int(row[1]) for row in rows("found by | bugs")}

    assert counted == Counter(
        bug["kind"] for bug in lines(ROOT / "tests" / "records" / "bugs.jsonl")
    )
