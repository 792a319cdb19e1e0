"""What is said of a table whose files are not as they were written, and what can be done then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from deltalake.exceptions import DeltaError

from ingestion.errors import DamagedTableError
from ingestion.lake.storage import is_disk_error


def damaged_table(table: Path, what: str) -> DamagedTableError:
    """Compose the refusal of a damaged table.

    Args:
        table: The table's folder, which names the stream.
        what: The file, and what is wrong with it.
    """
    stream = table.name.partition("__")[0]
    return DamagedTableError(stream, f"{table} is damaged: {what}.", remedy=remedy_for(table))


@contextmanager
def translate_read_errors(table: Path) -> Iterator[None]:
    """Translate what the readers of a table's files raise when these are not what they should be.

    Raises:
        DamagedTableError: a file is missing, cut short or garbage. A volume that fails is another
            matter, and passes as it is.
    """
    try:
        yield
    except (DeltaError, pa.ArrowException, OSError, ValueError, KeyError) as error:
        if is_disk_error(error):
            raise
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise damaged_table(table, f"it cannot be read ({said[:300]})") from error


def remedy_for(table: Path) -> str:
    """Say what to do about a table whose rows are gone, by what it is to its stream."""
    stream, _, companion = table.name.partition("__")
    archived = f"oncelake accept {stream} --reason '…' puts it into the archive and goes on without"
    return {
        "ledger": f"oncelake run {stream}, which puts it aside and makes it again from the commits",
        "quarantine": f"put it back from a backup; if there is none, {archived} what it held",
        "tombstones": f"put it back from a backup; if there is none, {archived} the memory of "
        "deletes, so that a late update may bring a deleted key back",
    }.get(
        companion,
        f"put it back from a backup; if there is none, oncelake reset {stream} puts the tables "
        "away (nothing is deleted) and ingests the topic again",
    )
