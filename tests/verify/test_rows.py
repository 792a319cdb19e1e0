"""A table's rows held against what the topic says: every way to be wrong is named by its key."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.verify.compare.rows import RowsProof, deletes_that_explain
from oncelake.ingestion.verify.coverage import Coverage
from oncelake.ingestion.verify.decode.coerce import UnprovableError
from oncelake.ingestion.verify.fold.classify import Classifier, Classifiers
from oncelake.ingestion.verify.fold.fold import rule_of
from oncelake.ingestion.verify.fold.rule import FoldContext
from oncelake.ingestion.verify.read.record import UNSEEN, Row, RowChange, text_of
from oncelake.ingestion.verify.read.snapshot import rows_in
from tests.verify.factories import P0, batch, declared, full_coverage, record, remembering, stretch

BLIND = {"earliest": {P0: 5}, "batches": {1: batch(1, stretch(0, 20))}}


def changes(spec: StreamSpec) -> dict[str, RowChange]:
    """Return four living keys, 10 to 13, of offsets 10 to 13, and a dead one, 14."""
    judge = Classifier(spec)
    values = [{"id": i, "name": f"n{i}", "at": i} for i in range(10, 15)]
    told = judge.classify([record(v["id"], v) for v in values], seq=1).changes
    return {each.key: each._replace(row=None) if "14" in each.key else each for each in told}


def row_of(key: int, **fields: Any) -> Row:
    """Return the row that key's record says, with some columns changed."""
    sent = dt.datetime.fromtimestamp(fields.get("offset", key), dt.UTC)
    given = {"id": key, "name": f"n{key}", "at": key, "topic": "t", "partition": 0, "offset": key}
    return tuple({**given, "timestamp": sent, "epoch": 1, "seq": 1, **fields}.values())


@pytest.mark.parametrize("type_", [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()])
def test_what_python_cannot_hold_is_not_provable(type_: pa.DataType) -> None:
    """The column is named."""
    days = pa.array([0, 5_000_000], pa.int32()).cast(pa.date32())
    batch = pa.record_batch({"id": [1, 2], "until": days.cast(type_)})

    with pytest.raises(UnprovableError, match="column until has a date or moment outside"):
        [*rows_in([batch])]


@contextmanager
def proof(coverage: Coverage | None = None, spec: StreamSpec | None = None) -> Iterator[RowsProof]:
    """Lend a proof of those keys."""
    spec = spec or declared()
    with remembering() as store:
        table = store.table("expected")
        table.put(changes(spec))
        coverage, classifiers = coverage or full_coverage(), Classifiers(spec, Classifier)
        rule = rule_of(
            FoldContext(spec=spec, classifiers=classifiers, store=store, coverage=coverage)
        )
        yield RowsProof(spec, rule, table, coverage, truncates={})


def differences(
    table: list[Row], coverage: Coverage | None = None, spec: StreamSpec | None = None
) -> list[str]:
    """Return the differences of a table, seen in two chunks."""
    with proof(coverage, spec) as made:
        parts = (table[: len(table) // 2], table[len(table) // 2 :])
        there = [str(each) for part in parts for each in made.differences(part)]
        return there + [str(each) for each in made.missing(lambda: ())]


SOUND = [row_of(key) for key in range(10, 14)]


def test_the_rows_that_the_topic_says_have_no_difference() -> None:
    """Equal rows, in any order, are proven."""
    with proof() as made:
        assert list(made.differences(SOUND[::-1])) == []
        assert list(made.missing(lambda: ())) == []
        assert (made.compared, list(made.limits())) == (4, [])


def test_a_missing_row_is_named() -> None:
    """A key that lives and is not there is lost."""
    assert differences(SOUND[1:]) == [
        "key (id=10) · t-0 offset 10 · batch 1: is missing from the table"
    ]


@pytest.mark.parametrize("at", [0, 3], ids=["same chunk", "another chunk"])
def test_a_row_that_is_there_twice_is_named(at: int) -> None:
    """The second row of a key is one too many, equal or not."""
    again = "key (id=13) · t-0 offset 13 · batch 1: is in the table more than once"

    assert differences([*SOUND, row_of(13)] if at else [row_of(13), *SOUND]) == [again]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "x"}, "column name differs: expected 'n11', found 'x'"),
        ({"name": None}, "column name differs: expected 'n11', found None"),
        ({"timestamp": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}, "column _timestamp differs"),
        ({"seq": 2}, "column _seq differs: expected 1, found 2"),
    ],
    ids=["value", "null", "timestamp", "seq"],
)
def test_a_changed_value_is_named_by_its_column(changed: dict[str, Any], said: str) -> None:
    """Every column counts, the system's too."""
    (problem,) = differences([SOUND[0], row_of(11, **changed), *SOUND[2:]])

    assert problem.startswith(
        f"key (id=11) · t-0 offset 11 · batch {changed.get('seq', 1)}: {said}"
    )


