"""What `oncelake audit` costs: a million records of JSON, beside a Delta table of as many rows.

python -m bench.audit [RECORDS]
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import write_deltalake
from pyarrow import json

from bench.cpu import run_metered
from bench.topic import Message, Topic
from oncelake.ingestion.local import broker
from oncelake.ingestion.local.produce import produce
from oncelake.ingestion.settings import load_settings

_ROWS_AT_ONCE: Final = 100_000
_TIME: Final = pa.timestamp("us", "UTC")


def main(records: int = 1_000_000) -> None:
    """Measure a whole process, and print what it took."""
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        up = broker.up(at / "kafka", jars=load_settings().jars, tied_to_caller=True)
        try:
            places = {"kafka": up.address, "lake": at / "lake", "state": at / "state"}
            settings = load_settings(**places)
            topic = Topic(settings, "orders")
            messages = topic.next_inserts(records)
            while some := list(islice(messages, _ROWS_AT_ONCE)):
                produce(settings, topic.name, some)
                write_deltalake(at / "table", _rows(some), mode="append")
            words = ["audit", "--topic", topic.name, "--table", str(at / "table"), "--keys", "id"]
            command = [sys.executable, "-m", "ingestion", *words]
            given = {f"ONCELAKE_{n.upper()}": str(v) for n, v in places.items()}
            cost = run_metered(command, {**os.environ, **given}, at / "log")
            print((at / "log").read_text())
        finally:
            broker.down(at / "kafka")
    print(f"{records:,} records: {cost.cpu:.1f} CPU-s, {cost.wall:.1f} s, {cost.python_mb:,.0f} MB")


def _rows(messages: Sequence[Message]) -> pa.Table:
    """Return the rows of messages, as any tool would write them."""
    lines = b"\n".join(each.value or b"" for each in messages)
    rows = json.read_json(pa.BufferReader(lines))
    at = rows.schema.get_field_index("updated_at")
    return rows.set_column(at, "updated_at", rows.column(at).cast(_TIME))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
