"""A table that another tool has made: what a stream can keep is kept, and the rest is refused.

Before anything is read, and with a remedy that works: each is followed here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ingestion.declaration.modes import OUR_COLUMNS
from tests.cli.shell import ORDERS, answer, declare, oncelake

# Delta's names of the types that these tables have.
TYPES = {"INT": "integer", "BIGINT": "long", "STRING": "string", "TIMESTAMP": "timestamp"}
OURS = tuple(part.split() for part in OUR_COLUMNS.split(", "))


def field(name: str, type_: Any, *, nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    """Return a column as Delta's log has it."""
    return {"name": name, "type": type_, "nullable": nullable, "metadata": metadata}


USERS = (field("id", "integer", nullable=False), field("total", "integer"))
SYSTEM = tuple(field(name, TYPES[word]) for name, word in OURS)


def make_table(
    home: Path,
    *fields: Mapping[str, Any],
    partitioned_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    protocol: Mapping[str, Any] | None = None,
) -> None:
    """Write the log of an empty table of ``orders``, as another tool would."""
    actions = [
        {"protocol": protocol or {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "another",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": list(partitioned_by),
                "configuration": dict(properties or {}),
                "createdTime": 1,
            }
        },
        {"commitInfo": {"timestamp": 1, "operation": "CREATE TABLE"}},
    ]
    log = home / "lake" / "orders" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def planned() -> dict[str, Any]:
    """Return what the next run would do to the table."""
    (plan,) = answer(oncelake("plan", "--json"))["plans"]
    return dict(plan)


def refusal() -> str:
    """Return why ``plan``, and ``doctor`` alike, say that the next run is refused."""
    code, plan = oncelake("plan").exit_code, planned()
    (error,) = plan["refusals"]
    findings = answer(oncelake("doctor", "orders", "--json"))["findings"]
    assert code == 3
    assert any(finding["command"] in error["message"] for finding in findings)
    return str(error["message"])


def test_our_columns_are_put_to_an_empty_table_where_the_declaration_lets_us(home: Path) -> None:
    """A table with the user's columns alone lacks six, and the plan has the statements."""
    make_table(home, *USERS)

    assert "`schema_change: evolve` in orders.yaml" in refusal()
    declare(home, "orders", f"{ORDERS}schema_change: evolve\n")
    plan = planned()

    assert (plan["effect"], plan["refusals"]) == ("evolve", [])
    assert [change["field"] for change in plan["changes"]] == [name for name, _ in OURS]
    assert all("ADD COLUMNS" in change["statement"] for change in plan["changes"])


def test_an_empty_table_with_all_columns_is_taken(home: Path) -> None:
    """Whatever their order is, and whether ours may be null or not."""
    ours = (field(each["name"], each["type"], nullable=False) for each in SYSTEM)
    make_table(home, *ours, *USERS)

    plan = planned()

    assert (plan["effect"], plan["refusals"]) == ("nothing", [])
