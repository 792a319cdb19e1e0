"""``oncelake erase``: what it says of the copies that it does not reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelake.ingestion.kafka.offsets import Range
from oncelake.ingestion.operations.erase.erase import Certificate
from oncelake.ingestion.storage.location import Location
from tests.cli.shell import oncelake, row

ROW = {"erased_rows": 1}


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("counts", "says"),
    [
        pytest.param(ROW, "orders: erased (seq 3", id="a row"),
        pytest.param({"erased_quarantined": 2}, "2 raw records in quarantine", id="bad records"),
        pytest.param(
            {"erase_completes.2": 1}, "orders: erased (seq 3", id="the end of one that died"
        ),
        pytest.param({}, "orders: nothing of the key was found", id="a key that never was"),
    ],
)
def test_a_certificate_says_only_what_is_known(
    monkeypatch: pytest.MonkeyPatch, counts: dict[str, int], says: str
) -> None:
    """Whether a trace was found; of what Kafka holds, nobody has looked for the key."""
    held = (Range(topic="orders", partition=0, start=0, end=10),)
    done = Certificate(row=row(3, counts=counts), unreadable=1, archived=(), in_kafka=held)
    monkeypatch.setattr("oncelake.ingestion.operations.erase.erase.erase", lambda *_, **__: done)

    said = oncelake("erase", "orders", "--key", '{"id": 1}', "--reason", "a request", "--yes")

    assert says in said.stdout
    assert "Kafka still holds orders-0 [0, 10), which the table has read: records of" in said.stdout
    assert "the key among it" not in said.stdout
    assert "1 record in quarantine cannot be read" in said.stdout


def test_each_copy_is_named_with_what_removes_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry of the archive has a command; what a rebuild has begun is a folder."""
    lake = Location.of(home / "lake")
    archived = lake / ".archive" / "orders" / "20261122T101500" / "orders"
    begun = lake / ".rebuild" / "orders"
    done = Certificate(row=row(3), unreadable=0, archived=(archived, begun), in_kafka=())
    monkeypatch.setattr("oncelake.ingestion.operations.erase.erase.erase", lambda *_, **__: done)

    said = oncelake("erase", "orders", "--key", '{"id": 1}', "--reason", "a request", "--yes")

    text = " ".join(said.output.split())
    assert "Next: oncelake archive prune orders 20261122T101500 --yes" in text
    assert f"{begun} is an older copy, which may hold it. Next: remove it by hand" in text
