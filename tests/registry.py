"""A real schema registry: Apicurio, which answers Confluent's API, on a free port of loopback."""

from __future__ import annotations

import shutil
import socket
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingestion.local.java import find_java
from ingestion.local.process import Process, launch
from tests.world import ROOT

_MAIN = "io.quarkus.runner.GeneratedMain"


@contextmanager
def schema_registry(folder: Path) -> Iterator[str]:
    """Yield the address of a registry that lives as long as the block, and no longer than us."""
    (archive,) = (ROOT / ".jars" / "registry").glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (runner,) = folder.glob("*-runner.jar")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [find_java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    command += ["-cp", f"{runner}:{folder}/lib/*", _MAIN]
    launch(command, pid_file=folder / "pid", log=folder / "log", tied=True)
    address = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    _await(f"{address}/subjects", folder / "log")
    try:
        yield address
    finally:
        pid = int((folder / "pid").read_text())
        Process(pid=pid, command_ends_with=_MAIN).stop(grace_seconds=5)
        shutil.rmtree(folder, ignore_errors=True)


def _await(url: str, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.1)
        else:
            return
