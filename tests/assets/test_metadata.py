"""What Dagster is told of a stream's table, by the sink that keeps it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import dagster as dg
import pytest

from oncelake.assets.asset_specs import asset_spec, side_specs
from oncelake.assets.jobs.backfill import replay_assets
from oncelake.assets.metadata import metadata_of, recovered_materializations
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.storage.location import Location
from tests.assets.conftest import batch, declared
from tests.assets.test_checks import evidence
from tests.support.world import settings_in

EngineName = Literal["local", "spark"]

SINKS: dict[str, tuple[Any, set[str], str, str, str]] = {
    "delta": ("delta", {"deltalake"}, "orders", "delta_version", "local"),
    "delta, in a catalog": (
        {"delta": {"catalog": {"glue": {"database": "shop"}}}},
        {"deltalake"}, "shop.orders", "delta_version", "local",
    ),
    "iceberg": ("iceberg", {"iceberg"}, "oncelake.orders", "table_version", "local"),
    "iceberg, named": (
        {"iceberg": {"table": "shop.sold"}}, {"iceberg"}, "shop.sold", "table_version", "local"
    ),
    "postgres": ("postgres", {"postgresql"}, "public.orders", "table_version", "local"),
    "postgres, named": (
        {"postgres": {"table": "shop.sold"}}, {"postgresql"}, "shop.sold", "table_version", "local"
    ),
    "kafka": ("kafka", set(), "oncelake.orders", "table_version", "local"),
    "kafka, named": ({"kafka": {"topic": "sold"}}, set(), "sold", "table_version", "local"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("sink", "kinds", "table", "version", "engine"), SINKS.values(), ids=SINKS.keys()
)
def test_a_table_is_called_what_its_sink_calls_it(
    tmp_path: Path, sink: Any, kinds: set[str], table: str, version: str, engine: str
) -> None:
    """Asset and materialization name sink, table, version and engine, and no other's."""
    stream = declared(tmp_path, sink=sink, backfill_from="2026-01-01")
    assert stream.spec is not None
    settings = settings_in(tmp_path, "k:1", postgres="postgresql://me@db/shop")
    found = evidence(
        tmp_path,
        batch(1, 0, 5),
        spec={"sink": sink},
        report={"engine": "local"},
        paths=StreamPaths.of("orders", settings, stream.spec.sink),
    )
    spec, told = asset_spec(stream), metadata_of(found)

    assert spec.kinds == {"kafka", "spark", *kinds}
    assert all(each.kinds == {"kafka", *kinds} for each in _replays(stream.spec))
    assert spec.metadata["dagster/table_name"] == told["dagster/table_name"] == table
    assert {name for name in told if name.endswith("version")} == {version}
    assert told["engine"] == engine


@pytest.mark.parametrize(
    ("catalog", "page"),
    [
        (
            {"unity": {"table": "main.sales.sold"}},
            "main.sales?table=sold&of=main.sales.sold&at=main/sales/sold",
        ),
        ({"glue": {"database": "shop"}}, "shop?table=orders&of=shop.orders&at=shop/orders"),
        (None, None),
    ],
    ids=["unity", "glue", "none"],
)
def test_a_table_in_a_catalog_has_a_link(
    tmp_path: Path, catalog: dict[str, Any] | None, page: str | None
) -> None:
    """By the setting, whose blanks are filled in; a table of no catalog has none."""
    link = "https://c.example/{database}?table={table}&of={name}&at={path}"
    settings = settings_in(tmp_path, "k:1", catalog_link=link)
    found = evidence(
        tmp_path,
        batch(1, 0, 5),
        spec={"sink": {"delta": {"catalog": catalog}}},
        paths=StreamPaths.of("orders", settings),
    )

    told = metadata_of(found).get("catalog")

    assert told == (dg.MetadataValue.url(f"https://c.example/{page}") if page else None)


def _replays(spec: StreamSpec) -> list[dg.AssetSpec]:
    return [each for asset in replay_assets(spec) for each in asset.specs]


@pytest.mark.parametrize(
    ("engine", "shown"), [("spark", "spark"), (None, "none"), ("local", "local")]
)
def test_an_engine_is_named_for_what_it_is(
    tmp_path: Path, engine: EngineName | None, shown: str
) -> None:
    """Spark is Spark for every sink, and a run that read nothing had none."""
    spec = {"sink": "iceberg"}

    told = metadata_of(evidence(tmp_path, batch(1, 0, 5), spec=spec, report={"engine": engine}))

    assert told["engine"] == shown


