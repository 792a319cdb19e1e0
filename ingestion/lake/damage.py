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
    """Compose the refusal of a table, whose folder names the stream; ``what`` names the file."""
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
    if companion == "ledger":
        return f"oncelake run {stream}, which archives it and rebuilds it from the commits"
    archived = f"oncelake accept {stream} --reason '…' archives it and goes on without"
    without_backup = {
        "quarantine": f"{archived} the records in it",
        "tombstones": f"{archived} the record of deletes, so that a late update may bring a "
        "deleted key back",
    }.get(
        companion,
        f"oncelake reset {stream} --yes archives the tables (nothing is deleted) and ingests the "
        "topic again",
    )
    return f"restore it from a backup; if there is none, {without_backup}"
