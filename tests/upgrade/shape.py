"""What a version writes beside rows: the fields by which a change of the format is noticed.

They are names and types. What else a field may come to mean, and how the side tables' columns are
called, ``test_upgrade`` alone may notice, by going on with what a release has written.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from oncelake.ingestion.kafka.last_record import LastRecord
from oncelake.ingestion.kafka.offsets import Range
from oncelake.ingestion.lake.archive import _Swap
from oncelake.ingestion.lake.books import COUNTS
from oncelake.ingestion.lake.ledger import SCHEMA
from oncelake.ingestion.lake.lock import Holder
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.withheld import Miss, WithheldBatch
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.iceberg import log as iceberg
from oncelake.ingestion.sinks.iceberg.branches import TABLE_ID, TAG
from oncelake.ingestion.sinks.kafka.notes import TopicNote, TopicSchema
from oncelake.ingestion.sinks.postgres.table import _BESIDE
from oncelake.ingestion.storage.lease import Lease
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.storage.processes import ProcessId
from oncelake.ingestion.tables.commit_metadata import (
    CONSTRAINTS,
    REWOUND_TO,
    CommitMetadata,
    CountedRange,
    Identity,
    Kind,
    SideFile,
    SideFileName,
    app_id,
)
from oncelake.ingestion.tables.format import FORMAT

# By name, with their fields.
DOCUMENTS = (
    *(CommitMetadata, Identity, CountedRange, Range, LastRecord, SideFile, TopicNote, TopicSchema),
    *(_Swap, WithheldBatch, Miss, Lease, Holder, ProcessId),
)


def shape() -> dict[str, Any]:
    """Return the format's number, and names and types of what carries or implies it."""
    paths = StreamPaths.of("name", Settings(lake="/LAKE", state="/STATE"))
    places = {name: getattr(paths, name) for name in StreamPaths.__slots__}
    of_iceberg = (iceberg.STREAM, iceberg.SEQ, iceberg.EPOCH, iceberg.NOTE, iceberg.OPERATION)
    return {
        "format": FORMAT,
        "kinds": sorted(get_args(Kind)),
        "side files": sorted(name for part in get_args(SideFileName) for name in get_args(part)),
        **{each.__name__: {f.name: str(f.type) for f in fields(each)} for each in DOCUMENTS},
        "ledger": {each.name: str(each.type) for each in SCHEMA},
        "counts": sorted({*COUNTS, REWOUND_TO, CONSTRAINTS}),
        "fence": app_id("name"),
        "Iceberg's properties": sorted({*of_iceberg, TABLE_ID, TAG}),
        "PostgreSQL's tables": " ".join(_BESIDE.split()),
        "places": {n: str(at) for n, at in places.items() if isinstance(at, (Location, Path))},
    }
