"""Streams, reports and a Dagster instance for tests that need no engine."""

from __future__ import annotations

import datetime as dt
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from oncelake.assets.refusals import last_failures, standing_refusal
from oncelake.assets.translation import AS_DECLARED, Translation
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.kafka.offsets import Offsets, Range, TopicPartition
from oncelake.ingestion.lake.ledger import LedgerRow
from oncelake.ingestion.pipeline.report import RunReport
from oncelake.ingestion.settings import Settings, load_settings
from oncelake.ingestion.tables.commit_metadata import CountedRange

NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


@pytest.fixture(autouse=True, scope="package")
def _nothing_stays_of_the_killed() -> Iterator[None]:
    """Let processes put their sockets where they are removed with whoever was killed."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        yield


@pytest.fixture(autouse=True)
def _settings_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let settings resolve against a project of the test's own, with nobody to talk to."""
    (tmp_path / "dagster.yaml").touch()
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """A Dagster instance that forgets everything."""
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def declared(folder: Path, **fields: Any) -> DeclaredStream:
    """Declare the stream ``orders``."""
    base = {"name": "orders", "topic": "orders", "schema": "id INT NOT NULL, name STRING"}
    spec = StreamSpec.model_validate({**base, "keys": ["id"], **fields})
    path = folder / "orders.yaml"
    file = {name: value for name, value in {**base, **fields}.items() if name != "name"}
    path.write_text(json.dumps({"keys": ["id"], **file}))
    return DeclaredStream(name="orders", path=path, spec=spec, error=None)


def broken(folder: Path) -> DeclaredStream:
    """Declare the stream ``orders`` in a way that cannot be read."""
    path = folder / "orders.yaml"
    path.write_text("topik: orders")
    wrong = InvalidSpecError("orders.yaml:1: unknown key `topik`; did you mean `topic`?")
    return DeclaredStream(name="orders", path=path, spec=None, error=wrong)


def batch(
    seq: int, start: int, end: int, *, partition: int = 0, balanced: bool = True, **counts: int
) -> LedgerRow:
    """One batch of the topic ``orders``, as the ledger remembers it."""
    range_ = Range(topic="orders", partition=partition, start=start, end=end)
    read = end - start
    return LedgerRow(
        table_id="t",
        seq=seq,
        kind="ingest",
        epoch=1,
        committed_at=NOW - dt.timedelta(minutes=30),
        run_id="r",
        delta_version=seq + 1,
        ranges=(CountedRange(range=range_, records=read, gaps=0),),
        counts={"offsets": read, "read": read, "inserted": read, **counts},
        balanced=balanced,
        problems=() if balanced else ("records read 2 ≠ 1 accounted for",),
    )


def report(*batches: LedgerRow, **fields: Any) -> RunReport:
    """What a run that committed ``batches`` tells."""
    reached = Offsets(
        {
            TopicPartition("orders", at.range.partition): at.range.end
            for b in batches
            for at in b.ranges
        }
    )
    return RunReport(
        **{
            "stream": "orders",
            "run_id": "r",
            "batches": batches,
            "recovered": (),
            "notices": (),
            "seq": max((row.seq for row in batches), default=0),
            "epoch": 1,
            "next": reached,
            "lag": 0,
            "delta_version": 3,
            "row_count": 5,
            "table": "/lake/orders",
            **fields,
        }
    )


def refusal_of(
    stream: DeclaredStream,
    instance: dg.DagsterInstance,
    settings: Settings | None = None,
    translation: Translation = AS_DECLARED,
) -> str | None:
    """Return the refusal that ended a stream's last run, if nothing has changed since."""
    failed = last_failures(instance, [stream.name], translation).get(stream.name)
    return standing_refusal(instance, stream, settings or load_settings(), failed)


def assert_sentence(result: dg.ExecuteInProcessResult, says: str) -> None:
    """Make sure that Dagster shows every error of a run as a sentence, without a stack."""
    errors = [
        data.error
        for event in result.all_events
        if (data := event.event_specific_data) is not None and getattr(data, "error", None)
    ]
    assert errors
    assert all(error.message.startswith(says) for error in errors)
    assert [error for error in errors if error.stack or error.cause] == []


def materializations(
    result: dg.ExecuteInProcessResult, stream: str = "orders"
) -> list[dg.AssetMaterialization]:
    """Return what a run has told of a stream's own table."""
    told = result.asset_materializations_for_node(f"ingest_{stream}")
    return [each for each in told if each.asset_key == dg.AssetKey(stream)]
