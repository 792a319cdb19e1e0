"""What a table of versions has beside the declared columns, and what it asks of a declaration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ingestion.agreement import Contradiction

if TYPE_CHECKING:
    from ingestion.spec import StreamSpec

VALID_FROM: Final = "valid_from"
VALID_TO: Final = "valid_to"
CURRENT: Final = "current"


def table_columns(spec: StreamSpec) -> str:
    """Return the columns of the versions as DDL."""
    types = {column.name: column.type for column in spec.columns} | {"_timestamp": "TIMESTAMP"}
    moment = types[spec.sequence_by[0]]
    return f"{spec.ddl}, {VALID_FROM} {moment}, {VALID_TO} {moment}, {CURRENT} BOOLEAN"


def problems(spec: StreamSpec) -> Iterator[Contradiction]:
    """Find what is wrong with a declaration of versions."""
    if len(spec.sequence_by) != 1:
        yield Contradiction(
            ("sequence_by",),
            "`mode: scd2` needs exactly one column, which says from when on a version is valid; "
            "`_timestamp` (Kafka's) is allowed",
        )
    for column in spec.columns:
        if column.name.lower() in (VALID_FROM, VALID_TO, CURRENT):
            yield Contradiction(
                ("schema",), f"column {column.name} is one that `mode: scd2` adds; rename it"
            )
