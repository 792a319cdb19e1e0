"""``oncelake rebuild``: what it says of a new table, and how it ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from oncelake.ingestion.lake.archive import Swapped
from oncelake.ingestion.operations.history.rebuild import Rebuild, RebuildReport
from oncelake.ingestion.pipeline.report import RunReport
from oncelake.ingestion.storage.location import Location
from tests.cli.shell import answer, oncelake, row
from tests.cli.test_run import report
from tests.support.quarantine import as_quarantine

RED = report("orders", batches=(row(1, balanced=False, problems=("1 ≠ 2",)),))


def end(
    monkeypatch: pytest.MonkeyPatch, made: RunReport, *archived: Location, is_stopped: bool = False
) -> None:
    """Let a rebuild end like this."""

    def execute(rebuild: Rebuild) -> RebuildReport:
        if is_stopped:
            os.kill(os.getpid(), signal.SIGTERM)
        return RebuildReport(stream="orders", report=made, old=Swapped(archived=archived))

    monkeypatch.setattr(Rebuild, "execute", execute)


@pytest.mark.usefixtures("home")
def test_a_new_table_that_is_red_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt begins anew, so this is the only place that has the reason."""
    end(monkeypatch, RED)

    result = oncelake("rebuild", "orders", "--json")

    assert result.exit_code == 1
    assert "orders: the books of batch 1 do not balance: 1 ≠ 2" in result.stderr
    document = answer(result)
    assert (document["balanced"], document["swapped"]) == (False, False)
    assert [each["problems"] for each in document["batches"]] == [["1 ≠ 2"]]


@pytest.mark.usefixtures("home")
def test_records_that_went_out_of_sight_are_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where the old quarantine is in the archive: no redrive finds them there."""
    archive = Location.of(tmp_path / "lake" / ".archive" / "orders")
    archived = archive / "20261122T101500" / "orders__quarantine"
    rows = {"_seq": [1, 1], "redriven_seq": pa.array([None, 2], pa.int64())}
    write_deltalake(archived.path, as_quarantine(pa.table(rows)))
    end(monkeypatch, report("orders"), archived)

    result = oncelake("rebuild", "orders")

    says = "orders: 1 record in quarantine that no redrive has sent in went into the archive"
    assert says in result.stderr


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("archived", "code"),
    [
        pytest.param((Location.of("old"),), 0, id="behind the swap"),
        pytest.param((), 143, id="before it"),
    ],
)
def test_a_signal_counts_only_before_the_swap(
    monkeypatch: pytest.MonkeyPatch, archived: tuple[Location, ...], code: int
) -> None:
    """What is done is done, and a script must not think that it is not."""
    end(monkeypatch, report("orders"), *archived, is_stopped=True)

    assert oncelake("rebuild", "orders").exit_code == code
