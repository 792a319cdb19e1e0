"""What Dagster shows of a stream before it has ever run: from its declaration alone."""

from __future__ import annotations

import datetime as dt
from typing import Final

import dagster as dg

from ingestion.declaration.ddl import DeclaredColumn, system_columns
from ingestion.declaration.loader import DeclaredStream
from ingestion.declaration.spec import StreamSpec

GROUP = "ingest"
# As Dagster names them.
_KINDS: Final[dict[str, str]] = {
    "delta": "deltalake",
    "iceberg": "iceberg",
    "postgres": "postgresql",
    "kafka": "kafka",
}

# What is in our own columns, in their order.
_IN_OUR_COLUMNS = (
    "Kafka topic of the record that wrote the row",
    "Its partition",
    "Its offset",
    "Its Kafka timestamp",
    "Life of the stream's identity",
    "Batch that wrote the row: see the ledger",
)


def asset_spec(declared: DeclaredStream) -> dg.AssetSpec:
    """Describe a stream's asset; one whose file is broken has the error as its description."""
    if declared.spec is None:
        return dg.AssetSpec(
            declared.name,
            description=f"**{declared.path.name} is broken**\n\n```\n{declared.error}\n```",
            group_name=GROUP,
            kinds={"kafka", "spark"},
        )
    spec = declared.spec
    return dg.AssetSpec(
        spec.name,
        deps=[topic_key(topic) for topic in spec.subscribed],
        description=spec.description
        or f"Kafka topic {', '.join(spec.subscribed) or spec.topic_pattern}",
        group_name=spec.group,
        owners=list(spec.owners),
        freshness_policy=_freshness_policy(spec),
        kinds={*kinds_of(spec), "spark"},
        tags={
            **spec.tags,
            "oncelake/mode": spec.mode,
            "oncelake/format": spec.format.type,
            "oncelake/delivery": spec.delivery,
        },
        metadata={
            "dagster/column_schema": column_schema(spec),
            "dagster/table_name": spec.sink.table_of(spec.name),
            "declared in": dg.MetadataValue.path(declared.path),
            "quarantine": dg.MetadataValue.asset(quarantine_key(spec.name)),
            "ledger": dg.MetadataValue.asset(ledger_key(spec.name)),
            "keys": ", ".join(spec.keys),
        },
    )


def kinds_of(spec: StreamSpec) -> set[str]:
    """Return what rows come from, and what they go to, as Dagster names them."""
    return {"kafka", _KINDS.get(spec.sink.name, spec.sink.name)}


def version_of(sink: str, version: int) -> dict[str, int]:
    """Return a table's version, which has a name of its own where it is Delta's."""
    return {"delta_version" if sink == "delta" else "table_version": version}


def _freshness_policy(spec: StreamSpec) -> dg.FreshnessPolicy | None:
    """Return what turns the asset stale by itself, when nothing has looked at its topic."""
    if spec.freshness_minutes is None:
        return None
    return dg.FreshnessPolicy.time_window(dt.timedelta(minutes=spec.freshness_minutes))


def topic_key(topic: str) -> dg.AssetKey:
    """Return the key under which a Kafka topic stands in the asset graph."""
    return dg.AssetKey(["kafka", topic])


def quarantine_key(stream: str) -> dg.AssetKey:
    """Return the key of a stream's quarantine, named as its folder is."""
    return dg.AssetKey(f"{stream}__quarantine")


def ledger_key(stream: str) -> dg.AssetKey:
    """Return the key of a stream's ledger, named as its folder is."""
    return dg.AssetKey(f"{stream}__ledger")


def side_specs(spec: StreamSpec) -> list[dg.AssetSpec]:
    """Describe the tables beside a stream's own; its runs write them, and observe them here."""
    says = {
        quarantine_key(spec.name): "Records that could not be applied, raw, each with its reason. "
        f"Next: `oncelake quarantine {spec.name}`; once the cause is gone, redrive them: the "
        "operation `redrive` of `operate_job`, or `oncelake redrive`.",
        ledger_key(spec.name): "The books: a row for each batch, with its offsets and what became "
        f"of its records. The same in a shell: `oncelake ledger {spec.name}`.",
    }
    return [
        dg.AssetSpec(
            key,
            deps=[spec.name],
            description=text,
            group_name=spec.group,
            owners=list(spec.owners),
            kinds={"deltalake"},
            metadata={"dagster/table_name": key.to_user_string()},
        )
        for key, text in says.items()
    ]


def topic_specs(specs: list[StreamSpec]) -> list[dg.AssetSpec]:
    """Describe the topics that streams read; nothing here makes them."""
    topics = sorted({topic for spec in specs for topic in spec.subscribed})
    return [
        dg.AssetSpec(
            topic_key(topic),
            description=f"Kafka topic {topic}",
            group_name="kafka",
            kinds={"kafka"},
        )
        for topic in topics
    ]


def column_schema(spec: StreamSpec) -> dg.TableSchema:
    """Return the columns of a stream's table: the declared ones, then ours."""
    ours = (
        dg.TableColumn(name=column.name, type=str(column.type), description=says)
        for column, says in zip(system_columns(), _IN_OUR_COLUMNS, strict=True)
    )
    return dg.TableSchema(columns=[*map(_column, spec.table_columns), *ours])


def _column(column: DeclaredColumn) -> dg.TableColumn:
    return dg.TableColumn(
        name=column.name,
        type=str(column.type),
        description=column.comment or None,
        constraints=dg.TableColumnConstraints(nullable=column.nullable),
    )
