"""Batches that were written before the declared columns changed, judged by the columns of then.

A column that was added since is null in their rows, whatever their records say of it: at the time
it was a field that nobody had declared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pydantic import ValidationError

from ingestion.declaration.ddl import parse_columns
from ingestion.declaration.spec import StreamSpec
from ingestion.settings import Settings
from ingestion.verify.decode.coerce import UnprovableError
from ingestion.verify.fold.classify import Classified, Classifier
from ingestion.verify.read.record import Record, RowChange


class EarlierSchemas:
    """Knows who judges the records of a batch."""

    def __init__(
        self, spec: StreamSpec, today: Classifier, *, epoch: int, settings: Settings
    ) -> None:
        """Take the declaration of today, and its judge."""
        self._spec, self._epoch, self._settings = spec, epoch, settings
        self._known: dict[str, Classifier | EarlierClassifier] = {spec.ddl: today, "": today}
        self._today = today

    def of(self, columns: str) -> Classifier | EarlierClassifier:
        """Return the judge of records that were written under some columns, as DDL.

        Raises:
            UnprovableError: they do not fit the rest of the declaration.
        """
        if columns not in self._known:
            self._known[columns] = self._judge(columns)
        return self._known[columns]

    def _judge(self, columns: str) -> Classifier | EarlierClassifier:
        names = [(column.name, column.type) for column in parse_columns(columns)]
        if names == [(column.name, column.type) for column in self._spec.columns]:
            return self._today if self._required(columns) else self._of_spec(columns)
        return EarlierClassifier(self._of_spec(columns), [name for name, _ in names], self._spec)

    def _required(self, columns: str) -> bool:
        return parse_columns(columns) == self._spec.columns

    def _of_spec(self, columns: str) -> Classifier:
        there = {column.name for column in parse_columns(columns)}
        selected = {name: sql for name, sql in self._spec.select.items() if name in there}
        said = self._spec.model_dump(by_alias=True, exclude_unset=True)
        try:
            spec = StreamSpec.model_validate({**said, "schema": columns, "select": selected})
        except ValidationError as error:
            raise UnprovableError(
                f"earlier batches had the columns {columns}, which the declaration contradicts now"
            ) from error
        return Classifier(spec, epoch=self._epoch, settings=self._settings)


class EarlierClassifier:
    """Judges by earlier columns, and shows rows with the columns of today."""

    def __init__(self, judge: Classifier, names: Sequence[str], spec: StreamSpec) -> None:
        """Take the judge, the columns that it knows, and the declaration of today."""
        self._judge = judge
        self._width = len(names)
        self._at = [names.index(c.name) if c.name in names else None for c in spec.columns]

    def judge(self, records: Iterable[Record], *, seq: int) -> Classified:
        """Judge records of one batch."""
        judged = self._judge.judge(records, seq=seq)
        return replace(judged, changes=[self._shown(each) for each in judged.changes])

    def _shown(self, change: RowChange) -> RowChange:
        if change.row is None:
            return change
        values = [None if at is None else change.row[at] for at in self._at]
        return change._replace(row=(*values, *change.row[self._width :]))
