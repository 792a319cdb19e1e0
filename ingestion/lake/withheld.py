"""A batch that was judged and not published: what waits at the gate, for whoever decides about it.

It lies beside the tables: the evidence as JSON, and the rows that would have been written as
Parquet. Nothing reads offsets from it. It counts as long as the table stands where it stood.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from oncelake.ingestion.kafka.offsets import Range
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.tables.format import FORMAT
from oncelake.ingestion.tables.table import BranchingTable

_EVIDENCE: Final = "withheld.json"
ROWS: Final = "rows.parquet"


@dataclass(frozen=True, kw_only=True, slots=True)
class Miss:
    """One thing that a batch was not published for.

    Attributes:
        name: The rule, guard or expectation, as the declaration names it.
        what: What was expected, and what was found.
        rows: How many rows do not meet it; 0 where it is not about single rows.
        examples: A few of these rows, by the table's columns, as JSON has them.
    """

    name: str
    what: str
    rows: int = 0
    examples: Sequence[Mapping[str, Any]] = ()

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.name}: {self.what}"


@dataclass(frozen=True, kw_only=True, slots=True)
class WithheldBatch:
    """A batch that waits at the gate.

    Attributes:
        table_id: The table that it was decided against.
        seq: The number that it would have had.
        epoch: The epoch of its offsets.
        judged_by: Fingerprint of the declaration that judged it.
        since: When a batch at its place was first withheld, as ISO 8601 in UTC.
        records: Sum of the digests of its records.
        ranges: What it read.
        counts: What the books would have said of it.
        misses: What it was held back for.
    """

    table_id: str
    seq: int
    epoch: int
    judged_by: str
    run_id: str
    since: str
    records: int
    ranges: tuple[Range, ...]
    counts: Mapping[str, int]
    misses: tuple[Miss, ...]

    @property
    def place(self) -> tuple[str, int, int]:
        """The place in the table's log that it would have taken."""
        return self.table_id, self.seq, self.epoch

    @property
    def read(self) -> str:
        """The ranges that hold offsets, in words."""
        return ", ".join(str(each) for each in self.ranges if len(each)) or "no offsets"

    @property
    def id(self) -> str:
        """Names what was judged and found: two runs that find the same give it the same name."""
        misses = [(each.name, each.what, each.rows) for each in self.misses]
        found = (self.place, self.judged_by, self.ranges, self.records, misses)
        text = f"{found} {sorted(self.counts.items())}"
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def read_withheld(paths: StreamPaths) -> WithheldBatch | None:
    """Return the batch that was held back last, if any was; see ``WithheldBatch.table_id``."""
    content = (paths.gate / _EVIDENCE).read_if_there()
    if content is None:
        return None
    try:
        raw = json.loads(content)
        if raw.pop("format") != FORMAT:
            return None
        read = {
            "ranges": tuple(Range(**each) for each in raw["ranges"]),
            "misses": tuple(Miss(**each) for each in raw["misses"]),
        }
        return WithheldBatch(**{**raw, **read})
    except (ValueError, TypeError, KeyError):
        # Cut short, or of another version: the next run judges again.
        return None


def write_withheld(paths: StreamPaths, batch: WithheldBatch) -> None:
    """Write the evidence, behind the rows: without it nothing waits."""
    said = {"format": FORMAT, **asdict(batch)}
    text = json.dumps(said, default=str, ensure_ascii=False)
    (paths.gate / _EVIDENCE).put(text.encode())


def forget_withheld(paths: StreamPaths, branch: str | None = None) -> None:
    """Remove evidence, rows and the branch that shows them; needs the stream's lock."""
    paths.gate.delete_all()
    if branch is not None and isinstance(paths.table, BranchingTable):
        paths.table.drop_branch(branch)
