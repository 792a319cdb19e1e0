"""The output of commands: reports on stdout, everything else on stderr, Spark's own included.

Text is never read as rich markup, since offsets and column lists are full of brackets. No line is
cut; a table is as wide as the terminal, or 80 columns where there is none. What a record, a schema
or a server put into it reaches a terminal as plain characters, all others as escapes.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from oncelake.ingestion.errors import harmless

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncelake.ingestion.kafka.offsets import Offsets
    from oncelake.ingestion.lake.ledger import LedgerRow
    from oncelake.ingestion.operations.failure import Failure
    from oncelake.ingestion.pipeline.report import BatchReport
    from oncelake.ingestion.settings import Settings
    from oncelake.ingestion.tables.table import Tell


# Whoever reports beside a thread that may be starting Spark takes it: stdout is elsewhere then.
STDOUT = threading.RLock()
_NO_SCREEN = 1_000


def out() -> Console:
    """Return the console of reports."""
    return _console(sys.stdout)


def err() -> Console:
    """Return the console of progress, notes and errors."""
    return _console(sys.stderr)


def say(text: str, style: str = "") -> None:
    """Print a line of a report."""
    out().print(_plain_text(text, style), soft_wrap=True)


def note(text: str, style: str = "") -> None:
    """Print a line beside the report."""
    err().print(_plain_text(text, style), soft_wrap=True)


def print_failure(failure: Failure) -> None:
    """Print an error in red, on stderr."""
    if failure.traceback:
        note(failure.traceback)
    note(failure.message, "bold red")


def document(value: Any) -> None:
    """Print the one JSON document of a command; values of ours become objects of their fields."""
    sys.stdout.write(_as_json(value, indent=2) + "\n")


def json_line(value: Any) -> None:
    """Print one of many JSON documents, on a line of its own and at once."""
    sys.stdout.write(_as_json(value) + "\n")
    sys.stdout.flush()


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = ()
) -> None:
    """Print a table as wide as the terminal at most; ``right`` names the columns of numbers.

    Cells go on in a next line between two words. Where that is not enough, each row is printed as
    lines of a column's name and its value, so that nothing is cut.
    """
    cells = [[_plain_text(_cell(value)) for value in row] for row in rows]
    by_column = [[name, *map(str, texts)] for name, *texts in zip(columns, *cells, strict=True)]
    widths = [max(map(cell_len, texts)) for texts in by_column]
    words = [max(map(cell_len, " ".join(texts).split()), default=0) for texts in by_column]
    screen, gaps = shutil.get_terminal_size().columns, len(widths) - 1
    is_narrow = sum(widths) + 3 * gaps > screen
    if is_narrow and sum(words) + 2 * gaps > screen:
        _print_records(columns, cells, screen)
        return
    while is_narrow and sum(widths) + 2 * gaps > screen:
        widest = max(range(len(widths)), key=lambda at: (widths[at] > words[at], widths[at]))
        widths[widest] -= 1
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=is_narrow)
    for column, width in zip(columns, widths, strict=True):
        drawn.add_column(column, justify="right" if column in set(right) else "left", width=width)
    for row in cells:
        drawn.add_row(*row)
    out().print(drawn)


def _print_records(columns: Sequence[str], rows: Iterable[Sequence[Text]], screen: int) -> None:
    longest = max(map(cell_len, columns))
    for at, row in enumerate(rows):
        drawn = Table.grid(padding=(0, 2, 0, 0))
        drawn.add_column(width=longest)
        drawn.add_column(overflow="fold", max_width=max(screen - longest - 2, 10))
        for column, text in zip(columns, row, strict=True):
            drawn.add_row(column, text)
        if at:
            say("")
        out().print(drawn)


def totals(total: Callable[[str], int]) -> None:
    """Print the counts of the books that are not 0; ``total`` gives each by its name."""
    from oncelake.ingestion.lake.books import COUNTS

    rows = [(name, count) for name in COUNTS if (count := total(name))]
    table(["count", "total"], rows, right=["total"])


def note_red(report: BatchReport) -> None:
    """Print why the books of a report's batches do not balance."""
    for row in (*report.recovered, *report.batches):
        if row.is_red:
            what = f"the books of batch {row.seq} do not balance: {row.says()}"
            note(f"{report.stream}: {what}", "bold red")


@contextmanager
def progress(*, of_many: bool = False) -> Iterator[Tell]:
    """Yield the function that shows the progress.

    On a terminal one line changes in place; elsewhere, and of many streams that run side by side,
    each is a line of its own.
    """
    console = err()
    if of_many or not console.is_terminal:

        def tell(text: str) -> None:
            # Not in the middle of another stream's books.
            with STDOUT:
                note(text)

        yield tell
        return
    with console.status("") as shown:
        yield lambda text: shown.update(_plain_text(text))


def session(settings: Settings, tell: Tell, backlog: int | None) -> SparkSession:
    """Start Spark for a backlog of so many records; its JVM must take stderr for its stdout."""
    tell("starting Spark…")
    with STDOUT:
        sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(2, 1)
        try:
            from oncelake.ingestion.pipeline.spark.session import start_session

            return start_session(settings, backlog=backlog)
        finally:
            os.dup2(kept, 1)
            os.close(kept)


def fields_of(value: object, *names: str) -> dict[str, Any]:
    """Return these fields of a value, as a document has them."""
    return {name: getattr(value, name) for name in names}


def row_document(row: LedgerRow, *more: str) -> dict[str, Any]:
    """Return the columns of a ledger row that programs rely on, and more of its fields."""
    place = ("table_id", "seq", "kind", "epoch", "committed_at", "run_id", "delta_version")
    return fields_of(row, *place, "ranges", "counts", "balanced", "accepted", *more)


def next_document(reached: Offsets) -> list[dict[str, Any]]:
    """Return the next offset of each partition as a list of objects."""
    return [{**at._asdict(), "offset": offset} for at, offset in reached.items()]


def _plain_text(text: str, style: str = "") -> Text:
    return Text(harmless(text), style=style)


def _as_json(value: Any, *, indent: int | None = None) -> str:
    """Write JSON that a person can read, and whose other characters are escapes of JSON."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=_plain)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def _plain(value: object) -> object:
    """Return a value as JSON holds it; a time keeps the offset of its zone, as it always has."""
    from pydantic_core import to_jsonable_python

    if hasattr(value, "as_row"):
        return value.as_row()
    if isinstance(value, os.PathLike):
        return str(value)
    return value.isoformat() if isinstance(value, dt.datetime) else to_jsonable_python(value)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if type(value) is int else str(value)


def _console(stream: TextIO) -> Console:
    width = None if stream.isatty() else _NO_SCREEN
    return Console(file=stream, width=width, highlight=False)
