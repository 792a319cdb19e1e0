"""Whatever is in the topic: each record is in the table or in quarantine, and none blocks."""

from __future__ import annotations

import json

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from oncelake.ingestion.operations.init.sample import read_sample
from oncelake.ingestion.verify.verify import verify
from tests.corpus.json_messages import MESSAGES, SCHEMA
from tests.support.long import only_long
from tests.support.odd_producer import send_with_header
from tests.support.proof import find_problems
from tests.support.world import World, row

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

ROWS = [each for each in MESSAGES if each.reason is None]


@pytest.fixture(scope="module")
def read(module_world: World) -> World:
    """The whole corpus, read in one run."""
    module_world.declare(schema=SCHEMA, quarantine_rate={"stop_above": 1.0})
    module_world.send(*(each.value for each in MESSAGES))
    module_world.run()
    return module_world


def test_every_hostile_message_is_accounted_for(read: World) -> None:
    """The books of the whole corpus balance, and the proof finds nothing against the tables."""
    (batch,) = read.ledger

    assert (batch.balanced, batch.counts["read"]) == (True, len(MESSAGES))
    assert batch.counts["inserted"] == len(ROWS)
    assert batch.counts["quarantined"] == len(MESSAGES) - len(ROWS)
    assert find_problems(read) == ()


def test_the_quarantine_keeps_each_as_it_was_and_says_why(read: World) -> None:
    """What could not be applied is there byte for byte, with the reason."""
    found = {row["_offset"]: (row["value"], row["reason"]) for row in read.quarantined()}

    bad = ((n, each) for n, each in enumerate(MESSAGES) if each.reason is not None)
    assert found == {offset: (each.value, each.reason) for offset, each in bad}


def test_fields_that_are_not_declared_are_counted_by_name(read: World) -> None:
    """What is passed over is never lost without a word."""
    (batch,) = read.ledger

    named = {n.partition(".")[2]: c for n, c in batch.counts.items() if n.startswith("extra_f")}
    assert named == {
        "": 8,
        "colour": 1,
        "``": 1,
        "x": 4,
        "y": 1,
        "lines[].x": 1,
        "`who.name`": 1,
        "_offset": 1,
        "_corrupt_record": 1,
    }


def test_a_header_whose_name_is_no_text_blocks_nothing(world: World) -> None:
    """Clients in other languages write any bytes; engine, proof and sample read the record."""
    world.declare()
    value = json.dumps(row(1, "a")).encode()
    send_with_header(world.settings.bootstrap_servers(), world.topic, value, b"\xff\xfe")
    world.send(b"garbage")
    world.run()

    assert [each["id"] for each in world.rows()] == [1]
    assert find_problems(world) == ()
    sample, _ = read_sample(world.topic, 10, world.settings).records
    assert (sample.value, sample.headers) == (value, ())


@only_long
def test_fields_may_be_kept(world: World) -> None:
    """With `extra_fields: keep` they lie in a column of their own, and the rest is as before."""
    world.declare(extra_fields="keep")
    world.send({"id": 1, "name": "a", "x": {"y": [1, "2"]}, "z": 1.50}, {"id": 2, "name": "b"})
    world.run()

    table = world.spark.read.format("delta").load(str(world.paths.data))
    kept = table.orderBy("id").select(F.to_json("_extra_fields").alias("kept")).collect()
    assert [row["kept"] for row in kept] == ['{"x":{"y":[1,"2"]},"z":1.5}', None]
    verdict = verify(world.spec, world.settings)
    assert verdict.holds
    assert verdict.limits == ("column _extra_fields was not compared",)
    assert DeltaTable(world.paths.data.path).to_pyarrow_dataset().count_rows() == 2


def test_records_with_undeclared_fields_may_be_rejected(world: World) -> None:
    """With `extra_fields: reject` such a record is quarantined, and names the field."""
    world.declare(extra_fields="reject")
    world.send({"id": 1, "name": "a", "x": 1}, {"id": 2, "name": "b"})
    world.run()

    (bad,) = world.quarantined()
    assert (bad["reason"], bad["detail"]) == ("unknown_field", "x")
    assert find_problems(world) == ()
