"""The first run: make the table, and write down where the stream begins.

``starting`` is resolved to offsets once, and committed before anything is read: were it resolved
again by the next run, records that came in between would be skipped.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from delta.tables import DeltaTable
from deltalake import DeltaTable as LocalTable
from deltalake import Schema
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from ingestion.declaration.spec import StreamSpec
from ingestion.lake.checksums import seal_commit
from ingestion.lake.commit_metadata import CommitMetadata
from ingestion.lake.compaction import retention_properties
from ingestion.lake.delta import storage_options
from ingestion.lake.erasure import COMPLETE, Digest, erasures
from ingestion.lake.failpoints import Failpoint, hit
from ingestion.lake.ledger import Ledger, LedgerRow
from ingestion.lake.log_files import log_files
from ingestion.lake.paths import StreamPaths
from ingestion.lake.stream import Stream
from ingestion.lake.table_log import write_empty_commit
from ingestion.pipeline.evolve_schema import refuse_other_columns
from ingestion.pipeline.schema import row_type, storable
from ingestion.recovery.start import Start, starting_offsets
from ingestion.recovery.topics import identity_of
from ingestion.sinks.choose_engine import EngineName

OUR_COLUMNS = (
    "_topic STRING, _partition INT, _offset BIGINT, _timestamp TIMESTAMP, _epoch INT, _seq BIGINT"
)


def create_table(spark: SparkSession, stream: Stream, engine: EngineName, *, run_id: str) -> None:
    """Make the table if it is not there, and commit the offsets at which the stream begins.

    A crash in between leaves an empty table, which the next run opens in the same way.
    """
    spec, paths, kafka = stream.spec, stream.paths, stream.kafka
    topics = kafka.topics(spec.name, spec.subscribed)
    begin = starting_offsets(spec, kafka, topics.partitions)
    _create(spark, spec, paths, engine)
    log_files(paths.data).forget()
    hit(Failpoint.TABLE_CREATED)
    refuse_other_columns(spec, paths)
    metadata = CommitMetadata(
        kind="schema",
        seq=0,
        run_id=run_id,
        epoch=1,
        identity=identity_of(spec, topics),
        columns=spec.ddl,
        next=begin,
    )
    write_empty_commit(paths, metadata)


def inherit_erasures(
    stream: Stream, start: Start, erased: Iterable[Mapping[str, Any]], *, run_id: str
) -> Start:
    """Commit to a new table what was erased from the one that it will replace, before it reads.

    A crash in between leaves some of them, which are not taken over twice.
    """
    position, rows = start.position, []
    for said in erased:
        if Digest.of_row(said) in {each.digest for each in start.erasures}:
            continue
        made = position.next_metadata(run_id, kind="erase", counts={COMPLETE: 1})
        made = replace(made, erased=said, reason="erased before this table was made")
        commit = write_empty_commit(stream.paths, made)
        rows.append(LedgerRow.of(made, commit, position.table_id, counts=made.counts))
        position = position.after(made)
    Ledger(stream.paths.ledger).put(*rows)
    return replace(start, position=position, erasures=(*start.erasures, *erasures(rows)))


# Commits from one checkpoint of the log to the next: Spark's own; delta-rs would write a tenth.
CHECKPOINT_INTERVAL = 10
# Delta refuses to keep any of these.
_WITHOUT_STATISTICS: Final = ("BINARY", "BOOLEAN")


def _schema(spec: StreamSpec) -> StructType:
    return storable(StructType([*row_type(spec.table_ddl), *row_type(OUR_COLUMNS)]))


def _create(spark: SparkSession, spec: StreamSpec, paths: StreamPaths, engine: EngineName) -> None:
    # Statistics on what MERGE prunes by and the audit reads; on every other column they cost a
    # third of the write.
    keys = [name for name in spec.keys if spec.types[name].word not in _WITHOUT_STATISTICS]
    properties = {
        "delta.dataSkippingStatsColumns": ",".join(
            f"`{name}`" for name in (*keys, "_offset", "_seq")
        ),
        **retention_properties(dt.timedelta(days=spec.rewind_window_days)),
        "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
    }
    if engine == "delta_rs":
        LocalTable.create(
            str(paths.data),
            # Delta keeps a schema as Spark writes it.
            Schema.from_json(_schema(spec).json()),
            mode="ignore",
            description=spec.description,
            configuration=properties,
            storage_options=storage_options(paths.data),
        )
        seal_commit(paths.data, 0)
        return
    builder = DeltaTable.createIfNotExists(spark).location(str(paths.data))
    builder = builder.addColumns(_schema(spec)).comment(spec.description)
    for name, value in properties.items():
        builder = builder.property(name, value)
    builder.execute()
