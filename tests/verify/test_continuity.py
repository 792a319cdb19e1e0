"""The proof knows the log again that the batches have read."""

from __future__ import annotations

import pytest

from oncelake.ingestion.errors import TopicTruncatedError
from oncelake.ingestion.kafka.last_record import digest_of
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.verify.compare.continuity import refuse_another_log
from oncelake.ingestion.verify.read.record import Record
from oncelake.ingestion.verify.read.snapshot import Batch, LastRead

READ = Record("t", 0, 7, 1_000, b"k", b"v", (("h", b"1"), ("n", None)))
BATCH = Batch(
    table_id="id",
    seq=3,
    kind="ingest",
    epoch=1,
    run_id="run",
    delta_version=3,
    ranges=(),
    counts={},
    balanced=True,
    accepted=None,
    last={TopicPartition("t", 0): LastRead(7, 1_000, 0, digest_of(b"k", b"v", READ.headers or ()))},
)


@pytest.mark.parametrize(
    "found",
    [
        READ,
        READ._replace(headers=None),
        READ._replace(offset=6, value=b"w"),
        READ._replace(partition=1, value=b"w"),
    ],
    ids=["same", "headers unknown", "before it", "another partition"],
)
def test_the_log_that_was_read_is_let_through(found: Record) -> None:
    """Only the record at the last offset is compared, and only as far as it can be told."""
    assert list(refuse_another_log("s", BATCH, [[found]])) == [[found]]


@pytest.mark.parametrize(
    "found",
    [
        READ._replace(value=b"w"),
        READ._replace(key=None),
        READ._replace(timestamp_ms=1_001),
        READ._replace(headers=(("h", b"1"), ("n", b""))),
        READ._replace(headers=()),
    ],
    ids=["value", "key", "time", "header", "no headers"],
)
def test_another_record_in_its_place_is_one_cause(found: Record) -> None:
    """Batch, offset and both times are named, and the ways on."""
    chunks = [[READ._replace(offset=6), found]]

    with pytest.raises(TopicTruncatedError, match=r"t-0: batch 3 read a record of .* at offset 7"):
        list(refuse_another_log("s", BATCH, chunks))
