"""A table is made anew beside the old one, and takes its place; never half, and never by force."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oncelake.ingestion.errors import (
    InvalidSpecError,
    OffsetsExpiredError,
    RefusedError,
    StreamLockedError,
    TableReplacedError,
    TopicRecreatedError,
)
from oncelake.ingestion.lake.lock import Holder, held_by_jvm
from oncelake.ingestion.operations.decisions import adopt_topic, reset
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.recovery.position import read_position
from oncelake.ingestion.storage.location import Location
from tests.support.long import only_long, twins
from tests.support.proof import find_problems
from tests.support.world import World, row


def fill(world: World) -> None:
    """Write a table of two batches, with a bad record and a delete."""
    world.send(row(1, "a", 1), row(2, "b", 1), b"{", row(1, "A", 2))
    world.run()
    world.send({**row(3, "c", 1), "city": "Rome"})
    world.send(None, id=2)
    world.run()


pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def filled(module_world: World) -> World:
    """Such a table, of which tests take copies; its topic stays as it is."""
    fill(module_world)
    return module_world


@pytest.fixture
def written(filled: World, tmp_path: Path) -> World:
    """A copy of that table."""
    return filled.copied_to(tmp_path / "lake", state=tmp_path / "state")


def test_a_new_schema_applies_to_every_record(written: World) -> None:
    """What was passed over before is in the rebuilt table; the old one lies in the archive."""
    written.declare(schema="id BIGINT NOT NULL, name STRING, city STRING")

    done = written.rebuild()

    assert written.rows() == [
        {"id": 1, "name": "A", "city": None},
        {"id": 3, "name": "c", "city": "Rome"},
    ]
    assert sorted(path.name.removeprefix(written.topic) for path in done.old.archived) == [
        "",
        "__ledger",
        "__quarantine",
        "__tombstones",
    ]
    assert len(written.quarantined()) == 1
    assert not written.paths.workshop.exists()
    assert find_problems(written) == ()


def test_another_mode_makes_another_table(written: World) -> None:
    """A mode that would be refused on the old table is what a rebuild is for."""
    written.declare(mode="append", keys=[], tombstones="ignore")

    written.rebuild()

    assert sorted((each["id"], each["name"]) for each in written.rows()) == [
        (1, "A"),
        (1, "a"),
        (2, "b"),
        (3, "c"),
    ]
    assert find_problems(written) == ()


@pytest.mark.parametrize("place", ["_move", *twins("hit", "rmtree")])
def test_a_swap_that_was_cut_short_is_finished_by_the_next_run(
    written: World, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Before the old tables went, while they went, or before the new ones came."""
    written.declare(schema="id BIGINT NOT NULL, name STRING, city STRING")
    with monkeypatch.context() as broken:
        # Others remove folders, too: only the swap is to fail.
        if place == "rmtree":
            own = SimpleNamespace(**{**vars(shutil), "rmtree": _crash})
            broken.setattr("oncelake.ingestion.lake.archive.shutil", own)
        else:
            broken.setattr(f"oncelake.ingestion.lake.archive.{place}", _crash)
        with pytest.raises(RuntimeError, match="crash"):
            written.rebuild()

    with _refused_meanwhile(written):
        written.run()

    assert [each["id"] for each in written.rows()] == [1, 3]
    assert not written.paths.workshop.exists()
    assert find_problems(written) == ()


@contextmanager
def _refused_meanwhile(world: World) -> Iterator[None]:
    """Nobody builds on a half that lies there."""
    with pytest.raises(TableReplacedError, match="`rebuild: no reason given` was cut short"):
        read_position(world.paths)
    yield


def _crash(*_: Any, **__: Any) -> None:
    raise RuntimeError("crash")


def test_a_rebuild_without_what_is_gone_is_a_persons_to_decide(world: World) -> None:
    """Records that Kafka no longer holds would be missing, so it is refused until that is said."""
    fill(world)
    world.forget_before(partition=0, offset=2)

    with pytest.raises(OffsetsExpiredError, match="--without-lost"):
        world.rebuild()
    assert len(world.rows()) == 2
    world.rebuild(without_lost=True)

    assert [each["id"] for each in world.rows()] == [1, 3]
    assert find_problems(world) == ()


def test_a_rebuild_waits_for_no_run_and_breaks_none(written: World) -> None:
    """While a run holds the stream the tables do not change places."""
    with (
        held_by_jvm(written.spark, written.paths, Holder.me("other")),
        pytest.raises(StreamLockedError, match="other"),
    ):
        written.rebuild()

    assert [each["id"] for each in written.rows()] == [1, 3]
    assert [each.kind for each in written.ledger] == ["ingest", "ingest"]


def test_a_rebuild_by_two_declarations_is_none(written: World) -> None:
    """What was begun before the declaration was changed is thrown away, and not gone on with."""
    written.declare(max_offsets_per_trigger=2, where="name <> 'a'")
    stop = threading.Event()
    written.rebuild(stop=stop, on_batch=lambda row, lag: stop.set())
    assert (written.paths.workshop / written.topic).exists()

    written.declare(where="name <> 'c'")
    written.rebuild()

    assert written.rows() == [row(1, "A", 2)]
    assert find_problems(written) == ()


