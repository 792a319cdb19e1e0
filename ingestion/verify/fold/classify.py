"""The meaning of each record: a row, a delete, nothing, or that it belongs in quarantine.

The declaration, implemented a second time: a record without its key, its order or a required
column cannot be applied; a delete needs no more than key and order; a null value takes its key from
the Kafka key.

A batch that was written before the declared columns changed is classified by the columns of then.
A column that was added since is null in its rows, whatever their records have: at the time it was
an undeclared field. One that was renamed since is the column of then, by its name of today; one
that was dropped is no column of today, nor is another that got its name later.
"""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from pydantic import ValidationError

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_columns
from oncelake.ingestion.declaration.derived import as_ddl
from oncelake.ingestion.declaration.routes import Route
from oncelake.ingestion.declaration.spec import EVALUATED_BY, FOLLOWING, StreamSpec
from oncelake.ingestion.declaration.sql import with_names
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.tables.commit_metadata import CONSTRAINTS
from oncelake.ingestion.verify.decode import DecodedRecord, Expected, reading
from oncelake.ingestion.verify.decode.coerce import (
    BROKEN,
    BadRecordError,
    TruncateError,
    UnknownSchemaError,
    UnprovableError,
)
from oncelake.ingestion.verify.decode.metadata import ReadRecord
from oncelake.ingestion.verify.fold.route import RouteReader
from oncelake.ingestion.verify.fold.transform import (
    TIME,
    ApplyTransformation,
    Condition,
    Filter,
    OfTheEngine,
    Value,
    reads_time,
    transformation,
)
from oncelake.ingestion.verify.read.record import (
    EPOCH,
    SYSTEM_COLUMNS,
    Place,
    Record,
    Row,
    RowChange,
    ranked,
    text_of,
)
from oncelake.ingestion.verify.read.snapshot import Batch

# What a table asks of each row, as conditions of SQL by their names.
Constraints = Mapping[str, str]


@dataclass(kw_only=True, slots=True)
class Classified:
    """The meaning of some records.

    Attributes:
        bad: Those that belong in quarantine, with the reason.
        unread: Those whose schema the registry does not know today, with its id.
        counts: What became of the others, by the names of the ledger's counts.
        types: The first record of each topic and record type among the changes, where the
            declaration names no type.
    """

    changes: list[RowChange] = field(default_factory=list)
    bad: list[tuple[Record, str]] = field(default_factory=list)
    unread: list[tuple[Record, str]] = field(default_factory=list)
    truncates: list[Record] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    types: dict[tuple[str, str], Record] = field(default_factory=dict)


