"""Every operation from a shell, without Dagster: which command is which function.

Nothing here, and nothing a command's module imports at its top, may import pyspark, pyarrow or
the Kafka client: help, completion and a typing error must be answered at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from oncelake.ingestion.cli.command import OncelakeCommand
from oncelake.ingestion.cli.commands import (
    adopt,
    archive,
    audit,
    decisions,
    discover,
    erase,
    init,
    jars,
    kafka,
    maintain,
    new,
    plan,
    quarantine,
    rewind,
    run,
    status,
    streams,
    try_,
    verify,
)
from oncelake.ingestion.cli.end_process import run_to_the_end

app = typer.Typer(
    name="oncelake",
    help="Every Kafka record, once, in your lakehouse, and a proof of it.",
    epilog="Exit codes: 0 done and balanced · 1 something is wrong · 2 bad usage or declaration · "
    "3 refused until a person decides · 4 locked by another run · 5 a dependency does not answer.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
kafka_app = typer.Typer(
    help="Start, stop, fill and look at the embedded Kafka: one broker on this machine, for trying "
    "things out. It keeps its records, its cluster id and, where it is free, its port.",
    no_args_is_help=True,
)

schema_app = typer.Typer(
    help="Print the JSON Schema of a declaration, for editors; or show the columns of a stream."
)
archive_app = typer.Typer(
    help="What resets, rebuilds and acceptances took away from a stream: list it, bring it back, "
    "delete it.",
    no_args_is_help=True,
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from oncelake.ingestion.tables.format import engine_version

        typer.echo(f"oncelake {engine_version()}")
        raise typer.Exit


@app.callback()
def oncelake(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an unexpected error.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version, and exit.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Take the options that all commands share; ``OncelakeCommand`` reads them from the context."""


for command in (
    *(new.new, init.init, discover.discover, run.run, run.follow),
    *(status.status, status.ledger, status.doctor, verify.verify, audit.audit),
    *(quarantine.quarantine, quarantine.redrive, plan.plan, plan.alter, plan.rebuild),
    *(rewind.history, rewind.rewind, rewind.replay, maintain.maintain, erase.erase),
    *(streams.validate, jars.jars),
    *(decisions.accept, decisions.batch, decisions.adopt_topic, adopt.adopt_table),
    *(decisions.reset, decisions.unlock),
):
    app.command(cls=OncelakeCommand)(command)
for of_kafka in (kafka.up, kafka.down, kafka.status, kafka.send):
    kafka_app.command(cls=OncelakeCommand)(of_kafka)
archive_app.command("list", cls=OncelakeCommand)(archive.list_)
archive_app.command(cls=OncelakeCommand)(archive.restore)
archive_app.command(cls=OncelakeCommand)(archive.prune)
schema_app.callback(invoke_without_command=True)(streams.schema)
schema_app.command(cls=OncelakeCommand)(discover.show)
app.command("try", cls=OncelakeCommand)(try_.try_)
app.add_typer(schema_app, name="schema")
app.add_typer(kafka_app, name="kafka")
app.add_typer(archive_app, name="archive")


def main() -> None:
    """Run the command that the process was started with, and exit with its code."""
    run_to_the_end(app)
