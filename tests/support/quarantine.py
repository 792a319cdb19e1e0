"""The quarantine's columns of which a test that writes one by hand has nothing to say."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

_MORE: Final = {
    "redriven_seq": pa.int64(),
    **dict.fromkeys(("reason", "detail", "removed"), pa.string()),
}


def as_quarantine(rows: pa.Table) -> pa.Table:
    """Add what every quarantine has, as nulls."""
    for name, type_ in _MORE.items():
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(len(rows), type_))
    return rows