class Classifier:
    """Classifies the records of a stream under its declaration."""

    def __init__(
        self,
        spec: StreamSpec,
        *,
        epoch: int = 1,
        settings: Settings | None = None,
        apply: ApplyTransformation | None = None,
        evaluated_by: str | None = None,
    ) -> None:
        """Compile the declaration for records of one epoch."""
        self._epoch = epoch
        self.types = spec.types
        self.transformation = transformation(spec, settings, apply, evaluated_by=evaluated_by)
        takes_json = self.transformation is not None and self.transformation.takes_json
        self._read, self._read_elsewhere = _readings(spec, settings, takes_json=takes_json)
        self._route: RouteReader | None = None
        if spec.route is not None:
            self._route = RouteReader(spec.route, spec.format, settings)
        value_names = [column.name for column in spec.value_columns]
        self._array_at = value_names.index(spec.explode) if spec.explode else None
        required = spec.required_value_columns
        self._value_required = [(name, value_names.index(name)) for name in required]
        names = list(self.types)
        self._keys = spec.keys
        self._key_at = [names.index(name) for name in spec.keys]
        self._never_null = [names.index(name) for name in spec.never_null]
        self._order_at = [names.index(n) if n != TIME else -1 for n in spec.sequence_by]
        at = {name: n for n, name in enumerate(names)}
        self._window = spec.window and (at.get(spec.window.column), spec.window.every_seconds)
        self._longest_key = spec.sink.kind.longest_key or math.inf
        self._is_time_order = TIME in (*spec.sequence_by, spec.window and spec.window.column)
        self._may_filter_by_time = bool(spec.transform) or reads_time(spec, spec.where)
        self._is_time_read = self._may_filter_by_time or reads_time(spec, *spec.select.values())
        self._required = [i for i, column in enumerate(spec.columns) if not column.nullable]
        self._keeps = spec.unavailable == "keep"
        self._never_left_out = spec.never_left_out
        self._may_move, self._settles_moves = bool(spec.moved_by), spec.settles_moves
        payload = [column.name for column in spec.payload_columns]
        self._routed_at = payload.index(spec.routed_by) if spec.routed_by else None
        self._tombstones = spec.tombstone_policy
        self._is_soft = spec.deletes == "soft"
        self._keeps_extra = spec.extra_fields == "keep"
        self._has_deletes = spec.write_mode.has_deletes
        self._is_delete = None
        if spec.apply_as_deletes:
            columns = tuple(spec.in_statements(spec.columns))
            self._is_delete = Condition("apply_as_deletes", spec.apply_as_deletes, columns)
        self._make_filter = partial(_filter_of_rows, spec, settings, apply)
        self._constraints = dict[str, Filter | OfTheEngine]()

    @property
    def is_independent(self) -> bool:
        """Tell whether no expression had to be left to the engine."""
        asked = (self.transformation, *self._constraints.values())
        return all(each is None or each.is_independent for each in asked)

    def classify(
        self, records: Iterable[Record], *, seq: int, constraints: Constraints | None = None
    ) -> Classified:
        """Classify records of one batch, whose rows the table asked to meet some conditions."""
        result = Classified()
        values, rows = self._rows(self._values(records, result))
        kept = [row for row in rows if row is not None and not self._is_nowhere(row)]
        bad: dict[Record, str] = {}
        violated = self._violated(kept, constraints or {})
        for row, is_delete, name in zip(kept, self._deletes(kept), violated, strict=True):
            try:
                change = self._change(row, is_delete=is_delete, seq=seq)
                _refuse_unmet(name, change)
                result.changes.append(change)
                if (type_ := row.decoded.record) and not row.is_left:
                    result.types.setdefault((row.record.topic, type_), row.record)
            except BadRecordError as error:
                # What cannot be placed here is bad where it is, if it is bad.
                if not (row.is_left and row.decoded.is_delete):
                    bad.setdefault(row.record, str(error))
        result.counts["filtered"] += sum(
            (row is None or (row.is_left and not row.decoded.is_delete)) and v.record not in bad
            for v, row in zip(values, rows, strict=True)
        )
        beyond_first = (value.element > 0 and value.record not in bad for value in values)
        result.counts["exploded"] += sum(beyond_first) + sum(c.is_left for c in result.changes)
        if bad and (self._array_at is not None or self._may_move):
            # A record is applied as a whole, or not at all.
            places = {(record.at, record.offset) for record in bad}
            result.changes = [c for c in result.changes if (c.at, c.offset) not in places]
        result.bad.extend(bad.items())
        return result

    def key_of(self, row: Row) -> str:
        """Return the text of a row's key."""
        return text_of(row[i] for i in self._key_at)

    def place_of(self, row: Row) -> Place:
        """Return the place of a row of the table in the order of records."""
        topic, partition, offset, timestamp, epoch, _ = row[-len(SYSTEM_COLUMNS) :]
        index = 0 if self._array_at is None else row[-len(SYSTEM_COLUMNS) - 1]
        return (epoch, *self._order(row, timestamp), topic, partition, offset, index)

    def _values(self, records: Iterable[Record], result: Classified) -> list[Value]:
        """Decode records; what is ignored, bad or unreadable goes straight into the result."""
        values: list[Value] = []
        for record in records:
            if not self._is_own(record, result):
                values.extend(self._left(record))
                continue
            if record.value is None and self._tombstones == "ignore":
                result.counts["ignored"] += 1
                continue
            try:
                decoded = self._decoded(record)
                if decoded.is_other:
                    result.counts["filtered"] += 1
                    continue
                if self._may_filter_by_time:
                    self._refuse_no_time(record)
                values.extend(self._exploded(record, decoded, result))
            except TruncateError:
                result.truncates.append(record)
            except UnknownSchemaError as error:
                result.unread.append((record, str(error)))
            except BROKEN as error:
                result.bad.append((record, str(error)))
        return values

    def _is_own(self, record: Record, result: Classified) -> bool:
        """Tell whether a record is this stream's; one that is not is counted, or bad."""
        owner = self._route.owner_of(record) if self._route else "own"
        if owner == "bad":
            result.bad.append((record, "it has no route"))
        elif owner != "own":
            result.counts[owner] += 1
        if owner == "tombstones_shared" and self._lacks_key(record):
            result.counts["ignored"] += 1
            return False
        return owner in {"own", "tombstones_shared"}

    def _lacks_key(self, record: Record) -> bool:
        """Tell whether the key of a delete is none of this table's."""
        if self._is_time_order and not record.has_time:
            return False
        try:
            decoded = self._decoded(record)
        except BROKEN:
            return record.value is None
        if record.value is None:
            return any(decoded.values[at] is None for at in self._key_at)
        (row, *_) = self._transformed([Value(record, decoded, decoded.values)])
        is_known = row is None or all(row.values[at] is not None for at in self._key_at)
        return not (is_known or decoded.tells_nothing)

    def _left(self, record: Record) -> list[Value]:
        """Return the delete of a row that another table has, or none; that of its old key, too."""
        if self._read_elsewhere is None or self._route is None or record.value is None:
            return []
        if self._route.owner_of(record) not in {"routed_elsewhere", "unrouted"}:
            return []
        try:
            decoded = self._read_elsewhere.value(record)
        except BROKEN:
            return []
        if decoded.is_gone and not self._settles_moves:
            return []
        left = Value(record, decoded, decoded.values, is_left=True)
        ended = self._ended(record, decoded)
        return [left, ended] if ended and self._is_known(ended) else [left]

    def _ended(self, record: Record, decoded: DecodedRecord) -> Value | None:
        """Return the row that an update ends; where that was another table's, it tells no more."""
        ended = decoded.ended
        if ended is None:
            return None
        route = None if self._routed_at is None else ended.values[self._routed_at]
        if route is not None and self._route is not None and not self._route.was_own(route):
            ended = replace(ended, is_gone=True)
        return Value(record, ended, ended.values, 1, is_ended=True)

    def _is_known(self, value: Value) -> bool:
        """Tell whether key and order of a row are told, as far as they are columns of it."""
        (row, *_) = self._transformed([value])
        at = (*self._key_at, *(i for i in self._order_at if i >= 0))
        return row is not None and all(row.values[i] is not None for i in at)

    def _is_nowhere(self, row: Value) -> bool:
        """Tell a row that left, of which nothing tells the key that it would have here."""
        if not row.is_left:
            return False
        key = [row.values[at] for at in self._key_at]
        return bool(row.misfit) or None in key or _key_size(key) > self._longest_key

    def _rows(self, values: list[Value]) -> tuple[list[Value], list[Value | None]]:
        """Make rows of values; nothing is ended of a row that keeps its key."""
        made = self._transformed(values)
        left = [
            at
            for at, value in enumerate(values)
            if not (value.is_ended and self._have_one_key(made[at - 1], made[at]))
        ]
        ended = {at for at in left if values[at].is_ended}
        moved = ended | {at - 1 for at in ended}
        alone = {at for at in ended if (own := made[at - 1]) is None or own.is_left}
        rows = [
            row and row._replace(moves=row.decoded.moves or at in moved, is_alone=at in alone)
            for at, row in enumerate(made)
        ]
        return [values[at] for at in left], [rows[at] for at in left]

    def _have_one_key(self, own: Value | None, ended: Value | None) -> bool:
        if own is None or ended is None:
            return False
        return self.key_of(own.values) == self.key_of(ended.values)

    def _exploded(self, record: Record, decoded: DecodedRecord, result: Classified) -> list[Value]:
        """Return one value an element; a record without any counts as filtered."""
        at, values, is_delete = self._array_at, decoded.values, decoded.is_delete
        if record.value is None:
            return [Value(record, decoded, values)]
        kept = decoded.left_out if self._keeps else ()
        lacks = any(values[i] is None for name, i in self._value_required if name not in kept)
        needed = self._never_left_out & decoded.left_out
        if needed and not is_delete:
            raise BadRecordError(f"not sent, and asked for: {sorted(needed)}")
        is_of_other = bool(decoded.left_out) and decoded.moved_from is not None
        if is_of_other and self._may_move and not self._keeps:
            raise BadRecordError(f"not sent, and of another key's row: {sorted(decoded.left_out)}")
        if decoded.ended is not None and at is not None:
            raise BadRecordError("another key, where each element is a row")
        if at is None:
            ended = self._ended(record, decoded)
            own = Value(record, decoded, values, lacks=lacks)
            return [own, ended] if ended else [own]
        elements = values[at] or ((None,) if is_delete else ())
        result.counts["filtered"] += not elements
        first = replace(decoded, left_out=frozenset(), moved_from=None)
        other = replace(first, coerced=0)
        rows = ((*values[:at], element, *values[at + 1 :]) for element in elements)
        return [Value(record, other if n else first, row, n, lacks) for n, row in enumerate(rows)]

    def _transformed(self, values: list[Value]) -> list[Value | None]:
        """Make rows of values; a null value has none, and stays as its key says."""
        if self.transformation is None:
            return list(values)
        rows = iter(self.transformation([v for v in values if v.record.value is not None]))
        return [value if value.record.value is None else next(rows) for value in values]

    def _deletes(self, rows: Sequence[Value]) -> list[bool]:
        if self._is_delete is None or not rows:
            return [row.decoded.is_delete or row.is_left for row in rows]
        selected = self._is_delete([row.values for row in rows])
        says = (row.decoded.is_delete or row.is_left for row in rows)
        return [a or is_delete for a, is_delete in zip(selected, says, strict=True)]

    def _violated(self, rows: Sequence[Value], asked: Constraints) -> list[str | None]:
        """Name for each row a condition that it does not meet; null is no answer that meets one."""
        violated: list[str | None] = [None] * len(rows)
        if not (rows and asked):
            return violated
        # A filter lets deletes pass, whose rows, where there are any, must meet it, too.
        plain = [row._replace(decoded=replace(row.decoded, is_delete=False)) for row in rows]
        for name, sql in asked.items():
            if sql not in self._constraints:
                self._constraints[sql] = self._make_filter(sql)
            met = self._constraints[sql](plain)
            violated = [name if row is None else v for v, row in zip(violated, met, strict=True)]
        return violated

    def _decoded(self, record: Record) -> DecodedRecord:
        if record.value is not None:
            return self._read.value(record)
        if self._tombstones == "quarantine":
            raise BadRecordError("a tombstone is not for this stream")
        if record.key is None:
            raise BadRecordError("a tombstone without a key")
        known = self._read.tombstone(record)
        values = tuple([known.get(name) for name in self.types])
        return DecodedRecord(values=values, is_delete=True)

    def _change(self, row: Value, *, is_delete: bool, seq: int) -> RowChange:
        record, decoded, values = row.record, row.decoded, row.values
        if row.misfit:
            raise BadRecordError(f"no table could hold it: {row.misfit}")
        sent = record.sent
        if not row.is_left or self._is_time_order:
            self._refuse_no_time(record)
        order = self._order(values, sent)
        if is_delete and not self._has_deletes:
            raise BadRecordError("a delete, in a mode that deletes nothing")
        _refuse_null(values, self._never_null, "a key column")
        keyed = tuple([values[i] for i in self._key_at])
        if (size := _key_size(keyed)) > self._longest_key:
            raise BadRecordError(f"a key of {size} bytes, and its sink takes {self._longest_key}")
        if None in order:
            raise BadRecordError("a column of sequence_by is null")
        left_out = () if row.is_left else self._left_out(decoded.left_out, is_delete=is_delete)
        if not is_delete:
            required = self._required
            if left_out and self._keeps:
                required = [i for i in required if i not in left_out]
            _refuse_null(values, required, "a NOT NULL column")
            if row.lacks:
                raise BadRecordError("a NOT NULL column of value_schema is null")
        if self._window:
            column, every_seconds = self._window
            window_of(sent if column is None else values[column], every_seconds)
        at = record[:3]
        flag = (is_delete,) if self._is_soft else ()
        index = () if self._array_at is None else (row.element,)
        # A row in the table, as a soft delete is, has no element unless arrays are exploded.
        place = (self._epoch, *order, *at, 0 if row.is_ended else row.element)
        extra = (decoded.extra,) if self._keeps_extra else ()
        due = (*values, *flag, *extra, *index, *at, sent, self._epoch, seq)
        is_gone = is_delete and (row.is_left or not self._is_soft)
        expected = None if is_gone else due
        change = RowChange(text_of(keyed), place, expected, seq, keyed=keyed)
        change = change._replace(is_left=row.is_left, is_delete=is_delete)
        return self._as_told(change, row, left_out)

    def _as_told(self, change: RowChange, row: Value, left_out: tuple[int, ...]) -> RowChange:
        """Add to a change what its record tells of a move, and of what it leaves out."""
        if row.is_left:
            mover = row.values if self._may_move else None
            return change._replace(mover=mover, moves=row.moves, is_gone=row.decoded.is_gone)
        decoded = row.decoded
        has_undeclared = decoded.has_undeclared and not row.element
        change = change._replace(coerced=decoded.coerced, has_undeclared=has_undeclared)
        if self._may_move and (row.moves or decoded.is_delete):
            change = change._replace(
                mover=None if row.record.value is None else row.values,
                moves=row.moves,
                record=row.record,
                is_alone=row.is_alone,
                is_gone=row.is_ended and decoded.is_gone,
            )
        if decoded.moved_from is not None and self._keeps:
            old = text_of(decoded.moved_from.get(name) for name in self._keys)
            change = change._replace(moved_from=old)
        if not left_out or change.row is None or change.is_gone:
            return change
        return change._replace(left_out=left_out, record=row.record)

    def _refuse_no_time(self, record: Record) -> None:
        """Refuse a time that no column can have, where it orders records or may be in a row."""
        is_asked = self._is_time_order or (self._is_time_read and record.value is not None)
        if is_asked and not record.has_time:
            raise BadRecordError(f"its time, {record.timestamp_ms} ms, is no moment")

    def _left_out(self, left_out: frozenset[str], *, is_delete: bool) -> tuple[int, ...]:
        """Return which columns a record leaves out, by number.

        A delete leaves any out only of a row that gets another key: all but key and order.
        """
        if is_delete and not self._keeps:
            return ()
        fixed = {*self._keys, *self._never_left_out} if is_delete else ()
        names = enumerate(self.types) if left_out else ()
        return tuple(i for i, name in names if name in left_out and name not in fixed)

    def _order(self, values: Row, timestamp: dt.datetime) -> Row:
        return tuple([ranked(values[i] if i >= 0 else timestamp) for i in self._order_at])


