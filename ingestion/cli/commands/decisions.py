"""``oncelake accept``, ``batch``, ``adopt-topic``, ``reset``, ``unlock``: a person decides."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oncelake.ingestion.cli import output
from oncelake.ingestion.cli.command import AsJson, Stream, Yes, confirm, new_run_id
from oncelake.ingestion.cli.commands.streams import (
    declared_sink,
    load_settings,
    load_stream,
    refuse_unknown,
)
from oncelake.ingestion.cli.output import progress, session
from oncelake.ingestion.declaration.messages import printable
from oncelake.ingestion.declaration.sinks import named_version
from oncelake.ingestion.errors import DONE, WRONG, InvalidSpecError, counted
from oncelake.ingestion.storage.location import Location

Why = Annotated[str, typer.Option("--reason", help="Why; kept with what is decided.")]

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncelake.ingestion.lake.ledger import LedgerRow
    from oncelake.ingestion.lake.withheld import WithheldBatch
    from oncelake.ingestion.settings import Settings


def accept(
    stream: Stream,
    reason: Annotated[str, typer.Option(help="Why this is all right; the ledger keeps it.")],
    batch: Annotated[
        str | None, typer.Option("--batch", help="The id of a batch that waits: publish it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Accept what the stream is refused for, so that the next run goes on behind it.

    A lost range is skipped; a batch whose books do not balance, or a table that somebody restored
    or altered, stays as it is (`oncelake ledger STREAM`). With --batch, the batch of that id is
    published, which waits at the gate (`oncelake batch STREAM`), and no other. The reason is kept
    with the acceptance.
    """
    from oncelake.ingestion.operations.publish import publish_or_accept

    why = reason.strip()
    if not why:
        raise InvalidSpecError("--reason is empty. Next: write why this is all right")
    spec, settings = load_stream(stream)
    with progress() as tell:
        row = publish_or_accept(
            spec,
            settings,
            lambda backlog: session(settings, tell, backlog),
            batch=batch,
            reason=why,
            run_id=new_run_id(),
            tell=tell,
        )
    done = "accepted" if row.kind == "accept" else "published"
    _report(stream, row, f"{done}: {why}", as_json=as_json)
    raise typer.Exit(WRONG if row.is_red else DONE)


