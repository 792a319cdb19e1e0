"""A declaration that contradicts itself cannot be built."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from oncelake.ingestion.declaration.names import name_problem, nearest_allowed
from oncelake.ingestion.declaration.spec import ABOUT_RUNS, StreamSpec, fingerprint

ORDERS = {
    "name": "orders",
    "topic": "orders",
    "schema": "id BIGINT NOT NULL, total DOUBLE, tags MAP<STRING, STRING>, at TIMESTAMP",
    "keys": ["id"],
}
GROUPS = {"mode": "aggregate", "aggregates": {"records": "count(*)"}}
DAYS = {"backfill_from": "2026-01-01"}


def spec(**fields: Any) -> StreamSpec:
    """Return the declaration of orders, with other fields."""
    return StreamSpec.model_validate({**ORDERS, **fields})


def test_three_fields_are_enough() -> None:
    """Topic, schema and keys declare a stream; the other fields have the contract's defaults."""
    found = spec()

    assert found.format.type == "json"
    assert (found.mode, found.starting.at, found.gaps) == ("upsert", "earliest", "auto")
    assert (found.extra_fields, found.max_offsets_per_trigger) == ("ignore", 1_000_000)
    assert [column.name for column in found.columns] == ["id", "total", "tags", "at"]
    assert found.subscribed == ("orders",)


def test_how_often_a_stream_is_run_decides_nothing_about_its_records() -> None:
    """Another pace needs neither a redrive nor a new table."""
    paced = spec(follow={"every_seconds": 600, "min_records": 1, "max_wait_seconds": 3600})

    assert fingerprint(paced) == fingerprint(spec())
    assert (paced.table_ddl, paced.rule) == (spec().table_ddl, spec().rule)