def _follows_route(spec: StreamSpec) -> bool:
    """Tell whether an update may take a row to another table, by a column of the row."""
    if spec.route is None or spec.format.type != "debezium" or not spec.write_mode.has_deletes:
        return False
    of_envelope = spec.format.options.of_envelope
    return any(column.name not in of_envelope for column in spec.route.columns)


def _readings(
    spec: StreamSpec, settings: Settings | None, *, takes_json: bool
) -> tuple[ReadRecord, ReadRecord | None]:
    """Return what reads a record, and what reads one of another table's route, if that is read."""
    words = {"VARIANT": "HELD_JSON"} if takes_json else {}
    words = {"VARIANT": "JSON"} if spec.are_variants_text else words
    value = Expected(
        columns=[replace(c, type=c.type.with_words(words)) for c in spec.payload_columns],
        options=spec.format.options,
        settings=settings,
        extra_fields=spec.extra_fields,
        lenient=spec.lenient,
        record=spec.record_types,
        moved_by=spec.moved_by,
        keeps_json=spec.are_variants_text,
        whole=spec.whole_columns,
        given=spec.metadata_columns,
    )
    needs_key = spec.tombstone_policy == "delete" or spec.from_key
    read_key = None
    if needs_key and spec.key_columns:
        by_name = {column.name: column for column in (*spec.value_columns, *spec.columns)}
        columns, options = [by_name[n] for n in spec.key_columns], spec.key_format.options
        key = Expected(columns=columns, options=options, settings=settings, is_key=True)
        read_key = reading(spec.key_format, replace(key, lenient=spec.lenient))
    read = ReadRecord(spec, reading(spec.format, value), read_key)
    if not _follows_route(spec):
        return read, None
    elsewhere = reading(spec.format, replace(value, is_elsewhere=True))
    return read, ReadRecord(spec, elsewhere, read_key)


