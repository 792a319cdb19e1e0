"""Send each line of standard input to a topic, as ``kcat -P -K: -Z`` does: key, colon, value.

A line without a value is a record with a null value (a tombstone). The topic is created where it
is missing.

    .venv/bin/python docs/examples/produce.py orders < orders.txt
"""

from __future__ import annotations

import sys
import time
from typing import NamedTuple

from oncelake.ingestion.local.produce import create, produce
from oncelake.ingestion.settings import load_settings


class Message(NamedTuple):
    """A record to send."""

    key: bytes
    value: bytes | None
    timestamp_ms: int


def message(line: str) -> Message:
    """Return the record that a line stands for."""
    key, _, value = line.strip().partition(":")
    return Message(key.encode(), value.encode() or None, time.time_ns() // 1_000_000)


def main(topic: str) -> None:
    """Send what stands on standard input."""
    settings = load_settings()
    create(settings, topic, partitions=2)
    sent = produce(settings, topic, [message(line) for line in sys.stdin if line.strip()])
    print(f"{sent} {'record' if sent == 1 else 'records'} sent to {topic}")


if __name__ == "__main__":
    main(sys.argv[1])
