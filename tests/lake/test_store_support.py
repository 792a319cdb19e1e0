"""The store of the tests and the proxy before it, and what they make of obstore and delta-rs."""

from __future__ import annotations

import contextlib
import http.client
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError
from obstore.store import S3Store, from_url

from tests.support.long import IS_LONG
from tests.support.store import use_store, versitygw
from tests.support.store_proxy import COMMIT, Fault, StoreProxy
from tests.support.world import ROOT

ROWS = pa.table({"id": [1, 2]})
IMPATIENT_DELTA = {"timeout": "1s", "connect_timeout": "1s", "max_retries": "1"}
# Each waits until all are ready, and tries again more often than the 15 times of delta-rs.
WRITER = """
import sys, pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
patient = CommitProperties(max_commit_retries=100)
table = DeltaTable(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(10):
    write_deltalake(table, pa.table({"id": [1]}), mode="append", commit_properties=patient)
"""


def store_at(url: str, *, max_retries: int = 0, timeout: str = "30s") -> S3Store:
    """Reach a store by a client whose patience is the test's."""
    # Options that are given stand in the place of every AWS_ variable about the client.
    client_options = {"allow_http": True, "timeout": timeout}
    retry_config = {"max_retries": max_retries}
    store = from_url(url, client_options=client_options, retry_config=retry_config)
    assert isinstance(store, S3Store)
    return store


