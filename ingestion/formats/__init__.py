"""How bytes become typed columns: one file a format, and one row here.

A format is a module with a ``decode`` function (see ``ingestion.formats.protocol``); it is named
here and imported when a run needs it, so that loading a declaration imports no Spark.
"""

from typing import Final

FORMATS: Final[dict[str, str]] = {
    "json": "ingestion.formats.json",
}
