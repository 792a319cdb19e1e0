"""Records of a connector that change no row: truncates, schema changes, heartbeats and the like."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oncelake.ingestion.errors import SourceTruncatedError
from oncelake.ingestion.settings import Settings
from tests.support.both_readers import Sent, classified, declared, judged
from tests.support.proof import find_problems
from tests.support.registry import framed
from tests.support.small_registry import small_registry
from tests.support.world import World, row

CONTROL: dict[str, tuple[dict[str, Any], str]] = {
    "heartbeat": ({"ts_ms": 1709210000123}, "not_a_change: a heartbeat of the connector"),
    "transaction": (
        {"status": "BEGIN", "id": "571", "event_count": None, "data_collections": None, "ts_ms": 1},
        "not_a_change: the begin or end of a transaction",
    ),
    "schema change": (
        {
            "source": {"db": "shop"},
            "ts_ms": 1,
            "databaseName": "shop",
            "schemaName": None,
            "ddl": "ALTER TABLE customers ADD COLUMN note TEXT",
            "tableChanges": [],
        },
        "source_schema_change: DDL: ALTER TABLE customers ADD COLUMN note TEXT",
    ),
}


@pytest.mark.parametrize("schemas", [False, True])
@pytest.mark.parametrize("kind", CONTROL)
def test_what_a_connector_says_of_itself_is_recognized(kind: str, schemas: bool) -> None:
    """With a reason that tells it from an envelope that is broken, and the proof agrees."""
    event, said = CONTROL[kind]
    value = {"schema": {}, "payload": event} if schemas else event
    spec = declared(format={"type": "debezium", "schemas": schemas})
    sent = [Sent(json.dumps(value).encode())]

    (found,) = judged(spec, Settings(), sent)

    assert f"{found['_reason']}: {found['_detail']}" == said
    assert len(classified(spec, Settings(), sent).bad) == 1


def test_a_heartbeat_of_avro_is_recognized_by_its_schema() -> None:
    """Its fields' names are those of the schema."""
    schema = {"type": "record", "name": "Heartbeat", "fields": [{"name": "ts_ms", "type": "long"}]}
    spec = declared(format={"type": "debezium", "encoding": "avro"})
    with small_registry() as registry:
        sent = [Sent(framed(registry.add(schema), b"\x02"))]
        (found,) = judged(spec, registry.settings, sent)
        bad = classified(spec, registry.settings, sent).bad

    assert (found["_reason"], found["_detail"]) == (
        "not_a_change",
        "schema id 1: a heartbeat of the connector",
    )
    assert len(bad) == 1


@pytest.mark.kafka
def test_a_truncate_stops_the_run_where_that_is_declared(world: World) -> None:
    """Nothing of its batch is written until the declaration says that it may wait."""
    world.declare(format={"type": "debezium", "on_truncate": "stop"})
    created = {"op": "c", "before": None, "after": row(1, "a")}
    world.send(created)
    world.run()
    truncate = {"op": "t", "before": None, "after": None, "source": {"lsn": 7}}
    world.send({**created, "after": row(2, "b")}, truncate)
    for _ in range(2):
        with pytest.raises(SourceTruncatedError, match="op t at lsn 7") as refused:
            world.run()
    assert (refused.value.exit_code, len(world.ledger)) == (3, 1)
    assert "`on_truncate: quarantine`, and oncelake rebuild" in refused.value.remedy

    world.declare(format={"type": "debezium"})
    world.run()

    assert [each["id"] for each in world.rows()] == [1, 2]
    assert [each["reason"] for each in world.quarantined()] == ["truncate"]
    assert find_problems(world) == ()
