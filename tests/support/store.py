"""Object stores on loopback: moto, which tests always have, and versitygw where it is installed."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from oncelake.ingestion.local.process import launch, recorded_process, stop
from oncelake.ingestion.storage import location

_ACCESS_KEY, _SECRET_KEY = "a-key-of-tests", "a-secret-of-tests"
_REGION = "us-east-1"


def environment_of_store(address: str) -> dict[str, str]:
    """Return the variables by which clients reach a store, in this process or another."""
    return {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": _ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": _SECRET_KEY,
        "AWS_REGION": _REGION,
        "AWS_ALLOW_HTTP": "true",
    }


def use_store(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the clients of this process, and of those it starts, that store and no other."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in environment_of_store(address).items():
        monkeypatch.setenv(name, value)
    # A process knows one store by a name: what the environment said when it was first reached.
    location._store.cache_clear()


def make_bucket(address: str) -> str:
    """Make a bucket in moto, and return its name."""
    name = f"b{uuid.uuid4().hex[:12]}"
    request = urllib.request.Request(f"{address}/{name}", method="PUT")
    urllib.request.urlopen(request, timeout=10).close()
    return name


@contextmanager
def moto(folder: Path) -> Iterator[str]:
    """Yield the address of moto's S3, which lives as long as the block, and no longer than us."""
    port = free_port()
    server = Path(__file__).with_name("moto_server.py")
    with serving([sys.executable, "-P", str(server), str(port)], port, folder) as address:
        yield address


@contextmanager
def versitygw(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the address of Versity's S3 gateway in front of a folder, and the name of a bucket.

    It enforces what conditional writes promise, and checks signatures; it must be on PATH.
    """
    program = shutil.which("versitygw")
    if program is None:
        pytest.skip(
            "versitygw is not on PATH; go install github.com/versity/versitygw/cmd/versitygw@v1.8.0"
        )
    port = free_port()
    (folder / "buckets" / "bucket").mkdir(parents=True)
    command = [program, "--port", f"127.0.0.1:{port}", "--access", _ACCESS_KEY]
    command += ["--secret", _SECRET_KEY, "--region", _REGION, "--quiet"]
    command += ["posix", str(folder / "buckets")]
    with serving(command, port, folder) as address:
        yield address, "bucket"


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(
    command: Sequence[str], port: int, folder: Path, *, scheme: str = "http"
) -> Iterator[str]:
    """Run a server's command until the block ends, or this process does; yield its address.

    Its folder, which gets its log, goes with it.
    """
    launch(command, pid_file=folder / "pid", log=folder / "log", tied=True)
    address = f"{scheme}://127.0.0.1:{port}"
    try:
        _await(address, folder / "log")
        yield address
    finally:
        process = recorded_process(folder / "pid", command_ends_with=" ".join(command))
        if process is not None:
            stop(process, grace_seconds=5)
        shutil.rmtree(folder, ignore_errors=True)


def _await(address: str, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            if address.startswith("http:"):
                urllib.request.urlopen(address, timeout=5).close()
            else:
                socket.create_connection(("127.0.0.1", urlsplit(address).port), timeout=5).close()
        except urllib.error.HTTPError as refused:
            refused.close()
            return
        except OSError:
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.05)
        else:
            return
