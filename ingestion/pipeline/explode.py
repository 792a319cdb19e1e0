"""A record that gives a row for each element of an array, and is still one record.

It is applied as a whole or not at all: where one of its elements cannot be, the record goes to
quarantine with what is wrong with the first such element. Records are counted by their row of
index 0, which each of them has; a record without elements gives one that is filtered.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from oncelake.ingestion.declaration.modes import COORDINATES
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.sql import quoted
from oncelake.ingestion.modes.engines.rows import Rows

# Dispositions that each row has for itself.
_OF_A_ROW = ("row", "delete", "filtered")


def explode(decoded: Rows, spec: StreamSpec) -> Rows:
    """Give each element of the declared array a row.

    Args:
        decoded: Decoded records; see ``ingestion.pipeline.columns``.

    Returns:
        ``decoded`` with ``_index``, the element's, and ``_is_empty``, of a record without any; a
        delete without any is one row, since left out it would leave its rows in the table.
        ``_decoded.row`` has the element in the array's place. The raw value stays with the first
        row only; elsewhere it is empty. Where no array is declared, ``decoded`` itself.
    """
    if spec.explode is None:
        return decoded
    return Rows(in_spark=lambda: _exploded(decoded.in_spark(), spec))


def _exploded(decoded: DataFrame, spec: StreamSpec) -> DataFrame:
    assert spec.explode is not None, "asked only where an array is declared"
    array = F.col(f"_decoded.row.{quoted(spec.explode)}")
    rows = decoded.select("*", F.posexplode_outer(array).alias("_nth", "_element"))
    row = F.col("_decoded.row").withField(quoted(spec.explode), F.col("_element"))
    is_good = F.col("_value").isNotNull() & F.col("_decoded.reason").isNull()
    is_delete = F.coalesce("_decoded.is_delete", F.lit(False))
    is_first = F.coalesce("_nth", F.lit(0)) == 0
    empty = F.when(F.col("_value").isNotNull(), F.lit(bytearray()))
    return rows.withColumns(
        {
            "_index": F.coalesce("_nth", F.lit(0)),
            "_is_empty": is_good & ~is_delete & F.col("_nth").isNull(),
            "_decoded": F.col("_decoded").withField("row", row),
            "_value": F.when(is_first, F.col("_value")).otherwise(empty),
        }
    ).drop("_nth", "_element")


def rejoin(rows: DataFrame, spec: StreamSpec) -> DataFrame:
    """Let one bad row send its whole record to quarantine, in one shuffle of the batch.

    Args:
        rows: Rows with ``_index``, ``_disposition``, ``_reason`` and ``_detail``.

    Returns:
        The same, and of a record that is not applied only the first row.
    """
    if spec.explode is None:
        return rows
    is_bad = F.col("_disposition") == "quarantined"
    first_bad = F.min(F.when(is_bad, F.struct("_index", "_reason", "_detail")))
    of_record = rows.withColumn("_first_bad", first_bad.over(Window.partitionBy(*COORDINATES)))
    has_bad = F.col("_first_bad").isNotNull()
    return (
        of_record.withColumns(
            {
                "_disposition": F.when(has_bad, "quarantined").otherwise(F.col("_disposition")),
                "_reason": F.col("_first_bad._reason"),
                "_detail": F.col("_first_bad._detail"),
            }
        )
        .where((F.col("_index") == 0) | F.col("_disposition").isin(*_OF_A_ROW))
        .drop("_first_bad")
    )