def batch(
    stream: Stream,
    rows: Annotated[
        Path | None, typer.Option("--rows", help="Write the batch's rows to this Parquet file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the batch that waits at a stream's gate: what it is held back for, and by which rows.

    A stream with `publish: checked` commits a batch only if it meets what the declaration asks.
    Of one that does not, nothing is in the table and no offset has moved. Asks the lake and its
    table alone. Exits with 1 when a batch waits.
    """
    from oncelake.ingestion.lake.paths import StreamPaths
    from oncelake.ingestion.lake.withheld import ROWS
    from oncelake.ingestion.recovery.withheld import waiting_batch

    spec, settings = load_stream(stream)
    paths = StreamPaths.of(stream, settings, spec.sink)
    waits = waiting_batch(spec, paths)
    if waits and rows:
        content = (paths.gate / ROWS).read_if_there()
        if content is None:
            raise InvalidSpecError(f"{stream}: the batch that waits changes no row, so has none")
        try:
            rows.write_bytes(content)
        except OSError as error:
            raise InvalidSpecError(f"--rows {rows}: {error.strerror or error}") from error
    if as_json:
        document = None if waits is None else {"id": waits.id, **asdict(waits)}
        output.document({"stream": stream, "waits": document})
    elif waits is None:
        output.say(f"{stream}: no batch waits")
    else:
        _print_withheld(stream, waits, rows)
    raise typer.Exit(WRONG if waits else DONE)


def adopt_topic(
    stream: Stream, reason: Why = "", yes: Yes = False, as_json: AsJson = False
) -> None:
    """Go on with a topic that was deleted and made again, or with another cluster.

    The rows stay, a new epoch begins, and the next run reads the topic as it is now from its
    start: its records win over the rows of the epoch before. Asks on a terminal (exit 3 when the
    answer is no); elsewhere --yes is needed, and without it nothing happens (exit 2).
    """
    from oncelake.ingestion.operations.decisions import adopt_topic as adopt

    spec, settings = load_stream(stream)
    if not yes:
        output.note(
            f"{stream}: all rows, the quarantine and the ledger stay; the topic is read from its "
            "start, and its records win over the rows that are there"
        )
    refusal = f"{stream}: adopt-topic reads the topic again from its start"
    confirm(f"Adopt the topic of {stream} as it is now?", yes=yes, refusal=refusal)
    row = adopt(spec, settings, run_id=new_run_id(), reason=reason.strip())
    _report(stream, row, f"epoch {row.epoch} begins", as_json=as_json)


def reset(stream: Stream, reason: Why = "", yes: Yes = False, as_json: AsJson = False) -> None:
    """Archive a stream's tables, so that the next run ingests its topic from scratch.

    No row is deleted: the tables move into the lake's archive. Asks on a terminal (exit 3 when the
    answer is no); elsewhere --yes is needed, and without it nothing happens (exit 2).
    """
    from oncelake.ingestion.operations.decisions import reset as reset_stream

    settings = load_settings()
    tables = tables_on_disk(stream, settings)
    refuse_unknown(stream, settings, exists=bool(tables))
    if not yes:
        for path in tables:
            output.note(f"  {path}")
    question = f"Archive these of {stream}{with_waiting(tables)}?"
    confirm(question, yes=yes, refusal=f"{stream}: reset archives its tables")
    done = reset_stream(
        stream,
        settings,
        run_id=new_run_id(),
        reason=reason.strip(),
        sink=declared_sink(stream, settings),
    )
    waiting = note_waiting(stream, done.archived)
    if as_json:
        output.document({"stream": stream, "archived": done.named, "quarantined": waiting})
        return
    for path in done.archived:
        output.say(f"{stream}: archived {path}")
    if done.renamed:
        output.say(f"{stream}: its table is called {done.renamed} now")
    if not done.named:
        output.say(f"{stream}: there was nothing to archive")


def unlock(
    stream: Stream,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Do not check a run on another host: I am certain that it has ended."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove the lease that a killed run left behind: in a store, or with ONCELAKE_LOCK=lease.

    Refuses (exit 4) while a process of the holder is alive, and names it; a run on another host
    cannot be seen from here, and needs --force. The default lock of a lake in a folder belongs
    to the kernel and is released when its process ends: it never needs this command.
    """
    from oncelake.ingestion.operations.decisions import unlock as unlock_stream

    settings = load_settings()
    refuse_unknown(stream, settings, exists=bool(tables_on_disk(stream, settings)))
    lease = unlock_stream(stream, settings, force=force)
    if as_json:
        output.document({"stream": stream, "unlocked": lease})
    elif lease:
        output.say(f"{stream}: removed the lease of run {lease.run_id} (since {lease.since})")
    else:
        output.say(f"{stream}: is free")


def with_waiting(tables: Sequence[Location]) -> str:
    """Say in a question how many records wait in the quarantine among these tables."""
    from oncelake.ingestion.operations.history.archive import waiting_records

    waiting = waiting_records(tables)
    return f", with {_unsent(waiting)}" if waiting else ""


def note_waiting(stream: str, archived: Sequence[Location]) -> int:
    """Say how many records went into the archive with the quarantine, and return their number."""
    from oncelake.ingestion.operations.history.archive import waiting_records

    if waiting := waiting_records(archived):
        output.note(f"{stream}: {_unsent(waiting)} went into the archive", "yellow")
    return waiting


def _unsent(waiting: int) -> str:
    return f"{counted(waiting, 'record')} in quarantine that no redrive has sent in"


def _print_withheld(stream: str, batch: WithheldBatch, written: Path | None) -> None:
    output.say(f"{stream}: a batch of {batch.read} waits since {batch.since} (run {batch.run_id})")
    counts = ", ".join(f"{name} {n:,}" for name, n in batch.counts.items() if n)
    output.say(f"  {counts}")
    for miss in batch.misses:
        output.say(f"  {miss}", "yellow")
        for example in miss.examples:
            columns = (f"{name}: {value}" for name, value in example.items() if name[0] != "_")
            place = f"{example.get('_topic')}-{example.get('_partition')} {example.get('_offset')}"
            output.say(f"    {place}: {printable(', '.join(columns))}")
    if written:
        output.say(f"  its rows are in {written}")
    output.say(f"Next: correct the declaration or the producer, and oncelake run {stream}; or")
    output.say(
        f"oncelake accept {stream} --batch {batch.id} --reason …, which publishes it as it is"
    )


def _report(stream: str, row: LedgerRow, what: str, *, as_json: bool) -> None:
    if as_json:
        output.document({"stream": stream, **output.row_document(row)})
        return
    output.say(f"{stream}: {what} (seq {row.seq}, {named_version(row.sink, row.delta_version)})")
    for part in row.ranges:
        if len(part.range):
            output.say(f"  {part.range}")


def tables_on_disk(stream: str, settings: Settings) -> list[Location]:
    """Return the tables of a stream that there are."""
    from oncelake.ingestion.lake.paths import StreamPaths

    paths = StreamPaths.of(stream, settings)
    tables = (paths.data, paths.quarantine, paths.tombstones, paths.ledger)
    return [path for path in tables if path.exists()]