def test_every_field_is_known_to_decide_about_records_or_not_to() -> None:
    """A field that is added later is not taken for one that makes earlier records another's."""
    deciding = {
        *("format", "record", "ddl", "leniency", "value_ddl", "from_headers", "from_key"),
        "header_format",
        *("explode", "where", "on_filtered", "select", "transform"),
        "route",
        *("mode", "keys", "sequence_by", "aggregates", "window", "apply_as_deletes", "deletes"),
        *("ignore_null_updates", "tombstones", "key_format", "extra_fields", "sink"),
        *("on_new_field", "on_wider_type", "track"),
    }

    assert deciding ^ ABOUT_RUNS == set(StreamSpec.model_fields)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        pytest.param({"topic": None}, "topic: missing", id="no topic"),
        pytest.param({"topics": ["a"]}, "topics: declare either", id="topic and topics"),
        pytest.param({"topic": None, "topics": ["a", "a"]}, "'a' twice", id="topic twice"),
        pytest.param({"topic_pattern": "a.*"}, "by name or by pattern", id="topic and pattern"),
        pytest.param({"topic": None, "topic_pattern": "("}, "no regular expression", id="pattern"),
        pytest.param(
            {"topic": None, "topic_pattern": "a.*", "starting": {"offsets": {"a": {"0": 1}}}},
            "starting.offsets: the partitions of a pattern are not known",
            id="offsets of a pattern",
        ),
        pytest.param(
            {"renamed_from": {"x": "old"}}, "'x' is not a column", id="renamed to nothing"
        ),
        pytest.param(
            {"renamed_from": {"id": "at"}}, "'at' is still a column", id="renamed and there"
        ),
        pytest.param({"starting": "first"}, "'earliest' or 'latest'", id="starting"),
        pytest.param({"starting": {"timestamp": "2024-01-01"}}, "timezone", id="time without zone"),
        pytest.param(
            {"starting": {"at": "latest", "timestamp": "2024-01-01T00:00:00Z"}},
            "write one of `earliest`",
            id="two beginnings",
        ),
        pytest.param({"quarantine_rate": {"stop_above": 2.0}}, "from 0 to 1", id="share above 1"),
        pytest.param({"topic": ".."}, "Kafka allows", id="path for a topic"),
        pytest.param({"topic": "a b"}, "pattern", id="blank in a topic"),
        pytest.param({"keys": []}, "keys: missing", id="no keys"),
        pytest.param({"keys": ["ID"]}, "keys: 'ID' is not a column", id="key in another case"),
        pytest.param({"keys": ["id", "id"]}, "keys: names 'id' twice", id="key twice"),
        pytest.param({"keys": ["total"]}, "no reliable equality", id="float for a key"),
        pytest.param({"keys": ["_timestamp"]}, "not a column", id="our column for a key"),
        pytest.param({"sequence_by": ["att"]}, "did you mean `at`", id="unknown order"),
        pytest.param({"sequence_by": ["tags"]}, "has no order", id="map for an order"),
        pytest.param(
            {"schema": "id INT, at STRUCT<day: DATE, nth: INT>", "sequence_by": ["at"]},
            "has no order",
            id="struct for an order",
        ),
        pytest.param(
            {"sequence_by": ["at"], "tombstones": "delete"},
            "tombstones: a null value has no at",
            id="tombstones without an order",
        ),
        pytest.param({"mode": "upsrt"}, "did you mean `upsert`", id="mode"),
        pytest.param({"format": "jsn"}, "did you mean `json`", id="format"),
        pytest.param({"schema": "id"}, "expected a type", id="schema"),
        pytest.param({"apply_as_deletes": " "}, "pattern", id="empty condition"),
        pytest.param({"max_offsets_per_trigger": 0}, "number above 0", id="no offsets"),
        pytest.param({"max_offsets_per_trigger": True}, "whole number", id="true is not 1"),
        pytest.param({"quarantine_rate": {"warn_above": 0.5}}, "lies above", id="never warns"),
        pytest.param({"schedule": "hourly"}, "pattern", id="schedule"),
        pytest.param({"owners": ["bob"]}, "pattern", id="owner"),
        pytest.param(
            {"cluster_by": ["totl"]},
            "cluster_by.0: 'totl' is not a column of the table; did you mean `total`",
            id="unknown cluster column",
        ),
        pytest.param(
            {**GROUPS, "cluster_by": ["total"]},
            "cluster_by.0: 'total' is not a column of the table",
            id="cluster by a column that is folded away",
        ),
        pytest.param({**GROUPS, **DAYS}, "backfill_from: a day cannot be replayed", id="groups"),
        pytest.param(
            {"ignore_null_updates": True, **DAYS},
            "backfill_from: a day cannot be replayed",
            id="days of partial updates",
        ),
        pytest.param(
            {"format": "debezium", **DAYS},
            "backfill_from: a day cannot be replayed",
            id="days of columns that are kept",
        ),
        pytest.param(
            {
                "schema": "id INT, m ARRAY<MAP<INT, STRING>>",
                "value_schema": "id INT",
                "select": {"m": "array(map(id, 'a'))"},
                "sink": "kafka",
            },
            "m: `sink: kafka` cannot keep a MAP whose keys are not STRING",
            id="map of numbers into a topic",
        ),
        pytest.param(
            {"schema": "id INT, a STRUCT<`b-c`: INT>", "sink": {"kafka": {"format": "avro"}}},
            "schema: column 'a': 'b-c' is no name in Avro, which takes letters, digits and _ alone",
            id="name that Avro has not",
        ),
        pytest.param(
            {"sink": "postgres", **GROUPS, "aggregates": {"all": "set(at)"}},
            "all: `sink: postgres` cannot keep a ARRAY, which `set` needs; remove it",
            id="group of a type that the sink has not",
        ),
        pytest.param(
            {"sink": "iceberg", **GROUPS, "aggregates": {"few": "approx_distinct(id)"}},
            "aggregates.few: its sketch is Spark's, and `sink: iceberg` is written without Spark",
            id="sketch where Spark writes nothing",
        ),
        pytest.param(
            {**GROUPS, "renamed_from": {"at": "moment"}},
            "renamed_from.at: the table has groups, and no such column; remove it",
            id="renamed column of groups",
        ),
        pytest.param(
            {"sink": "iceberg", "aggregates": {"x": "foo bar"}},
            "aggregates: `mode: upsert` has no such thing; remove it",
            id="aggregates of another mode",
        ),
        pytest.param(
            {"sink": {"delta": {"key_index": True}}},
            "sink: `key_index`: without `deletion_vectors: true` a batch writes every file anew",
            id="index without vectors",
        ),
        pytest.param(
            {
                "sink": {"delta": {"key_index": True}},
                "mode": "append",
                "keys": [],
                "deletion_vectors": True,
            },
            "sink: `key_index`: `mode: append` looks no keys up; remove it",
            id="index of no keys",
        ),
        pytest.param(
            {"mode": "scd2", "track": ["total", "total"]},
            "track: names 'total' twice; remove one",
            id="tracked twice",
        ),
        pytest.param({"ddl": "id INT"}, "Extra inputs", id="the field's inner name"),
        pytest.param({"name": "a__b"}, "companion", id="two underscores"),
        pytest.param({"name": "type"}, "Dagster", id="reserved name"),
    ],
)
def test_a_contradiction_is_refused(fields: dict[str, Any], says: str) -> None:
    """What cannot work is refused when it is declared, and not in the middle of a run."""
    with pytest.raises(ValidationError, match=says):
        spec(**fields)


