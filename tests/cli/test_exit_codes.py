"""What the command line exits with, and what it says of an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelake.ingestion import errors
from oncelake.ingestion.errors import first_exit_code
from oncelake.ingestion.operations.failure import Failure


@pytest.mark.parametrize(
    ("codes", "wins"),
    [
        pytest.param([0, 0], 0, id="all done"),
        pytest.param([4, 5, 3, 1], 1, id="red before refused"),
        pytest.param([4, 5, 3], 3, id="refused before unreachable"),
        pytest.param([4, 5], 5, id="unreachable before locked"),
        pytest.param([2, 4], 4, id="locked before a broken file"),
        pytest.param([0, 2], 2, id="a broken file before done"),
        pytest.param([130, 1], 1, id="red before interrupted"),
        pytest.param([0, 143], 143, id="interrupted before done"),
    ],
)
def test_the_worst_of_several_streams_decides(codes: list[int], wins: int) -> None:
    """Of several exit codes the contract's order picks one."""
    assert first_exit_code(codes) == wins


def test_a_failure_is_one_line_whatever_the_error() -> None:
    """A refusal keeps its remedy; an unexpected error keeps its traceback in a file."""
    refused = Failure.of(errors.TopicMissingError("orders", "gone.", remedy="make it"))
    unexpected = Failure.of(ValueError("first\nsecond"))

    assert refused.document()["error"]["remedy"] == "make it"
    assert (refused.stream, refused.exit_code) == ("orders", 3)
    assert unexpected.message.startswith("unexpected ValueError: first (traceback: ")
    Path(unexpected.message.split("traceback: ")[1].split(";")[0]).unlink()
