"""Two versions beside each other on one lake: the older is refused, and nothing is harmed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from deltalake import DeltaTable, Field
from pydantic import TypeAdapter
from typer.testing import Result

from oncelake.ingestion.delta.key_index import KeyIndex
from oncelake.ingestion.delta.log_files import log_files
from oncelake.ingestion.errors import DamagedTableError, NewerFormatError
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.last_record import LastRecord
from oncelake.ingestion.kafka.offsets import Offsets, TopicPartition
from oncelake.ingestion.lake import archive
from oncelake.ingestion.lake.ledger import Ledger, copy_ledger, load_or_archive_ledger
from oncelake.ingestion.lake.lock import Holder
from oncelake.ingestion.lake.withheld import WithheldBatch, read_withheld, write_withheld
from oncelake.ingestion.operations.decisions import reset
from oncelake.ingestion.operations.history.archive import list_archive
from oncelake.ingestion.recovery.position import read_position
from oncelake.ingestion.recovery.standing import end_half_done, is_half_done
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.kafka.notes import TopicLog, TopicSchema
from oncelake.ingestion.storage.checksums import sidecar_of
from oncelake.ingestion.storage.lease import Lease
from oncelake.ingestion.storage.processes import ProcessId
from oncelake.ingestion.tables import format as lake_format
from oncelake.ingestion.tables.commit_metadata import (
    CommitMetadata,
    DamagedMetadataError,
    Identity,
    SideFile,
    ranges_at,
)
from oncelake.ingestion.tables.format import engine_version
from oncelake.ingestion.verify.columns.memory import ProofMemoryError, load_memory
from oncelake.ingestion.verify.read.snapshot import read_ledger, read_log
from tests.cli.shell import oncelake
from tests.support.arrow_source import ArrowSession
from tests.support.long import twins
from tests.support.proof import prove
from tests.support.world import World, changed, row
from tests.upgrade.newer import VERSION, Newer

REASON = ("--reason", "a test")
BY_NAME = {"topic_ids", "next", "counts", "side", "t", "schema_ids", "sink"}
_AT = TopicPartition("t", 0)
NOTE_WITH_ALL = CommitMetadata(
    kind="ingest",
    seq=1,
    run_id="r",
    epoch=1,
    identity=Identity(cluster_id="c", topic_ids={"t": "x"}, keys=("id",), order=()),
    columns="id INT",
    next=Offsets({_AT: 1}),
    last={_AT: LastRecord(offset=0, timestamp_ms=1, leader_epoch=0, digest=7)},
    ranges=ranges_at(Offsets({_AT: 1})),
    side={"quarantine": SideFile(path="a", rows=1, size=1, checksum=1)},
)
# What reads, and what writes; each is refused. Behind the stream, `archive` takes an entry's name.
COMMANDS: list[tuple[str, ...]] = [
    ("run",), ("status",), ("ledger",), ("verify",), ("quarantine",), ("history",), ("doctor",),
    ("redrive",), ("maintain",), ("plan",),
    ("replay", "--from", "earliest"), ("rebuild", *REASON), ("accept", *REASON),
    ("alter", "--yes"), ("adopt-topic", *REASON, "--yes"),
    ("adopt-table", "--starting", '{"0": 0, "1": 0}', *REASON, "--apply"),
    ("rewind", "--to", "seq:1", *REASON, "--yes"), ("reset", *REASON, "--yes"),
    ("erase", "--key", '{"id": 1}', *REASON, "--yes"),
    ("follow", "--every", "50ms", "--for", "2s"), ("batch",),
    ("archive", "restore", "--yes"), ("archive", "prune", "--yes"),
]  # fmt: skip
# Sinks say of some commands, before anything is read, that they cannot.
OF_A_SINK = [("run",), ("status",), ("ledger",), ("verify",)]


@pytest.fixture(scope="session")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Newer:
    """A newer version, installed beside this one."""
    return Newer(tmp_path_factory.mktemp("newer"))


@contextmanager
def as_newer() -> Iterator[None]:
    """Let this process write as a version with the next format."""
    with pytest.MonkeyPatch.context() as newer:
        newer.setattr(lake_format, "FORMAT", 2)
        yield


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
@pytest.mark.parametrize("sink", ["delta", *twins("kafka", "iceberg", "postgres")])
def test_an_older_version_is_refused_on_what_a_newer_has_written(
    world: World, newer: Newer, monkeypatch: pytest.MonkeyPatch, sink: str
) -> None:
    """The newer reads the older's; then every command of the older exits with 3, and why."""
    if sink == "delta":
        declare_a_gate_and_rebuild(world)
    world.send(row(3, "c"), None, id=1)
    ran = newer.oncelake(world, "run")
    assert ran.returncode == 0, ran.stderr
    before = contents(world)
    world.send(row(4, "d"))
    world.set_environment(monkeypatch)

    refused = {
        " ".join(words): type_command(world, words)
        for words in (COMMANDS if sink == "delta" else OF_A_SINK)
    }

    codes = {words: done.exit_code for words, done in refused.items() if done.exit_code != 3}
    # What a doctor finds is reported, among the rest.
    assert codes == ({"doctor": 1} if sink == "delta" else {})
    for words, done in refused.items():
        assert f"by Oncelake {VERSION}, format 2" in done.output, words
        assert f"this is Oncelake {engine_version()}, format 1" in done.output, words
        assert f"install Oncelake {VERSION} or a later one" in done.output, words
    assert contents(world) == before
    # Of Delta, that is all there is.
    again = [newer.oncelake(world, word) for word in ("run", "verify") if sink != "delta"]
    assert {each.returncode for each in again} <= {0}, [each.stderr for each in again]