def window_of(moment: dt.datetime, every_seconds: int) -> tuple[dt.datetime, dt.datetime]:
    """Return the bounds of a time's window.

    Raises:
        BadRecordError: one is outside the years 1 to 9999.
    """
    every = dt.timedelta(seconds=every_seconds)
    try:
        start = EPOCH + (moment - EPOCH) // every * every
        return start, start + every
    except OverflowError:
        raise BadRecordError(f"no reader takes the bounds of the window of {moment}") from None


def _refuse_null(values: Row, at: Sequence[int], what: str) -> None:
    if any(values[i] is None for i in at):
        raise BadRecordError(f"{what} is null")


def _key_size(key: Sequence[object]) -> int:
    """Add up the bytes of a key's texts, in UTF-8, and bytes."""
    raw = (value.encode() if isinstance(value, str) else value for value in key)
    return sum(len(value) for value in raw if isinstance(value, bytes))


def _filter_of_rows(
    spec: StreamSpec, settings: Settings | None, apply: ApplyTransformation | None, where: str
) -> Filter | OfTheEngine:
    """Return what lets the rows of a stream pass that meet a condition."""
    rows = {"name": spec.name, "topic": "any", "mode": "append", "schema": spec.ddl}
    found = transformation(StreamSpec.model_validate({**rows, "where": where}), settings, apply)
    assert found is not None, "a declaration with a condition transforms"
    return found