def test_an_index_without_vectors_is_for_inserts_only() -> None:
    """Where no row is ever updated, no file is written anew."""
    spec(mode="insert_only", sequence_by=[], sink={"delta": {"key_index": True}})
    with pytest.raises(ValidationError, match="without `deletion_vectors"):
        spec(mode="insert_only", sequence_by=["at"], sink={"delta": {"key_index": True}})


def in_postgres(**fields: Any) -> StreamSpec:
    """A stream whose rows PostgreSQL keeps."""
    return spec(**{"sink": "postgres", **fields})


@pytest.mark.parametrize(
    ("fields", "says", "instead"),
    [
        pytest.param(
            {"sink": {"postgres": {"table": f"public.{'t' * 55}"}}},
            "sink: the table t+ has 55 bytes, and may have 54",
            {"sink": {"postgres": {"table": f"public.{'t' * 54}"}}},
            id="table",
        ),
        pytest.param(
            {"name": "t" * 55},
            "sink: the table t+ has 55 bytes",
            {"name": "t" * 55, "sink": {"postgres": {"table": "public.shorter"}}},
            id="table of the stream's name",
        ),
        pytest.param(
            {"sink": {"postgres": {"table": f"{'s' * 64}.orders"}}},
            "sink: the schema s+ has 64 bytes, and may have 63",
            {"sink": {"postgres": {"table": f"{'s' * 63}.orders"}}},
            id="schema",
        ),
        pytest.param(
            {"schema": f"id INT, {'c' * 64} INT"},
            "schema: column c+: its name has 64 bytes, and PostgreSQL takes 63",
            {
                "schema": f"id INT, {'c' * 63} INT",
                "value_schema": f"id INT, {'c' * 64} INT",
                "select": {"c" * 63: "c" * 64},
            },
            id="column",
        ),
        pytest.param(
            {"schema": f"id INT, `{'é' * 32}` INT"},
            "its name has 64 bytes",
            {"schema": f"id INT, `{'é' * 31}` INT"},
            id="bytes of a column, and not letters",
        ),
        pytest.param(
            {"schema": "id INT, xmin BIGINT"},
            "column 'xmin': `sink: postgres` stores no 'xmin', since each of its tables has",
            {
                "schema": "id INT, x_min BIGINT",
                "value_schema": "id INT, xmin BIGINT",
                "select": {"x_min": "xmin"},
            },
            id="column of the server's own",
        ),
        pytest.param(
            {"schema": "id INT, name VARCHAR(10485761)"},
            r"column name: PostgreSQL takes at most VARCHAR\(10485760\)",
            {"schema": "id INT, name VARCHAR(10485760)"},
            id="length",
        ),
    ],
)
def test_what_postgresql_would_cut_short_is_refused_in_the_file(
    fields: dict[str, Any], says: str, instead: dict[str, Any]
) -> None:
    """No name is too long for the table or for what is derived from it; as advised it loads."""
    bare = {"schema": "id INT"}
    with pytest.raises(ValidationError, match=says):
        in_postgres(**{**bare, **fields})

    assert in_postgres(**{**bare, **instead}).sink.name == "postgres"
    assert spec(**{**bare, **fields, "sink": "delta"}).sink.name == "delta"


