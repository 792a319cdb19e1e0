"""Two versions beside each other on one lake: the older is refused, and nothing is harmed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from oncelake.ingestion.delta.key_index import KeyIndex
from oncelake.ingestion.errors import NewerFormatError
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.lake import archive
from oncelake.ingestion.lake.ledger import Ledger, load_or_archive_ledger
from oncelake.ingestion.lake.withheld import WithheldBatch, read_withheld, write_withheld
from oncelake.ingestion.recovery.position import read_position
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.tables import format as lake_format
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, DamagedMetadataError
from oncelake.ingestion.tables.format import engine_version
from oncelake.ingestion.verify.columns.memory import ProofMemoryError, load_memory
from tests.cli.shell import oncelake
from tests.support.arrow_source import ArrowSession
from tests.support.long import twins
from tests.support.proof import prove
from tests.support.world import World, changed, row
from tests.upgrade.newer import VERSION, Newer

REASON = ("--reason", "a test")
# What reads, and what writes; each is refused.
COMMANDS: list[tuple[str, ...]] = [
    ("run",), ("status",), ("ledger",), ("verify",), ("quarantine",), ("history",), ("doctor",),
    ("redrive",), ("maintain",), ("plan",),
    ("replay", "--from", "earliest"), ("rebuild", *REASON), ("accept", *REASON),
    ("rewind", "--to", "seq:1", *REASON, "--yes"), ("reset", *REASON, "--yes"),
    ("erase", "--key", '{"id": 1}', *REASON, "--yes"),
]  # fmt: skip
# Sinks say of some commands, before anything is read, that they cannot.
OF_A_SINK = [("run",), ("status",), ("ledger",), ("verify",)]


@pytest.fixture(scope="session")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Newer:
    """A newer version, installed beside this one."""
    return Newer(tmp_path_factory.mktemp("newer"))


@pytest.fixture
def sink() -> str:
    """What keeps the rows, where a test tries but one."""
    return "delta"


@pytest.fixture
def world(
    settings: Settings, arrow_session: ArrowSession, request: pytest.FixtureRequest, sink: str
) -> Iterator[World]:
    """A stream in a sink, with rows and a record in quarantine."""
    if sink == "postgres":
        settings = changed(settings, postgres=request.getfixturevalue("postgres_address"))
    with World.made(settings, arrow_session) as made:  # type: ignore[arg-type]
        made.declare(sink=sink)
        made.send(row(1, "a"), row(2, "b"), b"garbage")
        made.run()
        made.write_declaration()
        yield made


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("sink", ["delta", "kafka", *twins("iceberg", "postgres")])
def test_an_older_version_is_refused_on_what_a_newer_has_written(
    world: World, newer: Newer, monkeypatch: pytest.MonkeyPatch, sink: str
) -> None:
    """The newer reads the older's; then every command of the older exits with 3, and why."""
    world.send(row(3, "c"), None, id=1)
    ran = newer.oncelake(world, "run")
    assert ran.returncode == 0, ran.stderr
    before = contents(world)
    world.send(row(4, "d"))
    world.set_environment(monkeypatch)

    refused = {
        " ".join(words): oncelake(*words, world.name)
        for words in (COMMANDS if sink == "delta" else OF_A_SINK)
    }

    for words, done in refused.items():
        # What a doctor finds is reported, among the rest.
        assert done.exit_code == (1 if words == "doctor" else 3), (words, done.output)
        assert f"by Oncelake {VERSION}, format 2" in done.output, words
        assert f"this is Oncelake {engine_version()}, format 1" in done.output, words
        assert f"install Oncelake {VERSION} or a later one" in done.output, words
    assert contents(world) == before
    again = [newer.oncelake(world, word) for word in ("run", "verify")]
    assert [each.returncode for each in again] == [0, 0], [each.stderr for each in again]


def contents(world: World) -> dict[str, bytes]:
    """Return the files of the lake but for locks, and the notes of the sink's own log."""
    lake = Path(world.settings.lake)
    if world.spec.sink.name == "kafka":
        at = TopicPartition(f"oncelake.{world.name}.oncelake", 0)
        notes = {str(at): str(Kafka(world.settings).stable_end([at])).encode()}
    else:
        found = world.paths.table.notes(99)
        notes = {str(version): str(note).encode() for version, _, note in found}
    return notes | {
        str(each.relative_to(lake)): each.read_bytes()
        for each in lake.rglob("*")
        if each.is_file() and ".locks" not in each.parts
    }


