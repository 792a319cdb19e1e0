"""What Dagster shows of a stream before it has ever run: from its declaration alone."""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Final

import dagster as dg

from oncelake.assets.translation import AS_DECLARED, Translation, kafka_key
from oncelake.ingestion.declaration.ddl import DeclaredColumn, system_columns
from oncelake.ingestion.declaration.loader import DeclaredStream
from oncelake.ingestion.declaration.spec import StreamSpec, fingerprint
from oncelake.ingestion.declaration.sql import names_in

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


def asset_spec(
    declared: DeclaredStream, *, topic_key: Callable[[str], dg.AssetKey] = kafka_key
) -> dg.AssetSpec:
    """Describe a stream's asset; one whose file is broken has the error as its description."""
    references: dict[str, Any] = {"dagster/code_references": _code_references(declared)}
    if declared.spec is None:
        return dg.AssetSpec(
            declared.name,
            description=f"**{declared.path.name} is broken**\n\n```\n{declared.error}\n```",
            group_name=GROUP,
            kinds={"kafka", "spark"},
            metadata=references,
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
            **references,
            **column_lineage(spec, topic_key),
            "dagster/column_schema": column_schema(spec),
            "dagster/table_name": spec.sink.table_of(spec.name),
            "declared in": dg.MetadataValue.path(declared.path),
            "keys": ", ".join(spec.keys),
        },
        code_version=fingerprint(spec),
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


def side_specs(
    spec: StreamSpec, translation: Translation = AS_DECLARED, *, group: str | None = None
) -> list[dg.AssetSpec]:
    """Describe the tables beside a stream's own; its runs write them, and tell of them here.

    Args:
        spec: The stream.
        translation: Under which keys they stand.
        group: That of the stream's asset, where it is not the declared one.
    """
    says = {
        "quarantine": "Records that could not be applied, raw, each with its reason. "
        f"Next: `oncelake quarantine {spec.name}`; once the cause is gone, redrive them: the "
        "operation `redrive` of `operate_job`, or `oncelake redrive`.",
        "ledger": "The books: a row for each batch, with its offsets and what became "
        f"of its records. The same in a shell: `oncelake ledger {spec.name}`.",
    }
    return [
        dg.AssetSpec(
            key,
            deps=[translation.key(spec.name)],
            description=says[table],
            group_name=group or spec.group,
            owners=list(spec.owners),
            kinds={"deltalake"},
            metadata={"dagster/table_name": f"{spec.name}__{table}"},
        )
        for table, key in translation.side_keys(spec.name).items()
    ]


def topic_spec(topic: str) -> dg.AssetSpec:
    """Describe a topic that streams read; nothing here makes it."""
    return dg.AssetSpec(
        kafka_key(topic),
        description=f"Kafka topic {topic}",
        group_name="kafka",
        kinds={"kafka"},
    )


def topics_of(specs: Iterable[StreamSpec]) -> list[str]:
    """Return the topics that streams read, each once."""
    return sorted({topic for spec in specs for topic in spec.subscribed})


def column_schema(spec: StreamSpec) -> dg.TableSchema:
    """Return the columns of a stream's table: the declared ones, then ours."""
    ours = (
        dg.TableColumn(name=column.name, type=str(column.type), description=says)
        for column, says in zip(system_columns(), _IN_OUR_COLUMNS, strict=True)
    )
    return dg.TableSchema(columns=[*map(_column, spec.table_columns), *ours])


def column_lineage(
    spec: StreamSpec, topic_key: Callable[[str], dg.AssetKey]
) -> dict[str, dg.TableColumnLineage]:
    """Return metadata that says of which fields of the topics each column is made, where known."""
    topics = [topic_key(topic) for topic in spec.subscribed]
    if spec.transform or spec.explode or spec.mode == "aggregate" or not topics:
        return {}
    lineage = {}
    for column in (column.name for column in spec.columns):
        sql = spec.select.get(column)
        # SQL does not tell capitals from small letters.
        used = names_in(sql) if sql else {column.lower()}
        fields = [c.name for c in spec.payload_columns if c.name.lower() in used]
        if fields:
            lineage[column] = [
                dg.TableColumnDep(topic, name) for topic in topics for name in fields
            ]
    return {"dagster/column_lineage": dg.TableColumnLineage(lineage)}


def _code_references(declared: DeclaredStream) -> dg.CodeReferencesMetadataValue:
    path = declared.path
    with warnings.catch_warnings():
        # Dagster calls them a beta.
        warnings.simplefilter("ignore", dg.BetaWarning)
        at = dg.LocalFileCodeReference(
            file_path=str(path.absolute()), line_number=1, label=path.name
        )
        return dg.CodeReferencesMetadataValue(code_references=[at])


def _column(column: DeclaredColumn) -> dg.TableColumn:
    return dg.TableColumn(
        name=column.name,
        type=str(column.type),
        description=column.comment or None,
        constraints=dg.TableColumnConstraints(nullable=column.nullable),
    )
