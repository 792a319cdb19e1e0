"""A table that another tool has made: what a stream can keep is kept, and the rest is refused.

Before anything is read, and with a remedy that works: each is followed here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DoubleType, IntegerType, NestedField, StringType

from oncelake.ingestion.declaration.modes import OUR_COLUMNS
from oncelake.ingestion.declaration.sinks import SinkSpec
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.settings import load_settings
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, Identity
from tests.cli.shell import ORDERS, answer, declare, oncelake

DECLARED = 'topic: orders\nschema: "id INT NOT NULL, total INT{columns}"\nkeys: [id]\n'
# Delta's names of the types that these tables have.
TYPES = {"INT": "integer", "BIGINT": "long", "STRING": "string", "TIMESTAMP": "timestamp"}
OURS = tuple(part.split() for part in OUR_COLUMNS.split(", "))


def field(name: str, type_: Any, *, nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    """Return a column as Delta's log has it."""
    return {"name": name, "type": type_, "nullable": nullable, "metadata": metadata}


USERS = (field("id", "integer", nullable=False), field("total", "integer"))
SYSTEM = tuple(field(name, TYPES[word]) for name, word in OURS)


def make_table(
    home: Path,
    *fields: Mapping[str, Any],
    partitioned_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    protocol: Mapping[str, Any] | None = None,
) -> None:
    """Write the log of an empty table of ``orders``, as another tool would."""
    actions = [
        {"protocol": protocol or {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "another",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": list(partitioned_by),
                "configuration": dict(properties or {}),
                "createdTime": 1,
            }
        },
        {"commitInfo": {"timestamp": 1, "operation": "CREATE TABLE"}},
    ]
    log = home / "lake" / "orders" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def planned() -> dict[str, Any]:
    """Return what the next run would do to the table."""
    (plan,) = answer(oncelake("plan", "--json"))["plans"]
    return dict(plan)


def refusal() -> str:
    """Return why ``plan``, and ``doctor`` alike, say that the next run is refused."""
    code, plan = oncelake("plan").exit_code, planned()
    (error,) = plan["refusals"]
    findings = answer(oncelake("doctor", "orders", "--json"))["findings"]
    assert code == 3
    assert any(finding["command"] in error["message"] for finding in findings)
    return str(error["message"])


def test_our_columns_are_put_to_an_empty_table_where_the_declaration_lets_us(home: Path) -> None:
    """A table with the user's columns alone lacks six, and the plan has the statements."""
    make_table(home, *USERS)

    assert "`schema_change: evolve` in orders.yaml" in refusal()
    declare(home, "orders", f"{ORDERS}schema_change: evolve\n")
    plan = planned()

    assert (plan["effect"], plan["refusals"]) == ("evolve", [])
    assert [change["field"] for change in plan["changes"]] == [name for name, _ in OURS]
    assert all("ADD COLUMNS" in change["statement"] for change in plan["changes"])


def test_an_empty_table_with_all_columns_is_taken(home: Path) -> None:
    """Whatever their order is, and whether ours may be null or not."""
    ours = (field(each["name"], each["type"], nullable=False) for each in SYSTEM)
    make_table(home, *ours, *USERS)

    plan = planned()

    assert (plan["effect"], plan["refusals"]) == ("nothing", [])


def kept(*features: str, reader: Sequence[str] = ()) -> dict[str, Any]:
    """Return a table whose protocol lists features."""
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": list(reader)}
    return {"protocol": {**protocol, "writerFeatures": ["invariants", *features]}}


def struct(**parts: bool) -> dict[str, Any]:
    """Return a type of integers, each of which may be null or not."""
    return {"type": "struct", "fields": [field(n, "integer", nullable=v) for n, v in parts.items()]}


NUMBERS = {"type": "array", "elementType": "integer", "containsNull": False}
NAMED = {"type": "map", "keyType": "string", "valueType": "integer", "valueContainsNull": False}


