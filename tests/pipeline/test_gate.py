"""What is judged of a batch before its commit: rules, guard, books, and what waits at the gate."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from oncelake.ingestion.errors import BadFieldError, BatchWithheldError, InvalidSpecError
from oncelake.ingestion.lake.withheld import ROWS, read_withheld
from oncelake.ingestion.operations.decisions import reset
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.publish import publish_or_accept
from oncelake.ingestion.recovery.withheld import waiting_batch
from tests.operations.test_routes import TABLES, Shop, record
from tests.support.gate import publish, waiting, withheld_by
from tests.support.long import twins
from tests.support.proof import find_problems
from tests.support.world import World, changed, row

CHECKED = {"publish": "checked"}
NAMED = {"named": {"rule": "name IS NOT NULL", "on_miss": "refuse"}}


ON_SPARK = pytest.param("spark", marks=[pytest.mark.kafka, pytest.mark.spark])
# What the engine decides is the same; what is judged of it, and how, is tried with both elsewhere.
mostly_local = pytest.mark.parametrize("judged", ["local", *twins(ON_SPARK)], indirect=True)


@pytest.fixture(params=["local", ON_SPARK])
def judged(world: World, request: pytest.FixtureRequest) -> World:
    """A stream whose batches are decided by either engine."""
    world.settings = changed(world.settings, merge_engine=request.param)
    return world


def test_a_batch_that_misses_a_rule_is_not_there_and_waits(judged: World) -> None:
    """No row, no offset: until the producer is right, or a person accepts exactly that batch."""
    judged.declare(**CHECKED, expect=NAMED)
    judged.send(row(1, "a"))
    judged.run()
    judged.send(row(1, None), row(2, "b"), row(3, None))

    assert withheld_by(judged) == ["expect.named"]
    judged.send(row(4, None))
    assert withheld_by(judged) == ["expect.named"]
    batch = waiting(judged)
    (miss,) = batch.misses
    assert (miss.rows, miss.what) == (3, "3 rows do not meet name IS NOT NULL")
    assert {each["id"] for each in miss.examples} == {1, 3, 4}
    rows = pq.read_table(Path(str(judged.paths.gate / ROWS)))
    assert sorted(rows["id"].to_pylist()) == [1, 2, 3, 4]
    judged.send(row(5, "e"), row(6, None))

    accepted = publish(judged)

    assert (accepted.accepted, accepted.balanced, accepted.kind) == ("looked at", True, "ingest")
    assert judged.rows() == [row(1, None), row(2, "b"), row(3, None), row(4, None)]
    assert read_withheld(judged.paths) is None
    assert withheld_by(judged) == ["expect.named"], "the next batch is judged for itself"
    judged.declare(**CHECKED, expect={})
    judged.run()
    assert len(judged.rows()) == 6
    assert not find_problems(judged)


@mostly_local
@pytest.mark.parametrize(
    "fields", [{}, {"apply_as_deletes": "name = 'gone'"}], ids=["plain", "deletes"]
)
def test_rules_over_a_varchar_are_judged(judged: World, fields: dict[str, str]) -> None:
    """Spark's statements know that type in tables alone."""
    rules = {"known": "name <> 'x'", "short": {"rule": "id < 9", "on_miss": "quarantine"}}
    refused = {"rule": "name <> 'never'", "on_miss": "refuse"}
    judged.declare(
        **CHECKED,
        **fields,
        schema="id INT, name VARCHAR(9)",
        expect=rules | {"refused": refused},
    )
    judged.send(row(1, "a"), row(9, "b"), row(2, "x"))

    judged.run()

    assert judged.rows() == [{"id": 1, "name": "a"}, {"id": 2, "name": "x"}]
    assert judged.ledger[-1].counts["quarantined"] == 1
    assert not find_problems(judged)
    judged.send(row(3, "never"))
    assert withheld_by(judged) == ["expect.refused"]


