"""The columns of a batch on its way, stage by stage: the contract between the stages.

    source      PLACE, RAW, _digest    one row a record, undecoded              (source.py)
    decode      + _decoded             what the value says: ``decoded_struct``  (decode.py)
                + _decoded_key         what a null value's key says; only where it may delete
                + _index, _is_empty    one row an element; only where an array is exploded
    transform   + _transformed         the table's columns, as declared: a struct
                + _selected            whether ``where`` or the function lets it pass
                + _misfit              why no table could hold that row, which is null then
                + _index, _is_empty    all of them only where anything is declared
                + _ended               the row that an update ends under another key, likewise
                + _left_to             ``filtered``, where a row leaves by ``where``; only there
    validate    BATCH                  the judged batch; ``table`` stands for its declared columns.
                                       What an update ends is a delete, the record's row of index 1
                + _left_to             of a delete by a record that is not of this table: the
                                       disposition of the record's own row, which has the same
                                       index, or that the record deletes it there; only where rows
                                       may leave
                + _coerced             columns whose value was of another type; only where lenient
                + _unavailable         columns that the record left out; only where its format may
                + _moves               whether a row gets, or loses, its key by a move; likewise
                + _moved_from          the key that the row had before, if it was another
                + _is_shared           null value, or change without route, of all; only there
                + _record              full name of its record type; only where a registry has it

Behind ``validate`` a batch is the table ``batch`` of an engine, and of it what can be applied is
``good``; see ``ingestion.modes.engines.engine``.
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
