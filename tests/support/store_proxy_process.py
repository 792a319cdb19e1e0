"""The proxy's process: ``python -P store_proxy_process.py SERVER``.

It prints its address, answers each command on its standard input by one line, and ends with that.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import math
import re
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

# Closing a socket that lingers for no time sends RST and not FIN.
_RESET_AT_ONCE = struct.pack("ii", 1, 0)
_CONDITIONS = {"if-match", "if-none-match"}
# These are about one connection, or about how a body goes over it.
_PER_CONNECTION = {"connection", "expect", "keep-alive", "transfer-encoding"}
# Names what a request is for where all go to one path, as Glue's do.
_ACTION = "x-amz-target"
# What of a query tells one request from another of its kind.
_TELLING = ("prefix", "start-after", "uploads", "uploadId", "delete")

# What faults answer instead of the server, and what they do behind its back.
_BEFORE = {
    "slow_down": ("503 Slow Down", "SlowDown", "Please reduce your request rate."),
    "error": ("500 Internal Server Error", "InternalError", "Please try again."),
    "bad_gateway": ("502 Bad Gateway", "BadGateway", "Nobody is behind this."),
    "denied": ("403 Forbidden", "AccessDenied", "Access Denied"),
    "page": ("200 OK", "Welcome", "You have come to the wrong server."),
}
_BEHIND = {
    "late_error": _BEFORE["error"],
    "gateway_timeout": ("504 Gateway Timeout", "GatewayTimeout", "It took too long."),
}


@dataclass(kw_only=True)
class _Rule:
    """What happens to which requests."""

    fault: str
    of: str
    first: int
    times: int | None
    seconds: float
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def applies_to(self, asked: str) -> bool:
        if not re.search(self.of, asked):
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

    @property
    def status(self) -> int:
        return int(self.start.split()[1])

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name), "")

    def without(self, names: set[str]) -> _Message:
        kept = [pair for pair in self.headers if pair[0].lower() not in names]
        return replace(self, headers=kept)

    def dated(self, ahead: timedelta) -> _Message:
        date = parsedate_to_datetime(self.header("date")) + ahead
        dated = ("Date", format_datetime(date, usegmt=True))
        return replace(self, headers=[*self.without({"date"}).headers, dated])

    def lending(self, seconds: float, store: str) -> _Message:
        """Say another end of lent credentials, and another store, in an answer of a catalog."""
        end = str(int((time.time() + seconds) * 1000)).encode()
        body = re.sub(rb'("s3\.session-token-expires-at-ms":\s*")\d+', rb"\g<1>" + end, self.body)
        body = re.sub(rb'("s3\.endpoint":\s*")[^"]+', rb"\g<1>" + store.encode(), body)
        kept = self.without({"content-length"}).headers
        return replace(self, headers=[*kept, ("Content-Length", str(len(body)))], body=body)

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


class _Proxy:
    """Serves connections, by the rules that commands set."""

    def __init__(self, server: str) -> None:
        self._server = urlsplit(server)
        self._requests: list[dict[str, Any]] = []
        self._rules: dict[int, _Rule] = {}
        self._ignores_conditions = False
        self._ahead = timedelta(0)
        self._life_seconds = math.inf
        self._store = ""

    def behave(self, *, ignores: bool, skew_seconds: float) -> None:
        self._ignores_conditions, self._ahead = ignores, timedelta(seconds=skew_seconds)

    def lend(self, *, seconds: float, store: str) -> None:
        self._life_seconds, self._store = seconds, store

    def begin(self, *, number: int, **rule: Any) -> None:
        self._rules[number] = _Rule(**rule)

    def end(self, *, number: int) -> None:
        self._rules.pop(number).ended.set()

    def count(self) -> int:
        return len(self._requests)

    def log(self, *, start: int, fault: int | None = None) -> list[dict[str, Any]]:
        shown = ("kind", "target", "headers", "status")
        return [
            {name: request[name] for name in shown}
            for request in self._requests[start:]
            if fault is None or request["fault"] == fault
        ]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while message := await _read_request(reader, writer):
                writer.write((await self._answer(message)).packed())
                await writer.drain()
            writer.close()
        except EOFError:
            writer.close()
        except (OSError, asyncio.CancelledError):
            # Cancelled at the end only, of which asyncio would complain otherwise.
            _reset(writer)

    async def _answer(self, message: _Message) -> _Message:
        request = _described(message)
        asked = f"{request['kind']} {request['target']}"
        rules = self._rules.items()
        number, rule = next((pair for pair in rules if pair[1].applies_to(asked)), (None, None))
        self._requests.append({**request, "fault": number, "status": 0})
        noted = self._requests[-1]
        if _age_seconds(message) > self._life_seconds:
            answer = _refusal("400 Bad Request", "ExpiredToken", "The token has expired.")
        else:
            answer = await (self._suffer(rule, message) if rule else self._pass_on(message))
        noted["status"] = answer.status
        return answer

    async def _suffer(self, rule: _Rule, message: _Message) -> _Message:
        if refusal := _BEFORE.get(rule.fault):
            return _refusal(*refusal)
        match rule.fault:
            case "stall":
                await rule.ended.wait()
                raise ConnectionResetError
            case "reset":
                raise ConnectionResetError
            case "delay":
                await asyncio.sleep(rule.seconds)
        answer = await self._pass_on(message)
        match rule.fault:
            case "lost_answer":
                raise ConnectionResetError
            case "hung_up":
                raise EOFError
            case "twice":
                answer = await self._pass_on(message)
        return _refusal(*_BEHIND[rule.fault]) if rule.fault in _BEHIND else answer

    async def _pass_on(self, message: _Message) -> _Message:
        """Ask the server, over a connection of the request's own."""
        is_safe, host = self._server.scheme == "https", self._server.hostname
        port = self._server.port or (443 if is_safe else 80)
        reader, writer = await asyncio.open_connection(host, port, ssl=is_safe or None)
        if is_safe:
            # Of one that has several names, the request says which is meant.
            kept = message.without({"host"}).headers
            message = replace(message, headers=[("Host", self._server.netloc), *kept])
        asked = message.without(_CONDITIONS) if self._ignores_conditions else message
        asked = replace(asked, headers=[*asked.headers, ("Connection", "close")])
        try:
            writer.write(asked.packed())
            await writer.drain()
            answer = await _read_answer(reader, to_method=message.start.split()[0])
        finally:
            writer.close()
        if self._store:
            answer = answer.lending(self._life_seconds, self._store)
        return answer.dated(self._ahead) if self._ahead else answer