def test_what_misses_a_rule_goes_to_quarantine_and_is_sent_in_when_it_changes(
    judged: World,
) -> None:
    """Under the rule's name, with its bytes; the proof and the redrive judge by the same rule."""
    rule = {"rule": "length(name) < 3", "on_miss": "quarantine"}
    judged.declare(expect={"short": rule})
    judged.send(row(1, "a"), row(2, "long"), row(3, None), row(4, "b"))

    judged.run()

    assert judged.rows() == [row(1, "a"), row(4, "b")]
    assert [(bad["reason"], bad["detail"]) for bad in judged.quarantined()] == 2 * [
        ("violates_constraint", "expect short: length(name) < 3")
    ]
    assert not find_problems(judged)
    judged.declare(expect={"short": {**rule, "rule": "length(name) < 5"}})
    judged.redrive()
    assert judged.rows() == [row(1, "a"), row(2, "long"), row(4, "b")]
    judged.send(row(5, "much longer"))
    judged.run()
    assert len(judged.quarantined()) == 3
    assert not find_problems(judged)


@mostly_local
def test_a_rule_that_warns_is_counted_and_keeps_nothing_back(judged: World) -> None:
    """The row is there, and the note of its batch says how many missed."""
    judged.declare(expect={"named": "name IS NOT NULL", "late": "at > 5"})
    judged.send(row(1, None, 6), row(2, "b", 7), row(3, None, 1))

    judged.run()

    (batch,) = judged.ledger
    assert {n: c for n, c in batch.counts.items() if n.startswith("expect.")} == {
        "expect.named": 2,
        "expect.late": 1,
    }
    assert len(judged.rows()) == 3


GUARDED = {
    "rows_between": ({"rows_between": [2, 3]}, "it changes 4 rows, and 2 to 3 are meant"),
    "share_of_deletes": (
        {"share_of_deletes": 0.5},
        "it deletes 3 of the table's 4 rows, which is more than 50%",
    ),
    "new_keys": (
        {"new_keys": 0.1},
        "25% of its keys are new to the table, which is more than 10%",
    ),
    "growth": (
        {"growth": 3.5},
        "it has 4 records, more than 3.5 times the median of the last 4 batches, 1",
    ),
}


@pytest.mark.parametrize("guard", GUARDED)
def test_a_batch_that_differs_from_what_was_there_waits(world: World, guard: str) -> None:
    """An accident of the producer stops at the gate: it can be accepted, and ends right."""
    declared, what = GUARDED[guard]
    world.declare(apply_as_deletes="name = 'gone'")
    for number in (1, 2, 3):
        world.send(row(number, "a"))
        world.run()
    world.send(row(4, "a"))
    world.run()
    world.send(*(row(number, "gone") for number in (1, 2, 3)), row(5, "b"))
    world.declare(**CHECKED, guard=declared)

    assert withheld_by(world) == [f"guard.{guard}"]
    assert waiting(world).misses[0].what == what
    publish(world)
    assert world.rows() == [row(4, "a"), row(5, "b")]
    assert not find_problems(world)


def test_a_small_batch_is_not_judged_by_the_usual_guard(world: World) -> None:
    """`guard: true` says nothing of fewer than 100 records."""
    world.declare(**CHECKED, guard=True, apply_as_deletes="name = 'gone'")
    world.send(row(1, "a"))
    world.run()
    world.send(row(1, "gone"))
    world.run()
    world.send(*(row(number, "a") for number in range(2, 202)))
    world.run()
    assert len(world.rows()) == 200
    world.send(*(row(number, "gone") for number in range(2, 152)))
    assert withheld_by(world) == ["guard.share_of_deletes"]


def test_only_the_batch_that_was_shown_is_published(world: World) -> None:
    """Where the same offsets give another batch now, the acceptance is refused."""
    world.declare(**CHECKED, expect=NAMED)
    world.send(row(1, None), row(2, "b"))
    assert withheld_by(world) == ["expect.named"]

    shown = waiting(world).id
    world.send(row(3, None))
    assert withheld_by(world) == ["expect.named"]
    with pytest.raises(BatchWithheldError, match="not the batch that was accepted"):
        publish(world, shown)
    shown = waiting(world).id
    world.declare(**CHECKED, expect={**NAMED, "more": {"rule": "id > 1", "on_miss": "refuse"}})
    with pytest.raises(BatchWithheldError, match="not the batch that was accepted"):
        publish(world, shown)

    assert [each.name for each in waiting(world).misses] == ["expect.named", "expect.more"]
    assert world.rows() == []
    shown = waiting(world).id
    publish(world)
    assert len(world.rows()) == 3
    with pytest.raises(InvalidSpecError, match="no batch waits"):
        publish(world, shown)


