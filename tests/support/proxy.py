"""A TCP proxy on loopback whose faults can be switched while connections are open."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Fault = Literal["none", "stall", "reset", "throttle", "cut"]

# Closing a socket that lingers for no time sends RST and not FIN.
_RESET_AT_ONCE = struct.pack("ii", 1, 0)


class Proxy:
    """Passes bytes between clients and one server, or does to them what ``fault`` says.

    ``stall`` passes nothing on and closes nothing; ``reset`` resets every connection, old and new;
    ``throttle`` passes one byte a second; ``cut`` resets a connection after ``cut_after`` bytes of
    answers.
    """

    def __init__(self, server_port: int, *, port: int) -> None:
        """Take the ports; nothing listens yet."""
        self.port = port
        self.server_port = server_port
        self._fault: Fault = "none"
        self._cut_after = 0
        self._switched = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()

    @classmethod
    @contextmanager
    def between(cls, server_port: int, *, port: int) -> Iterator[Proxy]:
        """Serve on ``port`` in a thread of its own, until the block ends."""
        proxy = cls(server_port, port=port)
        thread = threading.Thread(target=proxy._loop.run_forever, name="proxy", daemon=True)
        thread.start()
        serving = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(proxy._accept, "127.0.0.1", port), proxy._loop
        ).result(10)
        try:
            yield proxy
        finally:
            serving.close()
            asyncio.run_coroutine_threadsafe(proxy._end(), proxy._loop).result(10)
            proxy._loop.call_soon_threadsafe(proxy._loop.stop)
            thread.join(10)
            proxy._loop.close()

    def switch(self, fault: Fault, *, cut_after: int = 0) -> None:
        """Change what happens, to connections that are open already too."""
        done = threading.Event()

        def change() -> None:
            self._fault, self._cut_after = fault, cut_after
            switched, self._switched = self._switched, asyncio.Event()
            switched.set()
            if fault == "reset":
                self._reset(*self._open)
            done.set()

        self._loop.call_soon_threadsafe(change)
        assert done.wait(10)

    @contextmanager
    def leading_to(self, server_port: int) -> Iterator[None]:
        """Let another server answer while the block runs."""
        ours, self.server_port = self.server_port, server_port
        self._reconnect()
        try:
            yield
        finally:
            self.server_port = ours
            self._reconnect()

    def _reconnect(self) -> None:
        self.switch("reset")
        self.switch("none")

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._fault == "reset":
            self._reset(writer)
            return
        try:
            to = await asyncio.open_connection("127.0.0.1", self.server_port)
        except OSError:
            self._reset(writer)
            return
        self._open |= {writer, to[1]}
        pumps = (self._pump(reader, to[1], answers=False), self._pump(to[0], writer, answers=True))
        try:
            await asyncio.gather(*pumps)
        except (OSError, asyncio.IncompleteReadError):
            self._reset(writer, to[1])
        finally:
            self._open -= {writer, to[1]}

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        passed = 0
        while chunk := await reader.read(1 << 16):
            while chunk:
                switched, fault = self._switched, self._fault
                if fault == "stall":
                    await switched.wait()
                    continue
                if answers and fault == "cut" and passed + len(chunk) > self._cut_after:
                    raise ConnectionResetError
                size = 1 if fault == "throttle" else len(chunk)
                writer.write(chunk[:size])
                await writer.drain()
                passed, chunk = passed + size, chunk[size:]
                if fault == "throttle":
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(switched.wait(), 1)
        writer.close()

    @staticmethod
    def _reset(*writers: asyncio.StreamWriter) -> None:
        for writer in writers:
            raw: socket.socket | None = writer.get_extra_info("socket")
            if raw is not None and raw.fileno() >= 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_ONCE)
            writer.transport.abort()

    async def _end(self) -> None:
        self._reset(*self._open)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
