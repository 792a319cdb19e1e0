"""What stands between a value and its row, applied a second time.

A condition that DuckDB understands as Spark does is evaluated there. Anything else is Spark's
alone to say: it is run again, in a session of its own, over what this proof has decoded. That is no
second opinion on the statement itself, and the verdict says so; which records it was asked about,
and what became of its answers, is still proven.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from ingestion.proof.formats import Said
from ingestion.proof.predicate import Condition
from ingestion.proof.record import Record, Row
from ingestion.proof.values import UnprovableError
from ingestion.settings import Settings
from ingestion.spec import StreamSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NOT_INDEPENDENT: Final = "transform: not independent: Spark itself was asked again"
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Transformation(Protocol):
    """Makes rows of values."""

    is_independent: bool

    def __call__(self, records: Sequence[Record], said: Sequence[Said]) -> list[Row | None]:
        """Return the row of each value, or none where it is filtered out; deletes never are."""
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
        names = [column.name for column in spec.value_columns]
        self._taken = [names.index(column.name) for column in spec.columns]
        self._where = Condition("where", spec.where or "TRUE", spec.value_columns)

    def __call__(self, records: Sequence[Record], said: Sequence[Said]) -> list[Row | None]:
        wanted = self._where([each.values for each in said]) if said else []
        return [
            tuple([each.values[i] for i in self._taken]) if is_wanted or each.is_delete else None
            for each, is_wanted in zip(said, wanted, strict=True)
        ]


class _BySpark:
    """Anything else, run again by Spark."""

    is_independent = False

    def __init__(self, spec: StreamSpec, settings: Settings) -> None:
        from ingestion.row_type import row_type
        from ingestion.session import start_session
        from ingestion.transform import RECORD, refuse_bad_transformation

        self._spec, self._spark = spec, start_session(settings)
        refuse_bad_transformation(self._spark, spec)
        self._type = row_type(
            f"_at INT, _is_delete BOOLEAN, {RECORD}, {spec.value_ddl or spec.ddl}"
        )
        self._names = [column.name for column in spec.value_columns]

    def __call__(self, records: Sequence[Record], said: Sequence[Said]) -> list[Row | None]:
        from pyspark.sql.pandas.types import to_arrow_schema

        if not said:
            return []
        given = [self._given(*each) for each in zip(range(len(said)), records, said, strict=True)]
        schema = to_arrow_schema(self._type, timezone="UTC")
        asked = self._spark.createDataFrame(pa.Table.from_pylist(given, schema=schema))
        answers = self._applied(asked).toArrow().to_pylist(maps_as_pydicts="lossy")
        rows = {each.pop("_at"): tuple(each.values()) for each in answers}
        if self._spec.transform:
            rows |= {at: self._of_delete(s) for at, s in enumerate(said) if s.is_delete}
        return [rows.get(at) for at in range(len(said))]

    def _of_delete(self, said: Said) -> Row:
        """Take a delete's columns as they are: a function is not asked about it."""
        values = dict(zip(self._names, said.values, strict=True))
        return tuple([values.get(column.name) for column in self._spec.columns])

    def _applied(self, asked: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        from ingestion.latest import COORDINATES
        from ingestion.transform import function_of, is_wanted, selected

        if self._spec.transform:
            # A function keeps the place of a record, and nothing else that it was given.
            rows = function_of(self._spec)(asked.where(is_wanted(self._spec)))
            named = [F.col(f"`{column.name}`") for column in self._spec.columns]
            at = asked.select("_at", *COORDINATES)
            return (
                rows.select(*COORDINATES, *named).join(at, list(COORDINATES)).select("_at", *named)
            )
        wanted = asked.where(F.col("_is_delete") | is_wanted(self._spec))
        return wanted.select("_at", selected(self._spec).alias("_row")).select("_at", "_row.*")

    def _given(self, at: int, record: Record, said: Said) -> dict[str, Any]:
        return {
            "_at": at,
            "_is_delete": said.is_delete,
            "_topic": record.topic,
            "_partition": record.partition,
            "_offset": record.offset,
            "_timestamp": _EPOCH + dt.timedelta(milliseconds=record.timestamp_ms),
            "_key": record.key,
            "_headers": [{"key": k, "value": v} for k, v in record.headers] or None,
            **dict(zip(self._names, said.values, strict=True)),
        }
