"""What a run does with the records that are there."""

from __future__ import annotations

import pytest

from oncelake.ingestion.errors import (
    IdentityChangedError,
    InvalidSpecError,
    KeyInTwoPartitionsError,
)
from tests.support.long import twins
from tests.support.proof import find_problems
from tests.support.world import World, row

BAD = {
    b"garbage": "malformed_json",
    b'{"name": "no key"}': "missing_key",
    b'{"id": "x"}': "wrong_type",
    b"\xff\xfe": "invalid_utf8",
    b"": "empty_value",
    None: "tombstone_without_key",
    b'{"id": 5}{"id": 6}': "trailing_data",
    b'{"id": 5} x': "trailing_data",
}


@pytest.fixture(scope="module")
def ingested(module_world: World) -> World:
    """One batch of two partitions: rows, a key that comes often, and bad records."""
    module_world.send(*(row(1, f"v{i}") for i in range(50)), row(2, "b"), *BAD, b' {"id": 7}\n')
    module_world.send(row(3, "c"), partition=1)
    module_world.run()
    return module_world


def test_records_become_rows_and_the_books_balance(ingested: World) -> None:
    """Every record is a row, or in quarantine, and the ledger says from which offsets."""
    assert ingested.rows() == [row(1, "v49"), row(2, "b"), row(3, "c"), row(7, None)]
    (batch,) = ingested.ledger
    assert batch.balanced
    assert [(str(c.range), c.records, c.gaps) for c in batch.ranges] == [
        (f"{ingested.topic}-0 [0, 60)", 60, 0),
        (f"{ingested.topic}-1 [0, 1)", 1, 0),
    ]
    assert (batch.counts["read"], batch.counts["inserted"]) == (61, 4)


def test_the_newest_of_many_records_of_a_key_wins(ingested: World) -> None:
    """Of a key that comes many times in one batch, the last offset is the row."""
    (batch,) = ingested.ledger

    assert row(1, "v49") in ingested.rows()
    assert batch.counts["superseded"] == 49


def test_bad_records_are_kept_raw_with_their_reason(ingested: World) -> None:
    """What cannot be decoded, or lacks a key, is in quarantine with its bytes and its offset."""
    assert [(bad["_offset"], bad["value"], bad["reason"]) for bad in ingested.quarantined()] == [
        (offset, *record) for offset, record in enumerate(BAD.items(), 51)
    ]
    assert ingested.ledger[0].counts["quarantined"] == 8


def test_a_second_run_commits_nothing(ingested: World) -> None:
    """With nothing new in the topic, the Delta version stays as it was."""
    version = ingested.log.versions()[0]

    second = ingested.run()

    assert (second.seq, second.lag, second.row_count) == (1, 0, 4)
    assert (second.delta_version, second.batches) == (version, ())
    assert len(ingested.ledger) == 1


def test_an_empty_topic_makes_an_empty_table(world: World) -> None:
    """A topic without records gives a table without rows, and no batch."""
    report = world.run()

    assert (report.row_count, report.batches, report.lag) == (0, (), 0)
    assert world.rows() == []


def test_a_late_older_record_is_stale(world: World) -> None:
    """With an order the newer wins wherever it came from, in a batch and against the row.

    A late delete is a late record like any other.
    """
    world.declare(sequence_by=["at"], apply_as_deletes="name = 'gone'")
    world.send(row(1, "new", at=5), row(2, "b", at=1), row(3, "newer", at=2), row(4, "d", at=5))
    world.send(row(3, "older", at=1), partition=1)
    world.run()
    world.send(row(1, "old", at=3), partition=1)
    world.send(row(2, "c", at=2), row(4, "gone", at=3))

    world.run()

    assert world.rows() == [
        row(1, "new", at=5),
        row(2, "c", at=2),
        row(3, "newer", at=2),
        row(4, "d", at=5),
    ]
    assert world.ledger[0].counts["superseded"] == 1
    assert {n: c for n, c in world.ledger[1].counts.items() if c} == {
        "offsets": 3,
        "read": 3,
        "updated": 1,
        "stale": 2,
    }
    assert world.ledger[1].balanced


