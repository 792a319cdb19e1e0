"""The proof as Dagster shows it: a job, and a check that a stream's file switches on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from oncelake.assets.checks.checks import check_results, check_specs
from oncelake.assets.checks.proof import verify_job
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.errors import DependencyError
from oncelake.ingestion.verify.verdict import Difference, Verdict
from oncelake.resources.kafka import KafkaResource
from oncelake.resources.lake import LakeResource
from tests.assets.conftest import batch, broken, declared
from tests.assets.shell import failure_of
from tests.assets.test_checks import evidence

pytestmark = pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run:DeprecationWarning")

LOST = Difference(part="rows", what="is missing from the table", key={"id": "7"})


def verdict(*differences: Difference, **fields: Any) -> Verdict:
    """Return a verdict about ten records, with these differences."""
    numbers = dict.fromkeys(("records", "batches", "commits", "rows", "quarantined"), 10)
    given = {
        **numbers,
        "stream": "orders",
        "table": "/lake/orders",
        "delta_version": 3,
        "seq": 2,
        "epoch": 1,
        "proven": (),
        "differences": differences,
        "difference_count": {"rows": len(differences)} if differences else {},
        "limits": (),
        "obstacles": (),
    }
    return Verdict(**{**given, **fields})


def run_job(
    folder: Path,
    found: Verdict | Exception,
    monkeypatch: pytest.MonkeyPatch,
    stream: DeclaredStream | None = None,
) -> dg.ExecuteInProcessResult:
    """Run the job of a stream whose proof comes out as told."""

    def prove(*given: Any, **named: Any) -> Verdict:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr("oncelake.ingestion.verify.verify.verify", prove)
    return verify_job([stream or declared(folder)]).execute_in_process(
        resources={"oncelake_kafka": KafkaResource(), "oncelake_lake": LakeResource()},
        raise_on_error=False,
    )


def test_the_job_succeeds_when_everything_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that is proven ends its job green, and limits do not change that."""
    result = run_job(tmp_path, verdict(limits=("t-0: proven from offset 3 on",)), monkeypatch)

    assert (result.success, result.job_def.name) == (True, "verify_job")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        pytest.param(verdict(LOST), "key (id=7): is missing from the table", id="disproved"),
        pytest.param(verdict(obstacles=("columns of type X",)), "columns of type X", id="obstacle"),
        pytest.param(DependencyError("Kafka is silent"), "Kafka is silent", id="unreachable"),
    ],
)
def test_the_job_fails_with_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Verdict | Exception, said: str
) -> None:
    """Differences, what cannot be proven, and a Kafka that is silent are the failure's text."""
    result = run_job(tmp_path, found, monkeypatch)

    assert not result.success
    assert said in failure_of(result)


def test_a_stream_whose_file_is_broken_fails_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody could prove is not green."""
    result = run_job(tmp_path, verdict(), monkeypatch, broken(tmp_path))

    assert "orders: orders.yaml:1: unknown key `topik`" in failure_of(result)


@pytest.mark.parametrize(("fields", "there"), [({}, False), ({"verify": True}, True)])
def test_the_check_is_there_where_the_file_asks_for_it(
    tmp_path: Path, fields: dict[str, bool], there: bool
) -> None:
    """``verify: true`` adds a check that does not block; without it there is none."""
    blocking = {spec.name: spec.blocking for spec in check_specs(declared(tmp_path, **fields))}

    assert blocking.get("verified") is (False if there else None)


@pytest.mark.parametrize(
    ("proof", "passed", "said"),
    [
        pytest.param(verdict(), True, "proven", id="holds"),
        pytest.param(verdict(LOST), False, "key (id=7)", id="disproved"),
        pytest.param("Kafka is silent", False, "not verified: Kafka is silent", id="no proof"),
    ],
)
def test_the_check_says_what_came_out(
    tmp_path: Path, proof: Verdict | str, passed: bool, said: str
) -> None:
    """A proof that could not be made is not green."""
    known = evidence(tmp_path, batch(1, 0, 5), spec={"verify": True}, proof=proof)

    (found,) = (each for each in check_results(known) if each.check_name == "verified")

    assert (found.passed, found.severity) == (passed, dg.AssetCheckSeverity.ERROR)
    assert said in str(found.description)
