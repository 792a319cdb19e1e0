"""An HTTP proxy in front of a store: it counts requests, and does what stores do on bad days."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

Fault = Literal[
    "slow_down",
    "error",
    "denied",
    "stall",
    "reset",
    "delay",
    "lost_answer",
    "hung_up",
    "late_error",
    "bad_gateway",
    "gateway_timeout",
    "twice",
    "page",
]

# The request that writes a version of a Delta table.
COMMIT = r"^PUT .*/_delta_log/\d{20}\.json$"


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request of a client.

    Attributes:
        kind: Its verb, or LIST for a listing: that is what stores charge for.
        target: Its path, and what tells it from others of its kind, such as a prefix to list.
        headers: Its headers, by their names in lower case.
        status: That of its answer; 0 as long as there is none.
    """

    kind: str
    target: str
    headers: dict[str, str]
    status: int

    def __str__(self) -> str:
        asked = f"{self.kind} {self.target} {self.headers.get('range', '')}".strip()
        return f"{self.status or '---'} {asked}"


class Requests(Sequence[Request]):
    """The requests that came, in their order; printed, they are one a line."""

    def __init__(self, fetch: Callable[[], list[Request]]) -> None:
        """Fetch them whenever they are looked at, until ``close``."""
        self._fetch = fetch

    def close(self) -> None:
        """Let no more come."""
        requests = self._fetch()
        self._fetch = lambda: requests

    @property
    def counts(self) -> Counter[str]:
        """How many there were of each kind."""
        return Counter(request.kind for request in self)

    @overload
    def __getitem__(self, index: int) -> Request: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Request]: ...
    def __getitem__(self, index: int | slice) -> Request | Sequence[Request]:
        return self._fetch()[index]

    def __iter__(self) -> Iterator[Request]:
        return iter(self._fetch())

    def __len__(self) -> int:
        return len(self._fetch())

    def __str__(self) -> str:
        return "\n".join(str(request) for request in self)


class StoreProxy:
    """Passes requests on to a server, or does to them what the faults of the moment say.

    It is a process of its own: delta-rs holds Python's lock in some of its waits for an answer, in
    which no thread of the same Python could give one. It dies with the process that started it.
    """

    def __init__(self, process: subprocess.Popen[str], server: str) -> None:
        """Take the process, which says first where it listens."""
        self._process, self.server = process, server
        self._lock = threading.Lock()
        self._faults = itertools.count()
        assert process.stdout is not None
        self.address: str = json.loads(process.stdout.readline())

    @classmethod
    @contextmanager
    def before(cls, server: str) -> Iterator[StoreProxy]:
        """Serve on a free port of loopback until the block ends."""
        program = Path(__file__).with_name("store_proxy_process.py")
        command = [sys.executable, "-P", str(program), server]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
            yield cls(process, server)

    def behave(self, *, ignores_conditions: bool = False, clock_skew_seconds: float = 0.0) -> None:
        """Play a store of that kind from now on.

        Args:
            ignores_conditions: It knows neither If-Match nor If-None-Match; they are stripped.
                Whoever signed them is refused by a server that checks signatures.
            clock_skew_seconds: How far its clock, the ``Date`` of answers, is ahead.
        """
        self._do("behave", ignores=ignores_conditions, skew_seconds=clock_skew_seconds)

    def lend(self, seconds: float, store: str) -> None:
        """Let the credentials that a catalog lends end so soon, and be those of another store.

        A catalog's answers are rewritten to that; a store's proxy refuses such as are older, as S3
        does (``ExpiredToken``): it reads in a session's token when it was made.
        """
        self._do("lend", seconds=seconds, store=store)

    @contextmanager
    def counted(self) -> Iterator[Requests]:
        """Collect the requests that come while the block runs."""
        start = self._do("count")
        requests = Requests(lambda: self._log(start))
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
        """Let this happen while the block runs, and collect the requests to which it happened.

        The store does not hear of a request with these: ``slow_down`` answers 503, ``error`` 500,
        ``bad_gateway`` 502 and ``denied`` 403, with S3's XML, and ``page`` 200 with such; ``stall``
        never answers, and resets the connection when the block ends; ``reset`` resets it at once.
        It does what it is asked to with these: ``delay`` passes the request on after ``seconds``,
        whether or not its client still waits; when it is done, ``lost_answer`` resets the
        connection, ``hung_up`` closes it, ``late_error`` answers 500 and ``gateway_timeout`` 504;
        ``twice`` asks it a second time, and gives that answer.

        Args:
            fault: What happens.
            of: To which requests: a regular expression for their kind and target.
            first: The number of the first of those to which it happens.
            times: To how many of those it happens, if not to all.
            seconds: What a delay takes.
        """
        number = next(self._faults)
        start = self._do("count")
        given = {"fault": fault, "of": of, "first": first, "times": times, "seconds": seconds}
        self._do("begin", number=number, **given)
        requests = Requests(lambda: self._log(start, fault=number))
        try:
            yield requests
        finally:
            self._do("end", number=number)
            requests.close()

    def _log(self, start: int, **which: int) -> list[Request]:
        return [Request(**request) for request in self._do("log", start=start, **which)]

    def _do(self, command: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            print(json.dumps([command, arguments]), file=self._process.stdin, flush=True)
            return json.loads(self._process.stdout.readline())
