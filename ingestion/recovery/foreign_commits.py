"""The changes that others made to a table of ours: its commits alone do not say it all any more.

OPTIMIZE, VACUUM and new properties change no row, and concern nobody. A foreign write, update,
delete or RESTORE does: the table is then no longer what the topic says, and a person must know.
"""

from __future__ import annotations

from collections.abc import Iterable

from oncelake.ingestion.errors import TableAlteredError, TableRestoredError
from oncelake.ingestion.tables.commit_log import Commit, CommitLog


def foreign_commits(commits: Iterable[Commit]) -> tuple[Commit, ...]:
    """Return those commits of others that changed rows, newest first."""
    return tuple(each for each in commits if each.changes_rows or each.operation == "RESTORE")


def foreign_commits_before(stream: str, log: CommitLog, commit: Commit) -> tuple[str, ...]:
    """Say, in a sentence each, what others did to the rows since our commit before this one."""
    _, others = log.since_our_newest(stream, below=commit.version)
    return tuple(
        f"version {each.version} ({each.operation}) by somebody else changed rows before this batch"
        for each in foreign_commits(others)
    )


def foreign_change(
    stream: str, ours: Commit | None, others: Iterable[Commit]
) -> TableRestoredError | TableAlteredError | None:
    """Say what somebody else did to the rows; ``None`` where nobody has changed any.

    Args:
        ours: Our newest commit that is still in the log.
        others: What was committed after it.
    """
    altered = next(iter(foreign_commits(others)), None)
    if altered is None:
        return None
    last = f"version {ours.version}" if ours else "a version that has aged out of the log"
    undo = f"oncelake history {stream} lists the batches to rewind to"
    if ours and ours.metadata:
        undo = (
            f"oncelake rewind {stream} --to seq:{ours.metadata.seq} --reason '…' --yes undoes that"
        )
    remedy = f"{undo}; or, if the table is as you want it, oncelake accept {stream} --reason '…'"
    if altered.operation == "RESTORE":
        return TableRestoredError(
            stream,
            f"somebody restored the table (version {altered.version}) after our last commit "
            f"({last}), so rows that its offsets count may be missing.",
            remedy=remedy,
        )
    return TableAlteredError(
        stream,
        f"somebody else changed the table's rows (version {altered.version}, {altered.operation}) "
        f"after our last commit ({last}), so they are no longer what the topic says.",
        remedy=remedy,
    )
