"""What stands between a value and its row, applied a second time.

A condition that DuckDB understands as Spark does is evaluated there. Anything else is Spark's
alone to say: it is run again, in a session of its own, over what this proof has decoded. That is no
second opinion on the statement itself, and the verdict says so; which records it was asked about,
and what became of its answers, is still proven.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pyarrow as pa

from ingestion.declaration.spec import StreamSpec
from ingestion.settings import Settings
from ingestion.verify.decode import DecodedRecord
from ingestion.verify.decode.coerce import UnprovableError
from ingestion.verify.fold.predicate import Condition
from ingestion.verify.read.record import Record, Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NOT_INDEPENDENT: Final = "transform: not independent: Spark itself was asked again"
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Asked(NamedTuple):
    """What is asked about: a value, or one element of it.

    Attributes:
        record: The record that it came in.
        said: What it says; of an exploded record, with one element in the array's place.
        element: Which; 0 where records are not exploded.
        lacks: Whether a column of the value is null that may not be.
    """

    record: Record
    said: DecodedRecord
    element: int = 0
    lacks: bool = False


class Transformation(Protocol):
    """Makes rows of values."""

    is_independent: bool

    def __call__(self, asked: Sequence[Asked]) -> list[Row | None]:
        """Return the row of each, or none where it is filtered out; deletes never are."""
        ...


def transformation(spec: StreamSpec, settings: Settings | None) -> Transformation | None:
    """Return what a declaration does to values; none where it does nothing.

    Raises:
        UnprovableError: it takes a Spark that is not there.
    """
    if not spec.is_transformed:
        return None
    if not (spec.select or spec.transform):
        try:
            return _Filter(spec)
        except UnprovableError:
            pass
    if settings is None:
        raise UnprovableError("the transformation is not provable without Spark")
    return _BySpark(spec, settings)


class _Filter:
    """A ``where`` that DuckDB understands, and columns that are taken as they are."""

    is_independent = True

    def __init__(self, spec: StreamSpec) -> None:
        names = [column.name for column in spec.asked_columns]
        self._taken = [names.index(column.name) for column in spec.columns]
        self._where = Condition("where", spec.where or "TRUE", spec.asked_columns)

    def __call__(self, asked: Sequence[Asked]) -> list[Row | None]:
        said = [each.said for each in asked]
        wanted = self._where([each.values for each in said]) if said else []
        return [
            tuple([each.values[i] for i in self._taken]) if is_wanted or each.is_delete else None
            for each, is_wanted in zip(said, wanted, strict=True)
        ]


class _BySpark:
    """Anything else, run again by Spark."""

    is_independent = False

    def __init__(self, spec: StreamSpec, settings: Settings) -> None:
        from pyspark.sql.types import StructField, StructType

        from ingestion.pipeline.schema import row_type
        from ingestion.pipeline.session import start_session
        from ingestion.pipeline.transform import RECORD, asked_ddl, refuse_bad_transformation

        self._spec, self._spark = spec, start_session(settings)
        refuse_bad_transformation(self._spark, spec)
        columns = row_type(f"_at INT, _is_delete BOOLEAN, {RECORD}, {asked_ddl(spec)}")
        # Also of a record without a required column it is asked whether it is wanted.
        self._type = StructType([StructField(each.name, each.dataType) for each in columns])
        self._names = [column.name for column in spec.asked_columns]

    def __call__(self, asked: Sequence[Asked]) -> list[Row | None]:
        from pyspark.sql.pandas.types import to_arrow_schema

        if not asked:
            return []
        given = [self._given(at, each) for at, each in enumerate(asked)]
        schema = to_arrow_schema(self._type, timezone="UTC")
        frame = self._spark.createDataFrame(pa.Table.from_pylist(given, schema=schema))
        answers = self._applied(frame).toArrow().to_pylist(maps_as_pydicts="lossy")
        rows = {each.pop("_at"): tuple(each.values()) for each in answers}
        if self._spec.transform:
            deletes = (at for at, each in enumerate(asked) if each.said.is_delete)
            rows |= {at: self._of_delete(asked[at].said) for at in deletes}
        return [rows.get(at) for at in range(len(asked))]

    def _of_delete(self, said: DecodedRecord) -> Row:
        """Take a delete's columns as they are: a function is not asked about it."""
        values = dict(zip(self._names, said.values, strict=True))
        return tuple([values.get(column.name) for column in self._spec.columns])

    def _applied(self, asked: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        from ingestion.pipeline.transform import function_of, is_wanted, selected

        if self._spec.transform:
            # A function keeps the place of a record, and nothing else that it was given.
            rows = function_of(self._spec)(asked.where(is_wanted(self._spec)))
            named = [F.col(f"`{column.name}`") for column in self._spec.columns]
            origin = self._spec.origin
            at = asked.select("_at", *origin)
            return rows.select(*origin, *named).join(at, list(origin)).select("_at", *named)
        wanted = asked.where(F.col("_is_delete") | is_wanted(self._spec))
        return wanted.select("_at", selected(self._spec).alias("_row")).select("_at", "_row.*")

    def _given(self, at: int, asked: Asked) -> dict[str, Any]:
        record, said, element = asked.record, asked.said, asked.element
        return {
            "_at": at,
            "_is_delete": said.is_delete,
            "_topic": record.topic,
            "_partition": record.partition,
            "_offset": record.offset,
            "_timestamp": _EPOCH + dt.timedelta(milliseconds=record.timestamp_ms),
            "_key": record.key,
            "_headers": [{"key": k, "value": v} for k, v in record.headers] or None,
            "_index": element,
            **dict(zip(self._names, said.values, strict=True)),
        }