def declare_a_gate_and_rebuild(world: World) -> None:
    """Let the stream have all that a command may ask of it: a gate, and an entry in the archive."""
    world.declare(publish="checked")
    world.write_declaration()
    world.rebuild()


def type_command(world: World, words: Sequence[str]) -> Result:
    """Type a command of this version about the stream."""
    entries = [each.entry for each in list_archive(world.name, world.settings)]
    return oncelake(*words, world.name, *(entries if words[0] == "archive" else ()))


@pytest.mark.slow
def test_an_older_version_is_refused_on_a_commit_that_the_ledger_lacks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer one died in between: whoever reads or changes the table asks the table's log."""
    declare_a_gate_and_rebuild(world)
    commit_as_newer(world)
    world.send(row(4, "d"))
    before = contents(world)
    world.set_environment(monkeypatch)

    # What follows a stream, runs it.
    typed = [words for words in COMMANDS if words[0] != "follow"]
    ended = {words: type_command(world, words) for words in typed}

    not_refused = {words[0]: each.exit_code for words, each in ended.items() if each.exit_code != 3}
    # One looks at the ledger alone, the other reports what it finds.
    assert not_refused == {"ledger": 0, "doctor": 1}
    assert contents(world) == before


def test_what_reads_nothing_that_has_a_format_is_not_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names in the archive, and the lease, stay; an audit reads rows as any tool does, no note.

    A batch waits by a declaration: where that has no gate, none does, whatever the table says.
    """
    world.rebuild()
    commit_as_newer(world)
    before = contents(world)
    world.set_environment(monkeypatch)
    file = world.settings.streams / f"{world.name}.yaml"
    of_both = ("--table", str(world.paths.data), "--file", str(file), "--ignore-unreadable", "1")

    ended = [
        *(oncelake(*words, world.name) for words in (("archive", "list"), ("unlock",), ("batch",))),
        oncelake("audit", *of_both),
    ]

    assert [each.exit_code for each in ended] == [0, 0, 0, 0], [each.output for each in ended]
    assert list_archive(world.name, world.settings)[0].entry in ended[0].output
    assert contents(world) == before


def commit_as_newer(world: World) -> None:
    """Commit in a greater format, and die before the ledger's row."""
    position = read_position(world.paths)
    assert position is not None
    with as_newer():
        world.paths.table.commit_note(position.next_metadata("newer", kind="schema"))


@pytest.mark.parametrize("trouble", ["none", "ledger unreadable", "a later commit damaged"])
def test_a_table_that_a_newer_version_wrote_is_not_reset(world: World, trouble: str) -> None:
    """The table's log is asked, where the ledger lacks the row, and past damage."""
    commit_as_newer(world)
    if trouble == "ledger unreadable":
        make_unreadable(world)
    elif trouble == "a later commit damaged":
        newest = world.paths.table.log().newest_version
        (world.paths.data.path / "_delta_log" / f"{newest + 1:020d}.json").write_bytes(b"")
        log_files(world.paths.data).forget()
    before = contents(world)

    with pytest.raises(NewerFormatError):
        reset(world.name, world.settings, run_id="older")

    assert contents(world) == before


def make_unreadable(world: World) -> None:
    """Write a ledger of which this version understands nothing."""
    for file in world.paths.ledger.path.glob("*.parquet"):
        file.write_bytes(b"of a shape unknown to this version")


