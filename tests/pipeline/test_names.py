"""A value's field of any name is read by both engines, and the proof reads the same."""

from __future__ import annotations

from typing import Any

import pytest

from oncelake.ingestion.declaration.sql import quoted
from tests.support.long import twins
from tests.support.proof import find_problems, prove
from tests.support.world import World

pytestmark = pytest.mark.spark

# Names of a record's place, of a batch's columns, of the proof's, and such as no table has.
NAMES = (
    *("_Offset", "_timestamp", "_key", "_index", "_good", "_row", "_at", "_is_delete", "record"),
    *("_decoded", "_value", "a b", "a.b", "x`y", "q'\"", "s` --", "l\nm", "__op", "chunk"),
)


@pytest.fixture(params=["local", *twins(pytest.param("spark", marks=pytest.mark.kafka))])
def merging(request: pytest.FixtureRequest, world: World) -> World:
    """A stream that one of the engines merges."""
    engine = "spark" if request.param == "spark" else "auto"
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    return world


def test_a_field_of_any_name_is_filtered_selected_and_proven(merging: World) -> None:
    """A field hides what the record has of its name; all else of the record can still be asked."""
    columns = ", ".join(f"{quoted(name)} INT" for name in NAMES)
    total = " + ".join(map(quoted, NAMES))
    merging.declare(
        value_schema=f"id INT, __deleted STRING, {columns}, `s s` STRUCT<`a b`: INT>",
        schema="id INT NOT NULL, __deleted STRING, __op INT, total INT, part INT",
        where="`a.b` > 0 AND `x``y` > 0 AND `_row` > 0",
        on_filtered="keep",
        select={"total": total, "part": "`s s`.`a b` + _partition"},
        apply_as_deletes="__deleted = 'true'",
    )
    values = {name: at for at, name in enumerate(NAMES, start=1)}
    kept: dict[str, Any] = {**values, "__deleted": "false", "s s": {"a b": 7}}
    merging.send({"id": 1, **kept}, {"id": 2, **kept}, {"id": 3, **kept, "a.b": 0}, partition=1)
    merging.run()
    merging.send({"id": 1, **kept, "__deleted": "true"}, {"id": 2, **kept, "_row": 0}, partition=1)

    merging.run()

    (found,) = merging.rows()
    expected = {"id": 2, "__op": values["__op"], "total": sum(values.values()), "part": 8}
    assert {name: found[name] for name in expected} == expected
    assert merging.ledger[-1].counts["filtered"] == 1
    assert prove(merging).holds


def test_a_column_that_begins_as_ours_is_kept_in_every_version(merging: World) -> None:
    """History, soft deletes and their memory take such names as any other."""
    merging.declare(
        schema="_id INT NOT NULL, __source_ts_ms BIGINT NOT NULL, __deleted STRING, _rev INT",
        keys=["_id"],
        sequence_by=["__source_ts_ms"],
        apply_as_deletes="__deleted = 'true'",
        tombstones="ignore",
        mode="scd2",
    )
    rows = [(1, 5, "false"), (1, 7, "true"), (1, 6, "false"), (2, 5, "false")]
    names = ("_id", "__source_ts_ms", "__deleted")
    for row in rows:
        merging.send({**dict(zip(names, row, strict=True)), "_rev": 1})
        merging.run()

    found = merging.paths.table.scan(["_id", "valid_from", "valid_to", "current"])
    versions = [tuple(row.values()) for batch in found for row in batch.to_pylist()]
    assert sorted(versions) == [(1, 5, 6, False), (1, 6, 7, False), (2, 5, None, True)]
    assert find_problems(merging) == ()
