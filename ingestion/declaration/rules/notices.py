"""Notices: what is allowed, though a person has probably not meant it; reported, not refused."""

from __future__ import annotations

from oncelake.ingestion.declaration.spec import StreamSpec


def notices_of(spec: StreamSpec) -> tuple[str, ...]:
    """Return what a person should decide about a declaration, with what to write."""
    goes_by_default = spec.tombstones is None and spec.tombstone_policy == "quarantine"
    if not (goes_by_default and spec.write_mode.has_deletes):
        return ()
    names, known = spec.sequence_by, {*spec.tombstone_columns, "_timestamp"}
    reason, remedy = "tombstone_without_order", "an order that they have, too"
    if not spec.tombstones_have_a_key:
        names, known = spec.keys, {*spec.metadata_columns}
        reason, remedy = "tombstone_without_key", "all of `keys` in `from_key` and `from_headers`"
    unknown = ", ".join(name for name in names if name not in known)
    return (
        f"a null value has no {unknown}, so that it deletes nothing: it goes to quarantine, as "
        f"{reason}. Next: decide it in the file: `tombstones: ignore` where the "
        "topic's null values mean nothing, `tombstones: quarantine` to look at each, or, where "
        f"they are deletes, {remedy} (docs/streams.md, Deletes)",
    )
