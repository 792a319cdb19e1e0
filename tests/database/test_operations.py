"""Histories whose tables are redriven or rewound: they end as the database does all the same."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.quarantine.redrive import Redrive
from tests.database.declared import Source
from tests.database.history import History, ReadAll
from tests.database.judge import Ground, Play, judged, rows_of
from tests.database.test_found import CHAIN, FOUND, KEYS_ONLY, ROUTED, moves, of, put, update


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    """Where histories are played."""
    with Ground.made() as made:
        yield made


def played(history: History, ground: Ground) -> Play:
    """Play a history to its end."""
    play = Play(history, ground, Path(tempfile.mkdtemp(dir=ground.folder)))
    play.play()
    return play


def redrive(play: Play) -> None:
    """Send in again what waits, in each table."""
    for table in play.history.setup.declared.tables:
        Redrive(
            spec=play.stream(table),
            settings=play.settings,
            spark=lambda _: play.ground.session,
            run_id="redrive",
        ).execute()


def problems(play: Play) -> list[str]:
    """Return what is wrong in the end."""
    tables = play.history.setup.declared.tables
    return [str(each) for table in tables for each in (*play.problems, *judged(play, table))]


@pytest.mark.parametrize(
    "name",
    [
        "keys in a chain, of which only keys are known",
        "a key that is taken over and left again, of which only keys are known",
        "a row that a waiting one may have left alone, 32 at once",
        "a row that a waiting one may have left alone, 1 at once",
        "a marked delete behind a row that waits",
        "a large value that moves to another partition",
    ],
)
def test_a_redrive_of_what_waits_makes_no_wrong_row(name: str, ground: Ground) -> None:
    """What waits for whose key it is may wait on; whatever is sent in is where it belongs."""
    play = played(FOUND[name], ground)

    redrive(play)
    redrive(play)

    assert problems(play) == []


def test_a_move_that_is_another_tables_by_now_waits_as_a_whole(ground: Ground) -> None:
    """A redrive leaves it where it is, with the delete of its old key."""
    steps = (put(1), ReadAll(), update(1, state="done"), moves((1, 2)), put(3, state="new"))
    play = played(of(*steps, tables=ROUTED, source=KEYS_ONLY, is_ordered=True), ground)
    opened, ended = ROUTED
    tables = (replace(opened, when=("open", "new")), replace(ended, when=("closed", "done")))
    declared = replace(play.history.setup.declared, tables=tables)
    play.history = replace(play.history, setup=replace(play.history.setup, declared=declared))
    file = play.settings.streams / f"{play.topic}.yaml"
    file.write_text(json.dumps(play.history.setup.file(play.topic)))
    del play.specs

    redrive(play)

    assert sorted(row["id"] for row in rows_of(play, opened)) == [1, 3]
    assert problems(play) == []


@pytest.mark.parametrize("seq", [2, 3])
def test_contests_are_rewound_with_their_table(seq: int, ground: Ground) -> None:
    """Before and between the moves of a chain: what was told after that is told once more."""
    play = played(of(*CHAIN, source=Source(kafka_key="shard"), is_ordered=True, limit=1), ground)
    (table,) = play.history.setup.declared.tables

    rewind(play.stream(table), play.settings, to=f"seq:{seq}", reason="a trial", run_id="rewind")
    play.run()

    assert problems(play) == []
