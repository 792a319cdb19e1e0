"""How winners become rows: one file a write mode, and one row here.

A mode is a module with a sink class (see ``ingestion.sinks.protocol``); it is named here and
imported when a run needs it, so that loading a declaration imports no Spark.
"""

from typing import Final

MODES: Final[dict[str, str]] = {
    "upsert": "ingestion.sinks.upsert",
}
