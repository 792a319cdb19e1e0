"""An HTTP proxy in front of a store: it counts requests, and does what stores do on bad days."""

from __future__ import annotations

import asyncio
import email.utils
import itertools
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit

Fault = Literal["slow_down", "error", "stall", "delay", "reset", "lost_answer"]

# Closing a socket that lingers for no time sends RST and not FIN.
_RESET_AT_ONCE = struct.pack("ii", 1, 0)
_CONDITIONS = {"if-match", "if-none-match"}
# These are about one connection, or about how a body goes over it.
_PER_CONNECTION = {"connection", "expect", "keep-alive", "transfer-encoding"}


class _LostError(Exception):
    """The client gets no answer: its connection is reset."""


@dataclass(kw_only=True)
class Request:
    """One request that a client sent; its status is 0 as long as it has not been answered."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    status: int = 0

    @property
    def kind(self) -> str:
        """Its verb, or LIST for a listing: that is what stores charge for."""
        return "LIST" if self.method == "GET" and "list-type=2" in self.query else self.method

    def __str__(self) -> str:
        where = self.path + "".join(
            f" {name}={value[0]}"
            for name, value in parse_qs(self.query, keep_blank_values=True).items()
            if name in {"prefix", "start-after", "delimiter", "uploads", "uploadId", "delete"}
        )
        return f"{self.status or '---'} {self.kind} {where} {self.headers.get('range', '')}".strip()


class Requests(list[Request]):
    """The requests that came, in their order; printed, they are one a line."""

    @property
    def counts(self) -> Counter[str]:
        """How many there were of each kind."""
        return Counter(request.kind for request in self)

    def __str__(self) -> str:
        return "\n".join(str(request) for request in self)


Predicate = Callable[[Request], bool]


def is_commit(request: Request) -> bool:
    """Tell whether a request writes a version of a Delta table."""
    is_version = re.search(r"/_delta_log/\d{20}\.json$", request.path)
    return request.method == "PUT" and is_version is not None


class StoreProxy:
    """Passes requests on to a server, or does to them what the faults of the moment say.

    Attributes:
        address: Where clients reach it. The ``Host`` that they sign is passed on as it is.
        ignores_conditions: Strip If-Match and If-None-Match, as a store does that knows neither.
        clock_skew_seconds: By how much the ``Date`` of answers is late.
    """

    def __init__(self, server: str) -> None:
        """Take the server's address; nothing listens yet."""
        self.address = ""
        self.ignores_conditions = False
        self.clock_skew_seconds = 0.0
        self._server = urlsplit(server)
        self._rules: list[_Rule] = []
        self._collections: list[Requests] = []
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()

    @classmethod
    @contextmanager
    def before(cls, server: str) -> Iterator[StoreProxy]:
        """Serve on a free port, in a thread of its own, until the block ends."""
        proxy = cls(server)
        thread = threading.Thread(target=proxy._loop.run_forever, name="store proxy", daemon=True)
        thread.start()
        serving = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(proxy._serve, "127.0.0.1", 0), proxy._loop
        ).result(10)
        proxy.address = f"http://127.0.0.1:{serving.sockets[0].getsockname()[1]}"
        try:
            yield proxy
        finally:
            asyncio.run_coroutine_threadsafe(proxy._end(serving), proxy._loop).result(10)
            proxy._loop.call_soon_threadsafe(proxy._loop.stop)
            thread.join(10)
            proxy._loop.close()

    @contextmanager
    def counted(self) -> Iterator[Requests]:
        """Collect the requests that come while the block runs."""
        requests = Requests()
        self._collections = [*self._collections, requests]
        try:
            yield requests
        finally:
            self._collections = [other for other in self._collections if other is not requests]

    @contextmanager
    def fault(
        self,
        fault: Fault,
        when: Predicate = lambda _: True,
        *,
        first: int = 1,
        times: int | None = None,
        seconds: float = 0.0,
    ) -> Iterator[Requests]:
        """Let this happen while the block runs, and collect the requests to which it happened.

        ``slow_down`` answers 503 and ``error`` 500, with S3's XML; ``stall`` never answers, and
        resets the connection when the block ends; ``delay`` passes a request on after ``seconds``,
        whether or not its client still waits; ``reset`` resets the connection and passes nothing
        on; ``lost_answer`` passes the request on, and resets the connection when it is done.

        Args:
            fault: What happens.
            when: To which requests.
            first: The number of the first of those to which it happens.
            times: To how many of those it happens, if not to all.
            seconds: What a delay takes.
        """
        rule = _Rule(fault=fault, when=when, first=first, times=times, seconds=seconds)
        self._rules = [*self._rules, rule]
        try:
            yield rule.suffered
        finally:
            self._rules = [other for other in self._rules if other is not rule]
            self._loop.call_soon_threadsafe(rule.ended.set)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while message := await _read_request(reader, writer):
                writer.write((await self._answer(message)).packed())
                await writer.drain()
            writer.close()
        except (_LostError, OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # Cancelled at the end only, of which asyncio would complain otherwise.
            _reset(writer)
        finally:
            self._open.discard(writer)

    async def _answer(self, message: _Message) -> _Message:
        request = message.request()
        rule = next((rule for rule in self._rules if rule.applies_to(request)), None)
        for requests in (*self._collections, *([rule.suffered] if rule else [])):
            requests.append(request)
        answer = await (self._suffer(rule, message) if rule else self._pass_on(message))
        request.status = int(answer.start.split()[1])
        return answer

    async def _suffer(self, rule: _Rule, message: _Message) -> _Message:
        match rule.fault:
            case "slow_down":
                return _refusal("503 Slow Down", "SlowDown", "Please reduce your request rate.")
            case "error":
                return _refusal("500 Internal Server Error", "InternalError", "Please try again.")
            case "delay":
                await asyncio.sleep(rule.seconds)
                return await self._pass_on(message)
            case "stall":
                await rule.ended.wait()
            case "lost_answer":
                await self._pass_on(message)
        raise _LostError

    async def _pass_on(self, message: _Message) -> _Message:
        """Ask the server, over a connection of the request's own."""
        reader, writer = await asyncio.open_connection(self._server.hostname, self._server.port)
        self._open.add(writer)
        try:
            asked = message.without(_CONDITIONS) if self.ignores_conditions else message
            asked = replace(asked, headers=[*asked.headers, ("Connection", "close")])
            writer.write(asked.packed())
            await writer.drain()
            answer = await _read_answer(reader, to_method=message.start.split()[0])
        finally:
            self._open.discard(writer)
            writer.close()
        return answer.dated(self.clock_skew_seconds) if self.clock_skew_seconds else answer

    async def _end(self, serving: asyncio.Server) -> None:
        serving.close()
        _reset(*self._open)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@dataclass(kw_only=True)
class _Rule:
    """What happens to which requests."""

    fault: Fault
    when: Predicate
    first: int
    times: int | None
    seconds: float
    suffered: Requests = field(default_factory=Requests)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def applies_to(self, request: Request) -> bool:
        if not self.when(request):
            return False
        before = next(self._numbers) - self.first
        return before >= 0 and (self.times is None or before < self.times)


@dataclass(frozen=True, kw_only=True)
class _Message:
    """A request or an answer: its first line, its headers as they came, and its whole body."""

    start: str
    headers: list[tuple[str, str]]
    body: bytes = b""

    @classmethod
    def headed(cls, head: bytes) -> _Message:
        start, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return cls(start=start, headers=[(name, value.strip()) for name, _, value in pairs])

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name), "")

    def without(self, names: set[str]) -> _Message:
        kept = [pair for pair in self.headers if pair[0].lower() not in names]
        return replace(self, headers=kept)

    def dated(self, seconds: float) -> _Message:
        date = email.utils.parsedate_to_datetime(self.header("date")) + timedelta(seconds=seconds)
        late = ("Date", email.utils.format_datetime(date, usegmt=True))
        return replace(self, headers=[*self.without({"date"}).headers, late])

    async def completed(self, reader: asyncio.StreamReader, *, to_the_end: bool) -> _Message:
        """Read the body that the headers announce, and say its size instead of its chunks."""
        if self.header("transfer-encoding").lower() == "chunked":
            body = b"".join([chunk async for chunk in _chunks(reader)])
        elif length := self.header("content-length"):
            body = await reader.readexactly(int(length))
        elif to_the_end:
            body = await reader.read()
        else:
            return self.without(_PER_CONNECTION)
        kept = self.without(_PER_CONNECTION | {"content-length"}).headers
        return replace(self, headers=[*kept, ("Content-Length", str(len(body)))], body=body)

    def packed(self) -> bytes:
        lines = [self.start, *(f"{name}: {value}" for name, value in self.headers), "", ""]
        return "\r\n".join(lines).encode("latin-1") + self.body

    def request(self) -> Request:
        method, target, _ = self.start.split(" ")
        path, _, query = target.partition("?")
        headers = {name.lower(): value for name, value in self.headers}
        return Request(method=method, path=unquote(path), query=query, headers=headers)


async def _read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> _Message | None:
    """Read a request of a connection; there is none when its client has closed it."""
    try:
        message = _Message.headed(await reader.readuntil(b"\r\n\r\n"))
    except asyncio.IncompleteReadError as end:
        if end.partial:
            raise
        return None
    if message.header("expect"):
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return await message.completed(reader, to_the_end=False)


async def _read_answer(reader: asyncio.StreamReader, *, to_method: str) -> _Message:
    message = _Message.headed(await reader.readuntil(b"\r\n\r\n"))
    if to_method == "HEAD" or message.start.split()[1] in {"204", "304"}:
        return message.without(_PER_CONNECTION)
    return await message.completed(reader, to_the_end=True)


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readuntil(b"\r\n")
    # The trailer, of which object stores have none, ends with an empty line.
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass


def _refusal(status: str, code: str, sentence: str) -> _Message:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{sentence}</Message></Error>"
    headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
    return _Message(start=f"HTTP/1.1 {status}", headers=headers, body=body.encode())


def _reset(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        raw: socket.socket | None = writer.get_extra_info("socket")
        if raw is not None and raw.fileno() >= 0:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_ONCE)
        writer.transport.abort()