def test_a_row_that_no_record_says_is_named() -> None:
    """A key that the topic never had, and one that it deleted, should not be there."""
    problems = differences([*SOUND, row_of(99), row_of(14)])

    assert [each.partition(": ")[2].partition(":")[0] for each in problems] == [
        "is in the table, and no record of the topic says so",
        "is in the table, and t-0 offset 14 deleted it",
    ]


@pytest.mark.parametrize(
    "changed",
    [{"offset": 9}, {"epoch": 0}, {"epoch": 2}],
    ids=["offset", "earlier epoch", "later epoch"],
)
def test_a_row_of_another_record_than_the_newest_is_named(changed: dict[str, int]) -> None:
    """The row must come from the newest record of its key."""
    (problem,) = differences([row_of(10, **changed), *SOUND[1:]])

    assert "is not the row of its newest record: expected the record at t-0 offset 10" in problem


def test_a_row_from_before_coverage_is_not_compared_alone() -> None:
    """A record that Kafka no longer holds may have said anything, and is counted as unseen."""
    with proof(full_coverage(**BLIND)) as made:
        assert list(made.differences([*SOUND, row_of(3)])) == []
        assert "1 row comes from records that Kafka no longer holds" in next(made.limits())


@pytest.mark.parametrize(
    "changed", [{"seq": 2}, {"epoch": 0}, {"topic": "u"}], ids=["batch", "epoch", "topic"]
)
def test_a_row_from_before_the_coverage_was_read_by_its_batch(changed: dict[str, Any]) -> None:
    """The ledger remembers what Kafka no longer holds: at which batch each offset was read."""
    coverage = full_coverage(**{**BLIND, "begin": {P0: 0}})
    lost = row_of(3, **changed)

    (problem,) = differences([*SOUND, lost], coverage)

    assert problem.startswith("key (id=3)")


def test_a_row_from_before_the_coverage_must_have_given_way_to_newer_records() -> None:
    """Whatever it said, a newer record of its key replaces or deletes it."""
    older, dead = row_of(10, offset=3, at=4), row_of(14, offset=4, at=4)

    problems = differences([older, *SOUND[1:], dead], full_coverage(**BLIND))

    assert ["id=10" in problems[0], "id=14" in problems[1], len(problems)] == [True, True, 2]


def test_a_late_winner_from_before_the_coverage_may_stay() -> None:
    """With a declared order a record from before may be the newest of its key."""
    assert differences([row_of(10, offset=3, at=77), *SOUND[1:]], full_coverage(**BLIND)) == []


def test_by_offset_alone_nothing_from_before_the_coverage_may_stay() -> None:
    """Without a declared order, a row from before a seen record of its key is wrong."""
    coverage = full_coverage(**BLIND, is_ordered=False)

    (problem,) = differences(
        [row_of(10, offset=3, at=77), *SOUND[1:]], coverage, declared(sequence_by=[])
    )

    assert "is not the row of its newest record" in problem