def test_a_delete_is_remembered_against_a_late_update(world: World) -> None:
    """An update older than the delete of its key does not resurrect it; a newer one does."""
    world.declare(sequence_by=["at"], apply_as_deletes="name = 'gone'")
    world.send(row(1, "a", at=1), row(2, "b", at=1))
    world.run()
    world.send(row(1, "gone", at=9), row(2, "gone", at=9))
    world.run()
    world.send(row(1, "late", at=5), row(2, "reborn", at=10))

    world.run()

    assert world.rows() == [row(2, "reborn", at=10)]
    assert world.ledger[1].counts["deleted"] == 2
    assert (world.ledger[2].counts["stale"], world.ledger[2].counts["inserted"]) == (1, 1)
    assert all(batch.balanced for batch in world.ledger)


def test_a_null_value_deletes_the_row_of_its_key(world: World) -> None:
    """A tombstone takes its key from the Kafka key; one of an absent key is counted apart."""
    world.send(row(1, "a"), row(2, "b"))
    world.run()
    world.send(None, id=1)
    world.send(None, id=77)

    world.run()

    assert world.rows() == [row(2, "b")]
    assert (world.ledger[1].counts["deleted"], world.ledger[1].counts["deleted_absent"]) == (1, 1)
    assert world.ledger[1].balanced


def test_tombstones_without_an_order_are_quarantined_or_ignored_as_declared(world: World) -> None:
    """Where a null value has no place in the order, the stream's choice is what happens."""
    world.declare(sequence_by=["at"])
    world.send(row(1, "a", at=1))
    world.send(None, id=1)
    world.run()
    world.declare(tombstones="ignore")
    world.send(None, id=1)

    world.run()

    assert world.rows() == [row(1, "a", at=1)]
    assert [bad["reason"] for bad in world.quarantined()] == ["tombstone_without_order"]
    assert [batch.counts["ignored"] for batch in world.ledger] == [0, 1]


def test_kafkas_timestamp_is_an_order_for_tombstones_too(world: World) -> None:
    """Sequenced by ``_timestamp``, a null value has its place and deletes."""
    world.declare(sequence_by=["_timestamp"])
    world.send(row(1, "a"), row(2, "b"))
    world.send(None, partition=1, id=1)

    world.run()

    assert world.rows() == [row(2, "b")]
    assert world.ledger[0].balanced


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("condition", ["nosuch(id)", "id + 1"])
def test_a_condition_that_spark_does_not_understand_is_refused(
    world: World, condition: str
) -> None:
    """A wrong ``apply_as_deletes`` is an error of the declaration, before anything is read."""
    world.declare(apply_as_deletes=condition)
    world.send(row(1, "a"))

    with pytest.raises(InvalidSpecError, match="apply_as_deletes"):
        world.run()

    assert not world.log.exists


def test_the_first_run_says_where_deletes_go(world: World) -> None:
    """Null values that no order can place are noticed once, when the table is made."""
    world.declare(sequence_by=["at"])
    world.send(row(1, "a", 1))

    first, second = world.run(), world.run()

    assert [note.partition(";")[0] for note in first.notices if "null value" in note]
    assert not [note for note in second.notices if "null value" in note]


def test_a_batch_where_all_is_quarantined_moves_the_offsets(world: World) -> None:
    """Nothing but bad records is still one commit, with no row, and is not read again."""
    world.send(b"no", b"nothing")

    first = world.run()
    second = world.run()

    assert (first.seq, first.row_count, first.lag) == (1, 0, 0)
    assert second.batches == ()
    assert len(world.quarantined()) == 2
    assert world.ledger[0].balanced


@pytest.mark.parametrize("in_one_batch", [True, False], ids=["one batch", "two runs"])
def test_one_key_in_two_partitions_needs_an_order(world: World, in_one_batch: bool) -> None:
    """Without one, a key in two partitions stops the run; with one, a rebuild goes on."""
    world.send(row(1, "a"))
    if not in_one_batch:
        world.run()
    world.send(row(1, "b"), partition=1)

    with pytest.raises(KeyInTwoPartitionsError) as refused:
        world.run()

    places = (f"{world.topic}-0 offset 0", f"{world.topic}-1 offset 0")
    for part in ("id=1", *places, "sequence_by", f"oncelake rebuild {world.topic}"):
        assert part in str(refused.value)
    assert world.log.last_seq(world.topic) == (0 if in_one_batch else 1)

    world.declare(sequence_by=["_timestamp"])
    with pytest.raises(IdentityChangedError, match=f"oncelake rebuild {world.topic}"):
        world.run()
    world.rebuild()

    assert world.rows() == [row(1, "b")]
    assert find_problems(world) == ()


