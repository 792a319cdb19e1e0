"""The embedded Kafka keeps what it promises to the laptop, the demo and the other tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from oncelake.ingestion.errors import SetupError
from oncelake.ingestion.local import broker
from oncelake.ingestion.settings import load_settings
from tests.support.long import only_long

pytestmark = pytest.mark.kafka


@pytest.fixture
def jars() -> Path:
    """Return the folder of the jars that set-up fetched."""
    return load_settings().jars


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder whose broker is gone afterwards."""
    yield tmp_path / "kafka"
    broker.down(tmp_path / "kafka")


@only_long
def test_what_was_published_is_there_after_a_restart(folder: Path, jars: Path) -> None:
    """A stopped broker comes back with its records, its cluster id and its port."""
    first = broker.up(folder, jars=jars, tied_to_caller=True)
    publish(first.address, b"hello")
    assert broker.down(folder)

    second = broker.up(folder, jars=jars, tied_to_caller=True)

    assert (second.address, second.cluster_id) == (first.address, first.cluster_id)
    assert second.pid != first.pid
    assert only_record(second.address) == b"hello"


def test_starting_twice_starts_one_broker(folder: Path, jars: Path) -> None:
    """A broker that runs is returned as it is, and its address is there for clients to read."""
    first = broker.up(folder, jars=jars, tied_to_caller=True)

    assert broker.up(folder, jars=jars) == first == broker.status(folder)
    assert (folder / "address").read_text().strip() == first.address


@only_long
def test_a_killed_broker_starts_again(folder: Path, jars: Path) -> None:
    """A broker that was killed is seen as dead, and its folder starts a new one."""
    first = broker.up(folder, jars=jars, tied_to_caller=True)
    os.kill(first.pid, signal.SIGKILL)
    wait_until_gone(first.pid)
    assert broker.status(folder) is None

    second = broker.up(folder, jars=jars, tied_to_caller=True)

    assert second.cluster_id == first.cluster_id


def test_stopping_nothing_is_fine(folder: Path) -> None:
    """A folder without a broker has nothing to stop, and is not made by asking."""
    assert not broker.down(folder)
    assert broker.status(folder) is None
    assert not folder.exists()


def test_a_foreign_process_with_the_recorded_pid_survives(folder: Path) -> None:
    """A pid that the system gave to another process is never killed."""
    folder.mkdir()
    (folder / "pid").write_text(f"{os.getpid()}\n")

    assert broker.status(folder) is None
    assert not broker.down(folder)


def test_a_killed_caller_leaves_no_broker_behind(folder: Path, jars: Path) -> None:
    """A tied broker ends with its caller, even when that had no chance to say goodbye."""
    code = (
        "import sys, time; from pathlib import Path; from oncelake.ingestion.local import broker; "
        "b = broker.up(Path(sys.argv[1]), jars=Path(sys.argv[2]), tied_to_caller=True); "
        "print(b.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder), str(jars)], stdout=subprocess.PIPE, text=True
    ) as caller:
        assert caller.stdout is not None
        pid = int(caller.stdout.readline())
        assert broker.status(folder) is not None

        caller.kill()

    wait_until_gone(pid)


def test_a_detached_broker_survives_its_caller_and_holds_no_pipe(folder: Path, jars: Path) -> None:
    """A caller whose output is piped ends for its reader too, while the broker runs on."""
    code = (
        "import sys; from pathlib import Path; from oncelake.ingestion.local import broker; "
        "broker.up(Path(sys.argv[1]), jars=Path(sys.argv[2]))"
    )

    subprocess.run(
        [sys.executable, "-c", code, str(folder), str(jars)],
        capture_output=True,
        check=True,
        timeout=90,
    )

    assert broker.status(folder) is not None


def test_a_taken_port_is_refused(folder: Path, jars: Path) -> None:
    """A port on which somebody listens is named in the refusal, and nothing is started."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        with pytest.raises(SetupError, match=f"port {port} of 127.0.0.1 is taken"):
            broker.up(folder, jars=jars, port=port)

    assert broker.status(folder) is None


def test_missing_jars_name_the_remedy(folder: Path, tmp_path: Path) -> None:
    """Without jars the error says which folder lacks them and what to run."""
    with pytest.raises(SetupError, match="oncelake jars"):
        broker.up(folder, jars=tmp_path)


def publish(address: str, value: bytes) -> None:
    """Make a topic and put one record in it."""
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic("kept", 1)])["kept"].result(timeout=30)
    producer = Producer({"bootstrap.servers": address})
    producer.produce("kept", value)
    assert producer.flush(30) == 0


def only_record(address: str) -> bytes | None:
    """Read the one record of the topic."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "unused"})
    consumer.assign([TopicPartition("kept", 0, 0)])
    record = consumer.poll(30)
    consumer.close()
    assert record is not None
    return record.value()


def wait_until_gone(pid: int, *, timeout_seconds: float = 20) -> None:
    """Return when no process has this pid, a zombie aside."""
    deadline = time.monotonic() + timeout_seconds
    recorded = Path(f"/proc/{pid}/cmdline")
    while recorded.exists() and recorded.read_bytes():
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.05)