@pytest.mark.kafka
@pytest.mark.parametrize("sink", ["delta", "kafka", *twins("iceberg", "postgres")])
def test_an_older_version_does_not_commit_behind_a_newer(
    world: World, monkeypatch: pytest.MonkeyPatch, sink: str
) -> None:
    """A newer one may commit between an older one's look and its commit, which then is refused."""
    position = read_position(world.paths)
    assert position is not None
    meant = position.next_metadata("older", kind="schema")
    with monkeypatch.context() as newer:
        newer.setattr(lake_format, "FORMAT", 2)
        world.paths.table.commit_note(replace(meant, run_id="newer"))
    before = contents(world)

    with pytest.raises(NewerFormatError):
        world.paths.table.commit_note(meant)

    assert contents(world) == before


def test_a_note_is_believed_by_its_checksum_before_its_format(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A digit that a disk has flipped is damage, and no newer version."""
    note = json.dumps({"format": 2, "oncelake": VERSION, "check": 1})

    with pytest.raises(DamagedMetadataError):
        CommitMetadata.from_json(note, "orders", "lake/orders")

    said = {"format": 2, "oncelake": VERSION}
    whole = json.dumps({**said, "check": crc32(json.dumps(said, sort_keys=True).encode())})
    with pytest.raises(NewerFormatError, match=r"lake/orders was written by Oncelake 9\.8\.0"):
        CommitMetadata.from_json(whole, "orders", "lake/orders")


def test_the_ledger_tells_the_format_once_the_commits_are_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only the copy beside the table has the row."""
    with monkeypatch.context() as newer:
        newer.setattr(lake_format, "FORMAT", 2)
        Ledger(world.paths.ledger).put(world.ledger[-1])

    with pytest.raises(NewerFormatError):
        world.run()


def test_a_ledger_that_a_newer_version_has_written_is_not_archived(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be read of it is no damage where the table's log names a newer format."""
    with monkeypatch.context() as newer:
        newer.setattr(lake_format, "FORMAT", 2)
        world.send(row(5, "e"))
        world.run()
    for file in world.paths.ledger.path.glob("*.parquet"):
        file.write_bytes(b"of a shape unknown to this version")

    with pytest.raises(NewerFormatError):
        load_or_archive_ledger(world.paths)

    assert world.paths.ledger.exists()


def test_a_swap_that_a_newer_version_has_begun_is_left_to_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No table moves."""
    with monkeypatch.context() as newer:
        newer.setattr(lake_format, "FORMAT", 2)
        swap = archive._Swap(entry=archive.new_entry(), why="rebuild: a test", source=None)
        archive._swap_file(world.paths).put(swap.to_json())

    with pytest.raises(NewerFormatError):
        world.run()

    assert world.paths.data.exists()


def test_evidence_of_another_format_is_judged_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits at the gate counts for nothing then."""
    empty: dict[str, Any] = {"ranges": (), "counts": {}, "misses": ()}
    batch = WithheldBatch(
        table_id="t", seq=1, epoch=1, judged_by="x", run_id="r", since="2026", records=0, **empty
    )
    with monkeypatch.context() as newer:
        newer.setattr("oncelake.ingestion.lake.withheld.FORMAT", 2)
        write_withheld(world.paths, batch)

    assert read_withheld(world.paths) is None
    write_withheld(world.paths, batch)
    assert read_withheld(world.paths) == batch


def test_an_index_of_another_format_is_made_anew(tmp_path: Path) -> None:
    """What was a row there may be anything."""
    keys = [("id", "INT")]
    index = KeyIndex(tmp_path, "table", keys)
    index.update([("file", 100, 1)], lambda _: np.array([1], np.uint64))
    manifest = tmp_path / "manifest"
    assert len(KeyIndex(tmp_path, "table", keys)._runs) == 1
    text = manifest.read_text().partition("\n")[2].replace('"format": 1', '"format": 2')
    manifest.write_text(f"{crc32(text.encode())}\n{text}")

    assert KeyIndex(tmp_path, "table", keys)._runs == []


def test_a_memory_of_another_format_is_not_gone_on_from(world: World) -> None:
    """The next proof begins anew."""
    prove(world)
    file = world.paths.proof / "proof.json"
    document = json.loads(file.read())
    assert document["format"] == 2
    file.put(json.dumps({**document, "format": 3}).encode())

    with pytest.raises(ProofMemoryError, match="is of format 3"):
        load_memory(world.paths.proof)
    assert prove(world).holds
