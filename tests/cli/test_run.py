"""``oncelake run`` over several streams, with the engine played by a fake at its seam."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from oncelake.ingestion import errors
from oncelake.ingestion.kafka.offsets import Offsets, TopicPartition
from oncelake.ingestion.lake.books import COUNTS
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.pipeline.report import RunReport
from oncelake.ingestion.settings import load_settings
from tests.cli.shell import ORDERS, answer, declare, oncelake, quarantine, row
from tests.operations.test_inspect_quarantine import held


class FakeRun:
    """Stands where ``ingestion.operations.run.Run`` does; each stream ends as it was told to."""

    ends: ClassVar[dict[str, Exception | RunReport | str]] = {}

    def __init__(self, **asked: Any) -> None:
        """Take what the real one takes."""
        self.asked = asked

    def execute(self) -> RunReport:
        """End as told: raise, report, or wait until somebody asks to stop."""
        name = self.asked["spec"].name
        end = self.ends[name]
        if isinstance(end, Exception):
            raise end
        if isinstance(end, str):
            os.kill(os.getpid(), getattr(signal, end))
            assert self.asked["stop"].wait(2)
            return replace(report(name), lag=7)
        for batch in end.batches:
            self.asked["tell"](f"batch {batch.seq} committed")
        return end


def report(stream: str, **changes: Any) -> RunReport:
    """Make a report of two balanced batches."""
    fields: dict[str, Any] = {
        "stream": stream,
        "run_id": "r",
        "batches": (row(1), row(2)),
        "recovered": (),
        "notices": (),
        "seq": 2,
        "epoch": 1,
        "next": Offsets({TopicPartition("orders", 0): 20}),
        "lag": 0,
        "delta_version": 3,
        "row_count": 20,
        "table": f"lake/{stream}",
    }
    return RunReport(**{**fields, **changes})


@pytest.fixture(autouse=True)
def engine(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the fake into place, and declare a stream for each way to end."""
    ends = {
        "done": report("done", notices=("the checkpoint was discarded",)),
        "nothing": report("nothing", batches=(), row_count=None),
        "red": report("red", batches=(row(1, balanced=False, problems=("1 ≠ 2",)),)),
        "refused": errors.TopicMissingError("refused", "no topic [a, b].", remedy="make it"),
        "locked": errors.StreamLockedError("locked: by run x"),
        "silent": errors.DependencyError("Kafka does not answer"),
        "missed": errors.RecordsMissedError("missed: a record"),
        "odd": ValueError("something else"),
        "stopped": "SIGTERM",
    }
    for name in ends:
        declare(home, name, ORDERS)
    declare(home, "broken", "topic: [")
    monkeypatch.setenv("ONCELAKE_KAFKA", "nowhere:1")
    monkeypatch.setenv("TMPDIR", str(home))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(FakeRun, "ends", ends)
    monkeypatch.setattr("oncelake.ingestion.operations.run.Run", FakeRun)
    monkeypatch.setattr(
        "oncelake.ingestion.pipeline.spark.session.start_session", lambda settings: object()
    )


@pytest.mark.parametrize(
    ("streams", "code"),
    [
        pytest.param("done", 0, id="done"),
        pytest.param("red", 1, id="red books"),
        pytest.param("missed", 1, id="a record was missed"),
        pytest.param("odd", 1, id="unexpected"),
        pytest.param("broken", 2, id="broken file"),
        pytest.param("refused", 3, id="refused"),
        pytest.param("locked", 4, id="locked"),
        pytest.param("silent", 5, id="a dependency"),
        pytest.param("locked silent refused red done", 1, id="1 before 3"),
        pytest.param("locked silent refused done", 3, id="3 before 5"),
        pytest.param("locked silent done", 5, id="5 before 4"),
        pytest.param("broken locked done", 4, id="4 before 2"),
        pytest.param("broken done", 2, id="2 before 0"),
    ],
)
def test_the_exit_code_is_the_contracts(streams: str, code: int) -> None:
    """Each kind of end has its code, and of several the contract's order picks one."""
    assert oncelake("run", *streams.split()).exit_code == code