def _age_seconds(message: _Message) -> float:
    """Return how old the token of a session is; a login without one never ends."""
    token = message.header("x-amz-security-token")
    if not token:
        return -math.inf
    claims = token.split(".")[1]
    padded = claims + "=" * (-len(claims) % 4)
    return time.time() - float(json.loads(base64.urlsafe_b64decode(padded))["iat"])


def _described(message: _Message) -> dict[str, Any]:
    method, target, _ = message.start.split(" ")
    path, _, query = target.partition("?")
    asked = parse_qs(query, keep_blank_values=True)
    telling = [f"{name}={asked[name][0]}" for name in _TELLING if name in asked]
    telling += [message.header(_ACTION)] if message.header(_ACTION) else []
    return {
        "kind": "LIST" if "list-type" in asked else method,
        "target": " ".join([unquote(path), *telling]),
        "headers": {name.lower(): value for name, value in message.headers},
    }


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
    if to_method == "HEAD" or message.status in {204, 304}:
        return message.without(_PER_CONNECTION)
    return await message.completed(reader, to_the_end=True)


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readuntil(b"\r\n")
    # The trailer, which is empty with most, ends with an empty line.
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass


def _refusal(status: str, code: str, sentence: str) -> _Message:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{sentence}</Message></Error>"
    headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
    return _Message(start=f"HTTP/1.1 {status}", headers=headers, body=body.encode())


def _reset(writer: asyncio.StreamWriter) -> None:
    raw: socket.socket = writer.get_extra_info("socket")
    if raw.fileno() >= 0:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_ONCE)
    writer.transport.abort()


async def _main(server: str) -> None:
    proxy = _Proxy(server)
    serving = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    commands = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(commands)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    port = serving.sockets[0].getsockname()[1]
    print(json.dumps(f"http://127.0.0.1:{port}"), flush=True)
    while line := await commands.readline():
        command, arguments = json.loads(line)
        print(json.dumps(getattr(proxy, command)(**arguments)), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
