"""What a declaration says of the sink; the table is imported where a stream of it is opened."""

from __future__ import annotations

from oncelake.sinks import SinkKind, SinkPart


class SqliteSink(SinkPart):
    """A table of a SQLite file; ONCELAKE_SQLITE names the file."""

    table: str | None = None

    def table_of(self, stream: str) -> str:
        """Return the table of a stream."""
        return self.table or stream


KIND = SinkKind(
    module="oncelake_sqlite.table",
    part=SqliteSink,
    refused=("ARRAY", "MAP", "STRUCT"),
    stored_as={"VARIANT": "STRING"},
    cannot={"rewind": "it keeps no past", "time travel": "it keeps no past"},
)
