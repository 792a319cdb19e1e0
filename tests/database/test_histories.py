"""Random histories of a database: every table ends as the database does, and the proof says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.database.history import FEATURES, History
from tests.database.judge import Ground, hold
from tests.database.strategies import histories
from tests.support.long import IS_LONG

SESSIONS = 5
# Of so many sessions each.
EXAMPLES = 200 if IS_LONG else 8
FIXED = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    # What is wrong is made smaller where that is known better: ``tests.database.shrink``.
    phases=[Phase.generate],
)


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    """Where histories are played."""
    with Ground.made() as made:
        yield made


def test_tables_end_as_the_database_does(ground: Ground) -> None:
    """Whatever is declared, and whatever the connector writes."""

    @FIXED
    @given(histories(sessions=SESSIONS, without=FEATURES))
    def ends_right(history: History) -> None:
        hold(history, ground)

    ends_right()


def test_tables_end_so_whatever_is_done_to_rows(ground: Ground) -> None:
    """Rows change their routes, leave conditions, take over keys, and go without a word."""

    @FIXED
    @given(histories(sessions=SESSIONS))
    def ends_right(history: History) -> None:
        hold(history, ground, is_told_short=False)

    ends_right()
