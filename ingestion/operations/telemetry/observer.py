"""The observers of a run, whose failures are kept from the run."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    from oncelake.ingestion.lake.ledger import LedgerRow
    from oncelake.ingestion.pipeline.report import RunReport

LOG: Final = logging.getLogger("oncelake.telemetry")
INSTALL: Final = (
    "make setup in a clone, or pip install 'WHEEL[observability]' with the path of Oncelake's wheel"
)
_OTLP: Final = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_warned: set[str] = set()

# How a run ended; `interrupted` when it was asked to, before it had read all.
Outcome = Literal[
    "done", "red", "interrupted", "refused", "locked", "unreachable", "invalid", "failed"
]


class RunObserver(Protocol):
    """The observer of one run, in its own thread."""

    def start(self) -> None:
        """Take note that the run starts."""

    def batch(self, row: LedgerRow, lag: int) -> None:
        """Take note of a batch that is committed, and of the lag that is left."""

    def end(self, outcome: Outcome, report: RunReport | None, error: BaseException | None) -> None:
        """Take note of the run's end: it has a report, or an error."""


def wants_otlp() -> bool:
    """Tell whether metrics are to be pushed over OTLP."""
    is_off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    is_off = is_off or os.environ.get("OTEL_METRICS_EXPORTER") == "none"
    return not is_off and any(map(os.environ.get, _OTLP))


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Log a failure of the block once in the life of the process, and go on."""
    try:
        yield
    except ModuleNotFoundError as error:
        _warn(f"{what} are asked for, but: {error}. Next: {INSTALL}")
    except Exception as error:  # noqa: BLE001 (a run must not fail for what watches it)
        _warn(f"{what} could not be sent: {type(error).__name__}: {error}", of=what)


def _warn(message: str, *, of: str = "") -> None:
    if (key := of or message) not in _warned:
        _warned.add(key)
        LOG.warning("%s (reported once; runs go on)", message)