def test_a_half_written_commit_of_a_newer_version_is_not_undone(world: World) -> None:
    """What is half-written is told by this version's seals; the note is read before."""
    with as_newer():
        world.send(row(3, "c"))
        world.run()
    commit = world.paths.data / "_delta_log" / f"{world.paths.table.log().newest_version:020d}.json"
    sidecar_of(commit).delete()
    actions = [json.loads(line) for line in commit.read().splitlines()]
    added = next(each["add"]["path"] for each in actions if "add" in each)
    (world.paths.data / added).delete()
    assert is_half_done(world.paths)
    before = contents_of_files(world)

    with pytest.raises(NewerFormatError):
        end_half_done(world.paths)

    assert contents_of_files(world) == before


def contents(world: World) -> dict[str, bytes]:
    """Return the files of the lake but for locks, and the notes of the sink's own log."""
    if world.spec.sink.name == "kafka":
        at = TopicPartition(f"oncelake.{world.name}.oncelake", 0)
        notes = {str(at): str(Kafka(world.settings).stable_end([at])).encode()}
    else:
        found = world.paths.table.notes(99)
        notes = {str(version): str(note).encode() for version, _, note in found}
    return notes | contents_of_files(world)


def contents_of_files(world: World) -> dict[str, bytes]:
    """Return the files of the lake but for locks."""
    lake = Path(world.settings.lake)
    return {
        str(each.relative_to(lake)): each.read_bytes()
        for each in lake.rglob("*")
        if each.is_file() and ".locks" not in each.parts
    }


@pytest.mark.kafka
@pytest.mark.parametrize("sink", ["delta", "kafka", *twins("iceberg", "postgres")])
def test_an_older_version_does_not_commit_behind_a_newer(world: World, sink: str) -> None:
    """A newer one may commit between an older one's look and its commit, which then is refused."""
    position = read_position(world.paths)
    assert position is not None
    meant = position.next_metadata("older", kind="schema")
    with as_newer():
        world.paths.table.commit_note(replace(meant, run_id="newer"))
    before = contents(world)

    with pytest.raises(NewerFormatError):
        world.paths.table.commit_note(meant)

    assert contents(world) == before


def test_a_note_is_believed_by_its_checksum_before_its_format() -> None:
    """A digit that a disk has flipped is damage, and no newer version."""
    note = json.dumps({"format": 2, "oncelake": VERSION, "check": 1})

    with pytest.raises(DamagedMetadataError):
        CommitMetadata.from_json(note, "orders", "lake/orders")

    said = {"format": 2, "oncelake": VERSION}
    whole = json.dumps({**said, "check": crc32(json.dumps(said, sort_keys=True).encode())})
    with pytest.raises(NewerFormatError, match=r"lake/orders was written by Oncelake 9\.8\.0"):
        CommitMetadata.from_json(whole, "orders", "lake/orders")


@pytest.mark.parametrize("known_by", ["ledger", "copy"])
def test_the_ledger_tells_the_format_beside_an_older_note(world: World, known_by: str) -> None:
    """Once its note is gone from the log, a newer version's batch is known by the ledger alone."""
    with as_newer():
        Ledger(world.paths.ledger).put(world.ledger[-1])
        if known_by == "copy":
            copy_as_newer(world)
    if known_by == "copy":
        shutil.rmtree(world.paths.ledger.path)
        log_files(world.paths.ledger).forget()

    with pytest.raises(NewerFormatError):
        world.run()


def copy_as_newer(world: World) -> None:
    """Copy the ledger as whoever wrote it does, which reads what it wrote."""
    with pytest.MonkeyPatch.context() as reader:
        reader.setattr("oncelake.ingestion.lake.ledger.refuse_newer", lambda *_: None)
        copy_ledger(world.paths)


def test_a_proof_refuses_a_newer_note_of_which_the_ledger_knows_nothing(world: World) -> None:
    """A proof reads log and ledger by itself, as of one moment."""
    commit_as_newer(world)

    with pytest.raises(NewerFormatError):
        read_log(world.paths.table, through=99)


def test_a_proof_refuses_a_ledger_of_a_newer_version(world: World) -> None:
    """It reads the rows by itself, not as runs do."""
    with as_newer():
        Ledger(world.paths.ledger).put(world.ledger[-1])

    with pytest.raises(NewerFormatError):
        read_ledger(world.paths.ledger)