def test_a_missing_row_is_excused_only_by_a_remembered_delete_beyond_coverage() -> None:
    """The engine must remember the delete; and where nothing could delete, nothing excuses."""
    delete = RowChange(key="[10]", place=(1, 50, "t", 0, 3, 0), row=None, seq=1)
    for coverage, excused in ((full_coverage(**BLIND), True), (full_coverage(), False)):
        with proof(coverage) as made:
            list(made.differences(SOUND[1:]))
            problems = list(made.missing(lambda: [[delete]]))
            assert (problems == [], made.explained) == (excused, int(excused))
    assert len(differences(SOUND[1:], full_coverage(**BLIND))) == 1


def test_a_delete_explains_only_what_it_has_beaten_unseen() -> None:
    """A delete that can be seen is the topic's to tell, and an older one beats nothing."""
    coverage, living = full_coverage(**BLIND), changes(declared())
    newer, older, seen = (
        RowChange(key="[10]", place=(1, at, "t", 0, offset, 0), row=None, seq=1)
        for at, offset in ((50, 3), (2, 3), (50, 8))
    )

    assert [deletes_that_explain([[each]], coverage, living) for each in (newer, older, seen)] == [
        {"[10]"},
        set(),
        set(),
    ]


def test_what_a_person_accepted_is_counted_and_not_blamed() -> None:
    """Rows that an accepted batch decided may differ; all others may not."""
    coverage = full_coverage(accepted=frozenset({1}))
    with proof(coverage) as made:
        assert list(made.differences([row_of(10, name="x"), *SOUND[1:3]])) == []
        assert list(made.missing(lambda: ())) == []
        assert made.accepted == 2


REPLAYED = {
    1: batch(1, stretch(0, 20)),
    2: batch(2, kind="accept", accepted="why"),
    3: batch(3, stretch(10, 12), kind="replay"),
    4: batch(4, kind="accept", accepted="why"),
}


@pytest.mark.parametrize(
    ("row", "through", "accepted", "said"),
    [
        pytest.param(row_of(10, seq=3), 2, 0, [], id="put back by the replay"),
        pytest.param(row_of(11, seq=3), 4, 0, [], id="put back, and accepted once more"),
        pytest.param(
            row_of(10, seq=3, name="x"), 2, 0, ["column name differs"], id="put back wrong"
        ),
        pytest.param(row_of(10, seq=3, name="x"), 4, 1, [], id="altered once more, and accepted"),
        pytest.param(row_of(10, name="x"), 2, 1, [], id="there all along, and altered"),
        pytest.param(row_of(13, seq=3), 2, 1, [], id="its record was not replayed"),
        pytest.param(row_of(10, seq=4), 2, 1, [], id="of a batch that is no replay"),
        pytest.param(row_of(10, seq=3, at=9), 2, 1, [], id="of another record"),
    ],
)
def test_what_was_put_back_after_an_acceptance_is_judged(
    row: Row, through: int, accepted: int, said: list[str]
) -> None:
    """A row that a later replay has written is right or wrong, and no accepted difference."""
    others = [each for each in SOUND if each[0] != row[0]]
    coverage = full_coverage(accepted_through=through, batches=REPLAYED)
    with proof(coverage) as made:
        found = [str(each) for each in made.differences([*others, row])]

        assert len(found) == len(said)
        assert all(what in each for what, each in zip(said, found, strict=True))
        assert (made.accepted, made.compared) == (accepted, 4 - accepted)
        assert [*made.missing(lambda: ())] == []


def test_a_column_that_nobody_knows_is_no_accepted_difference() -> None:
    """What only records had that Kafka no longer holds says nothing against a row."""
    with proof(full_coverage(accepted_through=1)) as made:
        partly = {
            key: change._replace(row=(change.row[0], UNSEEN, *change.row[2:]))
            for key, change in changes(declared()).items()
            if change.row
        }
        made._newest.put(partly)

        assert [*made.differences([row_of(10, name="any"), row_of(11, at=11, seq=2)])] == []
        assert (made.accepted, made.partly) == (1, 1)


def test_a_moment_is_the_same_key_in_every_zone() -> None:
    """Readers of a table name UTC differently, and equal keys must have equal texts."""
    moment = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
    zones = (dt.UTC, ZoneInfo("UTC"), ZoneInfo("Asia/Tokyo"))

    assert len({text_of([moment.astimezone(zone), 1]) for zone in zones}) == 1
