"""``oncelake erase``: every trace of a key out of a stream's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from oncelake.ingestion.cli import output
from oncelake.ingestion.cli.command import AsJson, Stream, Yes, confirm, new_run_id
from oncelake.ingestion.cli.commands.streams import load_stream
from oncelake.ingestion.cli.output import progress
from oncelake.ingestion.errors import counted

if TYPE_CHECKING:
    from oncelake.ingestion.operations.erase.erase import Certificate

_COUNTS = {
    "erased_rows": ("row of the table", "rows of the table"),
    "erased_tombstones": ("remembered delete", "remembered deletes"),
    "erased_quarantined": ("raw record in quarantine", "raw records in quarantine"),
    "erased_files": ("data file of older versions", "data files of older versions"),
}


def erase(
    stream: Stream,
    key: Annotated[str, typer.Option(help="The key columns as JSON, such as '{\"id\": 42}'.")],
    reason: Annotated[str, typer.Option(help="Why; the ledger keeps it, so name no person.")],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Erase a key from table, history, quarantine, tombstones and all older versions of them.

    Removes every older version at once (files and log, snapshots, or deleted rows), so that no
    rewind and no time travel goes back to before it. The ledger gets a certificate with a
    digest of the key. Later records of the key are applied as usual; `replay` and `redrive`
    leave the earlier ones out. What Kafka holds stays there. If it is killed, run it again.
    """
    from oncelake.ingestion.operations.erase.erase import erase as erase_key

    spec, settings = load_stream(stream)
    confirm(
        f"Erase {key} from {stream}, and every older version of its tables?",
        yes=yes,
        refusal=f"{stream}: erase cannot be undone, and ends what a rewind can reach",
    )
    with progress() as tell:
        done = erase_key(spec, settings, key=key, reason=reason, run_id=new_run_id(), tell=tell)
    if as_json:
        output.document(
            {
                "stream": stream,
                **output.row_document(done.row),
                **output.fields_of(done, "unreadable", "archived", "in_kafka"),
            }
        )
    else:
        _print(stream, done)


def _print(stream: str, done: Certificate) -> None:
    row = done.row
    what = (
        "erased" if done.has_erased else "nothing of the key was found; older versions are removed"
    )
    output.say(f"{stream}: {what} (seq {row.seq}, version {row.delta_version})")
    for name, words in _COUNTS.items():
        output.say(f"  {counted(row.counts.get(name, 0), *words)}")
    if done.unreadable:
        records = counted(done.unreadable, "record")
        output.say(
            f"  {records} in quarantine cannot be read, and may be of the key: "
            f"oncelake quarantine {stream}",
            "yellow",
        )
    for path in done.archived:
        # A rebuild's own tables are no entry of the archive.
        remedy = "remove it by hand"
        if path.parent.name != ".rebuild":
            remedy = f"oncelake archive prune {stream} {path.parent.name} --yes"
        output.say(f"  {path} is an older copy, which may hold it. Next: {remedy}", "yellow")
    for part in done.in_kafka or ():
        output.say(
            f"  Kafka still holds {part}, which the table has read: records of the key may be "
            "among them",
            "yellow",
        )
    if done.in_kafka is None:
        output.say("  Kafka did not answer, and may still hold records of the key", "yellow")
    elif done.in_kafka:
        output.say(
            "  They go by the topic's retention; a compacted topic needs a null value for the key."
        )