def test_a_table_is_clustered_by_the_columns_that_it_has() -> None:
    """A group has its aggregates, and any table what Kafka says of a record."""
    columns = ("records", "_timestamp")

    found = spec(**GROUPS, cluster_by=columns)

    assert found.cluster_by == columns
    assert spec(cluster_by="id").cluster_by == ("id",)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"cluster_by": ["id", "id"]}, "cluster_by.1: id is there before; remove it here"),
        ({"cluster_by": ["_topic", "_partition", "_offset", "_seq", "id"]}, "write at most 4"),
        ({"cluster_by": "id", "partition_by": "id"}, "clusters no table with partitions; remove"),
        ({"cluster_by": "id", "sort_by": "id", "sink": "iceberg"}, "cluster_by: `sort_by` sorts"),
        ({"cluster_by": "id", "sink": "postgres"}, "clusters no rows; remove it, or write `sink: "),
    ],
)
def test_a_table_that_cannot_be_clustered_so_is_refused(
    fields: dict[str, Any], problem: str
) -> None:
    """By the field, and what to write instead."""
    with pytest.raises(ValidationError, match=re.escape(problem)):
        spec(**fields)


def test_all_contradictions_are_found_at_once() -> None:
    """A person mends a file in one go."""
    with pytest.raises(ValidationError) as raised:
        spec(keys=["idd"], sequence_by=["att"], topic=None)

    assert all(word in str(raised.value) for word in ("'idd'", "'att'", "topic: missing"))


def test_one_column_may_stand_without_brackets() -> None:
    """A single name is a list of one, and a format may be named in one word."""
    found = spec(keys="id", sequence_by="at", topic=None, topics="orders", format="json")

    assert (found.keys, found.sequence_by, found.topics) == (("id",), ("at",), ("orders",))
    assert found.format.type == "json"


def test_an_unknown_option_of_a_format_is_refused() -> None:
    """Options stand beside the type, and a format knows its own."""
    with pytest.raises(ValidationError, match="`json` has no option `registry`"):
        spec(format={"type": "json", "registry": "http://r"})


def test_an_expectation_keeps_its_own_arguments() -> None:
    """Arguments stand beside the type, as written."""
    found = spec(
        expectations=[{"type": "expect_column_values_to_not_be_null", "column": "id"}],
    )

    assert found.expectations[0].arguments == {"column": "id"}
    assert found.expectations[0].severity == "critical"


@pytest.mark.parametrize(
    ("fields", "policy"),
    [
        pytest.param({}, "delete", id="order is the offset"),
        pytest.param({"sequence_by": ["_timestamp"]}, "delete", id="order is Kafka's time"),
        pytest.param({"sequence_by": ["id"]}, "delete", id="order is in the key"),
        pytest.param({"sequence_by": ["at"]}, "quarantine", id="order is in the value"),
        pytest.param({"sequence_by": ["at"], "tombstones": "ignore"}, "ignore", id="declared"),
    ],
)
def test_a_tombstone_deletes_only_where_its_order_is_known(
    fields: dict[str, Any], policy: str
) -> None:
    """A delete that cannot be placed is quarantined unless the stream says otherwise."""
    assert spec(**fields).tombstone_policy == policy