def test_one_that_fails_does_not_keep_the_others_from_running() -> None:
    """Every stream is in the document, with its report or its error, and its own exit code."""
    told = answer(oncelake("run", "broken", "odd", "refused", "done", "--json"))

    assert [each["exit_code"] for each in told["streams"]] == [2, 1, 3, 0]
    assert told["streams"][2]["error"]["remedy"] == "make it"
    assert told["streams"][3]["seq"] == 2
    assert told["run_id"].startswith("cli-")


def test_one_stream_gives_its_report() -> None:
    """The JSON of one stream sums up its batches under the names of the books."""
    told = answer(oncelake("run", "done", "--json"))

    assert set(told["counts"]) == set(COUNTS)
    assert (told["counts"]["inserted"], told["counts"]["stale"]) == (20, 0)
    assert told["ranges"] == [
        {"topic": "orders", "partition": 0, "start": 0, "end": 20, "records": 20, "gaps": 0}
    ]
    assert (told["balanced"], told["lag"], told["interrupted"]) == (True, 0, False)


def test_the_books_are_printed_and_progress_is_beside_them() -> None:
    """Stdout has books and notices, no rows where none are counted; a batch is a line on stderr."""
    result = oncelake("run", "done", "nothing")

    assert "done: balanced · 2 batches · seq 2 · Delta version 3 · 20 rows · lag 0" in result.stdout
    assert "the checkpoint was discarded" in result.stdout
    assert "stale" not in result.stdout
    assert "nothing: balanced · nothing new · seq 2 · Delta version 3 · lag 0" in result.stdout
    assert "done: batch 2 committed" in result.stderr


def test_a_run_ends_with_what_waits_in_quarantine() -> None:
    """Records of this run or of earlier ones are not forgotten behind a green line."""
    quarantine("done", held(1, "missing_key"), held(2, "bad_time"), held(3, "x", redriven=2))

    last = oncelake("run", "done").stdout.splitlines()[-1]

    assert last == "2 records wait in quarantine. Next: oncelake quarantine done"
    assert "quarantine" not in oncelake("run", "nothing").stdout
    assert answer(oncelake("run", "done", "--json"))["quarantine_waiting"] == 2


def test_a_quarantine_that_cannot_be_read_takes_no_report_away() -> None:
    """The batches are committed: what waits is unknown, and the next run says why."""
    quarantine("done", held(1, "missing_key"))
    log = StreamPaths.of("done", load_settings()).quarantine.path / "_delta_log"
    (log / f"{0:020d}.json").write_text("garbage")

    result = oncelake("run", "done", "--json")

    assert result.exit_code == 0
    assert (answer(result)["balanced"], answer(result)["quarantine_waiting"]) == (True, None)


def test_an_error_is_one_line_with_its_brackets() -> None:
    """A refusal is printed as it was written, without a traceback and without markup lost."""
    result = oncelake("run", "refused")

    assert "refused: no topic [a, b]. Next: make it" in result.stderr.splitlines()
    assert "Traceback" not in result.output


def test_unbalanced_books_are_reported() -> None:
    """What does not balance is on stderr, beside the batch it is about."""
    assert "red: the books of batch 1 do not balance: 1 ≠ 2" in oncelake("run", "red").stderr


def test_debug_shows_the_traceback() -> None:
    """An unexpected error shows its traceback when that was asked for."""
    assert "Traceback" in oncelake("--debug", "run", "odd").stderr
    assert "Traceback" not in oncelake("run", "odd").stderr


def test_a_signal_ends_the_command_with_a_report() -> None:
    """SIGTERM stops the stream, tells what was done, begins no other, and exits with 143."""
    before = signal.getsignal(signal.SIGTERM)
    began = time.monotonic()

    result = oncelake("run", "stopped", "done", "--jobs", "1", "--json")

    assert time.monotonic() - began < 5
    assert result.exit_code == 143
    first, second = answer(result)["streams"]
    assert (first["interrupted"], first["lag"]) == (True, 7)
    assert (second["interrupted"], "seq" in second) == (True, False)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_mistyped_name_runs_nothing() -> None:
    """An unknown stream among others is bad usage: exit 2 before anything is started."""
    result = oncelake("run", "done", "doen")

    assert result.exit_code == 2
    assert "balanced" not in result.stdout
