"""Which facts about a Dagster instance are an ailment, and which command each one gets."""

from __future__ import annotations

from importlib.metadata import requires
from typing import Any

import pytest

from oncelake.assets.doctor.findings import diagnose_dagster, diagnose_version
from oncelake.assets.doctor.idle import is_started_by
from oncelake.assets.doctor.instance import InstanceFacts
from oncelake.assets.doctor.runs import RunFacts, SlotFacts
from oncelake.ingestion.operations.doctor.findings import Finding

NOW = 1_800_000_000.0


def run(**fields: Any) -> RunFacts:
    """A run of ``orders`` that began an hour ago, and whose process is gone."""
    base = {"run_id": "abcdef0123", "about": "orders", "status": "STARTED", "since": NOW - 3600}
    return RunFacts(**{**base, "pid": 7, "is_alive": False, **fields})


def findings_of(**fields: Any) -> list[Finding]:
    """Diagnose an instance with a daemon."""
    return list(
        diagnose_dagster(
            InstanceFacts(
                **{"prefix": "", "workspace": "-w w", "now": NOW, "heartbeat": NOW, **fields}
            )
        )
    )


def test_a_sound_instance_has_nothing() -> None:
    """A run that works, with its slot, under a daemon, is no finding."""
    alive = run(is_alive=True)

    assert findings_of(runs=(alive,), slots=(SlotFacts(pool="orders", run=alive, waiting=1),)) == []


@pytest.mark.parametrize(
    "dead",
    [
        pytest.param(run(), id="started"),
        pytest.param(run(status="CANCELING"), id="canceling"),
        pytest.param(run(status="STARTING", pid=None, is_alive=None), id="never began"),
    ],
)
def test_a_run_without_its_process_is_named_with_what_ends_it(dead: RunFacts) -> None:
    """The finding has the run's whole id, and the mutation that marks it as ended."""
    (only,) = findings_of(runs=(dead,))

    assert (only.about, only.exit_code) == ("orders", 1)
    assert f"run abcdef01 is {dead.status}" in only.what
    assert "abcdef0123" in only.evidence
    assert 'terminateRun(runId: "abcdef0123"' in only.command


@pytest.mark.parametrize(
    "sound",
    [
        pytest.param(run(is_alive=True), id="alive"),
        pytest.param(run(is_alive=None), id="on another machine"),
        pytest.param(run(status="STARTING", pid=None, since=NOW - 20), id="just starting"),
        pytest.param(run(status="QUEUED", pid=None, since=NOW - 20), id="just queued"),
    ],
)
def test_a_run_that_may_be_alive_is_left_alone(sound: RunFacts) -> None:
    """Only what is known to be dead is called so."""
    assert findings_of(runs=(sound,)) == []


@pytest.mark.parametrize(
    ("owner", "heartbeat", "leaked"),
    [
        pytest.param(run(), NOW, True, id="dead"),
        pytest.param(run(status="GONE", since=0.0), NOW, True, id="deleted"),
        pytest.param(run(status="CANCELED"), NOW, True, id="ended long ago"),
        pytest.param(run(status="SUCCESS", since=NOW - 10), NOW, False, id="ended just now"),
        pytest.param(run(status="SUCCESS", since=NOW - 10), None, True, id="and nobody frees it"),
        pytest.param(run(is_alive=True), NOW, False, id="alive"),
    ],
)
def test_a_slot_that_nobody_will_free_is_named(
    owner: RunFacts, heartbeat: float | None, leaked: bool
) -> None:
    """The finding names the pool, who waits, and the mutation that frees the slot."""
    slots = (SlotFacts(pool="orders", run=owner, waiting=2),)

    all_found = findings_of(slots=slots, heartbeat=heartbeat)

    assert [each.about for each in all_found] == ["orders"] * leaked
    for each in all_found:
        assert "steps that wait for it: 2" in each.evidence
        assert 'freeConcurrencySlotsForRun(runId: "abcdef0123")' in each.command


def test_a_daemon_that_is_missed_is_a_finding() -> None:
    """Without a sign of life, sensors that are on and queued runs wait for ever."""
    queued = run(status="QUEUED", pid=None, is_alive=None, since=NOW - 5)

    (only,) = findings_of(heartbeat=NOW - 3600, switched_on=("lag",), runs=(queued,))

    assert "no daemon is running" in only.what
    assert "lag, queued run abcdef01" in only.evidence
    assert len(findings_of(heartbeat=None, switched_on=("lag",))) == 1
    assert findings_of(heartbeat=None) == []


def test_a_queue_that_does_not_move_says_behind_what() -> None:
    """A run that waits long names how many are before it."""
    queued = run(status="QUEUED", pid=None, is_alive=None)

    (of_others,) = findings_of(runs=(queued, run(about="bills", is_alive=True)))
    (of_its_own,) = findings_of(runs=(queued, run(run_id="1234567890", is_alive=True)))

    assert "runs before it: 1" in of_others.evidence
    assert "max_concurrent_runs" in of_others.command
    assert "for run 12345678 of the same stream" in of_its_own.what
    assert of_its_own.exit_code == 0


def test_a_sensor_that_is_off_is_a_note() -> None:
    """It is a person's to switch it on, so it is said and counts for nothing."""
    (note,) = findings_of(sensed=("orders",))

    assert (note.exit_code, note.about) == (0, "orders")
    assert "dagster sensor start lag" in note.command
    assert findings_of(sensed=("orders",), switched_on=("lag",)) == []


@pytest.mark.parametrize(
    ("tags", "is_started"),
    [
        pytest.param({}, False, id="by hand"),
        pytest.param({"dagster/schedule_name": "nightly"}, True, id="schedule"),
        pytest.param({"dagster/sensor_name": "conditions"}, True, id="condition"),
        pytest.param({"dagster/sensor_name": "off"}, False, id="a sensor that is off by now"),
    ],
)
def test_what_starts_a_stream_may_be_a_teams_own(tags: dict[str, str], is_started: bool) -> None:
    """A condition, a schedule or a sensor of its own, as the runs of its batches say."""
    assert is_started_by(tags, {"nightly", "conditions"}) is is_started


@pytest.mark.parametrize(
    ("locations", "is_found"),
    [
        pytest.param(["a"], False, id="one"),
        pytest.param(["a", "b"], False, id="moved"),
        pytest.param(["a", "b", "a"], True, id="both"),
    ],
)
def test_code_locations_that_take_turns_at_a_stream_are_named(
    locations: list[str], is_found: bool
) -> None:
    """A stream that has moved is in order; one that two run is told, as a note."""
    found = findings_of(locations={"orders": locations})

    assert [(each.about, each.exit_code) for each in found] == [("orders", 0)] * is_found
    assert all("a, then b, then a" in each.evidence for each in found)


@pytest.mark.parametrize(
    ("version", "notes"),
    [("1.13.20", 0), ("1.13.99", 0), ("1.13.19", 1), ("1.14.0", 1), ("1.14.0rc1", 1), ("2.0", 1)],
)
def test_another_dagster_is_only_noted(version: str, notes: int) -> None:
    """One that nobody tried may do; the exit code stays that of what is wrong."""
    found = [*diagnose_version(version, requires("oncelake") or [])]

    assert [each.exit_code for each in found] == [0] * notes
    assert all(f"{version}; the package allows <1.14,>=1.13.20" in each.evidence for each in found)
