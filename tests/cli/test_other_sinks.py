"""What the commands say of rows that are in another sink than Delta; no Spark, no Kafka."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from oncelake.ingestion.declaration.ddl import system_columns
from oncelake.ingestion.declaration.files.loader import find_stream, load_streams
from oncelake.ingestion.declaration.spec import StreamSpec, meaning
from oncelake.ingestion.errors import IdentityChangedError
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.lake.ledger import LedgerRow, put_rows
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.operations.doctor.examine import examine
from oncelake.ingestion.recovery.position import read_position
from oncelake.ingestion.settings import load_settings
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, Identity
from oncelake.ingestion.tables.table import TableDefinition
from tests.cli.shell import ORDERS, answer, declare, oncelake

IN_ICEBERG = f"{ORDERS}sink: {{iceberg: {{table: shop.orders}}}}\n"


def declared() -> StreamSpec:
    """Return the stream as its file says now."""
    return find_stream(load_settings().streams, "orders")


def fill(spec: StreamSpec, *, remembers: bool = True) -> StreamPaths:
    """Make a stream's table with two batches that read nothing, and the ledger of it."""
    paths = StreamPaths.of("orders", load_settings(), spec.sink)
    columns = (*spec.table_columns, *system_columns())
    if spec.sink.name == "delta":
        names = pa.schema([(column.name, pa.string()) for column in columns])
        write_deltalake(paths.data.path, names.empty_table())
    else:
        paths.table.create(TableDefinition(columns=tuple(columns), keys=tuple(spec.keys)))
    identity = Identity(cluster_id="c", topic_ids={"orders": "x"}, keys=("id",), order=())
    for seq in range(3):
        metadata = CommitMetadata(
            kind="ingest",
            seq=seq,
            run_id="r",
            epoch=1,
            identity=identity,
            columns=spec.ddl,
            declaration=meaning(spec),
            next=Offsets(),
        )
        commit = paths.table.commit_note(metadata)
        if seq and remembers:
            table_id = paths.table.log().table_id()
            put_rows(paths, LedgerRow.of(commit, table_id))
    return paths


@pytest.fixture
def paths(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StreamPaths]:
    """A stream whose rows are in an Iceberg table, in the catalog of the lake."""
    for name in [name for name in os.environ if name.upper().startswith("PYICEBERG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    declare(home, "orders", IN_ICEBERG)
    return fill(declared())


MISTAKES = {
    "unknown mode": f"{IN_ICEBERG}mode: upzert\n",
    "unknown field": f"{IN_ICEBERG}frmat: json\n",
    "unknown key": IN_ICEBERG.replace("[id]", "[nobody]"),
    "sink misspelt": IN_ICEBERG.replace("iceberg", "icebreg"),
    "no YAML": "topic: [orders\n",
    "empty": "",
}


@pytest.mark.parametrize("text", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_file_with_a_mistake_declares_no_other_sink(
    home: Path, paths: StreamPaths, text: str
) -> None:
    """Its rows are where the ledger says, and the mistake is all that is wrong."""
    declare(home, "orders", text)
    settings = load_settings()

    status = answer(oncelake("status", "orders", "--json"))
    history = answer(oncelake("history", "orders", "--json"))
    found = examine(settings, load_streams(settings.streams), are_all=False, tell=lambda text: None)

    assert [problem["type"] for problem in status["problems"]] == ["InvalidSpecError"]
    assert (status["table"], status["seq"], status["exists"]) == (paths.table.where, 2, True)
    assert [point["seq"] for point in history["savepoints"]] == [2, 1, 0]
    (only,) = (finding for finding in found if finding.about == "orders")
    assert only.evidence == "InvalidSpecError"


def test_a_stream_that_is_no_longer_declared_has_its_history(
    home: Path, paths: StreamPaths
) -> None:
    """The ledger tells where the rows of a file that is gone are."""
    (home / "assets" / "streams" / "orders.yaml").unlink()

    history = answer(oncelake("history", "orders", "--json"))

    assert [point["seq"] for point in history["savepoints"]] == [2, 1, 0]
    assert paths.table.log().exists


OTHERS = {
    "nothing there": (ORDERS, False),
    "a table of ours there": (ORDERS, True),
    "another table of the sink": (IN_ICEBERG.replace("shop.orders", "shop.others"), False),
    "another table of the sink, and ours": (IN_ICEBERG.replace("shop.", "old."), True),
}


@pytest.mark.parametrize(("text", "is_there"), OTHERS.values(), ids=OTHERS.keys())
@pytest.mark.usefixtures("paths")
def test_a_plan_and_a_proof_of_another_sink_than_the_ledgers_are_refused_as_a_run_is(
    home: Path, text: str, is_there: bool
) -> None:
    """They say why, and send nobody to a run that refuses; with `sink` put back, it goes on."""
    declare(home, "orders", text)
    if is_there:
        fill(declared(), remembers=False)
    here = StreamPaths.of("orders", load_settings(), declared().sink)
    with pytest.raises(IdentityChangedError) as refused:
        read_position(here)

    planned, proof = oncelake("plan", "orders"), oncelake("verify", "orders")
    declare(home, "orders", IN_ICEBERG)
    mended = oncelake("verify", "orders")

    assert (planned.exit_code, proof.exit_code) == (3, 3)
    assert str(refused.value) in " ".join(planned.stdout.split())
    assert str(refused.value) in " ".join(proof.stderr.split())
    assert "its rows are in a table of" not in mended.stderr
