"""How long until Kafka may delete the next unread record: the arithmetic, then a real broker."""

from __future__ import annotations

import datetime as dt
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from oncelake.ingestion.kafka.offsets import Offsets, TopicPartition
from oncelake.ingestion.kafka.retention import (
    Headroom,
    Policy,
    Unread,
    _offset_sizes,
    duration,
    headrooms_of,
)
from oncelake.ingestion.settings import Settings

NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
AT = TopicPartition("orders", 2)
CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "delete.retention.ms": "86400000",
}


def unread(**changes: Any) -> Unread:
    """Offsets 100 to 200 of a log that begins at 50; the first was written an hour ago."""
    given = {"offset": 100, "earliest": 50, "end": 200, "written": NOW - dt.timedelta(hours=1)}
    return Unread(at=AT, **{**given, **changes})


def left(policy: Policy, **changes: Any) -> tuple[str, float] | None:
    """The limit that leaves the least, and how much."""
    found = headrooms_of(unread(**changes), policy, NOW)
    least = min(found, key=lambda each: each.seconds, default=None)
    return (least.limit, least.seconds) if least else None


@pytest.mark.parametrize(
    ("config", "policy"),
    [
        pytest.param({}, Policy(age_seconds=604800), id="a week"),
        pytest.param({"retention.ms": "-1"}, Policy(), id="for ever"),
        pytest.param(
            {"retention.ms": "0", "retention.bytes": "5"},
            Policy(age_seconds=0, size_bytes=5),
            id="size",
        ),
        pytest.param({"cleanup.policy": "compact"}, Policy(tombstone_seconds=86400), id="compact"),
        pytest.param(
            {"cleanup.policy": "compact, delete"},
            Policy(age_seconds=604800, tombstone_seconds=86400),
            id="both",
        ),
        pytest.param(
            {"cleanup.policy": None, "retention.bytes": None},
            Policy(age_seconds=604800, unknown=("retention.bytes",)),
            id="a part that nobody tells",
        ),
    ],
)
def test_a_policy_is_read_from_the_topic(config: dict[str, str], policy: Policy) -> None:
    """A limit counts only under the cleanup policy that it belongs to."""
    assert Policy.of({**CONFIG, **config}) == policy


@pytest.mark.parametrize(
    ("policy", "changes", "expected"),
    [
        pytest.param(Policy(age_seconds=7200), {}, ("time", 3600), id="age"),
        pytest.param(Policy(age_seconds=1800), {}, ("time", 0), id="overdue"),
        pytest.param(Policy(age_seconds=0), {}, ("time", 0), id="no retention at all"),
        pytest.param(Policy(tombstone_seconds=5400), {}, ("compaction", 1800), id="compaction"),
        pytest.param(
            Policy(age_seconds=7200, tombstone_seconds=5400), {}, ("compaction", 1800), id="least"
        ),
        pytest.param(Policy(), {}, None, id="no limit"),
        pytest.param(Policy(age_seconds=7200), {"written": None}, None, id="only markers"),
        # 100 unread offsets of 10 bytes: 1,000 bytes an hour of 4,000.
        pytest.param(Policy(size_bytes=4000), {"offset_bytes": 10}, ("size", 10800), id="size"),
        # The last ten minutes were as fast as three hours of that.
        pytest.param(
            Policy(size_bytes=4000),
            {"offset_bytes": 10, "recent": 50},
            ("size", 3600),
            id="a faster rate of late",
        ),
        pytest.param(Policy(size_bytes=900), {"offset_bytes": 10}, ("size", 0), id="over size"),
        pytest.param(Policy(size_bytes=900), {}, None, id="size unknown"),
    ],
)
def test_the_limit_that_comes_first_decides(
    policy: Policy, changes: dict[str, Any], expected: tuple[str, float] | None
) -> None:
    """Each limit leaves what it grants less what has gone by, and never less than nothing."""
    assert left(policy, **changes) == pytest.approx(expected)