def test_a_red_redrive_changes_nothing(world: World) -> None:
    """The records stay in quarantine, and nothing waits for an acceptance."""
    world.declare(
        **CHECKED, expect={"short": {"rule": "length(name) < 3", "on_miss": "quarantine"}}
    )
    world.send(row(1, "a"), row(2, "long"))
    world.run()
    world.declare(expect={"short": {"rule": "length(name) < 3", "on_miss": "refuse"}})

    with pytest.raises(BatchWithheldError, match="what is redone is not published"):
        world.redrive()

    assert world.rows() == [row(1, "a")]
    assert read_withheld(world.paths) is None
    world.declare(expect={})
    world.redrive()
    assert world.rows() == [row(1, "a"), row(2, "long")]
    assert not find_problems(world)


@pytest.mark.spark
def test_what_spark_alone_evaluates_is_judged_by_it(world: World) -> None:
    """A condition that DuckDB may answer otherwise, by the engine of this process."""
    rules = {"soundex": "soundex(name) = 'R163'", "ids": "id < 10"}
    world.declare(
        **CHECKED, expect={name: {"rule": r, "on_miss": "refuse"} for name, r in rules.items()}
    )
    world.send(row(1, "Robert"), row(2, "Rupert"))
    world.run()
    world.send(row(3, "Anna"), row(14, "Robert"))
    assert withheld_by(world) == ["expect.soundex", "expect.ids"]
    world.declare(expect={"bad": "id + 'x' > 1"})
    with pytest.raises(BadFieldError, match=r"expect\.bad"):
        world.run()


def test_a_batch_passes_once_the_producer_has_corrected_its_rows(world: World) -> None:
    """The newest row of a key is judged, so a newer record of it may let the batch pass."""
    world.declare(**CHECKED, expect=NAMED)
    world.send(row(1, None))
    assert withheld_by(world) == ["expect.named"]
    world.send(row(1, "a"))
    world.run()
    assert world.rows() == [row(1, "a")]
    assert read_withheld(world.paths) is None


def test_versions_are_judged_when_they_begin(world: World) -> None:
    """A version that is closed is of an earlier batch, whatever rule there is by now."""
    world.declare(mode="scd2", sequence_by=["at"])
    world.send(row(1, None, 1))
    world.run()
    world.declare(**CHECKED, expect=NAMED)
    world.send(row(1, "a", 2))
    world.run()
    assert len(world.rows()) == 2
    world.send(row(1, None, 3))
    assert withheld_by(world) == ["expect.named"]


def test_aggregates_are_judged_as_they_will_stand(world: World) -> None:
    """A rule over what is folded, which no record says alone."""
    rule = {"few": {"rule": "n < 3", "on_miss": "refuse"}}
    world.declare(**CHECKED, mode="aggregate", aggregates={"n": "count(*)"}, expect=rule)
    world.send(row(1, "a"), row(1, "b"))
    world.run()
    world.send(row(1, "c"))
    with pytest.raises(BatchWithheldError, match="1 row does not meet n < 3"):
        world.run()


def test_a_rebuild_judges_only_what_was_not_published(world: World) -> None:
    """What was accepted once is in the new table, too; what waits is in neither."""
    world.declare(**CHECKED, expect=NAMED)
    world.send(row(1, None), row(2, "b"))
    assert withheld_by(world) == ["expect.named"]
    publish(world)
    world.rebuild()
    assert world.rows() == [row(1, None), row(2, "b")]
    world.send(row(3, None))
    with pytest.raises(BatchWithheldError, match="what is rebuilt is not published"):
        world.rebuild()
    assert world.rows() == [row(1, None), row(2, "b")]
    assert withheld_by(world) == ["expect.named"]
    publish(world)
    world.rebuild()
    assert len(world.rows()) == 3
    assert not find_problems(world)


