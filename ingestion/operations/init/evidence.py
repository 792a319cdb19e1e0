"""The evidence of a topic's decoded sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.operations.init.decode_sample import SampleRow
from oncelake.ingestion.operations.init.detect_format import Detected
from oncelake.ingestion.operations.init.sample import TopicSample
from oncelake.ingestion.settings import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicEvidence:
    """A sample, and what it was found to be.

    Attributes:
        types: The columns that are proposed.
        records: The sample as these columns, in its order.
    """

    sample: TopicSample
    detected: Detected
    types: Mapping[str, SqlType]
    records: tuple[SampleRow, ...]
    settings: Settings

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the records that could be decoded."""
        return [each.row for each in self.records if each.row is not None]

    def with_keys(self, keys: Sequence[str]) -> TopicEvidence:
        """Return the same without the rows that lack a key column: they go to quarantine."""
        records = (
            each._replace(row=None) if each.row and any(each.row[n] is None for n in keys) else each
            for each in self.records
        )
        return replace(self, records=tuple(records))

    @property
    def tombstones(self) -> int:
        """How many values are null."""
        return sum(each.value is None for each in self.sample.records)

    @property
    def is_debezium(self) -> bool:
        """Tell whether the values are changes of a database."""
        return self.detected.type == "debezium"
