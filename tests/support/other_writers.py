"""What somebody else may do to the Delta table of a stream, by delta-rs and by Spark.

docs/other-writers.md has a row for each; ``tests.tables.test_other_writers`` does them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlparse

import pyarrow as pa
from deltalake import DeltaTable, TableFeatures, write_deltalake
from deltalake.schema import Field, PrimitiveType

from oncelake.ingestion.errors import (
    DamagedTableError,
    RefusedError,
    SchemaChangedError,
    TableAlteredError,
    TableReplacedError,
    TableRestoredError,
    TableRolledBackError,
    TableSettingsError,
)
from tests.support.world import World


@dataclass(frozen=True, kw_only=True, slots=True)
class Act:
    """What somebody does.

    Attributes:
        by_delta_rs: How delta-rs, or a hand, does it; ``None`` where it cannot.
        by_spark: The statements of Spark, of the table ``{t}``; none where it cannot.
        error: How the next run is refused; ``None`` where it is not.
        says: What it says, or what people are told of otherwise.
    """

    by_delta_rs: Callable[[World], object] | None = None
    by_spark: tuple[str, ...] = ()
    error: type[RefusedError] | None = None
    says: str = ""

    @property
    def outcome(self) -> str:
        """What becomes of the next run, as the page says it."""
        if self.error:
            return f"is refused: `{self.error.__name__}`"
        return "is told" if self.says else "goes on"


def table_of(world: World) -> DeltaTable:
    """Open the table by delta-rs."""
    return DeltaTable(world.paths.data.path)


def stranger(world: World) -> pa.Table:
    """Return a row that no record says."""
    schema = pa.schema(table_of(world).schema().to_arrow())
    return pa.Table.from_pylist([{"id": 99, "name": "stranger"}], schema=schema)


def write(world: World, rows: pa.Table | None = None, **options: Any) -> None:
    """Write to the table, by default a row that no record says."""
    rows = stranger(world) if rows is None else rows
    write_deltalake(world.paths.data.path, rows, **{"mode": "append", **options})


def append_nothing(world: World) -> None:
    """Commit no row."""
    write(world, stranger(world)[:0])


def merge(world: World) -> None:
    """Insert a row that is not there."""
    rows = stranger(world)
    merger = table_of(world).merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
    merger.when_not_matched_insert_all().execute()


def vacuum(world: World) -> None:
    """Write all files anew, and remove all that the newest version does not need."""
    table_of(world).optimize.z_order(["id"])
    table_of(world).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def commits_of(world: World) -> list[Path]:
    """List the files of the log's commits."""
    return sorted((world.paths.data.path / "_delta_log").glob("*.json"))


def clean_up_log(world: World) -> None:
    """Write a checkpoint, and remove the commits before it, as if they were old."""
    table_of(world).create_checkpoint()
    for commit in commits_of(world)[:-1]:
        os.utime(commit, (0, 0))
    table_of(world).cleanup_metadata()
    assert len(commits_of(world)) == 1


def delete_commits(world: World, *, newest: bool) -> None:
    """Delete the newest commit, or those before it."""
    for commit in commits_of(world)[-1:] if newest else commits_of(world)[:-1]:
        commit.unlink()


def put_back_older(world: World) -> None:
    """Leave what a copy of before the newest commit has."""
    newest = commits_of(world)[-1].stem
    for file in (world.paths.data.path / "_delta_log").iterdir():
        if newest in file.name:
            file.unlink()


def delete_data_file(world: World) -> None:
    """Delete a file that the newest version has."""
    os.unlink(unquote(urlparse(table_of(world).file_uris()[0]).path))


def make_anew(world: World) -> None:
    """Delete the folder, and make a table of the same columns."""
    rows = stranger(world)
    shutil.rmtree(world.paths.data.path)
    write(world, rows)


def add_column(world: World) -> None:
    """Add a column."""
    table_of(world).alter.add_columns([Field("more", PrimitiveType("string"))])


def setting(name: str, value: str) -> dict[str, Any]:
    """Return how both set a property."""
    set_in_spark = f"ALTER TABLE {{t}} SET TBLPROPERTIES ('{name}' = '{value}')"

    def act(world: World) -> None:
        table_of(world).alter.set_table_properties({name: value}, raise_if_not_exists=False)

    return {"by_delta_rs": act, "by_spark": (set_in_spark,)}


def enabling(feature: TableFeatures, name: str, value: str) -> dict[str, Any]:
    """Return how both enable a feature that delta-rs does not write."""

    def act(world: World) -> None:
        table_of(world).alter.add_feature(feature, allow_protocol_versions_increase=True)

    return {**setting(name, value), "by_delta_rs": act}


