"""``oncelake verify``: the proof, with a progress bar, for a person or a program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oncelake.ingestion.cli import output
from oncelake.ingestion.cli.command import AsJson
from oncelake.ingestion.cli.commands.streams import load_settings, load_stream
from oncelake.ingestion.errors import DONE, WRONG, InvalidSpecError, counted

if TYPE_CHECKING:
    from oncelake.ingestion.verify.verdict import Verdict

_SHOWN = 20
_IN_DOCUMENT = 1_000
_COMPARED = ("table", "rows", "expected", "buckets", "where")


def verify(
    stream: Annotated[
        str | None, typer.Argument(metavar="STREAM", help="Name of a declared stream.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Show at most N differences: {_SHOWN}, or {_IN_DOCUMENT} in JSON."
        ),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Begin anew: use nothing of an earlier proof.")
    ] = False,
    certificate: Annotated[
        Path | None,
        typer.Option(help="Write what a proof that holds has proven, for others to check."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="Compare the table with this certificate, without Kafka."),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            help="With --against: another table, such as iceberg:sales.orders, "
            "postgres:public.orders, or the path or URL of a Delta table."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Prove a stream's table, quarantine and ledger from its topic, and say what is not proven.

    Reads the topic a second time with another client, folds it without Spark, counts every batch
    again, and compares every column of every row. Changes no table, and may run beside a run. It
    keeps what the next proof goes on from beside the tables.
    Exits with 0 when everything that could be proven holds, with 1 when something is wrong.
    """
    from oncelake.ingestion.operations.proof.apply_transformation import spark_transformation
    from oncelake.ingestion.verify.verify import verify as prove

    if against is not None:
        raise typer.Exit(_compare(against, stream, table, as_json=as_json))
    if stream is None or table is not None:
        raise InvalidSpecError(
            "verify: a stream is to be named, and --table only with --against. Next: oncelake "
            "verify STREAM"
        )
    spec, settings = load_stream(stream)
    with progress() as tell:
        verdict = prove(
            spec,
            settings,
            limit=limit or (_IN_DOCUMENT if as_json else _SHOWN),
            tell=tell,
            whole=whole,
            apply_transformation=spark_transformation,
        )
    if as_json:
        output.document(verdict.document())
    else:
        _report(verdict)
    if certificate is not None and verdict.holds:
        from oncelake.ingestion.operations.proof.certify import certify

        digest = certify(spec, settings, verdict, certificate)
        output.note(f"{certificate}: written, sha256 {digest}")
    raise typer.Exit(DONE if verdict.holds else WRONG)


def _compare(file: Path, stream: str | None, table: str | None, *, as_json: bool) -> int:
    """Compare a table with a certificate; return the exit code."""
    from oncelake.ingestion.operations.proof.certify import compare_with

    spec = load_stream(stream)[0] if stream else None
    found = compare_with(file, load_settings(), stream=spec, table=table)
    if as_json:
        output.document({**output.fields_of(found, *_COMPARED), "holds": found.holds})
    elif found.holds:
        output.say(f"{found.table}: has the {counted(found.rows, 'row')} that {file} certifies")
    else:
        differing = counted(len(found.buckets), "bucket")
        output.say(
            f"{found.table}: FAILED: {differing} of 256 differ; {counted(found.rows, 'row')}, and "
            f"{file} certifies {counted(found.expected, 'row')}",
            "bold red",
        )
        output.say(f"  the rows are where {found.where}")
    return DONE if found.holds else WRONG


def _report(verdict: Verdict) -> None:
    output.say(verdict.headline, "" if verdict.holds else "bold red")
    if verdict.memory:
        output.say(f"  {verdict.memory}")
    if verdict.adopted:
        output.say(f"  {verdict.adopted}")
    if verdict.equation:
        output.say(f"  {verdict.equation}")
    for each in verdict.differences:
        output.say(f"  {each}")
    if verdict.total > len(verdict.differences):
        output.say(f"  … and {verdict.total - len(verdict.differences):,} more (--limit, --json)")
    for limit in (*verdict.obstacles, *verdict.limits):
        output.say(f"  not proven: {limit}")


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar on a terminal, and nothing elsewhere."""
    from rich.progress import Progress, TaskID

    console = output.err()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def tell(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = bar.add_task(step)
            bar.update(tasks[step], completed=done, total=max(total, 1))

        yield tell
