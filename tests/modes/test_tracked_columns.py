"""A version is made where a tracked column has changed, however late its records come."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

import pytest
from deltalake import DeltaTable
from pydantic import SecretStr

from oncelake.ingestion.errors import IdentityChangedError
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.history.rewind import rewind
from tests.support.long import IS_LONG, twins
from tests.support.proof import find_problems, prove
from tests.support.world import World

DECLARED: Final = {
    "schema": "id INT NOT NULL, city STRING, rate DOUBLE, visits INT, at INT NOT NULL",
    "mode": "scd2",
    "sequence_by": ["at"],
    "track": ["city", "rate"],
    "apply_as_deletes": "city = 'gone'",
}
Sent = dict[str, Any]
Version = tuple[Any, ...]


def some_records(dice: random.Random, count: int) -> list[Sent]:
    """Return records of few keys and few values, in no order of time, some at the same time."""
    return [
        {
            "id": dice.randrange(3),
            "city": dice.choice(["Ulm", "Ulm", "Bonn", None, "gone"]),
            "rate": dice.choice([*[1.5] * 6, 0.0, -0.0, None]),
            "visits": visits,
            "at": dice.randrange(count),
        }
        for visits in range(count)
    ]


def versions_of(records: Iterable[Sent]) -> list[Version]:
    """Return the history of records of one partition, as docs/modes.md describes it."""
    versions: list[Version] = []
    lines: dict[int, list[Sent]] = {}
    for record in sorted(records, key=lambda it: it["at"]):
        lines.setdefault(record["id"], []).append(record)
    for line in lines.values():
        shown = [
            one
            for before, one in pairwise([None, *line])
            if one
            and (
                not before
                or "gone" in (one["city"], before["city"])
                or (one["city"], one["rate"]) != (before["city"], before["rate"])
            )
        ]
        for one, following in pairwise([*shown, None]):
            if one and one["city"] != "gone":
                end = following and following["at"]
                versions.append((*one.values(), one["at"], end, end is None))
    return sorted(versions, key=repr)


def history_of(world: World) -> list[Version]:
    """Return the versions that are in the table, without what Kafka says of them."""
    names = ["id", "city", "rate", "visits", "at", "valid_from", "valid_to", "current"]
    rows = [row for batch in world.paths.table.scan(names) for row in batch.to_pylist()]
    return sorted((tuple(row[name] for name in names) for row in rows), key=repr)


def send(world: World, records: Iterable[Sent]) -> None:
    """Send records to one partition."""
    for each in records:
        world.producer.produce(world.topic, json.dumps(each).encode(), partition=0)
    assert world.producer.flush(30) == 0


def at(moment: int, city: str, visits: int = 0) -> Sent:
    """Return a record of key 1."""
    return {"id": 1, "city": city, "rate": None, "visits": visits, "at": moment}


def made(world: World, *batches: list[Sent], **declared: Any) -> list[dict[str, int]]:
    """Read records, batch by batch; return what was counted of each."""
    world.declare(**{**DECLARED, **declared})
    counted = []
    names = ("inserted", "closed", "unchanged", "untracked", "withdrawn", "restored")
    for records in batches:
        send(world, records)
        world.run()
        counts = world.ledger[-1].counts
        counted.append({name: counts[name] for name in names if counts.get(name)})
    return counted


ON_SPARK = pytest.param("delta", "spark", marks=[pytest.mark.spark, pytest.mark.kafka])


@pytest.mark.parametrize(
    ("sink", "engine"),
    [("delta", "local"), *twins(ON_SPARK, ("iceberg", "local"), ("postgres", "local"))],
)
@pytest.mark.parametrize("seed", range(6 if IS_LONG else 1))
def test_the_history_is_that_of_all_records_wherever_they_are_cut(
    world: World, sink: str, engine: str, seed: int, request: pytest.FixtureRequest
) -> None:
    """Late records, deletes and equal times included; every batch balances, and is proven."""
    dice = random.Random(seed)
    update: dict[str, Any] = {"merge_engine": engine}
    if sink == "postgres":
        update["postgres"] = SecretStr(request.getfixturevalue("postgres_address"))
    world.settings = world.settings.model_copy(update=update)
    world.declare(**DECLARED, sink=sink)
    # A batch takes Spark some hundred times as long as it takes this process.
    count = 2 if engine == "spark" and not IS_LONG else 5
    records = some_records(dice, 60)
    cuts = [0, *sorted(dice.sample(range(1, len(records)), count)), len(records)]

    for start, end in pairwise(cuts):
        send(world, records[start:end])
        report = world.run()
        assert (report.is_balanced, report.engine) == (True, engine)
        assert history_of(world) == versions_of(records[:end])

    for name in ("untracked", "withdrawn", "restored", "closed") if seed == 0 else ():
        assert sum(row.counts.get(name, 0) for row in world.ledger) > 0, name
    assert find_problems(world) == ()


def test_a_record_without_a_change_is_no_version(world: World) -> None:
    """The version stays as it is, with the values of its own record."""
    counts = made(world, [at(1, "Ulm", 1)], [at(2, "Ulm", 2)], [at(3, "Bonn", 3)])

    assert counts == [
        {"inserted": 1},
        {"unchanged": 1, "untracked": 1},
        {"inserted": 1, "closed": 1},
    ]
    assert [row[3:] for row in history_of(world)] == [(3, 3, 3, None, True), (1, 1, 1, 3, False)]
    assert find_problems(world) == ()


def test_a_late_record_makes_and_unmakes_versions(world: World) -> None:
    """Ulm, Ulm, Bonn: between the first two comes Bonn, and behind them Ulm; then Bonn is late."""
    counts = made(
        world,
        [at(1, "Ulm"), at(5, "Ulm"), at(9, "Bonn")],
        [at(3, "Bonn")],
        [at(7, "Bonn")],
        [at(6, "Ulm")],
    )

    assert counts == [
        {"inserted": 2, "unchanged": 1, "untracked": 1},
        {"inserted": 1, "closed": 1, "restored": 1},
        {"inserted": 1, "closed": 1, "withdrawn": 1},
        {"unchanged": 1, "untracked": 1},
    ]
    assert [row[5:] for row in history_of(world) if row[1] == "Bonn"] == [
        (3, 5, False),
        (7, None, True),
    ]
    seqs = {
        row["at"]: row["_seq"]
        for row in DeltaTable(world.paths.data.path).to_pyarrow_table().to_pylist()
    }
    assert seqs == {1: 1, 3: 2, 5: 1, 7: 3}
    assert find_problems(world) == ()


def test_a_delete_between_two_equal_records_counts_as_a_change(world: World) -> None:
    """Also a delete that comes late."""
    counts = made(world, [at(1, "Ulm"), at(5, "Ulm")], [at(3, "gone")])

    assert counts[1] == {"closed": 1, "restored": 1}
    assert [row[5:] for row in history_of(world)] == [(1, 3, False), (5, None, True)]
    assert find_problems(world) == ()


def test_what_is_read_again_changes_nothing(world: World) -> None:
    """Records that are no version are not remembered twice."""
    made(world, [at(1, "Ulm"), at(5, "Ulm"), at(9, "Bonn")], [at(3, "Bonn")])
    before = history_of(world)
    remembered = DeltaTable(world.paths.tombstones.path).count()

    world.replay()

    assert world.ledger[-1].counts["unchanged"] == 4
    assert (history_of(world), DeltaTable(world.paths.tombstones.path).count()) == (
        before,
        remembered,
    )
    assert find_problems(world) == ()


def test_a_rewind_remembers_what_it_did(world: World) -> None:
    """A record that an undone batch had hidden is a version, and the other way round."""
    made(world, [at(1, "Ulm"), at(5, "Ulm")], [at(3, "Bonn"), at(9, "Bonn")], [at(7, "Bonn")])
    after = history_of(world)

    rewind(world.spec, world.settings, to="seq:1", reason="a test", run_id="r")

    assert [row[5:] for row in history_of(world)] == [(1, None, True)]
    world.run()
    assert history_of(world) == after
    assert find_problems(world) == ()


def test_an_erased_key_is_not_remembered(world: World) -> None:
    """Records that are no version are gone, too."""
    made(world, [at(1, "Ulm"), at(5, "Ulm"), {**at(2, "Bonn"), "id": 2}])

    erase(world.spec, world.settings, key='{"id": 1}', reason="a test", run_id="r")

    assert DeltaTable(world.paths.tombstones.path).count() == 0
    assert [row[0] for row in history_of(world)] == [2]
    assert prove(world).differences == ()


def test_lost_records_that_were_no_version_are_missed(world: World) -> None:
    """A late record would make another history."""
    made(world, [at(1, "Ulm"), at(5, "Ulm")])
    world.paths.tombstones.delete_all()
    send(world, [at(3, "Bonn")])

    with pytest.raises(Exception, match="holds 0 rows of batch 1, which wrote 1"):
        world.run()


@pytest.mark.parametrize("before", [[], ["city"]], ids=["none", "fewer"])
def test_other_tracked_columns_are_another_table(world: World, before: list[str]) -> None:
    """What they were decides which rows there are; their order does not."""
    made(world, [at(1, "Ulm"), at(5, "Ulm")], track=before)
    world.declare(track=DECLARED["track"])

    with pytest.raises(IdentityChangedError, match="oncelake rebuild") as raised:
        world.run()

    assert "scd2 that tracks city, rate" in str(raised.value)
    world.rebuild()
    world.declare(track=["rate", "city"])
    world.run()
    assert [row[5:] for row in history_of(world)] == [(1, None, True)]
    assert find_problems(world) == ()


def test_what_was_proven_stays_proven_when_kafka_deletes_it(world: World) -> None:
    """A later version is compared with the records that the proof remembers, and that were none."""
    made(world, [at(1, "Ulm"), at(5, "Ulm"), at(9, "Bonn")])
    verdict = prove(world)
    assert (verdict.holds, verdict.record_by_record) == (True, None)
    world.forget_before(0, 3)
    made(world, [at(3, "Bonn"), at(7, "Bonn")])

    verdict = prove(world)

    assert (verdict.holds, verdict.limits, verdict.records) == (True, (), 5)


def test_columns_that_come_later_are_null_in_what_was_remembered(world: World) -> None:
    """And those of a wider type are as they were."""
    made(world, [at(1, "Ulm"), at(5, "Ulm", 2)], schema_change="evolve")
    world.declare(
        schema=f"{DECLARED['schema'].replace('visits INT', 'visits BIGINT')}, more STRING"
    )
    send(world, [{**at(3, "Bonn", 2**40), "more": "x"}, {**at(2, "Ulm", 2**40), "more": "y"}])
    world.run()

    assert [row[3:6] for row in history_of(world)] == [(2**40, 3, 3), (0, 1, 1), (2, 5, 5)]
    assert find_problems(world) == ()
