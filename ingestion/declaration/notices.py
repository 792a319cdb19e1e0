"""What a declaration allows though a person has probably not meant it: reported, not refused."""

from __future__ import annotations

from oncelake.ingestion.declaration.spec import StreamSpec


def notices_of(spec: StreamSpec) -> tuple[str, ...]:
    """Return what a person should decide about a declaration, with what to write."""
    goes_by_default = spec.tombstones is None and spec.tombstone_policy == "quarantine"
    if not (goes_by_default and spec.write_mode.has_deletes):
        return ()
    unknown = ", ".join(name for name in spec.sequence_by if name not in {*spec.keys, "_timestamp"})
    return (
        f"a null value has no {unknown}, so that it deletes nothing: it goes to quarantine, as "
        "tombstone_without_order. Next: decide it in the file: `tombstones: ignore` where the "
        "topic's null values mean nothing, `tombstones: quarantine` to look at each, or, where "
        "they are deletes, an order that they have, too (docs/streams.md, Deletes)",
    )
