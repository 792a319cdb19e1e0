"""What stands between a value and its row, applied a second time.

A condition that DuckDB understands as Spark does is evaluated there. Anything else only Spark can
evaluate: whoever asks for the proof hands in what applies it, to what this proof has decoded. That
is no second opinion on the statement itself, and the verdict says so; which records it was applied
to, and what became of its rows, is still proven.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from ingestion.declaration.spec import StreamSpec
from ingestion.settings import Settings
from ingestion.verify.decode import DecodedRecord
from ingestion.verify.decode.coerce import UnprovableError
from ingestion.verify.fold.predicate import Condition
from ingestion.verify.read.record import EPOCH, Record, Row

NOT_INDEPENDENT: Final = "transform: not independent: Spark itself was asked again"

Rows = dict[int, Row]
# Given declaration and settings, returns what makes rows of values as the engine does: each value
# is a dictionary with its number as ``_at``, and the rows come by these numbers.
ApplyTransformation = Callable[[StreamSpec, Settings], Callable[[Sequence[dict[str, Any]]], Rows]]


class Value(NamedTuple):
    """What a record holds, or one element of it; ``lacks`` a column that may not be null."""

    record: Record
    decoded: DecodedRecord
    element: int = 0
    lacks: bool = False


def transformation(
    spec: StreamSpec, settings: Settings | None, apply: ApplyTransformation | None
) -> _Filter | _OfTheEngine | None:
    """Return what makes rows of values, and no row of one that is filtered out; deletes never are.

    A declaration that does nothing to values needs none.

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
    if settings is None or apply is None:
        raise UnprovableError("the transformation is not provable without Spark")
    return _OfTheEngine(spec, apply(spec, settings))


class _Filter:
    """A ``where`` that DuckDB understands, and columns that are taken as they are."""

    is_independent = True

    def __init__(self, spec: StreamSpec) -> None:
        names = [column.name for column in spec.exploded_columns]
        self._taken = [names.index(column.name) for column in spec.columns]
        self._where = Condition("where", spec.where or "TRUE", spec.exploded_columns)

    def __call__(self, values: Sequence[Value]) -> list[Row | None]:
        decoded = [value.decoded for value in values]
        wanted = self._where([record.values for record in decoded]) if decoded else []
        return [
            tuple([record.values[i] for i in self._taken])
            if is_wanted or record.is_delete
            else None
            for record, is_wanted in zip(decoded, wanted, strict=True)
        ]


class _OfTheEngine:
    """Anything else, applied by the engine's own means."""

    is_independent = False

    def __init__(self, spec: StreamSpec, apply: Callable[[Sequence[dict[str, Any]]], Rows]) -> None:
        self._spec, self._apply = spec, apply
        self._names = [column.name for column in spec.exploded_columns]

    def __call__(self, values: Sequence[Value]) -> list[Row | None]:
        if not values:
            return []
        rows = self._apply([self._as_row(at, value) for at, value in enumerate(values)])
        if self._spec.transform:
            deletes = (at for at, value in enumerate(values) if value.decoded.is_delete)
            rows |= {at: self._of_delete(values[at].decoded) for at in deletes}
        return [rows.get(at) for at in range(len(values))]

    def _of_delete(self, decoded: DecodedRecord) -> Row:
        """Take a delete's columns as they are: a function is not asked about it."""
        values = dict(zip(self._names, decoded.values, strict=True))
        return tuple([values.get(column.name) for column in self._spec.columns])

    def _as_row(self, at: int, value: Value) -> dict[str, Any]:
        record = value.record
        return {
            "_at": at,
            "_is_delete": value.decoded.is_delete,
            "_topic": record.topic,
            "_partition": record.partition,
            "_offset": record.offset,
            "_timestamp": EPOCH + dt.timedelta(milliseconds=record.timestamp_ms),
            "_key": record.key,
            "_headers": [{"key": k, "value": v} for k, v in record.headers] or None,
            "_index": value.element,
            **dict(zip(self._names, value.decoded.values, strict=True)),
        }
