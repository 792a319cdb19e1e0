"""What the demo shows, as tables for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from deltalake import DeltaTable

from ingestion.cli.demo.flights import Message
from ingestion.cli.output import say, table
from ingestion.lake.ledger import LedgerRow
from ingestion.lake.table_log import open_dataset

_SHOWN = ("carrier", "flight", "origin", "dest", "status", "arr_delay", "updated_at")
_COORDINATES = ("_partition", "_offset", "_seq")


def print_sent(messages: Iterable[Message]) -> None:
    """Show how many messages were sent of each event, and how many of them were odd."""
    events = Counter(m.event for m in messages if m.trait != "malformed")
    traits = Counter(m.trait for m in messages)
    odd = {
        "of them sent twice": traits["repeated"],
        "of them late, and out of order": traits["late"],
        "malformed, in twelve ways": traits["malformed"],
    }
    say("\nSent", "italic")
    table(["messages", "number"], [*events.most_common(), *odd.items()], right=["number"])


def print_books(batches: Sequence[LedgerRow]) -> None:
    """Show the books of every batch: a row a count that is not zero, a column a batch."""
    names = dict.fromkeys(name for row in batches for name, count in row.counts.items() if count)
    rows: list[tuple[object, ...]] = [
        (name, *(row.counts.get(name, 0) for row in batches)) for name in names
    ]
    rows.append(("balanced", *("yes" if row.balanced else "NO" for row in batches)))
    columns = [f"seq {row.seq}" for row in batches]
    say("\nThe books", "italic")
    table(["count", *columns], rows, right=columns)


def print_ranges(batches: Iterable[LedgerRow]) -> None:
    """Show the offsets that each batch covers."""
    columns = ["seq", "topic", "partition", "start", "end", "records", "gaps"]
    rows = [(row.seq, *it.as_row().values()) for row in batches for it in row.ranges]
    say("\nOffset ranges, end exclusive", "italic")
    table(columns, rows)


def print_rows(flights: DeltaTable, *, limit: int = 10) -> None:
    """Show some rows of the flights' table, read without Spark."""
    rows = [
        (
            f"{row['carrier']} {row['flight']}",
            f"{row['origin']} → {row['dest']}",
            *(row["status"], row["arr_delay"]),
            f"{row['updated_at']:%b %d %H:%M:%S}",
            *(row[name] for name in _COORDINATES),
        )
        for row in open_dataset(flights).head(limit, columns=[*_SHOWN, *_COORDINATES]).to_pylist()
    ]
    columns = ["flight", "from → to", "status", "arr_delay", "updated_at", *_COORDINATES]
    say(f"\n{limit} rows of the table", "italic")
    table(columns, rows)
