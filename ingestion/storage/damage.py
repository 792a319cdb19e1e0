"""The error for a table whose files are not as they were written, and its remedy."""

from __future__ import annotations

from oncelake.ingestion.errors import DamagedTableError
from oncelake.ingestion.storage.location import Location


def damaged_table(table: Location, what: str) -> DamagedTableError:
    """Compose the refusal of a table, whose folder names the stream; ``what`` names the file."""
    return DamagedTableError.of(stream_of(table), table, what, remedy=remedy_for(table))


def stream_of(table: Location) -> str:
    """Return the stream that a table of the lake is of."""
    return table.name.partition("__")[0]


def remedy_for(table: Location) -> str:
    """Say what to do about a table whose rows are gone, by what it is to its stream."""
    stream, _, companion = table.name.partition("__")
    if companion == "ledger":
        return f"oncelake run {stream}, which archives it and rebuilds it from the commits"
    if companion == "":
        return (
            f"restore it from a backup; if there is none, oncelake reset {stream} --yes archives "
            "the tables (nothing is deleted) and ingests the topic again"
        )
    given_up = {
        "quarantine": "the records in it",
        "tombstones": "the record of deletes, so that a late update may bring a deleted key back",
    }[companion]
    return (
        f"restore it from a backup; if there is none, oncelake rebuild {stream} makes it anew from "
        f"what Kafka holds; if Kafka no longer holds all, oncelake accept {stream} --reason '…' "
        f"archives it and goes on without {given_up}"
    )
