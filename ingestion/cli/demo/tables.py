"""What the demo shows, as tables for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from deltalake import DeltaTable
from rich.box import SIMPLE
from rich.table import Table

from ingestion.cli.demo.flights import Message
from ingestion.lake.ledger import LedgerRow
from ingestion.lake.table_data import open_dataset

_SHOWN = ("carrier", "flight", "origin", "dest", "status", "arr_delay", "updated_at")
_PLACE = ("_partition", "_offset", "_seq")


def sent(messages: Iterable[Message]) -> Table:
    """Show how many messages were sent of each event, and how many of them were odd."""
    events = Counter(m.event for m in messages if m.trait != "malformed")
    traits = Counter(m.trait for m in messages)
    table = Table("messages", "", title="Sent", title_justify="left", box=SIMPLE)
    for name, count in events.most_common():
        table.add_row(name, f"{count:,}")
    table.add_section()
    table.add_row("of them sent twice", f"{traits['repeated']:,}")
    table.add_row("of them late, and out of order", f"{traits['late']:,}")
    table.add_row("malformed, in twelve ways", f"{traits['malformed']:,}")
    table.columns[1].justify = "right"
    return table


def books(batches: Sequence[LedgerRow]) -> Table:
    """Show the books of every batch: a row a count that is not zero, a column a batch."""
    table = Table("count", *(f"seq {row.seq}" for row in batches), title="The books", box=SIMPLE)
    table.title_justify = "left"
    names = dict.fromkeys(name for row in batches for name, count in row.counts.items() if count)
    for name in names:
        table.add_row(name, *(f"{row.counts.get(name, 0):,}" for row in batches))
    table.add_section()
    table.add_row("balanced", *("yes" if row.balanced else "NO" for row in batches))
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def ranges(batches: Iterable[LedgerRow]) -> Table:
    """Show the offsets that each batch covers."""
    names = ("seq", "topic", "partition", "start", "end", "records", "gaps")
    table = Table(*names, title="Offset ranges, end exclusive", box=SIMPLE)
    table.title_justify = "left"
    for row in batches:
        for each in row.ranges:
            at = each.range
            place = (row.seq, at.topic, at.partition, at.start, at.end, each.records, each.gaps)
            table.add_row(*(f"{part:,}" if isinstance(part, int) else part for part in place))
    return table


def rows(table: DeltaTable, *, limit: int = 10) -> Table:
    """Show some rows of the flights' table, read without Spark."""
    shown = Table(
        *("flight", "from → to", "status", "arr_delay", "updated_at", *_PLACE),
        title=f"{limit} rows of the table",
        title_justify="left",
        box=SIMPLE,
        padding=0,
    )
    for row in open_dataset(table).head(limit, columns=[*_SHOWN, *_PLACE]).to_pylist():
        shown.add_row(
            f"{row['carrier']} {row['flight']}",
            f"{row['origin']} → {row['dest']}",
            row["status"],
            "" if row["arr_delay"] is None else str(row["arr_delay"]),
            f"{row['updated_at']:%b %d %H:%M:%S}",
            *(f"{row[name]:,}" for name in _PLACE),
        )
    return shown
