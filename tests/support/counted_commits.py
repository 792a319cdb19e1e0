"""``oncelake``, which writes down each try to commit rows to a Delta table.

python -m tests.support.counted_commits FILE COMMAND…
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from deltalake import CommitProperties, DeltaTable

from oncelake.ingestion.cli.app import main
from oncelake.ingestion.sinks.delta import transaction
from oncelake.ingestion.storage.location import Location


def tries_in(file: Path) -> list[str]:
    """Return the number of the batch of each try."""
    return file.read_text().split()


if __name__ == "__main__":
    _, target, *command = sys.argv
    put = transaction.put_commit

    def put_counted(
        table: Location,
        opened: DeltaTable | None,
        fenced: CommitProperties,
        *given: Any,
        **more: Any,
    ) -> None:
        """Write the number of the batch down, and put its commit."""
        with Path(target).open("a") as file:
            file.writelines(f"{each.version}\n" for each in fenced.app_transactions or ())
        put(table, opened, fenced, *given, **more)

    sys.argv = ["oncelake", *command]
    with patch.object(transaction, "put_commit", put_counted):
        main()
