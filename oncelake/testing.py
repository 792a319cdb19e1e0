"""What every sink must keep, as tests that anybody points at a sink of their own.

It stands above the engine, no part of which imports it; the extra ``testing`` has what it needs.

    class TestMySink(SinkConformance):
        kind = KIND

        @pytest.fixture
        def opened(self, tmp_path: Path) -> Callable[[], SinkTable]:
            return partial(MyTable, "orders", tmp_path)

Each call of ``opened`` opens the same place anew, in this process and, pickled, in another; each
test asks for another place. After each attempt the rows must be those that the notes tell of: no
more, no less.
"""

from __future__ import annotations

import datetime as dt
import math
import multiprocessing
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from decimal import Decimal
from types import FrameType, ModuleType
from typing import Any, Final

import pyarrow as pa
import pytest

from oncelake.ingestion.declaration.ddl import parse_columns, parse_type, system_columns
from oncelake.ingestion.declaration.sinks import SinkKind
from oncelake.ingestion.declaration.sql import quoted
from oncelake.ingestion.errors import (
    CommitConflictError,
    IngestionError,
    RefusedError,
    TableBusyError,
)
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.sinks.arrow_types import arrow_schema
from oncelake.ingestion.sinks.commit_log import DELETED, ROW_COUNTS
from oncelake.ingestion.sinks.commit_metadata import CommitMetadata, Identity, app_id
from oncelake.ingestion.sinks.table import (
    AlterableTable,
    Change,
    ErasableTable,
    MarkableTable,
    RewindableTable,
    SinkTable,
    TableDefinition,
)

Opener = Callable[[], SinkTable]
_SECONDS: Final = 60
_KEY: Final = ["id", "name"]
_MOMENT: Final = dt.datetime(2020, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)
_LARGEST_FLOAT: Final = 3.4028234663852886e38
_LARGEST_DOUBLE: Final = 1.7976931348623157e308
_TEXTS: Final = (
    *("", " ", "  padded  ", "NULL", "null", "NaN", "t", "\\N", "\\.", "\n\\.\n", "\\", "\\\\"),
    *('"', '""', 'say "no"', "'", ",", "a,b", "\n", "\r", "\r\n", "a\r\nb\rc\nd", "\t", "\x01"),
    *(
        "\ufeffmark",
        "\u00e9\u4e16",
        "e\u0301",
        "\U0001f600",
        "\u2028",
        "\x7f",
        "\x85",
        "\uffff" * 20,
    ),
    "x" * 100_000,
)
_EXTREMES: Final[Mapping[str, tuple[Any, ...]]] = {
    "BOOLEAN": (True, False),
    "TINYINT": (-(2**7), 2**7 - 1),
    "SMALLINT": (-(2**15), 2**15 - 1),
    "INT": (-(2**31), 2**31 - 1),
    "BIGINT": (-(2**63), 2**63 - 1, 2**53 + 1),
    "FLOAT": (math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-45, _LARGEST_FLOAT, 1.5),
    "DOUBLE": (math.nan, math.inf, -math.inf, -0.0, 0.0, -5e-324, _LARGEST_DOUBLE, 0.1, 1 / 3),
    "STRING": _TEXTS,
    "BINARY": (b"", b"\x00", b"\\x00", bytes(range(256)), b"a\nb", b"\xff" * 100_000),
    "DATE": (dt.date(1, 1, 1), dt.date(9999, 12, 31)),
    "TIMESTAMP": (_MOMENT, dt.datetime(1901, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)),
    "TIMESTAMP_NTZ": (_MOMENT.replace(tzinfo=None), dt.datetime(1901, 1, 1)),  # noqa: DTZ001
    "DECIMAL(1, 0)": (Decimal(9), Decimal(-9)),
    "DECIMAL(9, 2)": (Decimal("9999999.99"), Decimal("-9999999.99"), Decimal("0.01")),
    "DECIMAL(38, 0)": (Decimal("9" * 38), Decimal("-" + "9" * 38)),
    "DECIMAL(38, 10)": (
        Decimal("9" * 28 + "." + "9" * 10),
        Decimal("-0.0000000001"),
        Decimal("1.5"),
    ),
    "DECIMAL(38, 38)": (Decimal("0." + "9" * 38), Decimal("-1E-38")),
}
# Of these, keys are made.
_KEY_TYPES: Final = tuple(word for word in _EXTREMES if word not in {"BOOLEAN", "FLOAT", "DOUBLE"})


