"""A record is known again by its time and its digest, which Spark and this process make alike."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from oncelake.ingestion.kafka.last_record import LastRecord, digest_of, of_rows, rows_of
from oncelake.ingestion.kafka.offsets import TopicPartition

Headers = list[tuple[str, bytes | None]]
RECORDS: dict[str, tuple[bytes | None, bytes | None, Headers]] = {
    "plain": (b"key", b"value", []),
    "no key": (None, b"value", []),
    "tombstone": (b"key", None, []),
    "nothing": (None, None, []),
    "empty": (b"", b"", []),
    "headers": (b"k", b"v", [("a", b"1"), ("b", None), ("a", b"")]),
    "letters": ("ключ".encode(), b"v", [("ö", "ß".encode()), ("", b"x")]),
    "any bytes": (bytes(range(256)), b"\xff\x00" * 50, [("h", b"\x80")]),
    "long": (b"k", b"0123456789" * 10_000, []),
}


class Found:
    """A record as the client hands it over."""

    def __init__(
        self, key: bytes | None, value: bytes | None, headers: Headers, sent: int = 5
    ) -> None:
        """Take what it holds."""
        self.key, self.value = lambda: key, lambda: value
        self.headers, self.timestamp = lambda: headers, lambda: (1, sent)


def last(digest: int) -> LastRecord:
    """The last record that was read."""
    return LastRecord(offset=3, timestamp_ms=5, leader_epoch=0, digest=digest)


@pytest.mark.spark
def test_spark_and_this_process_digest_alike(spark: SparkSession) -> None:
    """Of a null nothing is hashed, and an empty text is none."""
    rows = [
        (name, key, value, [*map(dict, ((("key", k), ("value", v)) for k, v in headers))] or None)
        for name, (key, value, headers) in RECORDS.items()
    ]
    schema = (
        "name STRING, key BINARY, value BINARY, headers ARRAY<STRUCT<key STRING, value BINARY>>"
    )
    frame = spark.createDataFrame(rows, schema)

    found = frame.select("name", F.xxhash64("key", "value", "headers").alias("digest")).collect()

    assert {each["name"]: each["digest"] for each in found} == {
        name: digest_of(*record) for name, record in RECORDS.items()
    }


@pytest.mark.parametrize(
    ("found", "is_same"),
    [
        (Found(b"k", b"v", [("h", b"1")]), True),
        (Found(b"k", b"v", [("h", b"1")], sent=6), False),
        (Found(b"k", b"w", [("h", b"1")]), False),
        (Found(b"l", b"v", [("h", b"1")]), False),
        (Found(b"k", b"v", [("h", b"2")]), False),
        (Found(b"k", b"v", [("g", b"1")]), False),
        (Found(b"k", b"v", []), False),
        (Found(b"k", None, [("h", b"1")]), False),
    ],
    ids=["same", "time", "value", "key", "header", "name", "no headers", "tombstone"],
)
def test_a_record_is_known_again(found: Any, is_same: bool) -> None:
    """What differs in time, key, value or a header is another record."""
    assert last(digest_of(b"k", b"v", [("h", b"1")])).is_at(found) is is_same


def test_a_note_tells_of_last_records_again() -> None:
    """What is written into a commit is read out of it."""
    records = {TopicPartition("t", n): last(digest=-n) for n in range(12)}

    assert of_rows(rows_of(records)) == records
