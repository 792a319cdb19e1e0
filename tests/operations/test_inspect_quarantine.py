"""What is in quarantine is shown as it is, and harms nobody who looks."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from oncelake.ingestion.declaration.messages import printable
from oncelake.ingestion.errors import SideTableIncompleteError
from oncelake.ingestion.lake.ledger import Ledger, LedgerRow
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.quarantine import remove_payloads
from oncelake.ingestion.operations.quarantine.inspect import inspect
from oncelake.ingestion.settings import Settings
from tests.support.quarantine import as_quarantine

_NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)


def held(offset: int, reason: str, *, redriven: int | None = None) -> dict[str, object]:
    """Return a row of a quarantine; later offsets are older."""
    return {
        "_topic": "t",
        "_partition": 0,
        "_offset": offset,
        "_seq": 1,
        "_timestamp": _NOON - dt.timedelta(minutes=offset),
        "key": None,
        "value": f"record {offset}".encode(),
        "headers": [],
        "reason": reason,
        "detail": None,
        "redriven_seq": redriven,
    }


def quarantined(tmp_path: Path, *rows: dict[str, object]) -> StreamPaths:
    """Write a quarantine without a table beside it."""
    paths = StreamPaths.of("s", Settings(lake=tmp_path))
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    columns = [
        *(("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64())),
        *(("_seq", pa.int64()), ("_timestamp", pa.timestamp("us", tz="UTC"))),
        *(("key", pa.binary()), ("value", pa.binary()), ("headers", pa.list_(header))),
        *(("reason", pa.string()), ("detail", pa.string()), ("redriven_seq", pa.int64())),
    ]
    written = pa.Table.from_pylist(list(rows), pa.schema(columns))
    write_deltalake(paths.quarantine.path, as_quarantine(written))
    return paths


def test_records_are_grouped_by_reason_and_the_redriven_stand_apart(tmp_path: Path) -> None:
    """Each group knows its size, its oldest and newest record, and gives the oldest as samples."""
    bad = [held(offset, "malformed_json") for offset in range(4)]
    paths = quarantined(tmp_path, *bad, held(9, "missing_key"), held(7, "missing_key", redriven=5))

    found = inspect("s", paths, limit=2)

    told = [(g.reason, g.count, str(g.first), str(g.last)) for g in found.groups]
    assert told == [
        ("malformed_json", 4, "t-0 offset 3", "t-0 offset 0"),
        ("missing_key", 1, "t-0 offset 9", "t-0 offset 9"),
    ]
    assert [each.record.offset for each in found.samples] == [3, 2, 9]
    assert [each.row["value"] for each in found.samples][-1] == b"record 9"
    assert (found.waiting, found.redriven) == (5, {5: 1})
    assert [g.reason for g in inspect("s", paths, reason="missing_key").groups] == ["missing_key"]


def test_a_stream_without_a_quarantine_has_nothing_in_it(tmp_path: Path) -> None:
    """No record was bad yet: that is no error."""
    assert inspect("s", StreamPaths.of("s", Settings(lake=tmp_path))).waiting == 0


@pytest.mark.parametrize("reason", [None, "malformed_json"])
def test_a_quarantine_whose_text_delta_rs_has_copied_is_shown(
    tmp_path: Path, reason: str | None
) -> None:
    """An update by delta-rs leaves text in a form that Arrow cannot compare; nothing is damaged."""
    bad = [held(offset, ["malformed_json", "missing_key"][offset % 2]) for offset in range(4)]
    paths = quarantined(tmp_path, *bad)
    remove_payloads(paths.quarantine, "_offset = 2", "erased")

    found = inspect("s", paths, reason=reason)

    offsets = [each.record.offset for each in found.samples]
    assert (found.waiting, offsets) == ((1, [0]) if reason else (3, [3, 1, 0]))


def test_a_quarantine_that_is_gone_is_no_empty_one(tmp_path: Path) -> None:
    """The ledger knows that records wait there."""
    paths = StreamPaths.of("s", Settings(lake=tmp_path))
    batch = LedgerRow(
        table_id="id",
        seq=1,
        kind="ingest",
        epoch=1,
        committed_at=_NOON,
        run_id="r",
        delta_version=1,
        ranges=(),
        counts={"read": 3, "quarantined": 3},
        balanced=True,
    )
    Ledger(paths.ledger).put(batch)

    with pytest.raises(SideTableIncompleteError, match="holds 0 rows of batch 1, which wrote 3"):
        inspect("s", paths)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        pytest.param(None, "null", id="nothing"),
        pytest.param(b"", "", id="empty"),
        pytest.param("é €".encode(), "é €", id="letters"),
        pytest.param(b"\x1b[2J\r\n\x00\x07", r"\x1b[2J\r\n\x00\x07", id="terminal"),
        pytest.param("a\u202eb\u200bc".encode(), r"a\u202eb\u200bc", id="direction"),
        pytest.param(b"\xff\xfe", r"\xff\xfe", id="no text"),
        pytest.param(b"x" * 2_000, "x" * 120 + "… (2,000 bytes)", id="long"),
    ],
)
def test_bytes_are_shown_without_harm(raw: bytes | None, shown: str) -> None:
    """Nothing that a terminal obeys, or that deceives a reader, gets through."""
    assert printable(raw) == shown
