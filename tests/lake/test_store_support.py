"""The store of the tests and the proxy before it: what they promise to the tests that use them."""

from __future__ import annotations

import contextlib
import http.client
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError
from obstore.store import S3Store, from_url

from tests.support.store_proxy import StoreProxy
from tests.support.world import ROOT


def store_at(bucket: str, **retries: int) -> S3Store:
    """Reach the store, and try again no more often than a test says."""
    store = from_url(bucket, retry_config={"max_retries": 0, **retries})
    assert isinstance(store, S3Store)
    return store


def test_the_store_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    """A test session that is killed leaves no server behind."""
    script = (
        "import sys, time; from pathlib import Path; from tests.support.store import moto\n"
        "with moto(Path(sys.argv[1])) as address: print(address, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        assert session.stdout.readline().startswith("http://127.0.0.1:")
        server = psutil.Process(int((tmp_path / "pid").read_text()))
        session.send_signal(signal.SIGKILL)

    server.wait(10)


def test_the_store_writes_on_condition(bucket: str) -> None:
    """An object is created once, and replaced only by who has read it last."""
    store = store_at(bucket)
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


@pytest.mark.parametrize(
    ("fault", "message"),
    [("slow_down", "SlowDown"), ("error", "InternalError"), ("reset", "HTTP error")],
)
def test_a_failing_store_does_nothing(
    bucket: str, store_proxy: StoreProxy, fault: str, message: str
) -> None:
    """A request that fails on purpose does not reach the store."""
    with (
        store_proxy.fault(fault) as failed,  # type: ignore[arg-type]
        pytest.raises(GenericError, match=message),
    ):
        store_at(bucket).put("object", b"1")

    assert [request.kind for request in failed] == ["PUT"]
    assert store_at(bucket).list().collect() == []