def test_what_waits_goes_with_an_erase_and_a_reset(world: World) -> None:
    """Its rows are no copy that outlives those of the table."""
    world.declare(**CHECKED, expect=NAMED)
    world.send(row(1, "a"))
    world.run()
    world.send(row(1, None))
    for forget in (
        lambda: erase(world.spec, world.settings, key='{"id": 1}', reason="asked", run_id="e"),
        lambda: reset(world.name, world.settings, run_id="r"),
    ):
        assert withheld_by(world) == ["expect.named"]
        forget()
        assert not (world.paths.gate / ROWS).exists()


def test_an_acceptance_is_not_taken_for_another(world: World) -> None:
    """A loss is accepted though a batch waits; the batch is accepted by its id alone."""
    world.declare(**CHECKED, expect=NAMED)
    world.send(row(1, "a"))
    world.run()
    world.send(row(2, None), row(3, "c"))
    assert withheld_by(world) == ["expect.named"]
    given = {"reason": "why", "run_id": "a"}
    accept = partial(publish_or_accept, world.spec, world.settings, lambda _: world.spark, **given)
    with pytest.raises(InvalidSpecError, match=f"--batch {waiting(world).id}"):
        accept(batch=None)
    world.forget_before(0, 2)
    row_of_loss = accept(batch=None)
    assert row_of_loss.counts["lost"] == 1
    assert waiting_batch(world.spec, world.paths) is None, "it was judged beside another position"
    world.run()
    assert world.rows() == [row(1, "a"), row(3, "c")]


@mostly_local
def test_rules_of_one_text_are_two_rules(judged: World) -> None:
    """Each has its own count, and each its own name."""
    judged.declare(expect={"one": "id > 1", "other": "id>1"})
    judged.send(row(1, "a"))
    judged.run()
    assert {n for n in judged.ledger[-1].counts if n.startswith("expect.")} == {
        "expect.one",
        "expect.other",
    }


def test_evidence_that_cannot_be_read_is_none(world: World) -> None:
    """A file that was cut short, or is of another version, stops nobody."""
    world.declare(**CHECKED, expect=NAMED)
    world.send(row(1, None))
    assert withheld_by(world) == ["expect.named"]
    for content in (b"{", b"{}", b'{"ranges": [], "misses": [], "more": 1}'):
        (world.paths.gate / "withheld.json").put(content)
        assert read_withheld(world.paths) is None
    assert withheld_by(world) == ["expect.named"]


@pytest.mark.spark
def test_an_exploded_record_keeps_its_bytes_though_spark_cuts_it_apart(world: World) -> None:
    """Statements that Spark alone evaluates, and a rule that its workers do: no byte is lost."""
    world.declare(
        schema="id INT NOT NULL, tag STRING, sound STRING",
        value_schema="id INT NOT NULL, tag ARRAY<STRING>",
        explode="tag",
        select={"sound": "soundex(tag)"},
        expect={"short": {"rule": "length(tag) < 3", "on_miss": "quarantine"}},
    )
    many = [f"t{n % 10}" for n in range(3_000)]
    records = [{"id": 1, "tag": many}, {"id": 2, "tag": [*many, "long"]}, {"id": 3, "tag": ["a"]}]
    world.send(*records)

    report = world.run()

    assert report.total("quarantined") == 1
    (bad,) = world.quarantined()
    assert json.loads(bad["value"]) == records[1]
    assert {each["id"] for each in world.rows()} == {1, 3}
    assert "evaluated_by" not in (world.ledger[-1].declaration or {})
    (said,) = find_problems(world)
    assert "proven: records 3" in said
    assert "transform: not independent: Spark itself was asked again" in said


def test_what_waits_is_none_once_the_table_has_gone_on(world: World) -> None:
    """A redrive is committed meanwhile: the batch is judged anew, and nothing of before counts."""
    quarantining = {"short": {"rule": "length(name) < 3", "on_miss": "quarantine"}}
    world.declare(**CHECKED, expect={**NAMED, **quarantining})
    world.send(row(1, "long"))
    world.run()
    world.send(row(2, "a"), row(3, "bb", 1), row(4, None))
    world.declare(expect=NAMED)
    assert withheld_by(world) == ["expect.named"]
    shown = waiting(world).id

    world.redrive()

    assert waiting_batch(world.spec, world.paths) is None
    with pytest.raises(InvalidSpecError, match="no batch waits"):
        publish(world, shown)
    assert world.rows() == [row(1, "long")]
    assert withheld_by(world) == ["expect.named"]
    assert waiting(world).id != shown