def altered(operation: str) -> dict[str, Any]:
    """Return the refusal of rows that somebody else has changed."""
    return {"error": TableAlteredError, "says": rf"rows \(version \d+, {operation}\)"}


def settings(says: str) -> dict[str, Any]:
    """Return the refusal of a property or a feature."""
    return {"error": TableSettingsError, "says": says}


def damaged(says: str) -> dict[str, Any]:
    """Return the refusal of a table whose bytes are not what they should be."""
    return {"error": DamagedTableError, "says": says}


def columns(says: str) -> dict[str, Any]:
    """Return the refusal of other columns."""
    return {"error": SchemaChangedError, "says": says}


MAPPING: Final = "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
WIDENING: Final = "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
CLUSTERED: Final = "ALTER TABLE {t} CLUSTER BY (id)"
# By their names in the page.
ACTS: dict[str, Act] = {
    "compact": Act(
        by_delta_rs=lambda world: table_of(world).optimize.compact(), by_spark=("OPTIMIZE {t}",)
    ),
    "Z-order": Act(
        by_delta_rs=lambda world: table_of(world).optimize.z_order(["id"]),
        by_spark=("OPTIMIZE {t} ZORDER BY (id)",),
    ),
    "purge": Act(by_spark=("REORG TABLE {t} APPLY (PURGE)",)),
    "vacuum": Act(
        by_delta_rs=lambda world: table_of(world).vacuum(dry_run=False),
        by_spark=("VACUUM {t}", "VACUUM {t} LITE"),
    ),
    "vacuum without retention": Act(
        by_delta_rs=vacuum,
        by_spark=(
            "OPTIMIZE {t} ZORDER BY (id)",
            "SET spark.databricks.delta.retentionDurationCheck.enabled = false",
            "VACUUM {t} RETAIN 0 HOURS",
        ),
        says="VACUUM",
    ),
    "clean up the log": Act(by_delta_rs=clean_up_log, says="no longer in the table's log"),
    "compact the log": Act(by_delta_rs=lambda world: table_of(world).compact_logs(0, 3)),
    "commit no row": Act(by_delta_rs=append_nothing, by_spark=("DELETE FROM {t} WHERE id = 333",)),
    "append": Act(
        by_delta_rs=write,
        by_spark=("INSERT INTO {t} (id, name) VALUES (99, 'stranger')",),
        **altered("WRITE"),
    ),
    "delete": Act(
        by_delta_rs=lambda world: table_of(world).delete("id = 3"),
        by_spark=("DELETE FROM {t} WHERE id = 3",),
        **altered("DELETE"),
    ),
    "update": Act(
        by_delta_rs=lambda world: table_of(world).update({"name": "'u'"}, predicate="id = 3"),
        by_spark=("UPDATE {t} SET name = 'u' WHERE id = 3",),
        **altered("UPDATE"),
    ),
    "merge": Act(
        by_delta_rs=merge,
        by_spark=(
            "MERGE INTO {t} t USING (SELECT 99 AS id) s ON s.id = t.id "
            "WHEN NOT MATCHED THEN INSERT (id) VALUES (99)",
        ),
        **altered("MERGE"),
    ),
    "overwrite": Act(
        by_delta_rs=partial(write, mode="overwrite"),
        by_spark=("INSERT OVERWRITE {t} (id, name) VALUES (99, 'stranger')",),
        **altered("WRITE"),
    ),
    "overwrite with other columns": Act(
        by_delta_rs=lambda world: write(
            world, pa.table({"id": [1]}), mode="overwrite", schema_mode="overwrite"
        ),
        **altered("WRITE"),
    ),
    "truncate": Act(
        by_delta_rs=lambda world: table_of(world).delete(),
        by_spark=("TRUNCATE TABLE {t}",),
        **altered("(DELETE|TRUNCATE)"),
    ),
    "restore": Act(
        by_delta_rs=lambda world: table_of(world).restore(3),
        by_spark=("RESTORE {t} TO VERSION AS OF 3",),
        error=TableRestoredError,
        says=r"restored the table \(version \d+\)",
    ),
    "add a column": Act(
        by_delta_rs=add_column,
        by_spark=("ALTER TABLE {t} ADD COLUMN more STRING",),
        **columns("more STRING is in the table, and not declared"),
    ),
    "rename a column": Act(
        by_spark=(MAPPING, "ALTER TABLE {t} RENAME COLUMN name TO other"),
        **settings("enabled columnMapping"),
    ),
    "drop a column": Act(
        by_spark=(MAPPING, "ALTER TABLE {t} DROP COLUMN at"), **settings("enabled columnMapping")
    ),
    "widen a type": Act(
        by_spark=(WIDENING, "ALTER TABLE {t} ALTER COLUMN at TYPE BIGINT"),
        **settings("enabled typeWidening"),
    ),
    "comment on a column": Act(
        by_delta_rs=lambda world: table_of(world).alter.set_column_metadata(
            "name", {"comment": "of others"}
        ),
        by_spark=("ALTER TABLE {t} ALTER COLUMN name COMMENT 'of others'",),
    ),
    "describe the table": Act(
        by_delta_rs=lambda world: table_of(world).alter.set_table_description("of others"),
        by_spark=("COMMENT ON TABLE {t} IS 'of others'",),
    ),
    "move a column": Act(by_spark=("ALTER TABLE {t} ALTER COLUMN at FIRST",)),
    "take NOT NULL away": Act(
        by_delta_rs=lambda world: table_of(world).alter.drop_column_not_null("id"),
        by_spark=("ALTER TABLE {t} ALTER COLUMN id DROP NOT NULL",),
    ),
    "default of a column": Act(
        by_spark=(
            "ALTER TABLE {t} SET TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')",
            "ALTER TABLE {t} ALTER COLUMN name SET DEFAULT 'x'",
        )
    ),
    "check constraint": Act(
        by_spark=("ALTER TABLE {t} ADD CONSTRAINT few CHECK (id <> 8)",), says="few: id <> 8"
    ),
    "property of a team": Act(**setting("team.owner", "sales")),
    "delta.appendOnly": Act(
        **setting("delta.appendOnly", "true"), **settings("somebody set delta.appendOnly = true")
    ),
    "delta.setTransactionRetentionDuration": Act(
        **setting("delta.setTransactionRetentionDuration", "interval 1 days"),
        **settings("somebody set delta.setTransactionRetentionDuration"),
    ),
    "delta.logRetentionDuration": Act(**setting("delta.logRetentionDuration", "interval 8 days")),
    "delta.checkpointInterval": Act(**setting("delta.checkpointInterval", "2")),
    "deletion vectors": Act(**setting("delta.enableDeletionVectors", "true")),
    "no deletion vectors": Act(**setting("delta.enableDeletionVectors", "false")),
    "change data feed": Act(**setting("delta.enableChangeDataFeed", "true")),
    "in-commit timestamps": Act(**setting("delta.enableInCommitTimestamps", "true")),
    "row tracking": Act(**setting("delta.enableRowTracking", "true")),
    "column mapping": Act(
        **enabling(TableFeatures.ColumnMapping, "delta.columnMapping.mode", "name"),
        **settings("enabled columnMapping"),
    ),
    "checkpoints of version 2": Act(
        **enabling(TableFeatures.V2Checkpoint, "delta.checkpointPolicy", "v2"),
        **settings("enabled v2Checkpoint"),
    ),
    "clustering": Act(by_spark=(CLUSTERED, "OPTIMIZE {t}")),
    "clustering and back": Act(by_spark=(CLUSTERED, "ALTER TABLE {t} CLUSTER BY NONE")),
    "drop a feature": Act(
        by_spark=(
            "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
            "ALTER TABLE {t} DROP FEATURE deletionVectors",
        )
    ),
    "shallow clone": Act(
        by_spark=("CREATE TABLE {c} SHALLOW CLONE {t}", "DELETE FROM {c} WHERE id = 3")
    ),
    "replace the table": Act(
        by_spark=("CREATE OR REPLACE TABLE {t} USING delta AS SELECT * FROM {t}",),
        error=TableReplacedError,
        says="which has id .*, the ledger knows",
    ),
    "delete a data file": Act(by_delta_rs=delete_data_file, **damaged("data file .* is missing")),
    "delete the newest commit": Act(
        by_delta_rs=partial(delete_commits, newest=True), **damaged("says that a commit is gone")
    ),
    "delete older commits": Act(
        by_delta_rs=partial(delete_commits, newest=False),
        **damaged("0.json is missing, and 4 is the newest commit"),
    ),
    "put back an older copy": Act(
        by_delta_rs=put_back_older, error=TableRolledBackError, says="ledger has seq 3"
    ),
    "delete the folder": Act(
        by_delta_rs=lambda world: shutil.rmtree(world.paths.data.path),
        error=TableReplacedError,
        says="which is gone",
    ),
    "make the table anew": Act(
        by_delta_rs=make_anew, error=TableReplacedError, says="which has id .*, the ledger knows"
    ),
}
