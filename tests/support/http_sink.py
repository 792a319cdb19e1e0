"""A server on loopback that takes whatever is posted to it, as collectors and webhooks do."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.http_server import Handler, served


@dataclass
class HttpSink:
    """What was posted: path and body of each; ``statuses`` are answered first, then 200."""

    address: str = ""
    posts: list[tuple[str, bytes]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    def bodies(self, path: str) -> list[bytes]:
        """The bodies posted to one path."""
        return [body for at, body in self.posts if at == path]


@contextmanager
def http_sink() -> Iterator[HttpSink]:
    """Serve for as long as the block lasts."""
    sink = HttpSink()

    class _Handler(Handler):
        def post(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            sink.posts.append((self.path, body))
            self.answer(sink.statuses.pop(0) if sink.statuses else 200)

    with served(_Handler) as sink.address:
        yield sink
