"""Spark's own reading of a declaration, which has the last word on types and conditions."""

from __future__ import annotations

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ingestion.errors import InvalidSpecError
from ingestion.spec import StreamSpec


def row_type(ddl: str) -> StructType:
    """Return the type of a row that Spark DDL declares; needs a running Spark."""
    parsed = StructType.fromDDL(ddl)
    if not isinstance(parsed, StructType):
        raise TypeError(f"not the columns of a row: {ddl}")
    return parsed


def refuse_bad_condition(spark: SparkSession, spec: StreamSpec) -> None:
    """Make sure, before anything is read, that Spark understands ``apply_as_deletes``.

    Raises:
        InvalidSpecError: it is no condition over the declared columns; Spark's word says why.
    """
    if spec.apply_as_deletes is None:
        return
    columns = (F.lit(None).cast(f.dataType).alias(f.name) for f in row_type(spec.ddl))
    try:
        spark.range(0).select(*columns).where(F.expr(spec.apply_as_deletes)).schema  # noqa: B018
    except (AnalysisException, ParseException) as error:
        said = str(error).strip().splitlines()[0]
        raise InvalidSpecError(
            f"{spec.name}.yaml: apply_as_deletes: {spec.apply_as_deletes!r} is no condition over "
            f"the declared columns: {said}"
        ) from error
