"""How winners become rows: one file a write mode, and one row here.

A mode is a module with a sink class (see ``ingestion.sinks.protocol``); it is named here and
imported when a run needs it, so that loading a declaration imports no Spark. What a declaration
must and may say in a mode stands in its row.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
    """One write mode.

    Attributes:
        module: Where its sink is.
        has_keys: Whether ``keys`` identify its rows; else a record's place in Kafka does.
        has_order: Whether ``sequence_by`` means anything in it.
        has_deletes: Whether a record can say that a row should be gone.
        columns: Columns that it adds to the declared ones, as DDL.
    """

    module: str
    has_keys: bool = True
    has_order: bool = True
    has_deletes: bool = True
    columns: str = ""


MODES: Final[dict[str, Mode]] = {
    "upsert": Mode(module="ingestion.sinks.upsert"),
}