@pytest.mark.parametrize(
    ("columns", "more", "table", "said"),
    [
        pytest.param(
            ", rate DOUBLE",
            (field("rate", "double"),),
            {"partitioned_by": ["rate"]},
            "is partitioned by rate",
            id="parts",
        ),
        pytest.param(
            ", code BINARY, rate DOUBLE",
            (field("code", "binary"), field("rate", "double")),
            {"partitioned_by": ["code", "id", "rate"]},
            "is partitioned by code, rate",
            id="two parts",
        ),
        pytest.param(
            "", (), {"properties": {"delta.appendOnly": "true"}}, "appendOnly", id="append-only"
        ),
        pytest.param("", (), kept("typeWidening", reader=["typeWidening"]), "Widening", id="wider"),
        pytest.param("", (), kept("v2Checkpoint", reader=["v2Checkpoint"]), "v2Checkp", id="v2"),
        pytest.param("", (), kept("icebergCompatV2"), "enabled icebergCompatV2", id="Iceberg"),
        pytest.param("", (), kept("a_later_one"), "enabled a_later_one", id="a later feature"),
        pytest.param(
            "",
            (),
            {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
            "enabled columnMapping",
            id="column mapping",
        ),
        pytest.param(
            ", n BIGINT",
            (field("n", "long", **{"delta.identity.start": 1, "delta.identity.step": 1}),),
            kept("identityColumns"),
            "column n of",
            id="identity",
        ),
        pytest.param(", n INT", (field("n", "string"),), {}, "n is STRING in", id="type"),
        pytest.param("", (field("n", "string"),), {}, "n STRING is in the table", id="a column"),
        pytest.param(
            "",
            (field("n", "string", nullable=False),),
            {},
            "declare it as `n` STRING NOT NULL, which every record must have",
            id="a column that is NOT NULL",
        ),
        pytest.param(
            ", s STRUCT<a: INT, b: INT>",
            (field("s", struct(a=True, b=False)),),
            {},
            "s is STRUCT<a: INT, b: INT NOT NULL> in the table, declared STRUCT<a: INT, b: INT>",
            id="NOT NULL within",
        ),
        pytest.param(
            ", s ARRAY<INT>",
            (field("s", NUMBERS),),
            {},
            "s is ARRAY<INT NOT NULL>",
            id="elements that are NOT NULL",
        ),
        pytest.param(
            ", s MAP<STRING, INT>",
            (field("s", NAMED),),
            {},
            "s is MAP<STRING, INT NOT NULL>",
            id="values that are NOT NULL",
        ),
    ],
)
def test_what_no_stream_can_keep_is_refused_and_a_reset_is_the_way_out(
    home: Path, columns: str, more: Sequence[Any], table: dict[str, Any], said: str
) -> None:
    """No advice leads to a rebuild of a table into which nothing was read."""
    declare(home, "orders", DECLARED.format(columns=columns))
    make_table(home, *USERS, *more, *SYSTEM, **table)

    problem = refusal()
    done = oncelake("reset", "orders", "--yes", "--reason", "it was made by hand")

    assert said in problem
    assert "oncelake reset orders --yes" in problem
    assert "rebuild" not in problem
    assert done.exit_code == 0
    assert planned()["refusals"] == []
    assert "the first run will make the table" in oncelake("plan").stdout


def test_a_table_of_ours_that_somebody_has_made_anew_in_parts_is_refused(home: Path) -> None:
    """Its fence and its notes are in its log still; a reset is the way out."""
    make_table(home, *USERS, *SYSTEM)
    paths = StreamPaths.of("orders", load_settings())
    identity = Identity(cluster_id="c", topic_ids={"orders": "a"}, keys=("id",), order=())
    begun = CommitMetadata(
        kind="schema", seq=0, run_id="r", epoch=1, identity=identity, columns="", next=Offsets()
    )
    paths.table.commit_note(begun)
    assert planned()["refusals"] == []
    log = home / "lake" / "orders" / "_delta_log"
    made = (log / f"{0:020d}.json").read_text()
    made = made.replace('"partitionColumns": []', '"partitionColumns": ["_timestamp"]')
    (log / f"{2:020d}.json").write_text(made.replace("CREATE", "CREATE OR REPLACE"))

    problem = refusal()
    done = oncelake("reset", "orders", "--yes", "--reason", "somebody made it anew")

    assert "is partitioned by _timestamp" in problem
    assert done.exit_code == 0
    assert planned()["refusals"] == []


@pytest.mark.parametrize(
    "table",
    [
        kept("clustering", "domainMetadata"),
        kept("allowColumnDefaults"),
        kept("rowTracking", "domainMetadata"),
        kept("inCommitTimestamp"),
        kept("changeDataFeed"),
        kept("checkpointProtection"),
        kept("vacuumProtocolCheck", reader=["vacuumProtocolCheck"]),
    ],
    ids=lambda table: table["protocol"]["writerFeatures"][1],
)
def test_a_feature_that_a_stream_can_keep_is_no_reason_to_refuse(
    home: Path, table: dict[str, Any]
) -> None:
    """A table that another tool made with it is taken like any other."""
    make_table(home, *USERS, *SYSTEM, **table)

    plan = planned()

    assert (plan["effect"], plan["refusals"]) == ("nothing", [])


def test_a_column_of_others_can_be_declared_instead(home: Path) -> None:
    """What the refusal of a column that is NOT NULL says to declare is accepted."""
    make_table(home, *USERS, field("n", "string", nullable=False), *SYSTEM)
    assert "declare it as `n` STRING NOT NULL" in refusal()

    declare(home, "orders", DECLARED.format(columns=", n STRING NOT NULL"))
    plan = planned()

    assert (plan["effect"], plan["refusals"]) == ("nothing", [])


def test_a_not_null_of_others_is_dropped_where_the_declaration_lets_us(home: Path) -> None:
    """A column that is NOT NULL in the table, and nullable in the declaration, is altered."""
    make_table(home, *USERS[:1], field("total", "integer", nullable=False), *SYSTEM)
    assert "`schema_change: evolve` in orders.yaml" in refusal()

    declare(home, "orders", f"{ORDERS}schema_change: evolve\n")
    plan = planned()

    assert (plan["effect"], plan["refusals"]) == ("evolve", [])
    assert "DROP NOT NULL" in plan["changes"][0]["statement"]


CHECK = "delta.constraints.mine"


def invariant(sql: str) -> dict[str, Any]:
    """Return a column with an invariant, in place of ``total``."""
    said = json.dumps({"expression": {"expression": sql}})
    return field("total", "integer", **{"delta.invariants": said})


@pytest.mark.parametrize(
    ("declared", "sql", "said"),
    [
        pytest.param(ORDERS, "_seq > 3", "_seq is no column of `schema`", id="ours"),
        pytest.param(ORDERS, "Other.part = 1", "other is no column of `schema`", id="another"),
        pytest.param(ORDERS, "id IN (SELECT 1)", "asks another table", id="a query"),
        pytest.param(ORDERS, "total < rand()", "answers differently each time", id="by chance"),
        pytest.param(ORDERS, "total >", "is no SQL expression", id="no SQL"),
        pytest.param(
            f"{ORDERS}ignore_null_updates: true\n",
            "total > 0",
            "a record does not say all that is in its row here",
            id="partial updates",
        ),
    ],
)
def test_a_constraint_that_cannot_be_kept_is_refused_with_the_statement_that_drops_it(
    home: Path, declared: str, sql: str, said: str
) -> None:
    """The column's own invariant cannot be dropped: of such a table a reset is the way out."""
    declare(home, "orders", declared)
    make_table(home, *USERS, *SYSTEM, properties={CHECK: sql, "delta.constraints.other": "id > 0"})
    checked = refusal()
    assert oncelake("reset", "orders", "--yes", "--reason", "why not").exit_code == 0
    make_table(home, USERS[0], invariant(sql), *SYSTEM)
    of_column = refusal()

    assert said in checked
    assert f"{home}/lake/orders` DROP CONSTRAINT `mine`, or oncelake reset orders" in checked
    assert said in of_column
    assert "Next: invariant of total: oncelake reset orders --yes" in of_column


@pytest.mark.parametrize(
    "sql",
    ["total > 0", "TOTAL > `id`", "total IS NULL OR length(CAST(total AS STRING)) < 9"],
)
def test_a_constraint_over_the_declared_columns_is_kept(home: Path, sql: str) -> None:
    """Whatever Spark can evaluate of them, by whichever case its names are written."""
    make_table(home, USERS[0], invariant(sql), *SYSTEM, properties={CHECK: sql})

    plan = planned()

    assert (plan["effect"], plan["refusals"]) == ("nothing", [])


def test_a_generated_column_is_declared_by_what_computes_it(home: Path) -> None:
    """The advice is followed to the letter, and then the plan goes through."""
    computed = field("next", "integer", **{"delta.generationExpression": "total + 1"})
    make_table(home, *USERS, computed, *SYSTEM, **kept("generatedColumns"))
    advice = refusal().partition("Next: ")[2]
    assert advice.startswith(
        'next: declare it as `next` INT, by `select: {next: "total + 1"}`, as the table computes it'
    )

    columns = "schema: id INT NOT NULL, total INT, `next` INT\n"
    of_value = "value_schema: id INT NOT NULL, total INT\n"
    select = 'select: {next: "total + 1"}\n'
    declare(home, "orders", f"topic: orders\n{columns}{of_value}{select}keys: [id]\n")
    plan = planned()

    assert (plan["effect"], plan["refusals"]) == ("nothing", [])


def make_iceberg_table(
    *, by: PartitionField | None = None, more: Sequence[NestedField] = ()
) -> None:
    """Make an empty table of ``orders`` in the lake's own catalog, as another tool would."""
    sink = SinkSpec.model_validate({"iceberg": {}})
    entry: Any = StreamPaths.of("orders", load_settings(), sink).table
    entry = entry._entry
    schema = Schema(
        NestedField(1, "id", IntegerType(), required=True),
        NestedField(2, "total", IntegerType()),
        *more,
    )
    parts = PartitionSpec(by) if by else UNPARTITIONED_PARTITION_SPEC
    with entry.session() as catalog:
        catalog.create_namespace_if_not_exists(entry.identifier[:-1])
        location = entry.new_location()
        catalog.create_table(entry.identifier, schema, location, partition_spec=parts)


def test_an_iceberg_table_with_the_users_columns_alone_gets_ours(home: Path) -> None:
    """Under the same rule as a Delta table."""
    declare(home, "orders", f"{ORDERS}sink: iceberg\n")
    make_iceberg_table()

    assert "`schema_change: evolve` in orders.yaml" in refusal()
    declare(home, "orders", f"{ORDERS}sink: iceberg\nschema_change: evolve\n")
    plan = planned()

    assert (plan["effect"], plan["refusals"]) == ("evolve", [])
    assert [change["field"] for change in plan["changes"]] == [name for name, _ in OURS]


def test_a_partitioned_iceberg_table_is_taken_as_it_is(home: Path) -> None:
    """Where the declaration says nothing of partitions, or the same; else either can be changed."""
    evolving = f"{ORDERS}sink: iceberg\nschema_change: evolve\n"
    declare(home, "orders", evolving)
    make_iceberg_table(by=PartitionField(1, 1000, BucketTransform(4), "part"))
    assert planned()["refusals"] == []
    declare(home, "orders", f"{evolving}partition_by: bucket(4, id)\n")
    assert planned()["refusals"] == []
    assert planned()["lookup"] == (
        "a batch searches the partitions of its keys alone, by bucket(4, id)"
    )
    assert "  a batch searches the partitions of its keys alone" in oncelake("plan").output

    declare(home, "orders", f"{evolving}partition_by: [bucket(8, id), total]\n")
    problem = refusal()

    assert "partition_by is [bucket(8, id), total], and the table's is [bucket(4, id)]" in problem
    assert "partition_by: write `partition_by: [bucket(4, id)]`, as the table has it" in problem
    assert "or drop or rename that table, or declare another one in `sink`" in problem


def test_an_undivided_iceberg_table_stays_so(home: Path) -> None:
    """Its declaration has no partitions then."""
    declare(home, "orders", f"{ORDERS}sink: iceberg\npartition_by: total\n")
    make_iceberg_table()

    assert "partition_by: remove it, as the table has it; or drop or rename" in refusal()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        pytest.param(
            {
                "by": PartitionField(3, 1000, IdentityTransform(), "share"),
                "more": [NestedField(3, "share", DoubleType())],
            },
            "is partitioned by identity of share",
            id="partitions",
        ),
        pytest.param({"more": [NestedField(3, "n", StringType())]}, "n STRING is in", id="column"),
    ],
)
def test_an_iceberg_table_that_cannot_be_kept_gets_another_name(
    home: Path, table: dict[str, Any], said: str
) -> None:
    """A reset leaves it where it is, and so it is not what the refusal says to do."""
    declare(home, "orders", f"{ORDERS}sink: iceberg\n")
    make_iceberg_table(**table)
    problem = refusal()
    declare(home, "orders", f"{ORDERS}sink: {{iceberg: {{table: mine.orders}}}}\n")

    assert said in problem
    assert "drop or rename that table, or declare another one in `sink`" in problem
    assert not {"rebuild", "reset"} & {*problem.split()}
    assert planned()["refusals"] == []


@pytest.mark.parametrize("sink", ["delta", "iceberg"])
def test_the_proof_of_a_table_that_no_run_has_taken_says_so(home: Path, sink: str) -> None:
    """An empty one waits for its first run."""
    declare(home, "orders", f"{ORDERS}sink: {sink}\n")
    if sink == "delta":
        make_table(home, *USERS, *SYSTEM)
    else:
        make_iceberg_table()

    result = oncelake("verify", "orders")

    assert result.exit_code == 2
    assert "is empty, and no commit in its log is of this stream" in result.output
    assert "Next: oncelake run orders" in result.output
