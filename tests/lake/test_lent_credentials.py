"""Credentials that a catalog lends are renewed before they end, and each commit has a key."""

from __future__ import annotations

import uuid
from contextlib import closing
from typing import Any

import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from requests import Session

from oncelake.ingestion.errors import SinkUnavailableError
from oncelake.ingestion.sinks.iceberg import catalog as iceberg_catalog
from oncelake.ingestion.sinks.iceberg.catalog import IDEMPOTENCY_KEY, LentFileIO, _Idempotent

BEGIN = 1_800_000_000.0


class Lender:
    """Lends for as long as it is told, at a time that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, life_seconds: float) -> None:
        self.now, self.life_seconds, self.lent = BEGIN, life_seconds, 0
        monkeypatch.setattr(iceberg_catalog.time, "time", lambda: self.now)

    def lend(self) -> dict[str, Any]:
        """Return properties with the next token."""
        self.lent += 1
        end = str(int((self.now + self.life_seconds) * 1000))
        token = {"s3.session-token": str(self.lent), "s3.session-token-expires-at-ms": end}
        return {"adls.sas-token-expires-at-ms.account": "9" * 15, **token}


@pytest.mark.parametrize(
    ("after_seconds", "lent"), [(0, 1), (39, 1), (41, 2), (59, 2), (61, 2), (600, 2)]
)
def test_credentials_are_renewed_when_a_third_of_their_life_is_left(
    monkeypatch: pytest.MonkeyPatch, after_seconds: float, lent: int
) -> None:
    """Of several that are lent, the first to end counts."""
    lender = Lender(monkeypatch, life_seconds=60)
    io = LentFileIO(lender.lend(), lender.lend)
    before = io.fs_by_scheme("file", None)
    lender.now += after_seconds

    stores = {io.fs_by_scheme("file", None) is before for _ in range(3)}

    assert (lender.lent, stores) == (lent, {lent == 1})
    assert io.properties["s3.session-token"] == str(lent)


def test_credentials_that_have_ended_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog whose credentials end when they are lent is asked each time, and it is told."""
    lender = Lender(monkeypatch, life_seconds=60)
    io = LentFileIO(lender.lend(), lender.lend)
    lender.now, lender.life_seconds = BEGIN + 50, 0

    for lent in (2, 3):
        with pytest.raises(OSError, match="have ended"):
            io.fs_by_scheme("file", None)
        assert (lender.lent, io.has_ended) == (lent, True)


def test_a_catalog_that_is_away_for_a_moment_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has lent is used as long as it is good, and each file asks for more."""
    lender = Lender(monkeypatch, life_seconds=60)
    asked: list[int] = []

    def away() -> dict[str, Any]:
        asked.append(1)
        raise SinkUnavailableError("it does not answer")

    io = LentFileIO(lender.lend(), away)
    lender.now = BEGIN + 50
    assert io.fs_by_scheme("file", None) is io.fs_by_scheme("file", None)
    assert len(asked) == 2
    lender.now = BEGIN + 61

    with pytest.raises(SinkUnavailableError):
        io.fs_by_scheme("file", None)


def test_credentials_without_an_end_live_for_a_quarter_of_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That is the shortest that AWS has."""
    lender = Lender(monkeypatch, life_seconds=0)
    io = LentFileIO({"s3.session-token": "0"}, lambda: {"s3.session-token": str(lender.lend())})
    for seconds, lent in ((599, 0), (602, 1), (1_100, 1), (1_300, 2)):
        lender.now = BEGIN + seconds
        io.fs_by_scheme("file", None)
        assert lender.lent == lent


def test_requests_of_one_commit_have_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A UUID of version 7, which begins with the moment; a catalog without requests has none."""
    monkeypatch.setattr(iceberg_catalog.time, "time_ns", lambda: int(BEGIN * 1e9))
    catalog, keys = InMemoryCatalog("one"), list[str]()
    with closing(catalog):
        with _Idempotent(catalog):
            pass
        with Session() as session:
            vars(catalog)["_session"] = session
            for _ in range(2):
                with _Idempotent(catalog):
                    keys.append(str(session.headers[IDEMPOTENCY_KEY]))
            assert IDEMPOTENCY_KEY not in session.headers

    first, second = map(uuid.UUID, keys)
    assert (first.version, first.variant, first != second) == (7, uuid.RFC_4122, True)
    assert first.int >> 80 == int(BEGIN * 1000)