def test_what_is_gone_is_lost_whatever_the_policy_says() -> None:
    """Offsets before the log's start are counted, also where nothing should be deleted."""
    (found,) = headrooms_of(unread(offset=40), Policy(), NOW)

    assert (found.seconds, found.lost, found.level(0)) == (0, 10, "lost")
    assert str(found) == "orders-2: Kafka has deleted 10 unread offsets from 40"


@pytest.mark.parametrize(
    ("seconds", "warning", "level"),
    [
        pytest.param(1000, None, "ok", id="a quarter is left"),
        pytest.param(999, None, "low", id="less than a quarter"),
        pytest.param(249, None, "critical", id="less than a quarter of that"),
        pytest.param(0, None, "critical", id="any moment"),
        pytest.param(1000, 1001, "low", id="less than declared"),
        pytest.param(1000, 4001, "critical", id="far less than declared"),
        pytest.param(10, 10, "ok", id="as declared"),
        pytest.param(0, 0, "ok", id="no warning wanted"),
    ],
)
def test_the_level_follows_the_declared_warning(
    seconds: float, warning: float | None, level: str
) -> None:
    """Without a declared one, a quarter of what the limit grants."""
    found = Headroom(at=AT, offset=1, limit="time", seconds=seconds, of_seconds=4000)

    assert found.level(warning) == level


@pytest.mark.parametrize(
    ("limit", "seconds", "says"),
    [
        ("time", 3725, "may delete unread offset 7 in 1 h 2 min (retention.ms)"),
        ("size", 90061, "may delete unread offset 7 in about 1 d 1 h (retention.bytes)"),
        ("compaction", 0.4, "may drop a delete at unread offset 7 in 0 s (delete.retention.ms)"),
        (
            "compaction",
            0,
            "may drop a delete at unread offset 7 at any moment (delete.retention.ms)",
        ),
        ("time", 0, "may delete unread offset 7 at any moment (retention.ms)"),
    ],
)
def test_headroom_is_told_in_a_sentence(limit: Any, seconds: float, says: str) -> None:
    """It names partition, offset, time and limit, and says where it is an estimate."""
    found = Headroom(at=AT, offset=7, limit=limit, seconds=seconds, of_seconds=10)

    assert str(found) == f"orders-2: Kafka {says}"


def test_a_long_limit_that_is_almost_used_up_is_more_urgent_than_a_short_one_that_is_not() -> None:
    """Seconds compare only within one level: 50 minutes of an hour are enough, 55 of a week not."""
    short = Headroom(at=AT, offset=1, limit="time", seconds=50 * 60, of_seconds=3600)
    long = Headroom(at=AT, offset=1, limit="size", seconds=55 * 60, of_seconds=7 * 86400)
    lost = Headroom(at=AT, offset=1, limit="time", seconds=0, of_seconds=0, lost=1)

    assert (short.level(), long.level()) == ("ok", "critical")
    assert sorted([lost, long, short], key=Headroom.urgency) == [short, long, lost]
    assert sorted([long, short], key=lambda each: each.urgency(0)) == [long, short]


def test_a_size_that_no_broker_tells_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that hides its logs answers, and with nothing: that is no topic without a limit."""
    silent = nullcontext(SimpleNamespace(log_sizes=lambda partitions: {}))
    monkeypatch.setattr("oncelake.ingestion.kafka.retention.java_admin", lambda settings: silent)
    begin, end = Offsets({AT: 0}), Offsets({AT: 10})

    sizes, unknown = _offset_sizes([AT], begin, end, Settings(kafka="nowhere:1"))

    assert (sizes, unknown.rpartition(": ")[2]) == ({}, "no broker tells it")


def test_a_duration_has_two_units() -> None:
    """Days and hours, or minutes and seconds: nobody needs more."""
    assert [duration(seconds) for seconds in (0, 59, 60, 3661, 7 * 86400)] == [
        *("0 s", "59 s", "1 min", "1 h 1 min", "7 d")
    ]
