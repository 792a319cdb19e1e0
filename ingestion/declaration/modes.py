"""The write modes, how records become rows, and the columns that Oncelake adds to a table.

Plain data: what a declaration must and may say in a mode stands in the mode's row here. A mode is
a module with a class (see ``ingestion.modes.mode``); it is named here and imported when a run
needs it, so that loading a declaration imports no Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# A record's coordinates in Kafka, and which element of its array a row comes from.
COORDINATES: Final = ("_topic", "_partition", "_offset")
INDEX_COLUMN: Final = "_index"
# What every table has behind the columns that are declared.
OUR_COLUMNS: Final = (
    "_topic STRING, _partition INT, _offset BIGINT, _timestamp TIMESTAMP, _epoch INT, _seq BIGINT"
)
# What `where` and `select` may ask of a record beside its value's columns.
TIME_COLUMN: Final = "_timestamp"
OF_A_RECORD: Final = (*COORDINATES, TIME_COLUMN, "_key", "_headers", INDEX_COLUMN)
EXTRA_COLUMN: Final = "_extra_fields"
DELETED_COLUMN: Final = "_deleted"
# Columns that `mode: scd2` adds, then those that `window` adds.
VALID_FROM: Final = "valid_from"
VALID_TO: Final = "valid_to"
CURRENT: Final = "current"
WINDOW_COLUMNS: Final = ("window_start", "window_end")
# Columns of every table, of a batch on its way into it, and of the tables beside it.
_OF_A_BATCH: Final = """
    _again _alive _at _before _bytes _change_type _coerced _contest _decoded _decoded_key _delete
    _detail _digest _disposition _element _ended _ends_one _epoch _event _extra _fault _file
    _first_bad _gone _good _has_row _is_asked _is_delete _is_empty _is_erased _is_gone _is_known
    _is_move _is_new _is_selected _is_shared _is_shown _is_stale _is_tombstone _lacks _left_out
    _left_to _misfit _moved_from _moves _newest _next _nothing _nth _oncelake_deleted
    _oncelake_partition _other _rank _reason _record _records _returned _row _row_of _row_seq
    _says_delete _selected _seq _split _tombstone_key _transformed _turn _unavailable _unknown
    _value _violated _waits _what _wholes _wrong _wrong_detail
"""
RESERVED: Final = frozenset(
    {
        *OF_A_RECORD,
        *(f"_of{name}" for name in (*COORDINATES, INDEX_COLUMN)),
        *_OF_A_BATCH.split(),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
    """One write mode.

    Attributes:
        module: Where its class is.
        soft_module: Where it is when deletes only mark their rows.
        partial_module: Where it is when nulls leave columns alone.
        log_module: Where it is when rows can only be added to what keeps them.
        has_keys: Whether ``keys`` identify its rows; else a record's coordinates do.
        has_order: Whether ``sequence_by`` means anything in it.
        has_deletes: Whether a record can say that a row should be gone.
        keeps_columns: Whether a row takes over a column that its record leaves out.
        fields: Fields of a declaration that only some modes have.
        needs: Fields that it must have, beside its keys.
    """

    module: str
    soft_module: str = ""
    partial_module: str = ""
    log_module: str = ""
    has_keys: bool = True
    has_order: bool = True
    has_deletes: bool = True
    keeps_columns: bool = False
    fields: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


MODES: Final[dict[str, Mode]] = {
    "upsert": Mode(
        module="oncelake.ingestion.modes.upsert",
        soft_module="oncelake.ingestion.modes.soft_upsert",
        partial_module="oncelake.ingestion.modes.partial_upsert",
        log_module="oncelake.ingestion.modes.log",
        keeps_columns=True,
        fields=("deletes", "ignore_null_updates", "on_filtered"),
    ),
    "append": Mode(
        module="oncelake.ingestion.modes.append",
        log_module="oncelake.ingestion.modes.append",
        has_keys=False,
        has_order=False,
        has_deletes=False,
    ),
    "insert_only": Mode(module="oncelake.ingestion.modes.insert_only", has_deletes=False),
    "scd2": Mode(
        module="oncelake.ingestion.modes.scd2",
        keeps_columns=True,
        fields=("on_filtered", "track"),
        needs=("sequence_by",),
    ),
    "aggregate": Mode(
        module="oncelake.ingestion.modes.aggregate",
        has_deletes=False,
        fields=("aggregates", "window"),
        needs=("aggregates",),
    ),
}
