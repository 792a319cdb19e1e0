"""The same without Spark: delta-rs by hand, and dlt, each in a process of its own.

    python -m bench.peers delta_rs|dlt TOPIC FOLDER...

Both read, decode and choose the newest record of each key in the same way, the quickest that is
still short. Neither has books, a quarantine or a check that every offset arrived; offsets and rows
are two commits. This module runs in an environment that has dlt, and nothing of Oncelake.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.json
from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable, write_deltalake

from bench.cpu import repeat

Offsets = dict[str, int]
SCHEMA = pa.schema(
    [
        *(("id", pa.int64()), ("customer", pa.string()), ("city", pa.string())),
        *(("status", pa.string()), ("quantity", pa.int32()), ("price", pa.float64())),
        *(("paid", pa.bool_()), ("updated_at", pa.timestamp("us", "UTC"))),
    ]
)


def read(topic: str, offsets: Offsets) -> pa.Table:
    """Return the newest record of each key since ``offsets``, which it moves on."""
    options = {"bootstrap.servers": os.environ["ONCELAKE_KAFKA"], "group.id": "peers"}
    consumer = Consumer({**options, "enable.auto.commit": False})
    partitions = consumer.list_topics(topic).topics[topic].partitions
    at = [TopicPartition(topic, number, offsets.get(str(number), 0)) for number in partitions]
    ends = {str(p.partition): consumer.get_watermark_offsets(p)[1] for p in at}
    consumer.assign(at)
    decoded = []
    while any(offsets.get(number, 0) < end for number, end in ends.items()):
        messages = consumer.consume(50_000, timeout=0.1)
        for message in messages:
            offsets[str(message.partition())] = (message.offset() or 0) + 1
        if messages:
            lines = pa.py_buffer(b"\n".join(message.value() or b"" for message in messages))
            explicit = pyarrow.json.ParseOptions(explicit_schema=SCHEMA)
            decoded.append(pyarrow.json.read_json(lines, parse_options=explicit))
    consumer.close()
    records = pa.concat_tables(decoded or [SCHEMA.empty_table()])
    # Records of a key lie in one partition, and so in the order of their offsets.
    records = records.append_column("n", pa.array(range(len(records)), pa.int64()))
    rank = "row_number() OVER (PARTITION BY id ORDER BY updated_at DESC, n DESC)"
    newest = duckdb.from_arrow(records).project(f"n, {rank} AS rank").filter("rank = 1")
    return records.take(newest.to_arrow_table()["n"]).drop_columns("n")


def delta_rs(topic: str, folder: Path) -> None:
    """Merge by delta-rs; the offsets are a file beside the table."""
    table, state = str(folder / "lake" / topic), folder / "state" / "offsets.json"
    offsets: Offsets = json.loads(state.read_text()) if state.exists() else {}
    rows = read(topic, offsets)
    if not DeltaTable.is_deltatable(table):
        write_deltalake(table, rows)
    else:
        merge = DeltaTable(table).merge(
            rows, "s.id = t.id", source_alias="s", target_alias="t", streamed_exec=True
        )
        newer = merge.when_matched_update_all("s.updated_at >= t.updated_at")
        newer.when_not_matched_insert_all().execute()
    state.parent.mkdir(exist_ok=True)
    state.write_text(json.dumps(offsets))


def dlt(topic: str, folder: Path) -> None:
    """Merge by dlt, fed with Arrow; it keeps the offsets as the state of its resource."""
    import dlt

    def records() -> Iterator[pa.Table]:
        yield read(topic, dlt.current.resource_state().setdefault("offsets", {}))

    upsert = {"disposition": "merge", "strategy": "upsert"}
    rows = dlt.resource(records, name=topic, primary_key="id", write_disposition=upsert)
    pipeline = dlt.pipeline(
        pipeline_name=topic,
        destination=dlt.destinations.filesystem(bucket_url=str(folder)),
        dataset_name="lake",
        pipelines_dir=str(folder / "state"),
    )
    pipeline.run(rows, table_format="delta").raise_on_failed_jobs()


def main(name: str, topic: str, *folders: str) -> None:
    """Repeat the runs of one contender."""
    contender = {"delta_rs": delta_rs, "dlt": dlt}[name]
    repeat(lambda folder: contender(topic, folder), folders)


if __name__ == "__main__":
    main(*sys.argv[1:])
