"""A real PostgreSQL on loopback, which ends with the block, or the process, that started it."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

_SECONDS = 30
_CLUSTER = ("-U", "oncelake", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
# Nothing survives a crash of the machine, and no socket but that of TCP is opened.
_SERVER = {"fsync": "off", "full_page_writes": "off", "unix_socket_directories": ""}


@contextmanager
def postgres(folder: Path, *, is_standby: bool = False) -> Iterator[str]:
    """Start a server, whose log is in ``folder``; yield the URL of its database.

    It takes every login. A standby can be read, and waits for a primary that never comes. Where
    PostgreSQL is not installed, the test is skipped.
    """
    installed, prefix = binaries(), _prefix()
    # pytest's folders are root's alone, and PostgreSQL refuses to be root.
    cluster = Path(tempfile.mkdtemp(prefix="oncelake-postgres-"))
    try:
        if _is_root():
            shutil.chown(cluster, _user())
        initdb = [*prefix, str(installed / "initdb"), "-D", str(cluster), *_CLUSTER]
        made = subprocess.run(initdb, capture_output=True, text=True, cwd="/", check=False)
        assert made.returncode == 0, made.stderr
        if is_standby:
            (cluster / "standby.signal").touch()
        server = [*prefix, str(installed / "postgres"), "-D", str(cluster)]
        with _running(server, folder / "postgres.log") as url:
            yield url
    finally:
        shutil.rmtree(cluster)


@contextmanager
def _running(server: Sequence[str], log: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"postgresql://oncelake@127.0.0.1:{port}/postgres"
    settings = [f"-c{name}={value}" for name, value in _SERVER.items()]
    command = [*server, "-h", "127.0.0.1", "-p", str(port), *settings]
    with (
        log.open("ab") as output,
        subprocess.Popen(command, stdout=output, stderr=output, cwd="/") as process,
    ):
        try:
            _wait_for(url, process, log)
            yield url
        finally:
            process.send_signal(signal.SIGINT)  # Its word for *fast*: it waits for no client.
            try:
                process.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            psycopg.connect(url, connect_timeout=2).close()
        except psycopg.OperationalError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        else:
            return


def binaries() -> Path:
    """Find ``initdb`` and ``postgres``, which most systems keep off the path."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if config := shutil.which("pg_config"):
        answer = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=True)
        folders.insert(0, Path(answer.stdout.strip()))
    for folder in folders:
        if all((folder / name).exists() for name in ("initdb", "postgres")):
            return folder
    pytest.skip(
        "PostgreSQL is not installed: neither pg_config nor /usr/lib/postgresql leads to it"
    )


def _prefix() -> list[str]:
    """Return what makes a server end with this process, and be run by somebody else than root."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        if _is_root():
            pytest.skip("PostgreSQL does not run as root, and setpriv is not installed")
        return []
    user = pwd.getpwnam(_user()) if _is_root() else None
    ids = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"] if user else []
    return [setpriv, *ids, "--pdeathsig=INT"]


def _is_root() -> bool:
    return os.getuid() == 0


def _user() -> str:
    return "postgres" if any(each.pw_name == "postgres" for each in pwd.getpwall()) else "nobody"