def test_a_declaration_cannot_be_changed() -> None:
    """What was checked stays as it was checked."""
    with pytest.raises(ValidationError, match="frozen"):
        spec().topic = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    "name", ["Orders", "my-stream", "7up", "a__b", "type", "job", "kafka", "", "ü", "x" * 101]
)
def test_a_bad_name_has_a_good_neighbour(name: str) -> None:
    """Whatever a file is called, there is an allowed name for its asset."""
    assert name_problem(name) is not None

    taken = {nearest_allowed(name)}

    assert name_problem(nearest_allowed(name)) is None
    assert name_problem(nearest_allowed(name, taken)) is None
    assert nearest_allowed(name, taken) not in taken


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"where": "id >"}, "is no SQL expression"),
        ({"where": "rand() > 0.5"}, r"has rand\(\), which answers differently"),
        ({"apply_as_deletes": "at < current_timestamp()"}, "which answers differently"),
        ({"select": {"nam": "upper(name)"}}, "'nam' is not a column of `schema`"),
        ({"value_schema": "other INT"}, "nothing gives id"),
        ({"transform": "no_such_package.clean"}, "the project has no module `no_such_package`"),
        ({"transform": "os.system"}, "the project has no module `os`"),
        ({"transform": "pyspark.sql.functions.broadcast"}, "and be no library"),
        ({"where": "reflect('java.lang.System', 'getenv', 'X') > ''"}, r"has reflect\(\)"),
        (
            {"transform": "tests.support.transforms.doubling", "select": {"id": "id"}},
            "either `select` or `transform`",
        ),
    ],
    ids=[
        "syntax",
        "chance",
        "the clock",
        "column",
        "missing",
        "module",
        "Python's",
        "library",
        "Java",
        "both",
    ],
)
def test_a_transformation_that_cannot_work_is_refused(fields: dict[str, Any], says: str) -> None:
    """What can be known without Spark is said when the file is loaded."""
    with pytest.raises(ValidationError, match=says):
        spec(**fields)


ARRAYS = {
    "schema": "id BIGINT NOT NULL, name STRING",
    "value_schema": "id BIGINT, tags ARRAY<STRING>, name STRING",
}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"explode": "tags"}, "declare the value's columns there"),
        ({**ARRAYS, "explode": "tag"}, "did you mean `tags`"),
        ({**ARRAYS, "explode": "name"}, "name is STRING; only the elements of an ARRAY"),
        ({**ARRAYS, "explode": "tags", "ignore_null_updates": True}, "filled from each other"),
    ],
    ids=["no value's columns", "unknown", "no array", "partial updates"],
)
def test_an_array_that_cannot_be_exploded_is_refused(fields: dict[str, Any], says: str) -> None:
    """With what to write instead."""
    with pytest.raises(ValidationError, match=says):
        spec(**fields)


def test_what_is_exploded_decides_what_the_rows_are() -> None:
    """A table of lines is another one than a table of orders, and knows which line a row is."""
    lines = spec(**ARRAYS, explode="tags")

    assert lines.rule == "upsert explode tags"
    assert lines.origin == ("_topic", "_partition", "_offset", "_index")
    assert lines.table_columns[-1].name == "_index"
    assert [str(column.type) for column in lines.exploded_columns] == ["BIGINT", "STRING", "STRING"]


@pytest.mark.parametrize("name", ["main", "oncelake_rebuild"])
def test_a_branch_of_the_table_itself_shows_nothing_withheld(name: str) -> None:
    """Nor does one that a rebuild fills; the message proposes another name."""
    with pytest.raises(ValidationError, match="write another name, such as audit"):
        spec(sink="iceberg", publish={"branch": name})
