"""A record that gives a row for each element of an array, and is still one record.

It is applied as a whole or not at all: where one of its elements cannot be, the record goes to
quarantine with what is wrong with the first such element. Records are counted by their row of
index 0, which each of them has; a record without elements gives one that is filtered.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncelake.ingestion.declaration.modes import COORDINATES
from oncelake.ingestion.formats.arrays import Numbers
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.engines.rows import Work
from oncelake.ingestion.pipeline.statements.evaluate import fields_of

# About how many bytes of rows are made at once, and what a row has beside its record's value.
_MOST_BYTES = 32 * 1024 * 1024
_OF_A_ROW_BYTES = 200
# Dispositions that each row has for itself.
_OF_A_ROW = ("row", "delete", "filtered")


def exploding(decode: Work, array: str) -> Work:
    """Return work that decodes, and gives each element of an array of the value a row.

    It adds ``_index``, the element's, and ``_is_empty``, of a record without any; a delete without
    any is one row, since left out it would leave its rows in the table. ``_decoded.row`` has the
    element in the array's place. The raw value stays with the first row only; elsewhere it is
    empty.
    """

    def exploded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in decode(batches):
            for part in _parts(batch, array):
                yield _exploded(part, array)

    return exploded


def _elements(batch: pa.RecordBatch, array: str) -> tuple[pa.Array, Numbers]:
    """Return the array of each record, and how many elements it has."""
    lists = fields_of(fields_of(batch.column("_decoded"))["row"])[array]
    return lists, pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)


def _parts(batch: pa.RecordBatch, array: str) -> Iterator[pa.RecordBatch]:
    """Cut a batch between records, so that its rows stay few: each has the record's columns."""
    _, elements = _elements(batch, array)
    sizes = pc.fill_null(pc.binary_length(batch.column("_value")), 0).to_numpy(zero_copy_only=False)
    part = (np.cumsum((sizes + _OF_A_ROW_BYTES) * np.maximum(elements, 1)) - 1) // _MOST_BYTES
    starts = [0, *(np.flatnonzero(np.diff(part)) + 1), batch.num_rows]
    yield from (batch.slice(start, end - start) for start, end in pairwise(starts))


def _exploded(batch: pa.RecordBatch, array: str) -> pa.RecordBatch:
    value, parts = batch.column("_value"), fields_of(batch.column("_decoded"))
    lists, sizes = _elements(batch, array)
    copies = np.maximum(sizes, 1)
    records = np.repeat(np.arange(len(sizes)), copies)
    nth = np.arange(len(records)) - (np.cumsum(copies) - copies)[records]
    is_without, is_later = sizes[records] == 0, nth > 0
    at = (np.cumsum(sizes) - sizes)[records] + nth
    elements = pc.list_flatten(lists).take(pa.array(at, mask=is_without))

    # Neither the array nor the raw value is copied for each of its elements.
    of_record, of_first = pa.array(records), pa.array(records, mask=is_later)
    in_place = {"row": elements, "ended": pa.nulls(len(records), lists.type)}
    made = {
        name: _with(part, array, in_place[name], of_record)
        if name in in_place
        else part.take(of_record)
        for name, part in parts.items()
    }
    is_value = pc.is_valid(value).take(of_record)
    is_good = pc.and_(is_value, pc.is_null(made["reason"]))
    is_good = pc.and_(is_good, pc.invert(pc.fill_null(made["is_delete"], False)))
    is_empty = pc.and_(pa.array(is_later), is_value)
    columns = {
        "_decoded": _struct(made, pc.is_null(batch.column("_decoded")).take(of_record)),
        "_value": pc.if_else(is_empty, pa.scalar(b"", value.type), value.take(of_first)),
        "_index": pa.array(nth, pa.int32()),
        "_is_empty": pc.and_(is_good, pa.array(is_without)),
    }
    names = [*batch.schema.names, "_index", "_is_empty"]
    arrays = [
        columns[name] if name in columns else batch.column(name).take(of_record) for name in names
    ]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _with(row: pa.StructArray, name: str, values: pa.Array, of_record: pa.Array) -> pa.StructArray:
    """Return the rows of records, with other values of one column."""
    fields = {
        field: values if field == name else column.take(of_record)
        for field, column in fields_of(row).items()
    }
    return _struct(fields, pc.is_null(row).take(of_record))


def _struct(fields: dict[str, pa.Array], mask: pa.BooleanArray) -> pa.StructArray:
    return pa.StructArray.from_arrays([*fields.values()], names=[*fields], mask=mask)


def of_any_element(flags: pa.BooleanArray, index: pa.Array) -> pa.BooleanArray:
    """Raise a flag for all rows of a record where it is raised for one; they lie together."""
    records = np.cumsum(index.to_numpy() == 0) - 1
    raised = np.bincount(records, weights=flags.to_numpy(zero_copy_only=False)) > 0
    return pa.array(raised[records]) if len(records) else flags


def rejoined(judged: str) -> str:
    """Let one bad row send its whole record to quarantine, of which the first row alone stays.

    Args:
        judged: Query of rows with ``_index``, ``_disposition``, ``_reason`` and ``_detail``.
    """
    what = "{'index': _index, 'reason': _reason, 'detail': _detail}"
    bad = f"min(CASE WHEN _disposition = 'quarantined' THEN {what} END)"
    dispositions = ", ".join(map(sql.text, _OF_A_ROW))
    return f"""
        SELECT * FROM (
            SELECT * EXCLUDE (_disposition, _reason, _detail, _first_bad),
                CASE WHEN _first_bad IS NULL THEN _disposition ELSE 'quarantined' END
                    AS _disposition,
                _first_bad.reason AS _reason, _first_bad.detail AS _detail
            FROM (
                SELECT *, {bad} OVER (PARTITION BY {sql.names(COORDINATES)}) AS _first_bad
                FROM ({judged}) j
            ) r
        ) w
        WHERE _index = 0 OR _disposition IN ({dispositions})
    """