def append(url: str, txn: int, **options: str) -> None:
    """Commit one version that carries a transaction of ours."""
    ours = CommitProperties(app_transactions=[Transaction("ours", txn)], max_commit_retries=0)
    write_deltalake(
        url, ROWS, mode="append", commit_properties=ours, storage_options=options or None
    )


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a lake in the second server, which clients find in the environment."""
    with versitygw(tmp_path) as (address, bucket):
        use_store(address, monkeypatch)
        yield f"s3://{bucket}/lake"


def test_the_store_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    """A test session that is killed leaves no server behind, nor a proxy."""
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tests.support.store import moto\n"
        "from tests.support.store_proxy import StoreProxy\n"
        "with moto(Path(sys.argv[1])) as address, StoreProxy.before(address) as proxy:\n"
        "    print(proxy._process.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        proxy = psutil.Process(int(session.stdout.readline()))
        server = psutil.Process(int((tmp_path / "pid").read_text()))
        session.send_signal(signal.SIGKILL)

    _, alive = psutil.wait_procs([server, proxy], timeout=10)
    assert alive == []


@pytest.mark.parametrize("server", ["bucket", "gateway"])
def test_the_store_writes_on_condition(server: str, request: pytest.FixtureRequest) -> None:
    """An object is created once, and replaced only by who has read it last."""
    store = store_at(request.getfixturevalue(server))
    tag = store.put("object", b"1", mode="create")["e_tag"]
    store.put("object", b"2", mode={"e_tag": tag})

    with pytest.raises(AlreadyExistsError):
        store.put("object", b"3", mode="create")
    with pytest.raises(PreconditionError):
        store.put("object", b"3", mode={"e_tag": tag})


def test_requests_are_counted_by_kind(bucket: str, store_proxy: StoreProxy) -> None:
    """Every request is seen once, with its path and how it was answered."""
    store = store_at(bucket)
    with store_proxy.counted() as requests:
        store.put("a b", b"0123456789")
        store.head("a b")
        assert bytes(store.get_range("a b", start=2, length=3)) == b"234"
        assert [found["path"] for found in store.list().collect()] == ["a b"]
        store.put("large", bytes(11_000_000))
        store.delete("a b")
        with pytest.raises(FileNotFoundError):
            store.get("a b")
    store.put("later", b"")

    path = f"/{bucket.removeprefix('s3://')}/a b"
    assert str(requests[0]) == f"200 PUT {path}"
    assert str(requests[2]) == f"206 GET {path} bytes=2-4"
    assert str(requests[-1]) == f"404 GET {path}"
    # The large one goes in three parts, between two POSTs; the third POST deletes.
    assert requests.counts == {"PUT": 4, "HEAD": 1, "GET": 2, "LIST": 1, "POST": 3}


def test_a_body_may_come_in_chunks_and_wait_for_leave(bucket: str, store_proxy: StoreProxy) -> None:
    """The proxy speaks HTTP as SDKs do: chunks, Expect, several requests a connection."""
    path = f"/{bucket.removeprefix('s3://')}/object"
    # The store shows nothing of its own to strangers.
    named = {"Authorization": "a name is enough"}
    connection = http.client.HTTPConnection(urlsplit(store_proxy.address).netloc, timeout=10)
    with contextlib.closing(connection):
        connection.request(
            "PUT",
            path,
            body=iter([b"in ", b"chunks"]),
            headers={**named, "Expect": "100-continue", "Transfer-Encoding": "chunked"},
            encode_chunked=True,
        )
        assert connection.getresponse().read() == b""
        connection.request("HEAD", path, headers=named)
        headed = connection.getresponse()
        assert (headed.read(), headed.headers["Content-Length"]) == (b"", "9")
        connection.request("GET", path, headers=named)
        assert connection.getresponse().read() == b"in chunks"


def test_a_client_that_holds_pythons_lock_is_answered(bucket: str, store_proxy: StoreProxy) -> None:
    """The proxy needs nothing of the process whose requests it passes on."""
    append(bucket, txn=1)

    with store_proxy.fault("delay", seconds=0.1):
        assert len(DeltaTable(bucket).history()) == 1


def test_the_clock_of_the_store_may_be_off(bucket: str, store_proxy: StoreProxy) -> None:
    """The date of an answer is as far off as the store's clock is."""
    store_proxy.behave(clock_skew_seconds=3600)
    connection = http.client.HTTPConnection(urlsplit(store_proxy.address).netloc, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/")
        answer = connection.getresponse()

    ahead = parsedate_to_datetime(answer.headers["Date"]) - datetime.now(UTC)
    assert timedelta(minutes=59) < ahead < timedelta(minutes=61)


@pytest.mark.parametrize(
    ("fault", "message"),
    [("slow_down", "503.*SlowDown"), ("error", "500.*InternalError"), ("reset", "HTTP error")],
)
def test_a_failing_store_does_nothing(
    bucket: str, store_proxy: StoreProxy, fault: Fault, message: str
) -> None:
    """A request that fails on purpose does not reach the store."""
    with store_proxy.fault(fault) as failed, pytest.raises(GenericError, match=message):
        store_at(bucket).put("object", b"1")

    assert [request.kind for request in failed] == ["PUT"]
    assert store_at(bucket).list().collect() == []


def test_a_fault_meets_the_requests_that_it_names(bucket: str, store_proxy: StoreProxy) -> None:
    """Of the requests that match, those from the first on fail, and as many as were said."""
    store = store_at(bucket)
    outcomes = []
    with store_proxy.fault("error", "PUT .*/named", first=2, times=1) as failed:
        for name in ("other", "named-1", "other", "named-2", "named-3"):
            try:
                store.put(name, b"1")
            except GenericError:
                outcomes.append(name)

    assert outcomes == ["named-2"]
    assert [request.target.rpartition("/")[2] for request in failed] == ["named-2"]


def test_clients_bear_a_throttled_store(bucket: str, store_proxy: StoreProxy) -> None:
    """Both clients try again by themselves, and a commit refused twice is made once."""
    with store_proxy.fault("slow_down", times=2):
        store_at(bucket, max_retries=2).put("object", b"1", mode="create")
    with store_proxy.fault("slow_down", COMMIT, times=2):
        append(bucket, txn=1)

    assert DeltaTable(bucket).version() == 0


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        pytest.param(
            lambda url: store_at(url, max_retries=1, timeout="1s").get("object"),
            GenericError,
            id="obstore",
        ),
        pytest.param(
            lambda url: DeltaTable(url, storage_options=IMPATIENT_DELTA), OSError, id="delta-rs"
        ),
    ],
)
def test_the_wait_for_a_store_that_never_answers_can_be_bounded(
    bucket: str, store_proxy: StoreProxy, ask: Callable[[str], object], error: type[Exception]
) -> None:
    """A time-out a request and a number of retries bound it; three minutes are the default."""
    begin = time.monotonic()
    with store_proxy.fault("stall") as stalled, pytest.raises(error, match="S3 error"):
        ask(bucket)

    assert len(stalled) == 2
    assert time.monotonic() - begin < 10


