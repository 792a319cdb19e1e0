"""A server of HTTP on loopback, for as long as a block lasts."""

from __future__ import annotations

import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.certificates import Certificate


class Handler(BaseHTTPRequestHandler):
    """Answers one request, and logs nothing; a subclass says how."""

    def do_GET(self) -> None:
        """Let ``get`` answer."""
        self.get()

    def do_POST(self) -> None:
        """Let ``post`` answer."""
        self.post()

    def do_PUT(self) -> None:
        """Let ``put`` answer."""
        self.put()

    def do_DELETE(self) -> None:
        """Let ``delete`` answer."""
        self.delete()

    def get(self) -> None:
        """Refuse, as a server that has no such method."""
        self.answer(501)

    def post(self) -> None:
        """Refuse, as a server that has no such method."""
        self.answer(501)

    def put(self) -> None:
        """Refuse, as a server that has no such method."""
        self.answer(501)

    def delete(self) -> None:
        """Refuse, as a server that has no such method."""
        self.answer(501)

    def answer(
        self, status: int, body: bytes = b"", *, type_: str = "application/json", **headers: str
    ) -> None:
        """Send a whole answer."""
        self.send_response(status)
        self.send_header("Content-Type", type_)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    """Answers each client in a thread of its own."""

    daemon_threads = True

    def handle_error(self, *whose: Any) -> None:
        """Tell of everything but a client that does not trust the certificate, or hangs up."""
        if not isinstance(sys.exception(), ssl.SSLError | ConnectionError):
            super().handle_error(*whose)


@contextmanager
def served(
    handler: Callable[..., Handler], certificate: Certificate | None = None
) -> Iterator[str]:
    """Serve on a free port, by HTTPS with a certificate, and yield the URL."""
    with _Server(("127.0.0.1", 0), handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.certificate, certificate.key)
            # The handshake is for the connection's thread: the listener would wait for a slow one.
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http{'s' * bool(certificate)}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(10)
