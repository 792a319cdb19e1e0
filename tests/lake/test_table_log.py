"""What a commit says of itself is read back as it was meant."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from oncelake.ingestion.delta.log import DeltaLog
from oncelake.ingestion.errors import DamagedTableError
from oncelake.ingestion.kafka.offsets import Offsets, Range, TopicPartition
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, CountedRange, Identity, app_id

NOTE = CommitMetadata(
    kind="ingest",
    seq=7,
    run_id="r",
    epoch=2,
    identity=Identity(cluster_id="c", topic_ids={"t": "x"}, keys=("id",), order=("at",)),
    columns="id INT",
    next=Offsets({TopicPartition("t", 0): 12, TopicPartition("t", 1): 0}),
    ranges=(CountedRange(range=Range(topic="t", partition=0, start=2, end=12), records=9, gaps=1),),
    counts={"read": 9},
    reason="say 'why' \"é\n",
    accepts=(3,),
)


def test_commit_metadata_is_read_back_as_it_was_written() -> None:
    """Nothing of it is lost in the commit's metadata."""
    assert CommitMetadata.from_json(NOTE.to_json(), "t", "t") == NOTE


@pytest.mark.parametrize(
    "text",
    [None, "", "plain words", "[]", "{}"],
    ids=["nothing", "empty", "words", "list", "object"],
)
def test_a_foreign_commit_has_no_metadata_of_ours(text: str | None) -> None:
    """Metadata of other writers is left alone."""
    assert CommitMetadata.from_json(text, "t", "t") is None


def commit(path: Path, stream: str, seq: int) -> None:
    """Commit a row with a stream's seq and metadata."""
    write_deltalake(
        path,
        pa.table({"id": [seq]}),
        mode="append",
        commit_properties=CommitProperties(
            custom_metadata={"userMetadata": replace(NOTE, seq=seq).to_json()},
            app_transactions=[Transaction(app_id(stream), seq)],
        ),
    )


def test_our_commit_is_found_by_its_seq_among_others(tmp_path: Path) -> None:
    """Commits of other writers, and of other streams, are passed over."""
    table = tmp_path / "t"
    commit(table, "a", 1)
    write_deltalake(table, pa.table({"id": [0]}), mode="append")
    commit(table, "b", 5)
    commit(table, "a", 2)
    write_deltalake(table, pa.table({"id": [0]}), mode="append")
    log = DeltaLog(Location.of(table))

    found = log.find("a", 2)
    newest, others = log.since_our_newest("a")

    assert found is not None
    assert (found.version, found.metadata, found.txns) == (
        3,
        replace(NOTE, seq=2),
        {"oncelake:a": 2},
    )
    assert log.find("a", 1, after=0) is None
    assert log.find("a", 5) is None
    assert newest == found
    assert [each.version for each in others] == [4]
    assert (log.last_seq("a"), log.last_seq("b"), log.last_seq("c")) == (2, 5, None)


def test_a_flipped_digit_in_commit_metadata_is_no_other_offset(tmp_path: Path) -> None:
    """A commit without Hadoop's checksums is guarded by that of its metadata."""
    table = tmp_path / "t"
    commit(table, "t", 1)
    file = table / "_delta_log" / f"{0:020d}.json"
    text = file.read_text()
    assert '\\"0\\": 12' in text
    file.write_text(text.replace('\\"0\\": 12', '\\"0\\": 13'))

    with pytest.raises(DamagedTableError, match="does not match its own checksum"):
        DeltaLog(Location.of(table)).since_our_newest("t")


def test_a_transaction_id_and_metadata_that_disagree_are_no_commit_of_ours(tmp_path: Path) -> None:
    """The seq that fences a commit is the seq that its metadata speaks of."""
    table = tmp_path / "t"
    commit(table, "t", 1)
    file = table / "_delta_log" / f"{0:020d}.json"
    file.write_text(file.read_text().replace('"version":1', '"version":2'))

    with pytest.raises(DamagedTableError, match="fenced as seq 2, and its metadata says 1"):
        DeltaLog(Location.of(table)).since_our_newest("t")


def test_files_beside_the_log_are_no_versions(tmp_path: Path) -> None:
    """Checksums, drafts and compacted files are not taken for commits."""
    table = tmp_path / "t"
    commit(table, "a", 1)
    for name in ("00000000000000000001.crc", "_last_checkpoint", "1.json", "x.json"):
        (table / "_delta_log" / name).write_text(json.dumps({}))

    assert DeltaLog(Location.of(table)).versions() == [0]


def test_a_folder_without_a_log_is_no_table(tmp_path: Path) -> None:
    """Stray files do not make a table."""
    (tmp_path / "part.parquet").write_text("x")

    assert not DeltaLog(Location.of(tmp_path)).exists
    assert not DeltaLog(Location.of(tmp_path / "nothing")).exists
