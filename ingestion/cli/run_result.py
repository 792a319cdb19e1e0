"""What became of one stream in ``oncelake run``, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingestion.cli import output
from ingestion.errors import DONE, WRONG
from ingestion.operations.failure import Failure

if TYPE_CHECKING:
    from ingestion.pipeline.report import RunReport

_MOST_RANGES = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """One stream's part of a command.

    Attributes:
        report: What the run did, when it came to an end.
        failure: Why it did not.
        interrupted_by: Exit code of the signal that ended it early; 0 when none did.
    """

    stream: str
    report: RunReport | None = None
    failure: Failure | None = None
    interrupted_by: int = DONE

    @property
    def exit_code(self) -> int:
        """The code this stream alone would give."""
        if self.failure is not None:
            return self.failure.exit_code
        if self.report is not None and not self.report.is_balanced:
            return WRONG
        return self.interrupted_by

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        from ingestion.cli.json_output import report_document

        fields: dict[str, Any] = {"stream": self.stream}
        if self.failure is not None:
            fields = self.failure.document()
        elif self.report is not None:
            fields = report_document(self.report)
        return {**fields, "interrupted": bool(self.interrupted_by), "exit_code": self.exit_code}

    def print_problem(self) -> None:
        """Print what a person must know, on stderr."""
        if self.failure is not None:
            output.print_failure(self.failure)
        elif self.interrupted_by:
            output.note(
                f"{self.stream}: interrupted; an open batch is as if never begun, "
                "and the next run goes on behind the last commit",
                "yellow",
            )
        for row in self.report.batches if self.report else ():
            if row.is_red:
                output.note(
                    f"{self.stream}: the books of batch {row.seq} do not balance: {row.says()}",
                    "bold red",
                )

    def print_books(self) -> None:
        """Print the books of the run, on stdout."""
        if self.report is not None:
            _print_summary(self.report)
            if self.report.batches:
                _print_counts(self.report)
                _print_ranges(self.report)


def _print_summary(report: RunReport) -> None:
    verdict = "balanced" if report.is_balanced else "NOT balanced"
    batches = output.counted(len(report.batches), "batch") if report.batches else "nothing new"
    output.say(
        f"{report.stream}: {verdict} · {batches} · seq {report.seq} · Delta version "
        f"{report.delta_version} · {output.counted(report.row_count, 'row')} · lag {report.lag:,}",
        "bold green" if report.is_balanced else "bold red",
    )
    for notice in report.notices:
        output.say(f"  notice: {notice}", "yellow")
    if report.recovered:
        seqs = ", ".join(str(row.seq) for row in report.recovered)
        output.say(f"  recovered into the ledger after a crash: seq {seqs}", "yellow")


def _print_counts(report: RunReport) -> None:
    from ingestion.lake.books import COUNTS

    totals = [(name, report.total(name)) for name in COUNTS if report.total(name)]
    output.table(["count", "total"], totals, right=["total"])


def _print_ranges(report: RunReport) -> None:
    ranges = report.ranges
    output.table(
        ["partition", "start", "end", "records", "gaps"],
        [
            (it.range.topic_partition, it.range.start, it.range.end, it.records, it.gaps)
            for it in ranges[:_MOST_RANGES]
        ],
        right=["start", "end", "records", "gaps"],
    )
    if len(ranges) > _MOST_RANGES:
        output.say(f"… and {len(ranges) - _MOST_RANGES} partitions more; --json has them all")