@pytest.mark.parametrize("engine", ["auto", "spark"])
@pytest.mark.parametrize("deletes", ["hard", *twins("soft")])
@pytest.mark.parametrize("again", [row(1, "b"), None])
def test_a_deleted_key_does_not_come_back_in_another_partition(
    world: World, engine: str, deletes: str, again: dict[str, object] | None
) -> None:
    """Without an order nothing says whether the row is newer than the delete."""
    world.declare(deletes=deletes)
    world.send(row(1, "a"), None, id=1)
    world.run()
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    world.send(again, partition=1, id=1)

    places = rf"{world.topic}-1 offset 0 and from {world.topic}-0 offset 1"
    with pytest.raises(KeyInTwoPartitionsError, match=rf"\(id=1\) came from {places}"):
        world.run()

    assert world.log.last_seq(world.topic) == 1


@pytest.mark.parametrize("engine", ["auto", *twins("spark")])
@pytest.mark.parametrize(
    ("type_", "ids"),
    [
        ("DECIMAL(20, 0)", [12345678901234567891, 12345678901234567892]),
        ("DECIMAL(18, 4)", ["12345678901234.5677", "12345678901234.5678"]),
        ("TIMESTAMP", ["9999-06-05T12:34:56.789123Z", "9999-06-05T12:34:56.789124Z"]),
    ],
)
def test_a_row_is_found_by_a_key_of_many_digits(
    world: World, engine: str, type_: str, ids: list[object]
) -> None:
    """Statistics of such a column are not exact: no file is skipped by them."""
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    lenient = {} if type_ == "TIMESTAMP" else {"id": "lenient"}
    world.declare(schema=f"id {type_} NOT NULL, at INT", types=lenient)
    world.send(*({"id": id, "at": 1} for id in ids))
    world.run()
    world.send(*({"id": id, "at": 2} for id in ids))
    world.run()
    world.send(None, id=ids[0])
    world.run()

    assert [row["at"] for row in world.rows()] == [2]
    assert [batch.counts["inserted"] for batch in world.ledger] == [2, 0, 0]
    assert find_problems(world) == ()


@pytest.mark.parametrize("engine", ["auto", *twins("spark")])
def test_a_key_may_be_a_varchar(world: World, engine: str) -> None:
    """Its table is made without statistics, which Delta keeps of none, and rows are found by it."""
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    world.declare(schema="id VARCHAR(3) NOT NULL, at INT")
    world.send({"id": "a", "at": 1}, {"id": "b", "at": 1})
    world.run()
    world.send({"id": "a", "at": 2}, {"id": "abcd", "at": 2})
    world.send(None, id="b")
    world.run()

    assert world.rows() == [{"id": "a", "at": 2}]
    assert [bad["reason"] for bad in world.quarantined()] == ["too_long"]
    assert find_problems(world) == ()


def test_a_key_column_may_be_called_like_kafkas_own(world: World) -> None:
    """Columns named key, value, offset or s get in nobody's way."""
    world.declare(schema="key STRING NOT NULL, value INT, offset INT, s INT, t INT", keys=["key"])
    world.send({"key": "a'`\\\"é", "value": 1, "offset": 2, "s": 3, "t": 4})
    world.run()
    world.send({"key": "a'`\\\"é", "value": 9, "offset": 2, "s": 3, "t": 4})

    world.run()

    assert world.rows() == [{"key": "a'`\\\"é", "value": 9, "offset": 2, "s": 3, "t": 4}]


@pytest.mark.kafka
@pytest.mark.spark
def test_batches_are_bounded_and_contiguous(world: World) -> None:
    """With a small limit one run makes several batches, each beginning where the last ended."""
    world.declare(max_offsets_per_trigger=4)
    world.send(*(row(i, "a") for i in range(10)))

    report = world.run()

    assert [batch.seq for batch in report.batches] == [1, 2, 3]
    ends = [(c.range.start, c.range.end) for b in report.batches for c in b.ranges if c.records]
    assert ends == [(0, 4), (4, 8), (8, 10)]
    assert len(world.rows()) == 10


def test_starting_at_latest_is_resolved_once(world: World) -> None:
    """A stream that starts at the end misses nothing that comes before its second run."""
    world.declare(starting="latest")
    world.send(row(1, "before"))
    world.run()
    world.send(row(2, "after"))

    world.run()

    assert world.rows() == [row(2, "after")]
