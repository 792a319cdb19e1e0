"""``oncelake doctor``: what it finds on disk, in processes and in facts; no Spark, no Kafka."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from rich.console import Console

from oncelake.ingestion.declaration.files.loader import DeclaredStream, load_streams
from oncelake.ingestion.delta.log import DeltaLog
from oncelake.ingestion.errors import StorageError
from oncelake.ingestion.kafka.offsets import Offsets, TopicPartition
from oncelake.ingestion.kafka.retention import Headroom
from oncelake.ingestion.lake.ledger import Ledger
from oncelake.ingestion.lake.lock import Holder, Lease
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.operations.doctor.examine import (
    Folder,
    diagnose_machine,
    examine,
    examine_leftovers,
    examine_machine,
    orphans,
)
from oncelake.ingestion.operations.doctor.findings import NO_DAEMON, Finding
from oncelake.ingestion.operations.status.status import StreamStatus
from oncelake.ingestion.operations.upkeep.retention import Retention
from oncelake.ingestion.settings import load_settings
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.storage.processes import (
    ProcessId,
    is_running,
    process_locking,
    this_machine,
)
from oncelake.ingestion.tables.commit_metadata import UNKNOWN, CommitMetadata
from tests.cli.shell import answer, oncelake, row
from tests.support.quarantine import as_quarantine

ROOT = Path(__file__).parents[2]
MIB = 2**20


@pytest.fixture
def paths(home: Path) -> StreamPaths:
    """Where the tables of ``orders`` lie."""
    return StreamPaths.of("orders", load_settings())


def findings_of(paths: StreamPaths) -> list[Finding]:
    """Examine what lies around of ``orders``."""
    return list(examine_leftovers("orders", paths))


def commit(paths: StreamPaths, seq: int) -> None:
    """Make a commit of ours that no ledger row speaks of; the first opens the table."""
    metadata = CommitMetadata(
        kind="ingest", seq=seq, run_id="r", epoch=1, identity=UNKNOWN, columns="", next=Offsets()
    )
    if not paths.data.exists():
        columns = {"id": pa.int32(), "total": pa.int32(), "_seq": pa.int64()}
        write_deltalake(paths.data.path, pa.schema(columns).empty_table())
        paths.table.commit_note(replace(metadata, kind="schema", seq=0))
    paths.table.commit_note(metadata)


@contextmanager
def locked_by_another(paths: StreamPaths, driver: int) -> Iterator[int]:
    """Let another process hold the lock, as the JVM of a run does, for a driver of any pid."""
    program = (
        "import sys; from pathlib import Path;"
        "from oncelake.ingestion.lake.paths import StreamPaths;"
        "from oncelake.ingestion.lake.lock import Holder, held_by_python;"
        "from oncelake.ingestion.settings import load_settings; from dataclasses import replace;"
        "p = StreamPaths.of('orders', load_settings());"
        f"me = replace(Holder.me('dead-run'), pid={driver});\n"
        "with held_by_python(p, me): print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    try:
        yield other.pid
    finally:
        other.communicate(timeout=30)


def ended_process() -> int:
    """Return the pid of a process that is over."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(30)
    return process.pid


def test_a_stream_in_order_has_nothing(paths: StreamPaths) -> None:
    """Without a table, and with one whose commits are all recorded, nothing is found."""
    assert findings_of(paths) == []

    commit(paths, 1)
    Ledger(paths.ledger).put(row(1, table_id=DeltaLog(paths.data).table_id()))

    assert findings_of(paths) == []


def test_commits_without_a_ledger_row_are_found(paths: StreamPaths) -> None:
    """A run that died between commit and ledger is told by its seqs; the next run heals it."""
    commit(paths, 1)
    commit(paths, 2)

    (only,) = findings_of(paths)

    assert only.evidence == "seq 1, 2"
    assert only.command == "oncelake run orders"


def last_commit(table: Location) -> Path:
    """Return the newest commit of a table's log."""
    return max((table.path / "_delta_log").glob("*.json"))


def data_file(table: Location) -> Path:
    """Return a data file of a table."""
    return next(table.path.glob("*.parquet"))