@pytest.mark.kafka
@pytest.mark.parametrize("sink", ["kafka"])
def test_a_record_of_a_topic_s_notes_tells_the_format_by_itself(world: World, sink: str) -> None:
    """What is around a note may change as the note may."""
    del sink
    log = world.paths.table.log()
    assert isinstance(log, TopicLog)
    newest = log.newest
    assert newest is not None
    with as_newer():
        record = replace(newest, seq=newest.seq + 1).as_record(log.topic_id)
    world.producer.produce(f"oncelake.{world.name}.oncelake", **record)
    world.producer.flush()

    with pytest.raises(NewerFormatError):
        read_position(world.paths)


@pytest.mark.parametrize("found", [2, "2", "1", 2.5, [1]])
def test_a_format_of_another_type_is_a_newer_one(found: object) -> None:
    """Whatever a later version makes of the number, this one refuses it."""
    with pytest.raises(NewerFormatError):
        lake_format.refuse_newer("orders", "lake/orders", {"format": found, "oncelake": VERSION})


def test_a_field_that_a_newer_version_of_the_same_format_adds_is_dropped(world: World) -> None:
    """It may only inform; each document, and each one inside it, is read without it."""
    said = with_more(NOTE_WITH_ALL.to_json())
    schema = TopicSchema(stream="orders", columns=tuple(world.spec.columns), keys=("id",))
    swap = archive._Swap(entry=archive.new_entry(), why="rebuild: a test", source=None)
    archive._swap_file(world.paths).put(with_more(swap.to_json().decode()).encode())
    lease = Lease(
        token=1,
        run_id="r",
        host="h",
        since="s",
        seconds=1.0,
        machine="m",
        workers=(ProcessId(pid=1, started=1.0),),
    )

    assert CommitMetadata.from_json(said, "orders", "lake/orders") == NOTE_WITH_ALL
    assert TopicSchema.of_row(json.loads(with_more(json.dumps(schema.as_row())))) == schema
    found = archive._read_swap(world.paths)
    assert found is not None
    assert found[0] == swap
    for each in (lease, Holder.me("r")):
        adapter = TypeAdapter(type(each))
        assert adapter.validate_json(with_more(adapter.dump_json(each).decode())) == each


def with_more(text: str) -> str:
    """Give a document, and each object with fields in it, one more field; mend its checksum."""

    def more(value: Any, name: str = "") -> Any:
        if name == "last":
            return {at: {n: [*record, 1] for n, record in of.items()} for at, of in value.items()}
        if isinstance(value, list):
            return [more(each) for each in value]
        if not isinstance(value, dict):
            return value
        read = {each: more(value[each], each) for each in value}
        # What these hold is by name, not by field.
        return read if name in BY_NAME else {**read, "more": 1}

    said = {name: value for name, value in more(json.loads(text)).items() if name != "check"}
    return json.dumps({**said, "check": crc32(json.dumps(said, sort_keys=True).encode())})


def test_a_ledger_with_a_column_more_is_read(world: World) -> None:
    """Of the same format, it only informs."""
    rows = world.ledger
    table = DeltaTable(world.paths.ledger.path)
    table.alter.add_columns([Field("more", "string")])
    log_files(world.paths.ledger).forget()

    assert world.ledger == rows
    world.send(row(5, "e"))
    world.run()
    assert len(world.ledger) == len(rows) + 1


def test_a_ledger_that_a_newer_version_has_written_is_not_archived(world: World) -> None:
    """What cannot be read of it is no damage where the table's log names a newer format."""
    with as_newer():
        world.send(row(5, "e"))
        world.run()
    make_unreadable(world)

    with pytest.raises(NewerFormatError):
        load_or_archive_ledger(world.paths)

    assert world.paths.ledger.exists()


@pytest.mark.parametrize("has_copy", [True, False])
def test_an_unreadable_ledger_stays_where_no_note_tells_whose_it_is(
    world: World, has_copy: bool
) -> None:
    """The notes have aged out of the log: the copy tells, else a person is asked."""
    with as_newer():
        Ledger(world.paths.ledger).put(world.ledger[-1])
        if has_copy:
            copy_as_newer(world)
    make_unreadable(world)
    DeltaTable(world.paths.data.path).create_checkpoint()
    for commit in (world.paths.data.path / "_delta_log").glob("*.json"):
        commit.unlink()
    log_files(world.paths.data).forget()

    with pytest.raises(NewerFormatError if has_copy else DamagedTableError, match="ledger"):
        load_or_archive_ledger(world.paths)

    assert world.paths.ledger.exists()


def test_a_swap_that_a_newer_version_has_begun_is_left_to_it(world: World) -> None:
    """No table moves."""
    with as_newer():
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