@pytest.mark.parametrize(
    ("table_id", "version"), [("t", "delta_version"), ("iceberg:t", "table_version")]
)
def test_a_recovered_batch_has_the_version_of_its_table(
    tmp_path: Path, table_id: str, version: str
) -> None:
    """The ledger tells which sink a batch was written to."""
    found = evidence(tmp_path)
    rows = (replace(batch(1, 0, 5), table_id=table_id),)
    found = replace(found, unreported=replace(found.unreported, rows=rows))

    (told,) = recovered_materializations(found, by="a run")

    assert told.metadata[version].value == 2
    assert len([name for name in told.metadata if name.endswith("version")]) == 1


@pytest.mark.parametrize(
    ("fields", "made_of"),
    [
        pytest.param({}, {"id": ["id"], "name": ["name"]}, id="as they are"),
        pytest.param(
            {"value_schema": "id INT, First STRING, last STRING",
             "select": {"name": "concat(first, last)"}},
            {"id": ["id"], "name": ["First", "last"]},
            id="selected",
        ),
        pytest.param(
            {"mode": "aggregate", "schema": "id INT NOT NULL", "aggregates": {"n": "count(*)"}},
            None,
            id="aggregated",
        ),
    ],
)  # fmt: skip
def test_columns_say_of_which_fields_they_are_made(
    tmp_path: Path, fields: dict[str, Any], made_of: dict[str, list[str]] | None
) -> None:
    """Where the declaration tells, each column leads to fields of the topic; else nothing does."""
    lineage = asset_spec(declared(tmp_path, **fields)).metadata.get("dagster/column_lineage")

    found = lineage and {
        column: [each.column_name for each in of] for column, of in lineage.deps_by_column.items()
    }
    assert found == made_of


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"deletes": "soft", "extra_fields": "keep"}, id="soft deletes"),
        pytest.param({"mode": "scd2", "sequence_by": ["_timestamp"]}, id="history"),
        pytest.param(
            {"mode": "aggregate", "schema": "id INT NOT NULL", "aggregates": {"n": "count(*)"},
             "window": {"column": "_timestamp", "every": "1 hour"}},
            id="aggregate",
        ),
    ],
)  # fmt: skip
def test_every_column_that_is_ours_is_described_in_a_sentence(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    """A reader of the catalog need not know what we call a batch, nor look at its neighbours."""
    columns = asset_spec(declared(tmp_path, **fields)).metadata["dagster/column_schema"].columns
    ours = {
        each.name: each.description or "" for each in columns if each.name not in ("id", "name")
    }

    assert {
        name for name, says in ours.items() if len(says.split()) < 5 or says[-1] != "."
    } == set()


def test_a_table_says_where_it_is_before_any_run(tmp_path: Path) -> None:
    """The assets of a stream and of the tables beside it have their folders; no store is asked."""
    stream, lake = declared(tmp_path), Location.of("s3://bucket/lake")
    assert stream.spec is not None
    specs = [asset_spec(stream, lake=lake), *side_specs(stream.spec, lake=lake)]

    assert [each.metadata["dagster/uri"] for each in specs] == [
        "s3://bucket/lake/orders",
        "s3://bucket/lake/orders__quarantine",
        "s3://bucket/lake/orders__ledger",
    ]
    other = asset_spec(declared(tmp_path, sink="iceberg"), lake=lake)
    assert "dagster/uri" not in other.metadata


def test_the_tables_beside_streams_have_a_group_of_their_own(tmp_path: Path) -> None:
    """The graph of the stream's group has none of them; their tag finds all quarantines."""
    stream = declared(tmp_path, group="sales")
    assert stream.spec is not None
    found = {each.tags["oncelake/side_table"]: each for each in side_specs(stream.spec)}

    assert {*found} == {"quarantine", "ledger"}
    assert {each.group_name for each in found.values()} == {"quarantine_and_ledger"}


def test_the_rate_of_a_few_records_is_not_zero(tmp_path: Path) -> None:
    """Three digits of it are kept; the checks' time counts as the run's."""
    found = evidence(tmp_path, batch(1, 0, 1), report={"seconds": 30.0}, seconds=2.0)

    told = metadata_of(found)

    assert (told["records_per_second"], told["duration_seconds"]) == (0.0333, 32.0)
