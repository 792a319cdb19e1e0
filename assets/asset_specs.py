"""The asset of a stream before it has ever run: from its declaration alone."""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Final

import dagster as dg

from oncelake.assets.translation import AS_DECLARED, Translation, kafka_key
from oncelake.ingestion.declaration.ddl import system_columns
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.declaration.spec import StreamSpec, fingerprint
from oncelake.ingestion.declaration.sql import names_in
from oncelake.ingestion.storage.location import Location

GROUP = "ingest"
# That of all quarantines and ledgers: the graph of a stream's own group has none of them.
SIDE_GROUP = "quarantine_and_ledger"
# As Dagster names them.
_KINDS: Final[dict[str, str]] = {
    "delta": "deltalake",
    "iceberg": "iceberg",
    "postgres": "postgresql",
    "kafka": "kafka",
}

# What is in the columns of every table, in their order.
_IN_OUR_COLUMNS: Final = (
    "The Kafka topic of the record that wrote this row.",
    "The partition of the record that wrote this row.",
    "The offset of the record that wrote this row.",
    "The Kafka timestamp of the record that wrote this row.",
    "The epoch of that record: a new one begins where a person says that the topic is another.",
    "The number of the batch that wrote this row; the ledger has a row for each batch.",
)
# What is in the columns that a field of the declaration adds.
_IN_ADDED_COLUMNS: Final = {
    "valid_from": "From this moment on this version of the key is valid.",
    "valid_to": "Until this moment, exclusive, this version is valid; null in the newest one.",
    "current": "Whether this version is the newest one of its key, and no delete has ended it.",
    "window_start": "The first moment of the window that this row counts.",
    "window_end": "The first moment behind the window that this row counts.",
    "_deleted": "Whether the newest record of this row's key is a delete.",
    "_extra_fields": "The fields of the record that the schema does not name.",
    "_index": "The element of the record's array that this row comes from; the first is 0.",
}


def asset_spec(
    declared: DeclaredStream,
    *,
    topic_key: Callable[[str], dg.AssetKey] = kafka_key,
    lake: Location | None = None,
) -> dg.AssetSpec:
    """Describe a stream's asset; one whose file is broken has the error as its description.

    Args:
        declared: The stream.
        topic_key: Returns the key of a topic.
        lake: Where Delta tables go; another sink is asked by a run, for its library may be large.
    """
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
            "dagster/table_name": spec.sink.declared.shown_name(spec.name),
            **(_uri(lake, spec.name) if spec.sink.name == "delta" else {}),
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
    spec: StreamSpec, translation: Translation = AS_DECLARED, *, lake: Location | None = None
) -> list[dg.AssetSpec]:
    """Describe the tables beside a stream's own; its runs write them, and tell of them here."""
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
            group_name=SIDE_GROUP,
            owners=list(spec.owners),
            kinds={"deltalake"},
            tags={"oncelake/side_table": table},
            metadata={
                "dagster/table_name": f"{spec.name}__{table}",
                **_uri(lake, f"{spec.name}__{table}"),
            },
        )
        for table, key in translation.side_keys(spec.name).items()
    ]


def _uri(lake: Location | None, folder: str) -> dict[str, str]:
    return {"dagster/uri": (lake / folder).uri} if lake else {}


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
    declared = {column.name for column in spec.columns}
    added = {name: says for name, says in _IN_ADDED_COLUMNS.items() if name not in declared}
    added |= {
        name: f"`{function}` over the records of this row's key."
        for name, function in spec.aggregates.items()
    }
    of_stream = (
        dg.TableColumn(
            name=column.name,
            type=str(column.type),
            description=added.get(column.name) or column.comment or None,
            constraints=dg.TableColumnConstraints(nullable=column.nullable),
        )
        for column in spec.table_columns
    )
    return dg.TableSchema(columns=[*of_stream, *ours])


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