def _refuse_unmet(constraint: str | None, change: RowChange) -> None:
    """Refuse a row that the table would not take; a delete that leaves none meets everything."""
    if constraint is not None and change.row is not None:
        raise BadRecordError(f"{constraint} is not met")


# Classifies records of one batch, given its seq.
Classify = Callable[[Iterable[Record], int], Classified]


class Alteration(NamedTuple):
    """A batch that has renamed and dropped columns: the old names by the new, and those gone."""

    seq: int
    renamed: Mapping[str, str]
    dropped: Sequence[str]

    def name_before(self, name: str) -> str | None:
        """Return what a column was called before, if it was there."""
        if name in self.renamed:
            return self.renamed[name]
        return None if name in {*self.renamed.values(), *self.dropped} else name


class Classifiers:
    """Classifies by each declaration that batches of a stream were written under."""

    def __init__(
        self,
        spec: StreamSpec,
        make: Callable[..., Classifier],
        alterations: Sequence[Alteration] = (),
        columns: Iterable[DeclaredColumn] = (),
    ) -> None:
        """Take today's declaration.

        Args:
            spec: The declaration.
            make: Makes a classifier.
            alterations: The batches that altered columns, oldest first.
            columns: The table's, which may have other fields in a STRUCT than are declared.
        """
        self._spec, self._make = spec, make
        self._alterations = alterations
        self.today = make(spec)
        found = {each.name: each.type for each in columns}
        self._types = {name: found.get(name, type_) for name, type_ in self.today.types.items()}
        self._names: dict[str, str | None] = {name: name for name in spec.types}
        self._made: dict[tuple[Any, ...], Classifier] = {}

    @property
    def is_independent(self) -> bool:
        """Tell whether no expression of any declaration had to be left to the engine."""
        return all(each.is_independent for each in self._made.values())

    def of(self, batch: Batch) -> Classify:
        """Return what classifies the records of a batch, by what its commit keeps."""
        found, fit = self._of_then(batch)
        constraints = (batch.declaration or {}).get(CONSTRAINTS)

        def classify(records: Iterable[Record], seq: int) -> Classified:
            result = found.classify(records, seq=seq, constraints=constraints)
            if fit is not None:
                result.changes = [*map(fit, result.changes)]
            return result

        return classify

    def is_of_today(self, batch: Batch) -> bool:
        """Tell whether a batch was written under the declaration and the columns of today."""
        found, fit = self._of_then(batch)
        is_asked = bool((batch.declaration or {}).get(CONSTRAINTS))
        return found is self.today and fit is None and not is_asked

    def _of_then(self, batch: Batch) -> tuple[Classifier, Callable[[RowChange], RowChange] | None]:
        """Return the classifier of a batch, and what gives its rows the columns of today."""
        kept, columns = batch.declaration or {}, batch.columns
        route, evaluated_by = kept.get("route"), kept.get(EVALUATED_BY)
        routed = Route.model_validate(route) if route else self._spec.route
        names = self._names_then(batch.seq) if columns else self._names
        earlier = parse_columns(columns) if columns else self._spec.columns
        followed = tuple((name, kept[name]) for name in FOLLOWING if name in kept)
        known_by = (columns, bool(evaluated_by), routed, str(names), followed)
        if (self._spec.value_ddl or self._spec.transform) and names != self._names:
            # What makes the columns gives them their names of today.
            earlier, names = _as_named_today(earlier, names), self._names
        if not (found := self._made.get(known_by)):
            of_then = self._spec.model_copy(update={"route": routed, **dict(followed)})
            found = self._under(of_then, earlier, names, evaluated_by=evaluated_by)
            self._made[known_by] = found
        return found, _fit_of(found.types, self._types, names)

    def _names_then(self, seq: int) -> dict[str, str | None]:
        """Return what today's columns were called in a batch; ``None`` of those to come."""
        names = self._names
        for each in reversed(self._alterations):
            if each.seq > seq:
                names = {n: then and each.name_before(then) for n, then in names.items()}
        return names

    def _under(
        self,
        spec: StreamSpec,
        earlier: Sequence[DeclaredColumn],
        then: Mapping[str, str | None],
        *,
        evaluated_by: str | None,
    ) -> Classifier:
        if tuple(earlier) == spec.columns and spec == self._spec:
            return self._make(self._spec, evaluated_by=evaluated_by) if evaluated_by else self.today
        # Of the columns of then, what is expected of the rows of today says nothing.
        about_rows = {"expectations", "renamed_from"}
        declared = spec.model_dump(by_alias=True, exclude_unset=True, exclude=about_rows)
        declared |= _by_names_of_then(spec, then)
        declared |= {"schema": as_ddl(earlier)}
        names = {column.name for column in earlier}
        of_value = {column.name for column in parse_columns(spec.value_ddl or "_ INT")}
        given = dict.fromkeys(("from_headers", "header_format"), names | of_value)
        for by_name, known in {"select": names, **given}.items():
            declared[by_name] = {n: each for n, each in declared[by_name].items() if n in known}
        declared["from_key"] = [n for n in declared["from_key"] if n in names | of_value]
        try:
            return self._make(StreamSpec.model_validate(declared), evaluated_by=evaluated_by)
        except ValidationError as error:
            raise UnprovableError(
                f"earlier batches had the columns {declared['schema']}, which the declaration "
                "contradicts now"
            ) from error


