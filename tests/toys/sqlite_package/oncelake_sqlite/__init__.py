"""What a declaration says of the sink; the table is imported where a stream of it is opened."""

from __future__ import annotations

from ingestion.declaration.sinks import BESIDE, SinkKind, SinkPart


class SqliteSink(SinkPart):
    """A table of a SQLite file; ONCELAKE_SQLITE names the file."""

    table: str | None = None

    def table_of(self, stream: str) -> str:
        """Return the table of a stream."""
        return self.table or stream

    def beside(self, stream: str) -> SqliteSink:
        """Return the table that a rebuild fills."""
        return SqliteSink(table=f"{self.table_of(stream)}{BESIDE}")


KIND = SinkKind(
    module="oncelake_sqlite.table",
    part=SqliteSink,
    refused=("VARIANT", "ARRAY", "MAP", "STRUCT"),
    refused_modes=("aggregate",),
    cannot={"rewind": "it keeps no past", "time travel": "it keeps no past"},
)