class SinkConformance:
    """The promises of ``ingestion.sinks.table``; a subclass gives ``kind`` and ``opened``."""

    # What the sink says that it can.
    kind: SinkKind
    # Types that the sink keeps; the others are refused when a stream is declared.
    types: tuple[str, ...] = tuple(_EXTREMES)
    # What the names of columns may have in them.
    named: str = " .,;:{}()[]=`'\"\n%@-"
    # How often a writer is killed at a random moment.
    kills = 2
    # At so many of the steps of a commit, or more, it is made to fail.
    steps = 40

    @pytest.fixture
    def opened(self) -> Opener:
        """Return what opens the table under test."""
        raise NotImplementedError("a subclass says how its table is opened")

    def remove(self, table: SinkTable) -> None:
        """Remove the table, as a person does between two runs."""
        table.drop()

    def test_a_table_can_what_its_record_says(self, opened: Opener) -> None:
        """What it is unable to do it does not offer, and all else it does."""
        table, cannot = opened(), self.kind.cannot
        assert isinstance(table, ErasableTable) == ("erase" not in cannot)
        assert isinstance(table, RewindableTable) == ("rewind" not in cannot)
        assert isinstance(table, MarkableTable) == self.kind.marks_rows

    def test_a_new_table_has_no_commit(self, opened: Opener) -> None:
        """It is there, and empty, and making it again changes nothing."""
        assert not opened().log().exists
        make(opened())
        table_id = opened().log().table_id()
        make(opened())

        log = opened().log()
        assert (log.exists, log.is_empty, log.last_seq("orders")) == (True, True, None)
        assert log.table_id() == table_id != ""

    def test_some_that_create_at_once_make_one_table(self, opened: Opener) -> None:
        """Each finds the table that one of them has made; a log has one writer at a time."""
        if self.kind.is_log:
            return
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda _: make(opened()), range(4)))

        opened().commit_note(note(0))
        assert opened().log().last_seq("orders") == 0

    def test_rows_and_note_come_together(self, opened: Opener) -> None:
        """Each commit adds, changes and removes rows, and its note counts them."""
        begin(opened)
        commit(opened(), 1, inserted={1: "a", 2: "b", 3: "c"})
        commit(opened(), 2, inserted={4: "d"}, updated={1: "e"}, deleted=(2,))

        assert rows_in(opened()) == {1: "e", 3: "c", 4: "d"}
        found = opened().log().find("orders", 2)
        assert found is not None
        assert (found.operation, found.metadata, found.changes_rows) == ("MERGE", note(2), True)
        assert [found.metrics[name] for name in ROW_COUNTS] == [1, 1, 1]
        assert opened().rows_of_seq(2, commit=found) == 2
        newest = opened().scan(["id", "_seq"], found.version, since_seq=2)
        assert sorted(row["id"] for batch in newest for row in batch.to_pylist()) == [1, 4]

    def test_a_log_tells_what_was_committed(self, opened: Opener) -> None:
        """Times are those of now, no row is beyond the epoch, and rows are counted or not told."""
        begin(opened)
        commit(opened(), 1, inserted={1: "a", 2: "b"})
        log = opened().log()

        newest, first = (each for each in log.newest_first() if each.metadata)
        assert [each.txns for each in (newest, first)] == [{app_id("orders"): n} for n in (1, 0)]
        now = dt.datetime.now(dt.UTC)
        assert abs((newest.committed_at - now).total_seconds()) < _SECONDS
        assert log.highest_epoch() == 1
        assert log.row_count() in {2, None}
        kept = [(fence, text) for _, fence, text in opened().notes(newest.version) if text]
        assert kept == [(seq, note(seq).to_json()) for seq in (0, 1)]

    def test_many_notes_are_read_in_both_directions(self, opened: Opener) -> None:
        """Oldest first and newest first, to the letter, also up to an earlier version."""
        begin(opened)
        odd = "say 'why' \"\u00e9\n"
        for seq in range(1, 13):
            opened().commit_note(note(seq, reason=odd))

        log = opened().log()
        found = [each for each in log.newest_first() if each.metadata]
        assert [each.metadata and each.metadata.seq for each in found] == [*range(12, -1, -1)]
        assert (found[0].metadata, found[0].changes_rows) == (note(12, reason=odd), False)
        assert set(found[0].metrics.values()) <= {0}
        assert [fence for _, fence, text in opened().notes(found[3].version) if text] == [
            *range(10)
        ]

    def test_columns_are_those_that_were_declared(self, opened: Opener) -> None:
        """In their order, by the types that the sink says it keeps them by."""
        table = opened()
        make(table, "id INT NOT NULL, name STRING, sum DECIMAL(10, 2), day DATE")
        declared = (
            *parse_columns("id INT NOT NULL, name STRING, sum DECIMAL(10, 2), day DATE"),
            *system_columns(),
        )

        found = opened().columns()

        assert [(each.name, str(each.type)) for each in found] == [
            (each.name, str(self.kind.stored_type(each.type))) for each in declared
        ]

    def test_a_key_is_all_of_its_columns(self, opened: Opener) -> None:
        """Of rows that share the first one, those of other keys stay."""
        if self.kind.is_log:
            return
        make(opened(), keys=("id", "name"))
        opened().commit_note(note(0))
        rows = change(1, inserted=dict.fromkeys(range(500), "a"))
        more = change(1, inserted=dict.fromkeys(range(500), "b"))
        with closing(opened().begin(1)) as transaction:
            both = pa.concat_tables([rows.inserted, more.inserted])
            new = Change(inserted=both, updated=rows.updated, deleted=both.slice(0, 0).select(_KEY))
            transaction.commit(new, note(1))

        with closing(opened().begin(2)) as transaction:
            wanted = more.inserted.select(_KEY)
            assert transaction.rows_of(wanted).num_rows == 500
            gone = wanted.slice(0, 400)
            transaction.commit(
                Change(inserted=rows.updated, updated=rows.updated, deleted=gone), note(2)
            )

        left = [row for batch in opened().scan(["id", "name"]) for row in batch.to_pylist()]
        assert len(left) == 600
        assert sorted(row["id"] for row in left if row["name"] == "b") == list(range(400, 500))

    def test_whole_rows_are_found_by_their_keys(self, opened: Opener) -> None:
        """Each row whose key is asked for comes once, with all its columns; of no key, none."""
        if self.kind.is_log:
            return
        begin(opened)
        commit(opened(), 1, inserted={1: "a", 2: "b", 3: "c"})

        with closing(opened().begin(2)) as transaction:
            found = transaction.rows_of(keys(1, 2, 9))
            nothing = transaction.rows_of(keys())

        wanted = change(1, inserted={1: "a", 2: "b"}).inserted
        assert exact(found.select(wanted.column_names)) == exact(wanted)
        assert (nothing.num_rows, nothing.schema) == (0, found.schema)

    def test_keys_of_every_kind_find_their_rows(self, opened: Opener) -> None:
        """Rows are found by each of several columns, and updated and deleted by all of them."""
        if self.kind.is_log:
            return
        types = [word for word in _KEY_TYPES if word in self.types]
        names, table = [f"k{at}" for at in range(len(types))], opened()
        declared = (f"{name} {word} NOT NULL" for name, word in zip(names, types, strict=True))
        make(table, ", ".join(["id INT NOT NULL", *declared]), keys=("id", *names))
        table.commit_note(note(0))
        like = arrow_schema(table.columns())
        values = {name: _EXTREMES[word] for name, word in zip(names, types, strict=True)}
        made = [
            {**{name: of[at % min(len(of), 30)] for name, of in values.items()}, **origin(1, at)}
            for at in range(4)
        ]
        rows = pa.Table.from_pylist([{"id": at, **row} for at, row in enumerate(made)], like)
        of_key, nothing = rows.select(["id", *names]), rows.slice(0, 0)
        given = Change(inserted=rows, updated=nothing, deleted=of_key.slice(0, 0))
        with closing(opened().begin(1)) as transaction:
            transaction.commit(given, note(1))

        with closing(opened().begin(2)) as transaction:
            for name in names:
                found = transaction.rows_of(rows.select([name]).slice(1, 1))
                due = {at for at in range(4) if made[at][name] == made[1][name]}
                assert {*found["id"].to_pylist()} == due, name
            given = Change(inserted=nothing, updated=rows.slice(1), deleted=of_key.slice(0, 1))
            transaction.commit(given, note(2))

        assert exact(scanned(opened(), like)) == exact(rows.slice(1))

    def test_a_version_is_read_as_it_was(self, opened: Opener) -> None:
        """Or refused, where no past is kept; never are the rows of now taken for those of then."""
        begin(opened)
        commit(opened(), 1, inserted={1: "a"})
        then = opened().log().versions()[0]
        commit(opened(), 2, inserted={2: "b"})

        try:
            found = [row["id"] for each in opened().scan(["id"], then) for row in each.to_pylist()]
        except TableBusyError:
            return
        assert found == [1]

    def test_a_scan_sees_one_state_to_its_end(self, opened: Opener) -> None:
        """Whatever is committed while it is read."""
        begin(opened)
        for seq in (1, 2, 3):
            commit(opened(), seq, inserted={seq: "a"})
        scan = opened().scan(["id", "name"])
        begun = next(scan).to_pylist()

        commit(opened(), 4, inserted={4: "d"}, updated={1: "b", 2: "b"}, deleted=(3,))

        found = begun + [row for batch in scan for row in batch.to_pylist()]
        assert {row["id"]: row["name"] for row in found} == {1: "a", 2: "a", 3: "a"}
        assert rows_in(opened()) == {1: "b", 2: "b", 4: "d"}

    def test_all_rows_can_be_deleted(self, opened: Opener) -> None:
        """The table is empty then, and takes rows again."""
        begin(opened)
        commit(opened(), 1, inserted={1: "a", 2: "b"})
        commit(opened(), 2, deleted=(1, 2))
        assert rows_in(opened()) == {}
        assert opened().log().row_count() in {0, None}

        commit(opened(), 3, inserted={1: "c"})

        assert rows_in(opened()) == {1: "c"}

    def test_a_column_is_added_and_another_takes_nulls(self, opened: Opener) -> None:
        """No row changes; or the sink changes no columns."""
        make(opened(), "id INT NOT NULL, name STRING NOT NULL")
        opened().commit_note(note(0))
        commit(opened(), 1, inserted={1: "a"})
        more, name = parse_columns("more SMALLINT, name STRING")
        try:
            opened().alter(more, is_new=True, spark=None)
            opened().alter(name, is_new=False, spark=None)
        except RefusedError:
            return

        columns = opened().columns()
        assert [(each.name, each.nullable) for each in columns[:2]] == [
            ("id", False),
            ("name", True),
        ]
        assert columns[-1] == replace(more, type=self.kind.stored_type(more.type))
        row = {"id": 2, "name": None, "more": 5, **origin(2, 2)}
        rows = pa.Table.from_pylist([row], arrow_schema(columns))
        with closing(opened().begin(2)) as transaction:
            given = Change(inserted=rows, updated=rows.slice(0, 0), deleted=keys())
            transaction.commit(given, note(2))
        found = [
            row for batch in opened().scan(["more", "id", "name"]) for row in batch.to_pylist()
        ]
        assert sorted(found, key=lambda row: row["id"]) == [
            {"more": None, "id": 1, "name": "a"},
            {"more": 5, "id": 2, "name": None},
        ]

    def test_a_column_takes_a_wider_type(self, opened: Opener) -> None:
        """Rows that are there keep their values, and are found by them; or the sink cannot."""
        begin(opened)
        commit(opened(), 1, inserted={1: "a", 2: "b", 3: "c"})
        commit(opened(), 2, updated={2: "B"}, deleted=(3,))
        wide = parse_columns("id BIGINT NOT NULL")
        found, wider = (self.kind.stored_type(parse_type(name)) for name in ("INT", "BIGINT"))
        if not opened().can_widen(found, wider):
            return

        opened().widen(wide)

        columns = opened().columns()
        assert (columns[0].type, columns[0].nullable) == (wider, False)
        assert rows_in(opened()) == {1: "a", 2: "B"}
        rows = pa.Table.from_pylist(
            [{"id": id_, "name": "new", **origin(3, id_)} for id_ in (1, 2**40)],
            arrow_schema(columns),
        )
        with closing(opened().begin(3)) as transaction:
            keys_of_rows = pa.table({"id": pa.array([1, 2**40], pa.int64())})
            assert transaction.rows_of(keys_of_rows)["name"].to_pylist() == ["a"]
            given = Change(inserted=rows.slice(1), updated=rows.slice(0, 1), deleted=keys())
            transaction.commit(given, note(3))
        assert rows_in(opened()) == {1: "new", 2: "B", 2**40: "new"}
        assert opened().log().last_seq("orders") == 3

    def test_columns_are_renamed_and_dropped_with_a_note(self, opened: Opener) -> None:
        """Values stay under the other name, and are found by it; or the sink cannot."""
        begin(opened)
        commit(opened(), 1, inserted={1: "a", 2: "b", 3: "c"})
        commit(opened(), 2, updated={2: "B"}, deleted=(3,))
        table = opened()
        if not isinstance(table, AlterableTable):
            return

        more = (*parse_columns("id INT NOT NULL, title STRING, more INT"), *system_columns())
        assert table.reshape(more, {"title": "name"}, metadata=note(3)).metadata == note(3)
        with pytest.raises(CommitConflictError):
            table.reshape(more, {}, metadata=note(3, reason="another's"))
        plain = parse_columns("id INT NOT NULL, title STRING")
        table.reshape((*plain, *system_columns()), {}, metadata=note(4))
        names = [each.name for each in opened().columns()]
        assert names == [each.name for each in (*plain, *system_columns())]
        found = [row for batch in opened().scan(["id", "title"]) for row in batch.to_pylist()]
        assert {row["id"]: row["title"] for row in found} == {1: "a", 2: "B"}
        with closing(opened().begin(5)) as transaction:
            assert transaction.rows_of(keys(2))["title"].to_pylist() == ["B"]
        assert opened().log().last_seq("orders") == 4

    def test_an_earlier_version_is_restored(self, opened: Opener) -> None:
        """Its rows are back by one commit, and the seq goes on."""
        begin(opened)
        commit(opened(), 1, inserted={1: "a", 2: "b"})
        then = opened().log().find("orders", 1)
        commit(opened(), 2, inserted={3: "c"}, updated={1: "A"}, deleted=(2,))
        table = opened()
        if not isinstance(table, RewindableTable):
            return

        assert then is not None
        rewind = replace(note(3), kind="rewind", counts={"rewound_to": 1})
        done = table.restore(then.version, rewind)

        assert (done.operation, done.changes_rows, done.metadata) == ("RESTORE", True, rewind)
        assert rows_in(opened()) == {1: "a", 2: "b"}
        commit(opened(), 4, inserted={3: "d"}, updated={2: "B"})
        assert rows_in(opened()) == {1: "a", 2: "B", 3: "d"}

    def test_upkeep_changes_no_row(self, opened: Opener) -> None:
        """Whatever it puts together and forgets; the next commit follows the last one."""
        begin(opened)
        for seq in range(1, 5):
            commit(opened(), seq, inserted={seq: "a"})
        commit(opened(), 5, updated={1: "b"})

        for _ in range(2):
            opened().maintain(dt.timedelta(0), 1_000_000)

        assert rows_in(opened()) == {1: "b", 2: "a", 3: "a", 4: "a"}
        assert opened().log().last_seq("orders") == 5
        commit(opened(), 6, updated={2: "b"}, deleted=(3,))
        assert rows_in(opened()) == {1: "b", 2: "b", 4: "a"}

    def test_what_is_erased_is_gone(self, opened: Opener) -> None:
        """The rows of the key, no other, in one commit with its note."""
        begin(opened)
        commit(opened(), 1, inserted={1: "a", 2: "b"})
        table = opened()
        if not isinstance(table, ErasableTable):
            return

        written = table.written_files()
        done = table.erase(keys(1), note(2))
        table.remove_older_versions(written)

        assert rows_in(opened()) == {2: "b"}
        assert (done.metrics[DELETED], done.metadata) == (1, note(2))
        of_nobody = opened()
        assert isinstance(of_nobody, ErasableTable)
        assert of_nobody.erase(keys(1), note(3)).metrics[DELETED] == 0
        commit(opened(), 4, inserted={3: "c"})
        assert rows_in(opened()) == {2: "b", 3: "c"}

    def test_a_table_that_is_set_aside_leaves_its_name(self, opened: Opener) -> None:
        """Where it is outside the lake: once, whatever comes after; its rows stay its own."""
        begin(opened)
        commit(opened(), 1, inserted={1: "a"})
        if "rebuild" in self.kind.cannot or (aside := opened().set_aside("20240101")) is None:
            return

        assert not opened().log().exists
        assert opened().set_aside("20240101") == aside
        begin(opened)
        assert rows_in(opened()) == {}

    def test_an_empty_batch_is_a_note(self, opened: Opener) -> None:
        """A commit without rows is a commit, and the rows stay."""
        begin(opened)
        commit(opened(), 1, inserted={1: "a"})

        commit(opened(), 2)

        assert opened().log().last_seq("orders") == 2
        assert rows_in(opened()) == {1: "a"}

    def test_what_is_there_is_not_committed_again(self, opened: Opener) -> None:
        """A seq that the table holds, or one beyond the next, is refused, and one not begun."""
        begin(opened)
        with closing(opened().begin(1)) as transaction, pytest.raises(ValueError, match="begun"):
            transaction.commit(None, note(2))
        commit(opened(), 1, inserted={1: "a"})

        for seq in (1, 3):
            with pytest.raises(CommitConflictError):
                commit(opened(), seq, inserted={seq + 10: "again"})

        assert rows_in(opened()) == {1: "a"}
        assert opened().log().last_seq("orders") == 1

    def test_what_is_given_up_leaves_nothing(self, opened: Opener) -> None:
        """A writer that looked, and went away, is as if it had never been."""
        begin(opened)
        table = opened()
        commit(opened(), 1, inserted={1: "a"})
        with closing(table.begin(2)) as transaction:
            if not self.kind.is_log:
                assert transaction.rows_of(keys(1, 9)).num_rows == 1

        commit(opened(), 2, updated={1: "b"})

        assert rows_in(opened()) == {1: "b"}

    def test_of_two_writers_one_commits(self, opened: Opener) -> None:
        """Both begin on the same state; what is there is what one of them was told it wrote."""
        begin(opened)
        for seq in range(1, 6):
            barrier, winners = threading.Barrier(2), list[str]()
            threads = [
                threading.Thread(target=race, args=(opened, seq, who, barrier, winners))
                for who in "ab"
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)

            found = opened().log().find("orders", seq)
            assert found is not None
            assert found.metadata is not None
            assert [rows_in(opened())[seq]] == winners == [found.metadata.run_id]
        assert len(rows_in(opened())) == 5

    def test_a_late_writer_changes_nothing(self, opened: Opener) -> None:
        """One that began before somebody else's commit, and goes on behind it, is refused."""
        begin(opened)
        late, winners = opened(), list[str]()
        with closing(late.begin(1)) as transaction:
            other = threading.Thread(
                target=race, args=(opened, 1, "other", threading.Barrier(1), winners)
            )
            other.start()
            other.join(3)
            with suppress(IngestionError):
                transaction.commit(change(1, inserted={1: "late"}), note(1, run_id="late"))
                winners.append("late")
        other.join(120)

        found = opened().log().find("orders", 1)
        assert found is not None
        assert found.metadata is not None
        assert list(rows_in(opened()).values()) == winners == [found.metadata.run_id]

    def test_a_table_made_anew_takes_nothing_meant_for_the_old(self, opened: Opener) -> None:
        """Who has read a table is refused by another of its name, which stands at the same seq."""
        begin(opened)
        late = opened()
        assert late.log().last_seq("orders") == 0
        before = late.log().table_id()
        self.remove(opened())
        make(opened())
        log = opened().log()
        assert (log.exists, log.is_empty, log.last_seq("orders")) == (True, True, None)
        opened().commit_note(note(0))

        with pytest.raises(CommitConflictError):
            commit(late, 1, inserted={1: "late"})

        assert rows_in(opened()) == {}
        assert before != late.log().table_id() == opened().log().table_id()
        commit(late, 1, inserted={1: "a"})

    def test_a_writer_that_is_killed_leaves_whole_commits(self, opened: Opener) -> None:
        """After each of several kills, rows and notes say the same, and the next one goes on."""
        begin(opened)
        dice, last = random.Random(1), 0
        for _ in range(self.kills):
            writer = multiprocessing.get_context("spawn").Process(
                target=commit_on_and_on, args=(opened, last + 1)
            )
            writer.start()
            deadline = time.monotonic() + _SECONDS
            while (opened().log().last_seq("orders") or 0) <= last:
                assert writer.is_alive(), "the writer ended by itself"
                assert time.monotonic() < deadline, "the writer commits nothing"
            time.sleep(dice.random() / 10)
            writer.kill()
            writer.join()

            last = opened().log().last_seq("orders") or 0
            assert rows_in(opened()) == {seq: str(seq) for seq in range(1, last + 1)}
            last += 1
            commit(opened(), last, inserted={last: str(last)})
        assert rows_in(opened()) == {seq: str(seq) for seq in range(1, last + 1)}

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_any_step_of_a_commit_may_fail(self, opened: Opener) -> None:
        """Whatever call within it raises, rows are those of the notes, and the next goes on."""
        begin(opened)
        commit(opened(), 1, inserted={1: "1"})
        # The first one does not fail.
        seq, number, length = 2, sys.maxsize, 1
        while number == sys.maxsize or number < length:
            steps = FailingStep(number)
            with closing(opened().begin(seq)) as transaction:
                wanted = change(seq, inserted={seq: str(seq)}, updated={seq - 1: f"{seq - 1}!"})
                with suppress(StepFailedError, IngestionError), steps:
                    transaction.commit(wanted, note(seq, run_id=str(number)))

            last = opened().log().last_seq("orders") or 0
            assert last in {seq - 1, seq}, steps
            due = {each: f"{each}!" for each in range(1, last)} | {last: str(last)}
            assert rows_in(opened()) == due, steps
            seq, length = last + 1, max(length, steps.taken)
            number = 0 if number == sys.maxsize else number + max(1, length // self.steps)
        assert seq > 2, "no commit came to its end"

    def test_a_note_of_a_megabyte_is_kept(self, opened: Opener) -> None:
        """Ranges of ten thousand partitions come back as they were."""
        begin(opened)
        large = note(1, reason="x" * 1_000_000)
        with closing(opened().begin(1)) as transaction:
            transaction.commit(change(1, inserted={1: "a"}), large)

        found = opened().log().find("orders", 1)
        assert found is not None
        assert found.metadata == large
        assert [text for *_, text in opened().notes(10**9) if text][-1] == large.to_json()

    def test_every_type_comes_back_as_it_was(self, opened: Opener) -> None:
        """Extremes, nulls, odd texts and odd names survive insert, look-up, update and scan."""
        names = [f"_v{at}{self.named}" for at in range(len(self.types))]
        declared = [f"{quoted(name)} {word}" for name, word in zip(names, self.types, strict=True)]
        table = opened()
        make(table, ", ".join(["id INT NOT NULL", *declared]))
        table.commit_note(note(0))
        like = arrow_schema(table.columns())
        of = {name: (*_EXTREMES[word], None) for name, word in zip(names, self.types, strict=True)}
        count = max(map(len, of.values()))

        def rows(turn: int) -> pa.Table:
            found = [
                {"id": at, **{name: each[(at + turn) % len(each)] for name, each in of.items()}}
                for at in range(count)
            ]
            return pa.Table.from_pylist([{**row, **origin(1, row["id"])} for row in found], like)

        nothing = rows(0).slice(0, 0)
        given = Change(inserted=rows(0), updated=nothing, deleted=nothing.select(["id"]))
        with closing(opened().begin(1)) as transaction:
            transaction.commit(given, note(1))
        assert exact(scanned(opened(), like)) == exact(rows(0))

        with closing(opened().begin(2)) as transaction:
            if not self.kind.is_log:
                found = transaction.rows_of(rows(0).select(["id"]))
                assert exact(found.select(like.names)) == exact(rows(0))
            given = Change(inserted=nothing, updated=rows(1), deleted=nothing.select(["id"]))
            transaction.commit(given, note(2))
        assert exact(scanned(opened(), like)) == exact(rows(1))


class StepFailedError(Exception):
    """What a call raises that was made to fail."""


class FailingStep:
    """Makes one call into C within a block fail, by its number, once it has done its work.

    Calls of Python's own types and locks are no steps. What threads of C do is not seen.

    Attributes:
        taken: How many calls there were.
        name: The one that failed.
    """

    def __init__(self, number: int) -> None:
        """Take its number; none fails beyond the last."""
        self._number, self.taken, self.name = number, 0, ""

    def __enter__(self) -> None:
        """Begin to count."""
        sys.setprofile(self._on_event)

    def __exit__(self, *_: object) -> None:
        """End."""
        sys.setprofile(None)

    def __repr__(self) -> str:
        return f"step {self._number} of {self.taken}, {self.name}"

    def _on_event(self, frame: FrameType, event: str, called: Any) -> None:
        owner = getattr(called, "__self__", None)
        place = owner.__name__ if isinstance(owner, ModuleType) else type(owner).__module__
        if event != "c_return" or place in {"builtins", "_thread"}:
            return
        if self.taken == self._number:
            sys.setprofile(None)
            self.name = f"{called.__qualname__} in {frame.f_code.co_qualname}"
            raise StepFailedError(self.name)
        self.taken += 1


def make(
    table: SinkTable,
    columns: str = "id INT NOT NULL, name STRING",
    *,
    keys: tuple[str, ...] = ("id",),
) -> None:
    """Make a table of these columns, and those of every table."""
    own = parse_columns(columns)
    table.create(
        TableDefinition(columns=(*own, *system_columns()), keys=keys, description="Of a test")
    )


def begin(opened: Opener) -> None:
    """Make the table, and commit its first note."""
    make(opened())
    opened().commit_note(note(0))


def note(seq: int, *, run_id: str = "r", reason: str | None = None) -> CommitMetadata:
    """Return the note of a batch."""
    return CommitMetadata(
        kind="ingest" if seq else "schema",
        seq=seq,
        run_id=run_id,
        epoch=1,
        identity=Identity(cluster_id="c", topic_ids={"t": "i"}, keys=("id",), order=()),
        columns="id INT NOT NULL, name STRING",
        next=Offsets(),
        reason=reason,
    )


def origin(seq: int, offset: int) -> dict[str, Any]:
    """Return what a row has of its record and its batch."""
    place = {"_topic": "t", "_partition": 0, "_offset": offset, "_timestamp": _MOMENT}
    return {**place, "_epoch": 1, "_seq": seq}


def keys(*ids: int) -> pa.Table:
    """Return keys, as a look-up takes them."""
    return pa.table({"id": pa.array(ids, pa.int32())})


def change(
    seq: int,
    inserted: Mapping[int, str] | None = None,
    updated: Mapping[int, str] | None = None,
    deleted: tuple[int, ...] = (),
) -> Change:
    """Return a change of rows by their keys and names."""
    schema = arrow_schema((*parse_columns("id INT, name STRING"), *system_columns()))

    def rows(names: Mapping[int, str] | None) -> pa.Table:
        found = [
            {"id": id_, "name": name, **origin(seq, id_)} for id_, name in (names or {}).items()
        ]
        return pa.Table.from_pylist(found, schema)

    return Change(inserted=rows(inserted), updated=rows(updated), deleted=keys(*deleted))


def commit(table: SinkTable, seq: int, *, run_id: str = "r", **rows: Any) -> None:
    """Look up the keys, where that can be done, and commit."""
    given = change(seq, **rows) if rows else None
    with closing(table.begin(seq)) as transaction:
        if given is not None:
            wanted = keys(*given.updated["id"].to_pylist(), *rows.get("deleted", ()))
            # A log finds no row by its key.
            with suppress(NotImplementedError):
                transaction.rows_of(wanted)
        transaction.commit(given, note(seq, run_id=run_id))


def commit_on_and_on(opened: Opener, seq: int) -> None:
    """Commit a row a batch, until the process is killed."""
    while True:
        commit(opened(), seq, inserted={seq: str(seq)})
        seq += 1


def race(
    opened: Opener, seq: int, who: str, barrier: threading.Barrier, winners: list[str]
) -> None:
    """Commit a row that names the writer, as soon as all are there; or be refused."""
    table = opened()
    barrier.wait(30)
    with suppress(IngestionError):
        commit(table, seq, run_id=who, inserted={seq: who})
        winners.append(who)


def rows_in(table: SinkTable) -> dict[int, str]:
    """Return the rows by key; a key that is there twice fails."""
    found = [row for batch in table.scan(["id", "name"]) for row in batch.to_pylist()]
    assert len({row["id"] for row in found}) == len(found), "a key is there twice"
    return {row["id"]: row["name"] for row in found}


def scanned(table: SinkTable, like: pa.Schema) -> pa.Table:
    """Return all rows."""
    return pa.Table.from_batches(table.scan(like.names)).select(like.names)


def exact(rows: pa.Table) -> list[str]:
    """Write rows so that only those that are the same to the bit compare as equal."""
    return sorted(map(repr, rows.to_pylist()))