def _as_named_today(
    earlier: Sequence[DeclaredColumn], then: Mapping[str, str | None]
) -> tuple[DeclaredColumn, ...]:
    """Return columns of then that are there today, by their names of today."""
    today = {old: new for new, old in then.items() if old}
    return tuple(replace(each, name=today[each.name]) for each in earlier if each.name in today)


def _by_names_of_then(spec: StreamSpec, then: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the fields that name columns, by the names of then, which their values had, too."""
    renamed = {name: old for name, old in then.items() if old not in (None, name)}

    def by_then(of: Mapping[str, Any]) -> dict[str, Any]:
        # A name that another column had then is not this one's.
        return {old: each for name, each in of.items() if (old := then.get(name, name))}

    texts = {name: getattr(spec, name) for name in ("where", "apply_as_deletes")}
    return {
        **{name: with_names(text, renamed) for name, text in texts.items() if text},
        "select": by_then({n: with_names(sql, renamed) for n, sql in spec.select.items()}),
        "types": by_then(spec.leniency),
        "from_headers": by_then(spec.from_headers),
        "header_format": by_then(spec.header_format),
        "from_key": [*by_then(dict.fromkeys(spec.from_key))],
    }


def _fit_of(
    then: Mapping[str, SqlType], now: Mapping[str, SqlType], names_then: Mapping[str, str | None]
) -> Callable[[RowChange], RowChange] | None:
    """Return what gives a row of earlier columns those of today; nothing where it has them."""
    names, earlier = list(then), [names_then[name] or "" for name in now]
    at = [names.index(name) if name in then else None for name in earlier]
    fields = {
        n: partial(_with_fields, then=then[name], now=type_)
        for n, (name, type_) in enumerate(zip(earlier, now.values(), strict=True))
        if name in then and type_.contains("STRUCT") and then[name] != type_
    }
    if names == earlier and not fields:
        return None

    def fitted(row: Row) -> Row:
        values = [None if i is None else row[i] for i in at]
        for n, with_fields in fields.items():
            values[n] = with_fields(values[n])
        return tuple(values)

    def fit(change: RowChange) -> RowChange:
        if change.mover is not None:
            change = change._replace(mover=fitted(change.mover))
        if change.row is None:
            return change
        values = fitted(change.row)
        left_out = tuple(n for n, i in enumerate(at) if i in change.left_out)
        return change._replace(row=(*values, *change.row[len(names) :]), left_out=left_out)

    return fit


def _with_fields(value: Any, *, then: SqlType, now: SqlType) -> Any:
    """Give a value the fields, in a STRUCT, that its type got later: they are null."""
    if value is None or then == now:
        return value
    if now.word == "STRUCT":
        return {
            name: _with_fields(value[name], then=then.parts[name], now=part)
            if name in value
            else None
            for name, part in now.parts.items()
        }
    if now.word == "ARRAY":
        of_items = {"then": then.parts["element"], "now": now.parts["element"]}
        return [_with_fields(each, **of_items) for each in value]
    if now.word == "MAP":
        of_values = {"then": then.parts["value"], "now": now.parts["value"]}
        return {key: _with_fields(each, **of_values) for key, each in value.items()}
    return value
