"""Which of two records wins: the same one, on every run and in every order of arrival."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ingestion.declaration.modes import COORDINATES
from ingestion.sinks.ordering import incomparable, is_newer, latest_per_key, sort_key

pytestmark = pytest.mark.spark

RECORDS = "id INT, at INT, _topic STRING, _partition INT, _offset LONG"


def frame(spark: SparkSession, rows: list[tuple[object, ...]]) -> DataFrame:
    """A frame of records."""
    return spark.createDataFrame(rows, RECORDS)


@pytest.mark.parametrize("turned", [False, True], ids=["as sent", "turned around"])
def test_the_winner_does_not_depend_on_the_order_of_arrival(
    spark: SparkSession, turned: bool
) -> None:
    """Ties of the declared order go by topic, partition and offset."""
    rows = [(1, 5, "t", 0, 7), (1, 5, "t", 1, 2), (1, 4, "t", 1, 9), (2, 1, "t", 0, 1)]

    winners = latest_per_key(
        frame(spark, rows[::-1] if turned else rows), ["id"], ["at", *COORDINATES]
    )

    assert sorted(tuple(row) for row in winners.collect()) == [
        (1, 5, "t", 1, 2),
        (2, 1, "t", 0, 1),
    ]


def compare(spark: SparkSession, one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    """Ask whether one place is newer than another, without a declared order."""
    columns = "_epoch INT, _topic STRING, _partition INT, _offset LONG"
    ones, others = (spark.createDataFrame([each], columns) for each in (one, other))
    newer = is_newer(
        sort_key("a", COORDINATES),
        sort_key("b", COORDINATES),
        has_order=False,
        key=F.struct(F.lit(1)),
    )
    (row,) = ones.alias("a").crossJoin(others.alias("b")).select(newer).collect()
    return bool(row[0])


@pytest.mark.parametrize(
    ("one", "other", "newer"),
    [
        ((1, "t", 0, 5), (1, "t", 0, 4), True),
        ((1, "t", 0, 4), (1, "t", 0, 4), False),
        ((2, "t", 0, 0), (1, "t", 0, 9), True),
        ((1, "t", 0, 9), (2, "t", 1, 0), False),
        ((1, "t", 0, 0), (None, None, None, None), True),
    ],
    ids=["later offset", "the same", "later epoch", "earlier epoch", "nothing there"],
)
def test_offsets_order_records_of_one_partition_in_one_epoch(
    spark: SparkSession, one: tuple[object, ...], other: tuple[object, ...], newer: bool
) -> None:
    """Without a declared order an epoch beats an offset, and anything beats nothing."""
    assert compare(spark, one, other) is newer


@pytest.mark.parametrize(
    ("one", "other", "newer"),
    [
        ((1, 5, 1, 0), (1, 4, 0, 9), True),
        ((1, 4, 0, 9), (1, 5, 1, 0), False),
        ((1, 5, 1, 0), (1, 5, 0, 9), True),
        ((1, 5, 0, 7), (1, 5, 0, 7), False),
        ((2, 1, 0, 0), (1, 9, 0, 9), True),
        ((1, 9, 0, 9), (2, 1, 0, 0), False),
        ((1, 0, 0, 0), (None, None, None, None), True),
    ],
    ids=[
        "later",
        "earlier",
        "a tie goes by place",
        "the same",
        "later epoch",
        "earlier epoch",
        "nothing there",
    ],
)
def test_a_declared_order_decides_within_an_epoch(
    spark: SparkSession,
    one: tuple[int | None, ...],
    other: tuple[int | None, ...],
    newer: bool,
) -> None:
    """Epoch, then the declared order, then the place; a record is not newer than itself."""
    columns = "_epoch INT, at INT, _topic STRING, _partition INT, _offset LONG"
    sides = [
        spark.createDataFrame([(*each[:2], None if each[0] is None else "t", *each[2:])], columns)
        for each in (one, other)
    ]
    places = [sort_key(side, ["at", *COORDINATES]) for side in ("a", "b")]
    asked = is_newer(*places, has_order=True, key=F.struct(F.lit(1)))
    (row,) = sides[0].alias("a").crossJoin(sides[1].alias("b")).select(asked).collect()

    assert bool(row[0]) is newer


def test_two_partitions_without_an_order_are_incomparable(spark: SparkSession) -> None:
    """Asking which is newer raises the evidence instead of an answer."""
    with pytest.raises(Exception, match="ONCELAKE_KEY_IN_TWO_PARTITIONS") as raised:
        compare(spark, (1, "t", 0, 5), (1, "t", 1, 4))

    evidence = incomparable(str(raised.value))

    assert evidence is not None
    assert (evidence["one"]["_partition"], evidence["other"]["_partition"]) == (1, 0)


def test_an_error_that_quotes_its_statement_is_no_evidence() -> None:
    """The marker in a quoted plan, without what it would mark, hides no other error."""
    quoted = "overflow in: raise_error(concat('ONCELAKE_KEY_IN_TWO_PARTITIONS ', to_json(...)))"

    assert incomparable(quoted) is None
