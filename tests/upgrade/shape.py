"""What a version writes beside rows: the fields by which a change of the format is noticed."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

from oncelake.ingestion.lake.archive import _Swap
from oncelake.ingestion.lake.ledger import SCHEMA
from oncelake.ingestion.lake.withheld import WithheldBatch
from oncelake.ingestion.sinks.kafka.notes import TopicNote, TopicSchema
from oncelake.ingestion.tables.commit_metadata import (
    CommitMetadata,
    CountedRange,
    Identity,
    Kind,
    SideFile,
    SideFileName,
)
from oncelake.ingestion.tables.format import FORMAT


def shape() -> dict[str, Any]:
    """Return the format's number, and the fields of everything that carries or implies it."""
    of = (CommitMetadata, Identity, CountedRange, SideFile, _Swap, WithheldBatch)
    of_topics = (TopicNote, TopicSchema)
    return {
        "format": FORMAT,
        "kinds": sorted(get_args(Kind)),
        "side files": sorted(name for part in get_args(SideFileName) for name in get_args(part)),
        **{each.__name__: sorted(f.name for f in fields(each)) for each in (*of, *of_topics)},
        "ledger": {each.name: str(each.type) for each in SCHEMA},
    }