@pytest.mark.spark
@pytest.mark.filterwarnings("default")  # Of Great Expectations and what it imports.
def test_great_expectations_are_asked_before_the_commit(world: World) -> None:
    """A critical one holds the batch back; a warning does not; what a person accepts passes."""
    unique = {"type": "expect_column_values_to_be_unique", "column": "name"}
    least = {"type": "expect_column_min_to_be_between", "column": "at", "min_value": 5}
    world.declare(**CHECKED, expectations=[unique, {**least, "severity": "warning"}])
    world.send(row(1, "a", 1), row(2, "b", 2))
    world.run()
    world.send(row(3, "c", 3), row(4, "c", 4))

    assert withheld_by(world) == ["expectations"]
    (miss,) = waiting(world).misses
    assert miss.what == (
        "expect_column_values_to_be_unique(column=name) is not met: 2 unexpected (100.00 %)"
    )
    publish(world)
    assert len(world.rows()) == 4


def test_expectations_that_nobody_can_evaluate_are_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else no batch would ever pass."""
    monkeypatch.setattr("oncelake.ingestion.declaration.rules.stream.can_evaluate", lambda: False)
    world.declare(**CHECKED, expectations=[{"type": "expect_column_to_exist", "column": "id"}])
    with pytest.raises(ValidationError, match="Great Expectations is not installed"):
        world.run()


@pytest.mark.kafka
@pytest.mark.spark
def test_the_note_says_what_has_evaluated_a_condition_beside_deletes(world: World) -> None:
    """With `apply_as_deletes` Spark evaluates the `where`, too, whatever the rule would need."""
    world.declare(
        where="id > 0",
        apply_as_deletes="name = 'gone'",
        expect={"short": {"rule": "length(name) < 5", "on_miss": "quarantine"}},
    )
    world.send(row(0, "a"), row(1, "a"), row(2, "too long"), row(3, "gone"))

    world.run()

    assert world.rows() == [row(1, "a")]
    assert "evaluated_by" not in (world.ledger[-1].declaration or {})
    world.declare(apply_as_deletes=None)
    world.send(row(4, "d"))
    world.run()
    assert (world.ledger[-1].declaration or {})["evaluated_by"] == "local"


def test_of_siblings_one_that_waits_holds_back_no_other(world: World) -> None:
    """They read Kafka together; each is judged for itself, and catches up by itself."""
    orders = {**TABLES["orders"], **CHECKED}
    orders["expect"] = {"cheap": {"rule": "total < 100 OR total IS NULL", "on_miss": "refuse"}}
    shop = Shop(world, tables={**TABLES, "orders": orders}, otherwise="ignore")
    world.send(record("orders", 1, total=500), record("paid", 1), record("clicks", 0, page="/"))

    ended = shop.run_together()

    red = shop.streams["orders"]
    assert {table for table, each in ended.items() if isinstance(each, Exception)} == {"orders"}
    assert [each.name for each in waiting(red).misses] == ["expect.cheap"]
    world.send(record("orders", 2, total=5), record("paid", 2))
    publish(red)
    assert red.rows() == [{"id": 1, "total": 500}]
    assert not any(isinstance(each, Exception) for each in shop.run_together().values())
    assert [each["id"] for each in red.rows()] == [1, 2]
    assert shop.problems() == []


def test_a_batch_that_waits_means_nothing_behind_a_rewind(world: World) -> None:
    """The offsets of before are read again, and judged as what they are then."""
    world.declare(**CHECKED, expect=NAMED)
    for id in (1, 2):
        world.send(row(id, "a"))
        world.run()
    world.send(row(3, None))
    assert withheld_by(world) == ["expect.named"]
    shown = waiting(world).id

    rewind(world.spec, world.settings, to="seq:1", reason="why", run_id="back")

    assert waiting_batch(world.spec, world.paths) is None
    assert withheld_by(world) == ["expect.named"]
    assert [len(each) for each in waiting(world).ranges if len(each)] == [2]
    with pytest.raises(BatchWithheldError, match="not the batch that was accepted"):
        publish(world, shown)
    publish(world)
    assert [each["id"] for each in world.rows()] == [1, 2, 3]
    assert not find_problems(world)
