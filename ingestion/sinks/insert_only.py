"""Insert only: the first record of each key is the row, whenever it comes.

Upsert's mirror image: of two records of a key the older one wins. By offset alone that is the one
that was read first, and the row never changes. With ``sequence_by``, an older record that comes
late replaces the row (``updated``), or the table would depend on how the batches were cut.

Rows to records: as in an upsert.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame

from ingestion.sinks.ordering import first_per_key, is_older, sort_key
from ingestion.sinks.upsert import UpsertSink


class InsertOnlySink(UpsertSink):
    """One batch on its way into a table of first records."""

    def _winner_per_key(self, records: DataFrame) -> DataFrame:
        return first_per_key(records, self._keys, self._line)

    def _wins_over(self, other: Column) -> Column:
        mine = sort_key("s", self._line)
        return is_older(mine, other, has_order=self._has_order, key=self._key())


SINK = InsertOnlySink
