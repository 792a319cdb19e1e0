"""What every sink must keep, as tests that anybody points at a sink of their own.

It stands above the engine, no part of which imports it; the extra ``testing`` has what it needs.

    class TestMySink(SinkConformance):
        kind = KIND

        @pytest.fixture
        def opened(self, tmp_path: Path) -> Callable[[], SinkTable]:
            part, settings = MySink(table="orders"), Settings(lake=tmp_path)
            return partial(open_table, "orders", part, settings, Location.of(tmp_path))

Each call of ``opened`` opens the same place anew, in this process and, pickled, in another; each
test asks for another place. After each attempt the rows must be those that the notes tell of: no
more, no less.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(f"{__name__}.conformance", f"{__name__}.tables")

from oncelake.testing.conformance import SinkConformance  # noqa: E402 (once they are registered)
from oncelake.testing.tables import (  # noqa: E402
    Opener,
    begin,
    change,
    commit,
    keys,
    make,
    note,
    origin,
    rows_in,
)

__all__ = [
    "Opener",
    "SinkConformance",
    "begin",
    "change",
    "commit",
    "keys",
    "make",
    "note",
    "origin",
    "rows_in",
]
