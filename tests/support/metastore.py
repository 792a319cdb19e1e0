"""Hive's metastore on loopback, by the jars that PySpark brings, and a proxy that reads Thrift."""

from __future__ import annotations

import re
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from oncelake.ingestion.kafka.java import find_java, pyspark_home
from tests.support.store import free_port, serving
from tests.support.store_proxy import Fault, Request, Requests

# How a client begins a call, whose name comes next: version 1 of the binary protocol, strict.
_CALL: Final = b"\x80\x01\x00\x01"
_REPLY: Final = b"\x80\x01\x00\x02"
_EXCEPTION: Final = b"\x80\x01\x00\x03"
_INTERNAL_ERROR: Final = 6


@contextmanager
def metastore(folder: Path, *, lock_seconds: int) -> Iterator[str]:
    """Yield the address of a metastore that keeps all in memory.

    Args:
        lock_seconds: How long a lock lives that nobody renews.
    """
    port, program = free_port(), Path(__file__).with_name("Metastore.java")
    command = [find_java(), "-Xmx400m", "-XX:TieredStopAtLevel=1"]
    command += [f"-Dderby.stream.error.file={folder}/derby.log", "-cp", f"{pyspark_home()}/jars/*"]
    command += [str(program), str(port), str(folder), str(lock_seconds)]
    with serving(command, port, folder, scheme="thrift") as address:
        yield address


def skip_without_thrift() -> None:
    """Skip the test where pyiceberg's client of metastores cannot be had."""
    pytest.importorskip("thrift", reason="it needs pyiceberg[hive]")


@dataclass
class _Call:
    """What a connection is asked, and what happens to it."""

    number: int = 0
    fault: str = ""
    seconds: float = 0.0
    refusal: bytes = b""


@dataclass
class _Fault:
    """What happens to which calls."""

    fault: Fault
    of: str
    first: int
    times: int | None
    seconds: float
    numbers: list[int]
    met: int = 0

    def happens_to(self, call: str) -> bool:
        if not re.search(self.of, call):
            return False
        self.met += 1
        return self.met >= self.first and self.met < self.first + (self.times or 10**9)


class ThriftProxy:
    """Passes calls on to a metastore, or does to them what the faults of the moment say.

    As ``StoreProxy`` does: ``reset``, ``error``, ``denied`` and ``stall`` happen to a call of which
    the metastore never hears, ``delay`` on its way there, ``lost_answer``, ``hung_up`` and
    ``late_error`` to its answer.
    """

    def __init__(self, server_port: int) -> None:
        """Listen; ``serve`` answers."""
        self._server_port, self._lock = server_port, threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._requests, self._faults = list[Request](), list[_Fault]()
        self.address = f"thrift://127.0.0.1:{self._listener.getsockname()[1]}"

    @classmethod
    @contextmanager
    def before(cls, server_port: int) -> Iterator[ThriftProxy]:
        """Serve in threads of this process until the block ends."""
        proxy = cls(server_port)
        threading.Thread(target=proxy._serve, daemon=True).start()
        try:
            yield proxy
        finally:
            proxy._listener.close()

    @contextmanager
    def counted(self) -> Iterator[Requests]:
        """Collect the calls that come while the block runs."""
        start = len(self._requests)
        requests = Requests(lambda: self._requests[start:])
        try:
            yield requests
        finally:
            requests.close()

    @contextmanager
    def fault(
        self,
        fault: Fault,
        of: str = "",
        *,
        first: int = 1,
        times: int | None = None,
        seconds: float = 0.0,
    ) -> Iterator[Requests]:
        """Let this happen while the block runs, and collect the calls to which it happened."""
        planned = _Fault(fault, of, first, times, seconds, [])
        requests = Requests(lambda: [self._requests[each] for each in planned.numbers])
        self._faults.append(planned)
        try:
            yield requests
        finally:
            self._faults.remove(planned)
            requests.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        call = _Call()
        with closing(client), suppress(OSError), socket.socket() as server:
            server.connect(("127.0.0.1", self._server_port))
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    if not (chunk := ready.recv(1 << 16)):
                        return
                    if ready is client:
                        call = self._ask(chunk, call, client, server)
                    else:
                        self._answer(chunk, call, client)

    def _ask(
        self, chunk: bytes, call: _Call, client: socket.socket, server: socket.socket
    ) -> _Call:
        if chunk.startswith(_CALL):
            call = self._noted(chunk)
            if call.fault == "reset":
                _reset(client)
            if call.fault in ("error", "denied"):
                client.sendall(call.refusal)
            if call.fault == "delay":
                time.sleep(call.seconds)
        if call.fault not in ("reset", "error", "denied", "stall"):
            server.sendall(chunk)
        return call

    def _answer(self, chunk: bytes, call: _Call, client: socket.socket) -> None:
        if call.fault == "lost_answer":
            _reset(client)
        if call.fault == "hung_up":
            client.shutdown(socket.SHUT_RDWR)
        if call.fault == "late_error":
            client.sendall(call.refusal)
            call.fault = "stall"
        with self._lock:
            made = self._requests[call.number]
            self._requests[call.number] = replace(made, status=200)
        if call.fault in ("", "delay"):
            client.sendall(chunk)

    def _noted(self, chunk: bytes) -> _Call:
        size = struct.unpack_from(">i", chunk, 4)[0]
        name = chunk[8 : 8 + size].decode()
        with self._lock:
            number = len(self._requests)
            self._requests.append(Request(kind="CALL", target=name, headers={}, status=0))
            for planned in self._faults:
                if planned.happens_to(f"CALL {name}"):
                    planned.numbers.append(number)
                    refusal = _refusal(chunk[4 : 12 + size], planned.fault)
                    return _Call(number, planned.fault, planned.seconds, refusal)
        return _Call(number)


def _reset(client: socket.socket) -> None:
    # Closing a socket that lingers for no time sends RST and not FIN.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    raise ConnectionResetError


def _refusal(name_and_number: bytes, fault: str) -> bytes:
    """Return an answer to a call: that it may not, or that the metastore failed inside."""
    if fault == "denied":
        # As calls that alter tables are answered: the second field has a MetaException.
        text = b"java.security.AccessControlException: action WRITE not permitted"
        inner = b"\x0b" + struct.pack(">hi", 1, len(text)) + text + b"\x00"
        return _REPLY + name_and_number + b"\x0c" + struct.pack(">h", 2) + inner + b"\x00"
    text = b"Internal error processing it"
    message = b"\x0b" + struct.pack(">hi", 1, len(text)) + text
    kind = b"\x08" + struct.pack(">hi", 2, _INTERNAL_ERROR)
    return _EXCEPTION + name_and_number + message + kind + b"\x00"