DAMAGES: dict[str, Callable[[StreamPaths], object]] = {
    "newest commit garbage": lambda paths: last_commit(paths.data).write_bytes(b"garbage"),
    "newest commit gone": lambda paths: last_commit(paths.data).unlink(),
    "oldest commit gone": lambda paths: min(
        (paths.data.path / "_delta_log").glob("*.json")
    ).unlink(),
    "log gone": lambda paths: shutil.rmtree(paths.data.path / "_delta_log"),
    "table gone": lambda paths: shutil.rmtree(paths.data.path),
    "ledger garbage": lambda paths: data_file(paths.ledger).write_bytes(b"garbage"),
    "quarantine's log garbage": lambda paths: last_commit(paths.quarantine).write_bytes(b"garbage"),
    "quarantine's rows garbage": lambda paths: data_file(paths.quarantine).write_bytes(b"garbage"),
    "tombstones' log garbage": lambda paths: last_commit(paths.tombstones).write_bytes(b"garbage"),
    "tombstones' rows gone": lambda paths: data_file(paths.tombstones).unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_one_damage_is_one_finding(
    paths: StreamPaths, damage: Callable[[StreamPaths], object]
) -> None:
    """It is named once, in the words of the run that would meet it, and never as unexpected."""
    for seq in (1, 2):
        commit(paths, seq)
        Ledger(paths.ledger).put(row(seq, table_id=DeltaLog(paths.data).table_id()))
    rows = pa.table({"_seq": pa.array([1, 2], pa.int64())})
    quarantined = as_quarantine(rows.append_column("reason", [["bad", "bad"]]))
    write_deltalake(paths.quarantine.path, quarantined)
    write_deltalake(paths.tombstones.path, rows)
    damage(paths)

    settings = load_settings()
    found = examine(settings, load_streams(settings.streams), are_all=False, tell=lambda text: None)
    (only,) = (finding for finding in found if finding.about == "orders")

    assert "unexpected" not in only.what
    assert only.command.startswith(("restore ", "oncelake run orders"))


def test_checkpoints_that_nobody_uses_are_found(paths: StreamPaths) -> None:
    """A second generation, and the checkpoint of a stream that is gone, are told by folder."""
    (paths.checkpoints / "3").mkdir(parents=True)
    (paths.checkpoints / "4").mkdir()
    (paths.checkpoints.parent / "gone").mkdir()
    (paths.indexes[0].parent / "former").mkdir(parents=True)

    (two,) = findings_of(paths)
    (orphan,) = orphans(paths.checkpoints.parent, {"orders"})

    assert two.evidence.endswith("3, " + str(paths.checkpoints / "4"))
    assert (orphan.about, orphan.exit_code) == ("gone", 0)
    (index,) = orphans(paths.indexes[0].parent, {"orders"})
    assert index.about == "former"


def test_a_lock_that_outlived_its_driver_is_named_with_who_has_it(paths: StreamPaths) -> None:
    """The kernel tells which process holds on; killing that one is what to do."""
    with locked_by_another(paths, driver=ended_process()) as jvm:
        (only,) = findings_of(paths)

    assert only.exit_code == 1
    assert "driver process has ended" in only.what
    assert "dead-run" in only.evidence
    assert only.command == f"kill {jvm}"
    assert process_locking(paths.lock.path) is None


def test_a_lease_that_outlived_its_run_is_nobodys(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease stays when its holder is killed; the next run takes it, so that nothing is to do."""
    monkeypatch.setenv("ONCELAKE_LOCK", "lease")
    paths = StreamPaths.of("orders", load_settings())
    dead = ProcessId(pid=ended_process(), started=0.0)
    me = Holder.me("dead-run")
    said = {"run_id": me.run_id, "host": me.host, "since": me.since, "workers": (dead,)}
    lease = Lease(token=1, seconds=60, machine=this_machine(), **said)
    assert paths.lease is not None
    paths.lease.path.parent.mkdir(parents=True)
    paths.lease.path.write_text(json.dumps(asdict(lease)))

    assert findings_of(paths) == []


def test_a_run_under_way_is_a_note(paths: StreamPaths) -> None:
    """While a driver that lives holds the stream, nothing of it is a leftover."""
    commit(paths, 1)

    with locked_by_another(paths, driver=os.getpid()):
        (only,) = findings_of(paths)

    assert (only.exit_code, only.what) == (0, "a run holds this stream")


def test_a_process_is_known_by_when_it_began() -> None:
    """Neither one that is over, nor one that was given its number later, is the one meant."""
    assert is_running(os.getpid(), since=time.time())
    assert not is_running(os.getpid(), since=time.time() - 86_400 * 365)
    assert not is_running(ended_process(), since=time.time())


def machine(**changes: Any) -> dict[str, Any]:
    """A machine that has what runs need."""
    place = Folder(name="the lake", path=Path("/lake"), is_writable=True, free_bytes=5_000 * MIB)
    return {"java": ("17", 17), "folders": (place,), **changes}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param({}, [], id="all there"),
        pytest.param({"java": ("11", 11)}, ["Java 17"], id="old Java"),
        pytest.param({"java": ("none", None)}, ["Java 17"], id="no Java"),
        pytest.param({"java": None}, [], id="no Java, and none needed"),
        pytest.param(
            {"folders": (Folder(name="x", path=Path("/x"), is_writable=False, free_bytes=MIB),)},
            ["cannot be written in", "almost full"],
            id="folders",
        ),
    ],
)
def test_what_a_machine_lacks_is_reported(changes: dict[str, Any], says: list[str]) -> None:
    """Each thing that runs need and that is not there is a finding of its own."""
    findings = list(diagnose_machine(**machine(**changes)))

    assert len(findings) == len(says)
    for finding, words in zip(findings, says, strict=True):
        assert words in finding.what


@pytest.mark.parametrize(
    ("more", "says"),
    [
        pytest.param({}, [("52: ", 0)], id="fetched when needed"),
        pytest.param({"maven": "off"}, [("52: ", 1)], id="may not be fetched"),
        pytest.param({"jars": Path("/dev/null/jars")}, [("52: ", 1)], id="cannot be kept"),
        pytest.param({"kafka": "k:9092"}, [("6: spark/", 0)], id="no embedded Kafka"),
        pytest.param({"reader": "librdkafka"}, [("46: broker/", 0)], id="no Spark"),
        pytest.param({"kafka": "k:9092", "reader": "librdkafka"}, [], id="neither"),
    ],
)
def test_missing_jars_are_a_note_where_they_can_come(
    tmp_path: Path, more: dict[str, Any], says: list[tuple[str, int]]
) -> None:
    """Only those that the settings ask for are missed."""
    settings = load_settings(**{"jars": tmp_path / "jars", "state": tmp_path, **more})
    found = [each for each in examine_machine(settings, None) if "jars" in each.what]

    assert len(found) == len(says)
    for each, (evidence, exit_code) in zip(found, says, strict=True):
        assert each.evidence.startswith(evidence)
        assert each.exit_code == exit_code


def test_a_folder_that_cannot_be_written_in_is_seen(tmp_path: Path) -> None:
    """A file in the place of a folder is no place to write in; one yet to be made is."""
    (tmp_path / "file").touch()

    assert not Folder.of("lake", tmp_path / "file").is_writable
    assert Folder.of("lake", tmp_path / "not" / "yet").is_writable


@pytest.fixture
def sound_machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine be in order, without Dagster, and with a Kafka that does not answer."""
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setenv("ONCELAKE_JARS", str(ROOT / ".jars"))
    monkeypatch.setattr("tempfile.tempdir", str(home))
    monkeypatch.setattr("oncelake.ingestion.operations.doctor.examine._LEAST_FREE_BYTES", 0)


@pytest.mark.usefixtures("sound_machine")
def test_a_silent_kafka_alone_exits_with_5(home: Path) -> None:
    """When all there is to find is that Kafka does not answer, trying again may help."""
    result = oncelake("doctor", "--json")

    told = answer(result)
    assert (result.exit_code, told["exit_code"]) == (5, 5)
    assert [(each["about"], each["exit_code"]) for each in told["findings"]] == [
        ("kafka", 5),
        ("dagster", 0),
    ]
    assert told["findings"][1]["what"] == "no Dagster instance here"


@pytest.mark.usefixtures("sound_machine")
def test_records_that_may_be_lost_soon_are_found(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ends ``status`` with 1 is no clean bill of health; a full volume is no silent Kafka."""
    least = Headroom(
        at=TopicPartition("orders", 0), offset=7, limit="time", seconds=60, of_seconds=86_400
    )

    def read_status(reader: object, declared: DeclaredStream) -> StreamStatus:
        assert declared.spec is not None
        retention = Retention(spec=declared.spec, least=least)
        status = StreamStatus(stream="orders", table="t", retention=retention)
        status.add(StorageError("orders: No space left on device. Next: make space there"))
        return status

    monkeypatch.setattr(
        "oncelake.ingestion.operations.status.status.StatusReader.read_status", read_status
    )

    result = oncelake("doctor", "--json")

    full, low, _ = answer(result)["findings"]
    assert result.exit_code == 1
    assert [(each["about"], each["exit_code"]) for each in (full, low)] == [("orders", 1)] * 2
    assert (full["what"], full["command"]) == (
        "No space left on device.",
        "make space there",
    )
    assert "may delete unread offset 7 in 1 min" in low["evidence"]


@pytest.mark.usefixtures("home")
def test_status_names_a_daemon_that_is_dead_behind_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It starts no run of any stream; Dagster is slow to ask, so the table is printed before."""
    asked: list[str] = []

    def ask(*_: object) -> tuple[Finding, ...]:
        asked.append(capture.getvalue())
        return (NO_DAEMON.of("dagster", "never", prefix="", workspace=""),)

    capture = io.StringIO()
    monkeypatch.setattr(
        "oncelake.ingestion.operations.doctor.examine._dagster_home", lambda: Path()
    )
    monkeypatch.setattr("oncelake.ingestion.operations.doctor.examine._is_used", lambda _: True)
    monkeypatch.setattr("oncelake.ingestion.operations.doctor.examine._ask_dagster", ask)
    monkeypatch.setattr(
        "oncelake.ingestion.cli.output.out", lambda: Console(file=capture, width=200)
    )

    oncelake("status")

    assert "no Kafka to use" in asked[0]
    assert "orders: no daemon is running" in capture.getvalue()


@pytest.mark.usefixtures("sound_machine")
def test_something_wrong_comes_before_a_silent_kafka(paths: StreamPaths) -> None:
    """One real finding makes it exit 1, and each is printed with evidence and command."""
    commit(paths, 1)

    result = oncelake("doctor", "orders")

    assert result.exit_code == 1
    assert "orders: commits without a ledger row" in result.stdout
    assert "  next: oncelake run orders" in result.stdout
    assert "2 findings; 1 note" in result.stdout


@pytest.mark.usefixtures("sound_machine")
def test_a_stream_that_cannot_be_examined_is_a_finding(paths: StreamPaths) -> None:
    """A table whose log is garbage does not end the doctor's round."""
    commit(paths, 1)
    (paths.data.path / "_delta_log" / f"{1:020d}.json").write_text("garbage")

    result = oncelake("doctor", "--json")

    assert result.exit_code == 1
    about = {each["about"] for each in answer(result)["findings"]}
    assert about == {"orders", "kafka", "dagster"}


@pytest.mark.usefixtures("sound_machine")
def test_a_dagster_that_cannot_be_read_is_a_finding(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home that is not there is no clean bill of health."""
    monkeypatch.setenv("DAGSTER_HOME", str(home / "nowhere"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    result = oncelake("doctor", "--json")

    (only,) = [each for each in answer(result)["findings"] if each["about"] == "dagster"]
    assert only["exit_code"] == 1
    assert "nothing is known of its runs" in only["what"]
    # Dagster itself says so: its part of the doctor was there to be asked.
    assert str(home / "nowhere") in only["evidence"]


@pytest.mark.usefixtures("sound_machine")
@pytest.mark.parametrize(
    ("settings", "is_asked"),
    [
        pytest.param("", False, id="its own folder"),
        pytest.param("storage: {sqlite: {base_dir: kept}}", False, id="another folder"),
        pytest.param("storage: {postgres: {postgres_url: none}}", True, id="a database"),
        pytest.param("storage: {", True, id="unreadable"),
    ],
)
def test_a_dagster_that_has_stored_nothing_is_not_asked(
    home: Path, monkeypatch: pytest.MonkeyPatch, settings: str, is_asked: bool
) -> None:
    """There is nothing to know of it; one that may have stored something elsewhere is asked."""
    (home / "dagster").mkdir()
    (home / "dagster" / "dagster.yaml").write_text(settings)
    monkeypatch.setenv("DAGSTER_HOME", str(home / "dagster"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    found = answer(oncelake("doctor", "--json"))["findings"]
    (only,) = [each["what"] for each in found if each["about"] == "dagster"]

    assert ("cannot be read" in only, "no Dagster instance" in only) == (is_asked, not is_asked)
    assert [at.name for at in (home / "dagster").iterdir()] == ["dagster.yaml"]


@pytest.mark.usefixtures("sound_machine")
def test_looking_loads_neither_spark_nor_dagster_nor_duckdb(paths: StreamPaths) -> None:
    """What each of them takes to load would be most of what the command takes."""
    commit(paths, 1)
    Ledger(paths.ledger).put(row(1, table_id=DeltaLog(paths.data).table_id()))
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from oncelake.ingestion.cli.app import app\n"
        "for words in sys.argv[1:]:\n"
        "    print(CliRunner().invoke(app, words.split()).exit_code)\n"
        "print({'pyspark', 'py4j', 'dagster', 'duckdb', 'sqlglot'} & set(sys.modules) or 'none')\n"
    )
    commands = ("status", "plan", "doctor", "ledger orders", "quarantine orders")
    done = subprocess.run(
        [sys.executable, "-c", code, *commands],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == ["5", "0", "5", "0", "0", "none"]


@pytest.mark.usefixtures("sound_machine")
def test_status_says_whose_runs_dagster_does_not_start(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sensor that is off, without a schedule, is told with the command that switches it on."""
    (home / "dagster").mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home / "dagster"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with dg.DagsterInstance.from_config(str(home / "dagster")):
        pass

    shown = oncelake("status", "orders")
    idle = answer(oncelake("status", "orders", "--json"))["idle"]

    assert "nothing starts its runs: the sensor is off" in idle
    assert "dagster sensor start lag" in shown.stdout
