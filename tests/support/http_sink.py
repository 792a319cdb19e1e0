"""A server on loopback that takes whatever is posted to it, as collectors and webhooks do."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


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

    class _Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            sink.posts.append((self.path, body))
            self.send_response(sink.statuses.pop(0) if sink.statuses else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        sink.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield sink
        finally:
            server.shutdown()
            thread.join()
