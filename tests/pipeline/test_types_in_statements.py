"""Values of every type pass through every statement unchanged, by either engine, and are proven."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from deltalake import DeltaTable

from oncelake.ingestion.declaration.spec import EVALUATED_BY
from tests.support.proof import find_problems, prove
from tests.support.world import World

pytestmark = pytest.mark.spark

SCALARS = {
    "ntz": "TIMESTAMP_NTZ",
    "ts": "TIMESTAMP",
    "d": "DATE",
    "v": "VARCHAR(5)",
    "dec": "DECIMAL(30, 9)",
    "b": "BINARY",
    "f": "FLOAT",
    "x": "DOUBLE",
    "t": "TINYINT",
    "y": "BOOLEAN",
}
STRUCT = f"STRUCT<{', '.join(f'{name}: {type_}' for name, type_ in SCALARS.items())}>"
TYPES = {
    **SCALARS,
    "s": STRUCT,
    **{f"l_{name}": f"ARRAY<{type_}>" for name, type_ in SCALARS.items()},
    **{f"m_{name}": f"MAP<STRING, {type_}>" for name, type_ in SCALARS.items()},
    "deep": f"ARRAY<MAP<STRING, STRUCT<in: {STRUCT}>>>",
    "j": "VARIANT",
}
DDL = ", ".join(("id BIGINT NOT NULL", *(f"{name} {type_}" for name, type_ in TYPES.items())))
# Before 1582 Java's older calendar has other days, before 1900 most zones other offsets.
MOMENTS = (
    *("0001-01-01T00:00:00", "1582-10-10T12:00:00", "1883-11-18T12:03:58.000001"),
    *("1899-12-31T23:59:59.999999", "2024-02-29T00:00:00", "9999-12-31T23:59:59.999999"),
)


def scalars(n: int, moment: str) -> dict[str, Any]:
    """Return a value of each type."""
    return {
        "ntz": moment,
        "ts": f"{moment}Z",
        "d": moment[:10],
        "v": "h\u00e9\u00df"[: n + 1],
        "dec": int("9" * 20) + n,
        "b": base64.b64encode(bytes([0, 255, n])).decode(),
        "f": 0.1,
        "x": 0.1 * n,
        "t": -128 + n,
        "y": n % 2 == 0,
    }


def records() -> list[dict[str, Any]]:
    """Return a record for each moment, one without values, and one of empty lists and maps."""
    found: list[dict[str, Any]] = [{"id": 100}]
    for n, moment in enumerate(MOMENTS, 1):
        values = scalars(n, moment)
        lists = {f"l_{name}": [each, None] for name, each in values.items()}
        maps = {f"m_{name}": {"a": each, "b": None} for name, each in values.items()}
        nested = {"s": values, "deep": [{"k": {"in": values}}, None], "j": {"n": [n, 1.5, None]}}
        found.append({"id": n, **values, **lists, **maps, **nested})
    lists = {f"l_{name}": [] for name in SCALARS}
    maps = {f"m_{name}": {} for name in SCALARS}
    return [*found, {"id": 101, "s": {}, "deep": [], "j": None, **lists, **maps}]


def test_what_duckdb_evaluated_spark_proves(world: World) -> None:
    """A condition lets rows pass as they are; so does a column that is computed beside them."""
    world.declare(
        value_schema=DDL, schema=f"{DDL}, n BIGINT", where="id > 0", select={"n": "id + 1"}
    )
    world.send(*records(), {"id": -1})

    world.run()

    assert len(world.rows()) == len(records())
    assert (world.ledger[-1].declaration or {})[EVALUATED_BY] == "local"
    assert find_problems(world) == ()


# A value that deletes its record, of each type, and the condition that says so.
DELETES = {
    "v": ("none", "v = 'none'"),
    "d": ("1582-10-12", "d = DATE'1582-10-12'"),
    "ts": ("1883-11-18T12:03:59Z", "ts = TIMESTAMP'1883-11-18 12:03:59 UTC'"),
    "ntz": ("1582-10-12T12:00:01", "ntz = TIMESTAMP_NTZ'1582-10-12 12:00:01'"),
    "dec": (1, "dec = 1"),
    "b": (base64.b64encode(b"ab").decode(), "b = 'ab'"),
}


@pytest.mark.kafka
def test_what_spark_evaluated_is_proven(world: World) -> None:
    """By DuckDB where it understands a condition, and by Spark: deletes and a table's own rules."""
    world.declare(schema=DDL, where="rlike(CAST(id AS STRING), '^[0-9]')")
    world.run()
    alter = DeltaTable(world.paths.data.path).alter
    alter.add_constraint({"not_then": "v IS NULL OR d IS NULL OR d <> DATE '1582-10-13'"})
    world.declare(apply_as_deletes=" OR ".join(sql for _, sql in DELETES.values()))
    deletes = ({"id": n, name: value} for n, (name, (value, _)) in enumerate(DELETES.items(), 200))
    world.send(*records(), *deletes, {"id": -1}, {"id": 7, "v": "x", "d": "1582-10-13"})

    world.run()

    assert len(world.rows()) == len(records())
    counts = world.ledger[-1].counts
    assert (counts["deleted_absent"], counts["quarantined"]) == (len(DELETES), 1)
    verdict = prove(world)
    assert (verdict.differences, verdict.obstacles) == ((), ())
