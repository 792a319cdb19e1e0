"""What a table may be partitioned by is decided when the file is loaded."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from oncelake.ingestion.declaration.partitions import DeclaredPartition, lookup_of, parse_partition
from oncelake.ingestion.declaration.spec import StreamSpec, fingerprint, meaning

ORDERS = {
    "name": "orders",
    "topic": "orders",
    "schema": "id BIGINT NOT NULL, at TIMESTAMP, day DATE, region STRING, total DOUBLE, "
    "is_open BOOLEAN, place STRUCT<city: STRING>, more VARIANT, `a,b` INT, rate DECIMAL(2,1)",
    "keys": ["id"],
    "sink": "iceberg",
}


def spec(**fields: Any) -> StreamSpec:
    """Return the declaration of orders, with other fields."""
    return StreamSpec.model_validate({**ORDERS, **fields})


def test_a_table_is_partitioned_by_columns_and_transforms_of_them() -> None:
    """One or a list, in the order in which they are written, and printed as they are written."""
    texts = ["day(at)", "bucket(16, id)", "region", "truncate(2, a,b)", " hour( _timestamp ) "]
    found = spec(partition_by=texts)

    assert [(each.transform, each.number, each.column) for each in found.partitions] == [
        ("day", 0, "at"),
        ("bucket", 16, "id"),
        ("identity", 0, "region"),
        ("truncate", 2, "a,b"),
        ("hour", 0, "_timestamp"),
    ]
    assert [str(each) for each in found.partitions] == [*texts[:4], "hour(_timestamp)"]
    assert spec(partition_by="identity(region)").partitions == (parse_partition("region"),)
    assert spec().partitions == ()


def test_a_call_in_a_list_of_yaml_needs_no_quotes() -> None:
    """YAML takes it apart at its comma, and it is put together again."""
    text = "[day(at), bucket(16, id), 'truncate(2, a,b)', region]"
    found = spec(partition_by=yaml.safe_load(text))

    assert [*map(str, found.partitions)] == [
        *("day(at)", "bucket(16, id)", "truncate(2, a,b)", "region")
    ]
    with pytest.raises(ValidationError, match="'bucket\\(4, id' is not a column of the table"):
        spec(partition_by=["bucket(4", "id"])


def test_partitions_are_of_the_tables_columns() -> None:
    """Those that a mode makes are among them."""
    history = spec(mode="scd2", sequence_by="at", partition_by="month(valid_from)")
    by_day = {"mode": "aggregate", "keys": "region", "aggregates": {"n": "count(*)"}}
    groups = spec(**by_day, window={"column": "at", "every": "1 day"}, partition_by="window_start")

    assert str(history.partitions[0]) == "month(valid_from)"
    assert str(groups.partitions[0]) == "window_start"


def test_partitions_decide_nothing_about_records() -> None:
    """Other partitions need no redrive, and change the meaning of no row."""
    partitioned = spec(partition_by="region")

    assert fingerprint(partitioned) == fingerprint(spec())
    assert meaning(partitioned) == meaning(spec())


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ("zorder(id)", "'zorder' is no transform; there are: identity, year,"),
        ("days(at)", "'days' is no transform; did you mean `day`?"),
        ("void(id)", "'void' is no transform"),
        ("bucket(id, 16)", "takes a number and a column; write for example bucket(16, id)"),
        ("truncate(region)", "write for example truncate(10, region)"),
        ("bucket(4)", "write for example bucket(16, id)"),
        ("bucket(0, id)", "0 is not from 1 to 2147483647; write such a number"),
        ("truncate(-2, region)", "-2 is not from 1 to 2147483647"),
        ("truncate(2147483648, region)", "2147483648 is not from 1"),
        ("regio", "partition_by.0: 'regio' is not a column of the table; did you mean `region`?"),
        ("day()", "'' is not a column of the table; there are: id, at"),
        ("place.city", "place.city is a field within place; `select` it as a column of its own"),
        ("day(region)", "region is STRING, which has no `day`; it has identity, bucket, truncate"),
        (
            "hour(day)",
            "day is DATE, which has no `hour`; it has identity, year, month, day, bucket",
        ),
        ("bucket(2, is_open)", "is_open is BOOLEAN, which has no `bucket`; it has identity"),
        ("truncate(26, rate)", "26 is too much for a DECIMAL(2, 1); write at most 25"),
        ("total", "total is DOUBLE, by which no table is partitioned; name another column, or"),
        ("place", "place is STRUCT<city: STRING>, by which no table is partitioned"),
        ("more", "more is VARIANT, by which no table is partitioned"),
        (["region", "region"], "partition_by.1: region already has a field of that kind; remove"),
        (["day(at)", "hour(at)"], "partition_by.1: at already has a field of that kind"),
        (["bucket(2, id)", "bucket(2,id)"], "remove bucket(2, id), or the other"),
    ],
)
def test_what_no_table_can_be_partitioned_by_is_refused(declared: Any, says: str) -> None:
    """Each with the field to edit, and what to write instead."""
    with pytest.raises(ValidationError) as error:
        spec(partition_by=declared)

    assert says in str(error.value)


def test_two_fields_of_a_column_may_differ_in_kind() -> None:
    """As Iceberg lets them: one narrows where the other does not."""
    found = spec(partition_by=["bucket(2, id)", "truncate(100, id)", "bucket(3, id)"])

    assert len(found.partitions) == 3


@pytest.mark.parametrize("sink", ["postgres", "kafka"])
def test_a_sink_without_partitions_refuses_them(sink: str) -> None:
    """With the field to remove, and a sink that has them."""
    columns = {"schema": "id BIGINT NOT NULL, region STRING", "sink": sink}
    with pytest.raises(ValidationError, match=f"partition_by: `sink: {sink}` has no partitions"):
        spec(**columns, partition_by="region")

    assert spec(**columns, partition_by=[]).partitions == ()


def test_rows_are_sorted_by_columns_of_the_table() -> None:
    """One or a list, in the order in which they are written; they decide nothing about records."""
    found = spec(sort_by=["total", "_timestamp", "id", "is_open"])

    assert found.sort_by == ("total", "_timestamp", "id", "is_open")
    assert spec(sort_by="id").sort_by == ("id",)
    assert (fingerprint(found), meaning(found)) == (fingerprint(spec()), meaning(spec()))


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ("regio", "sort_by.0: 'regio' is not a column of the table; did you mean `region`?"),
        ("place.city", "as a column of its own, and sort by that"),
        ("day(at)", "'day(at)' is not a column of the table"),
        (["id", "more"], "sort_by.1: more is VARIANT, by which no rows are sorted; name another"),
        ("place", "place is STRUCT<city: STRING>, by which no rows are sorted"),
        (["id", "at", "id"], "sort_by.2: id is there before; remove it here"),
    ],
)
def test_what_no_rows_can_be_sorted_by_is_refused(declared: Any, says: str) -> None:
    """Each with the field to edit, and what to write instead."""
    with pytest.raises(ValidationError) as error:
        spec(sort_by=declared)

    assert says in str(error.value)


@pytest.mark.parametrize("sink", ["delta", "postgres", "kafka"])
def test_a_sink_that_sorts_nothing_refuses_an_order(sink: str) -> None:
    """With the field to remove, and a sink that sorts."""
    says = f"sort_by: `sink: {sink}` sorts no rows; remove it, or write `sink: iceberg`"
    with pytest.raises(ValidationError, match=says):
        spec(schema="id BIGINT NOT NULL, region STRING", sink=sink, sort_by="region")


def test_a_lookup_is_narrowed_by_fields_of_the_keys_alone() -> None:
    """Of any other column, a row may have been given another value since."""
    fields = tuple(map(parse_partition, ("day(at)", "bucket(4, id)", "region")))

    assert lookup_of(fields, ("id", "region")) == (
        "a batch searches the partitions of its keys alone, by bucket(4, id), region"
    )
    assert lookup_of(fields, ("other", "more")) == (
        "a batch searches each file that may have one of its keys, by the bounds of other, more, "
        "in all partitions: day(at), bucket(4, id), region does not follow from `keys`"
    )
    assert str(DeclaredPartition(transform="bucket", number=4, column="id")) == "bucket(4, id)"


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ("bucket(4, id)", "this sink has no `bucket`; write one of identity, year, month, day"),
        ("hour(at)", "this sink has no `hour`"),
        ("at", "at is TIMESTAMP, which has no `identity`; it has year, month, day"),
        ("rate", "rate is DECIMAL(2, 1), by which no table is partitioned"),
        ("month(day)", "the table has a column day_month for month(day); give yours another name"),
        ("year(day)", "the table has a column day_year for year(day)"),
    ],
)
def test_delta_has_columns_for_its_partitions(declared: str, says: str) -> None:
    """Of what its log can say as text for every reader."""
    columns = "id BIGINT NOT NULL, at TIMESTAMP, day DATE, rate DECIMAL(2, 1), day_month STRING"
    columns = f"{columns}, Day_Year INT"
    with pytest.raises(ValidationError) as error:
        spec(schema=columns, sink="delta", partition_by=declared)

    assert says in str(error.value)
