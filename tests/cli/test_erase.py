"""``oncelake erase``: what it says of the copies that it does not reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingestion.operations.erase import Certificate
from tests.cli.shell import home, oncelake, row

__all__ = ["home"]


def test_each_copy_is_named_with_what_removes_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry of the archive has a command; what a rebuild has begun is a folder."""
    archived = home / "lake" / ".archive" / "orders" / "20261122T101500" / "orders"
    begun = home / "lake" / ".rebuild" / "orders"
    done = Certificate(row=row(3), unreadable=0, archived=(archived, begun), in_kafka=())
    monkeypatch.setattr("ingestion.operations.erase.erase", lambda *_, **__: done)

    said = oncelake("erase", "orders", "--key", '{"id": 1}', "--reason", "a request", "--yes")

    text = " ".join(said.output.split())
    assert "Next: oncelake archive prune orders 20261122T101500" in text
    assert f"{begun} is an older copy, which may hold it. Next: remove it by hand" in text
