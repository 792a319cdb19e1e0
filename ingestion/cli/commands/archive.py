"""``oncelake archive``: what resets, rebuilds and acceptances took away from a stream."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import typer

from oncelake.ingestion.cli import output
from oncelake.ingestion.cli.command import AsJson, Stream, Yes, confirm, new_run_id, read_duration
from oncelake.ingestion.cli.commands.decisions import note_waiting, tables_on_disk, with_waiting
from oncelake.ingestion.cli.commands.streams import load_settings, refuse_unknown
from oncelake.ingestion.errors import InvalidSpecError, counted

Entry = Annotated[str, typer.Argument(metavar="ENTRY", help="As `oncelake archive list` has it.")]


def list_(stream: Stream, as_json: AsJson = False) -> None:
    """List what is in the archive of a stream, with the reason, oldest first."""
    from oncelake.ingestion.operations.history.archive import list_archive

    settings = load_settings()
    entries = list_archive(stream, settings)
    refuse_unknown(stream, settings, exists=bool(entries))
    if as_json:
        output.document({"stream": stream, "entries": entries})
        return
    if not entries:
        output.say(f"{stream}: nothing in the archive")
        return
    output.table(
        ["entry", "why", "tables", "rows", "quarantined", "bytes"],
        [
            (at.entry, at.why, ", ".join(at.tables), at.rows, at.waiting, at.size_bytes)
            for at in entries
        ],
        right=["rows", "quarantined", "bytes"],
    )


def restore(stream: Stream, entry: Entry, yes: Yes = False, as_json: AsJson = False) -> None:
    """Put a copy of an entry in place of the stream's tables, which go into the archive.

    The next run goes on at the restored table's offsets; where Kafka no longer holds what follows,
    it is refused. Asks on a terminal (exit 3 when the answer is no); elsewhere --yes is needed.
    """
    from oncelake.ingestion.operations.history.archive import restore as restore_entry

    settings = load_settings()
    question = f"Put {entry} in place of {stream}{with_waiting(tables_on_disk(stream, settings))}?"
    refusal = f"{stream}: restore replaces its tables, which go into the archive"
    confirm(question, yes=yes, refusal=refusal)
    moved = restore_entry(stream, entry, settings, run_id=new_run_id())
    note_waiting(stream, moved)
    if as_json:
        output.document({"stream": stream, "restored": entry, "archived": moved})
        return
    output.say(f"{stream}: {entry} is in place. Next: oncelake run {stream}")
    for path in moved:
        output.say(f"{stream}: archived {path}")


def prune(
    stream: Stream,
    entries: Annotated[list[str] | None, typer.Argument(metavar="[ENTRY]...")] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="TIME", help="All entries older than this, such as 30d.")
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete entries of the archive for good: those that are named, or all that are old.

    Asks on a terminal (exit 3 when the answer is no); elsewhere --yes is needed (exit 2). The entry
    that tells of an erase goes with all older ones or not at all (exit 3).
    """
    from oncelake.ingestion.operations.history.archive import list_archive
    from oncelake.ingestion.operations.history.archive import prune as prune_entries

    settings = load_settings()
    if bool(entries) == bool(older_than):
        raise InvalidSpecError(
            f"{stream}: name entries, or give --older-than. Next: oncelake archive list {stream}"
        )
    chosen = entries or []
    if older_than:
        before = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=read_duration(older_than))
        chosen = [each.entry for each in list_archive(stream, settings) if each.at < before]
    if chosen:
        what = ", ".join(chosen)
        refusal = f"{stream}: prune deletes {what} for good"
        confirm(f"Delete {what} of {stream} for good?", yes=yes, refusal=refusal)
    run_id = new_run_id()
    pruned = prune_entries(stream, tuple(chosen), settings, run_id=run_id) if chosen else ()
    if as_json:
        output.document({"stream": stream, "deleted": pruned})
        return
    for each in pruned:
        output.say(
            f"{stream}: deleted {each.entry} ({counted(each.size_bytes, 'byte')}; {each.why})"
        )
    if not pruned:
        output.say(f"{stream}: nothing to delete")
