"""Values of any type: a VARIANT and the text of its JSON are not compared, and that is said."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from oncelake.ingestion.operations.audit.audit import audit
from oncelake.ingestion.operations.audit.declare import AuditRequest
from tests.support.world import World


@pytest.mark.parametrize("sink", ["delta", "postgres"])
@pytest.mark.parametrize("schema", [None, "id INT, name STRING, v VARIANT"])
def test_they_are_named_and_accuse_no_row(
    world: World, sink: str, schema: str | None, request: pytest.FixtureRequest
) -> None:
    """Where they are declared, and where the records show them: as JSON, or as its text."""
    if sink == "postgres":
        address = SecretStr(request.getfixturevalue("postgres_address"))
        world.settings = world.settings.model_copy(update={"postgres": address})
    values: list[Any] = [{"a": 1.5}, "x", [None], 7]
    world.declare(schema="id INT NOT NULL, name STRING, v VARIANT", sink=sink)
    world.send(*({"id": n, "name": "a", "v": v} for n, v in enumerate(values)))
    world.run()
    own = {"delta": str(world.paths.data), "postgres": f"postgres:public.{world.name}"}
    asked = AuditRequest(topic=world.topic, table=own[sink], keys=["id"], schema=schema)

    report = audit(asked, world.settings, limit=10)

    assert (report.proven, report.different, report.exit_code) == (4, 0, 0)
    assert "values of any type are not compared: v" in report.limits
    assert not any("no column" in each for each in report.limits)
