"""The columns of a batch on its way, stage by stage: the contract between the stages.

Up to EVENTS a stage is a function from Arrow batches to Arrow batches, which runs in this process,
in a worker of Spark's or on an executor; see ``ingestion.modes.engines.rows``.

    source      PLACE, RAW, _digest    one row a record, undecoded              (source/)
    decode      + _decoded             what the value says: ``decoded_struct``  (decode.py)
                + _decoded_key         what a null value's key says; only where it may delete
                + _index, _is_empty    one row an element; only where an array is exploded
    transform   + _transformed         the table's columns, as declared: a struct; this and what
                                       follows only where anything is declared
                + _selected            whether ``where`` or the function lets it pass
                + _misfit              why no table could hold that row, which is null then
                + _index               that of the element
                + _ended               the row that an update ends under another key
                + _left_to             ``filtered``, where a row leaves by ``where``
    flatten     the declared columns, and what decoding found, each a column   (validate.py)

EVENTS is the relation that the rules judge. It has every column, whatever is declared; what is not
declared is null:

    _index, _selected, _lacks          of the record's row; 0, true and empty without a statement
    _is_tombstone, _says_delete, _is_selected, _is_delete    whether it is a delete, and by what
    _wrong, _wrong_detail, _violated   what is wrong with it
    _left_to, _is_gone                 what becomes of a record whose row is not this table's
    _unavailable, _coerced, _moved_from, _record, _moves, _is_shared, _unknown    see below

    judge       BATCH                  the judged batch; ``table`` stands for its declared columns.
                                       What an update ends is a delete, the record's row of index 1
                _disposition, _reason, _detail, RAW    the last three of what may be quarantined
                _left_to               of a delete by a record that is not of this table: the
                                       disposition of the record's own row, which has the same
                                       index, or that the record deletes it there
                _coerced               columns whose value was of another type
                _unavailable           columns that the record left out
                _moves                 whether a row gets, or loses, its key by a move
                _moved_from            the key that the row had before, if it was another
                _is_shared             null value, or change without route, of all
                _record                full name of its record type

Behind it a batch is the table ``batch`` of an engine, and of it what can be applied is ``good``;
see ``ingestion.modes.engines.engine``.
"""

from __future__ import annotations

from typing import Final

from oncelake.ingestion.modes.engines.rows import RAW

# What stands as ``_left_to`` where a record says that the row which is not here has been deleted.
DELETED_ELSEWHERE: Final = "deleted_elsewhere"
PLACE: Final = ("_topic", "_partition", "_offset", "_timestamp")
# Behind the judgement nobody needs these of a row that can be applied.
NOT_APPLIED: Final = (
    *("_extra", "_digest", "_reason", "_detail", *RAW),
    *("_moved_from", "_coerced", "_record", "_is_shared", "_moves"),
)