def test_a_request_may_be_done_after_its_client_gave_up(
    bucket: str, store_proxy: StoreProxy
) -> None:
    """A write on condition is not tried again when it takes too long, and may still come."""
    store = store_at(bucket)
    with store_proxy.fault("delay", "PUT", seconds=3) as late:
        with pytest.raises(GenericError):
            store_at(bucket, max_retries=3, timeout="1s").put("object", b"late", mode="create")
        with pytest.raises(FileNotFoundError):
            store.get("object")
        deadline = time.monotonic() + 10
        while late[0].status != 200:
            assert time.monotonic() < deadline, "the request was never passed on"
            time.sleep(0.05)

    assert len(late) == 1
    assert bytes(store.get("object").bytes()) == b"late"


# A reset is never followed by a second try of a write on condition; the other two are, and that
# one meets the object of the first.
LOST = [
    pytest.param("lost_answer", GenericError, OSError, id="reset"),
    pytest.param("hung_up", AlreadyExistsError, CommitFailedError, id="closed"),
    pytest.param("late_error", AlreadyExistsError, CommitFailedError, id="500"),
]


@pytest.mark.parametrize(("fault", "of_obstore", "of_delta"), LOST)
def test_a_write_whose_answer_was_lost_is_done_and_looks_like_a_failure_or_a_conflict(
    bucket: str,
    store_proxy: StoreProxy,
    fault: Fault,
    of_obstore: type[Exception],
    of_delta: type[Exception],
) -> None:
    """Neither client can tell a conflict from the object that it has just written itself."""
    store = store_at(bucket, max_retries=3)
    with store_proxy.fault(fault, "PUT", times=1), pytest.raises(of_obstore):
        store.put("object", b"ours", mode="create")
    assert bytes(store.get("object").bytes()) == b"ours"

    append(bucket, txn=1)
    with store_proxy.fault(fault, COMMIT, times=1), pytest.raises(of_delta):
        append(bucket, txn=2)
    table = DeltaTable(bucket)
    assert (table.version(), table.transaction_version("ours")) == (1, 2)


@pytest.mark.parametrize("fault", ["lost_answer", "hung_up", "late_error"])
def test_without_retries_a_lost_answer_never_looks_like_a_conflict(
    bucket: str, store_proxy: StoreProxy, fault: Fault
) -> None:
    """A client that does not try again reports the failure of the one request that it made."""
    with (
        store_proxy.fault(fault, COMMIT, times=1),
        pytest.raises(OSError, match="Error performing PUT"),
    ):
        append(bucket, txn=1, max_retries="0")

    assert DeltaTable(bucket).transaction_version("ours") == 1


@pytest.mark.slow
@pytest.mark.skipif(not IS_LONG, reason="it is of the store and its clients, and none of it ours")
@pytest.mark.parametrize("ignores_conditions", [False, True])
def test_only_conditional_writes_keep_every_commit_of_four_writers(
    bucket: str, store_proxy: StoreProxy, ignores_conditions: bool
) -> None:
    """Four processes append ten times each: a store that ignores conditions loses some of it."""
    write_deltalake(bucket, pa.table({"id": [0]}))
    store_proxy.behave(ignores_conditions=ignores_conditions)
    command = [sys.executable, "-c", WRITER, bucket]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(subprocess.Popen(command, **pipes)) for _ in range(4)]
        assert [writer.stdout.readline() for writer in writers] == ["ready\n"] * 4
        for writer in writers:
            print("go", file=writer.stdin, flush=True)
        assert [writer.wait(120) for writer in writers] == [0] * 4

    rows = DeltaTable(bucket).to_pyarrow_table().num_rows - 1
    assert (rows < 40) if ignores_conditions else (rows == 40)