def test_a_rebuild_goes_on_where_it_was(written: World) -> None:
    """With the same declaration no batch is written again."""
    written.declare(max_offsets_per_trigger=2)
    stop = threading.Event()
    written.rebuild(stop=stop, on_batch=lambda row, lag: stop.set())

    seqs: list[int] = []
    written.rebuild(on_batch=lambda row, lag: seqs.append(row.seq))

    assert seqs == [each.seq for each in written.ledger[1:]]
    assert written.rows() == [row(1, "A", 2), row(3, "c", 1)]


@only_long
def test_a_rebuild_in_place_of_another_table_is_none(written: World) -> None:
    """A reset, or a restore, begins elsewhere than the table whose place was to be taken."""
    written.declare(max_offsets_per_trigger=2)
    stop = threading.Event()
    written.rebuild(stop=stop, on_batch=lambda row, lag: stop.set())
    reset(written.topic, written.settings, run_id="me")
    written.run()

    seqs: list[int] = []
    written.rebuild(on_batch=lambda row, lag: seqs.append(row.seq))

    assert seqs == [each.seq for each in written.ledger]
    assert written.rows() == [row(1, "A", 2), row(3, "c", 1)]


def test_a_table_that_came_meanwhile_is_not_replaced(written: World) -> None:
    """What a person put in place while a rebuild was filling its table stays there."""

    def decide(*_: Any) -> None:
        if not archived:
            archived.extend(reset(written.topic, written.settings, run_id="me").archived)

    archived: list[Location] = []
    with pytest.raises(RefusedError, match=r"was replaced, .*oncelake rebuild"):
        written.rebuild(on_batch=decide)

    assert archived
    assert not written.paths.data.exists()


def test_a_half_made_table_that_cannot_go_on_is_begun_anew(world: World) -> None:
    """Nobody can accept the loss of records for a table that nobody uses."""
    fill(world)
    world.declare(max_offsets_per_trigger=2)
    stop = threading.Event()
    world.rebuild(stop=stop, on_batch=lambda row, lag: stop.set())
    world.forget_before(0, 4)

    with pytest.raises(
        RefusedError, match=r"Kafka has deleted.*removed\..*oncelake rebuild"
    ) as refused:
        world.rebuild(without_lost=True)
    assert "accept" not in refused.value.remedy
    world.rebuild(without_lost=True)

    assert world.rows() == [row(3, "c", 1)]


def test_a_rebuild_heals_its_own_ledger(written: World) -> None:
    """A damaged ledger of the half-made table is made again, as a run does."""
    written.declare(max_offsets_per_trigger=2)
    stop = threading.Event()
    written.rebuild(stop=stop, on_batch=lambda row, lag: stop.set())
    ledger = written.paths.workshop / written.paths.ledger.name
    for commit in (ledger.path / "_delta_log").glob("*.json"):
        commit.write_text("garbage")

    written.rebuild()

    assert written.rows() == [row(1, "A", 2), row(3, "c", 1)]
    assert find_problems(written) == ()


@pytest.mark.kafka
def test_a_rebuild_from_a_topic_made_again_is_a_persons_to_decide(world: World) -> None:
    """What the old topic held is in the old table alone, before and after it was adopted."""
    fill(world)
    before = world.rows()
    world.delete_topic()
    world.create_topic()
    world.send(row(7, "g"))

    with pytest.raises(TopicRecreatedError, match="oncelake adopt-topic"):
        world.rebuild()
    adopt_topic(world.spec, world.settings, run_id="me")
    world.run()
    with pytest.raises(OffsetsExpiredError, match=r"adopted anew.*--without-lost"):
        world.rebuild()
    assert world.rows() == [*before, row(7, "g")]
    world.rebuild(without_lost=True)

    assert world.rows() == [row(7, "g")]
    assert find_problems(world) == ()


@pytest.mark.parametrize("then", ["nothing read", "rewound", "ledger lost"])
def test_a_rebuild_begins_where_the_stream_did(world: World, then: str) -> None:
    """Also where no batch tells: what lay before `starting: latest` was never the table's."""
    world.declare(starting="latest", mode="append", keys=[])
    world.send(row(1, "before"))
    world.run()
    world.forget_before(0, 1)
    if then != "nothing read":
        world.send(row(2, "behind"))
        world.run()
    if then == "rewound":
        rewind(world.spec, world.settings, to="seq:0", reason="a test", run_id="me")
    if then == "ledger lost":
        shutil.rmtree(world.paths.ledger)
    world.send(row(3, "now"))

    world.rebuild()

    assert [each["id"] for each in world.rows()] == [2, 3][then == "nothing read" :]


def test_a_rebuild_reads_what_an_adoption_has_kept(world: World) -> None:
    """A topic that is the same as ever is read from where the stream began, not the new epoch."""
    second = world.add_topic(".second", row(2, "b"))
    world.declare(topic=None, topics=[world.topic, second])
    world.send(row(1, "a"))
    world.run()
    world.delete_topic()
    world.create_topic()
    adopt_topic(world.spec, world.settings, run_id="me")
    world.run()

    world.rebuild(without_lost=True)

    assert world.rows() == [row(2, "b")]


def test_there_must_be_something_to_rebuild(world: World) -> None:
    """A stream that never ran has no table to make anew."""
    with pytest.raises(InvalidSpecError, match="there is no table yet"):
        world.rebuild()
