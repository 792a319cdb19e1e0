"""The tests of the battery: what a sink promises, tried on a table of its own."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from oncelake.ingestion.declaration.ddl import parse_type, system_columns
from oncelake.sinks import (
    DELETED,
    ROW_COUNTS,
    Change,
    CommitConflictError,
    ErasableTable,
    IngestionError,
    Layout,
    MarkableTable,
    NamedTable,
    RefusedError,
    RewindableTable,
    SealedTable,
    SinkKind,
    SinkTable,
    TableBusyError,
    app_id,
    arrow_schema,
    parse_columns,
    quoted,
)
from oncelake.testing.steps import (
    FailingStep,
    StepFailedError,
    fail_at_steps,
    in_bounded_time,
    packages_of,
)
from oncelake.testing.tables import (
    Books,
    Opener,
    Place,
    begin,
    change,
    commit,
    keys,
    make,
    note,
    opened_seq,
    origin,
    past_of,
    race,
    rows_in,
    scanned,
    scanned_rows,
    with_columns,
    writing,
)
from oncelake.testing.values import ALIKE, EXTREMES, KEY_TYPES, exact

_KEY: Final = ["id", "name"]
_MINUTE: Final = 60
_INT: Final = parse_type("INT")
# Of keys in one look-up: more than a list in SQL, or a driver's parameters, may have.
_MANY: Final = 2_500


@in_bounded_time
class SinkConformance:
    """The promises of ``ingestion.tables.table``; a subclass gives ``kind`` and ``opened``."""

    # What the sink says that it can.
    kind: SinkKind
    # Types that the sink keeps; the others are refused when a stream is declared.
    types: tuple[str, ...] = tuple(EXTREMES)
    # What the names of columns may have in them.
    named: str = " .,;:{}()[]=`'\"\n%@-"
    # Whether rows lie in files below ``tmp_path``, where erased bytes are looked for.
    is_on_disk = True
    # How often a writer is killed at a random moment.
    kills = 2
    # At so many of the steps of a commit, or somewhat more, it is made to fail.
    steps = 20
    # How many of those of what is rarer, beside those that are looked for.
    steps_of_others = 2
    # How long a test may take; a sink that waits for longer fails it.
    seconds = 60

    @pytest.fixture
    def opened(self) -> Opener:
        """Return what opens the table under test."""
        raise NotImplementedError("a subclass says how its table is opened")

    def remove(self, table: SinkTable) -> None:
        """Remove the table, as a person does between two runs."""
        assert isinstance(table, NamedTable), "of another, a subclass says how"
        table.drop()

    @property
    def is_beside(self) -> bool:
        """Tell whether a rebuild makes a table beside this one, which takes its name."""
        return "rebuild" not in self.kind.cannot and self.kind.has_names

    def values_of(self, word: str) -> tuple[Any, ...]:
        """Return extremes of a type, but for texts with characters that the sink refuses."""
        refused = {*self.kind.unstorable_in_text}
        if not refused or parse_type(word).word != "STRING":
            return EXTREMES[word]
        return tuple(each for each in EXTREMES[word] if not refused & {*each})

    @property
    def kept_types(self) -> list[str]:
        """Those of the types that the record of the sink does not refuse."""
        return [word for word in self.types if not self.kind.refused_in(parse_type(word))]

    def test_a_table_can_what_its_record_says(self, opened: Opener) -> None:
        """What it is unable to do it does not offer, and all else it does."""
        table, cannot = opened(), self.kind.cannot
        assert isinstance(table, ErasableTable) == ("erase" not in cannot)
        assert isinstance(table, RewindableTable) == ("rewind" not in cannot)
        assert isinstance(table, MarkableTable) == self.kind.marks_rows
        assert isinstance(table, NamedTable) == self.kind.has_names
        assert isinstance(table, SealedTable) == self.kind.seals

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
        assert abs((newest.committed_at - now).total_seconds()) < _MINUTE
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
        rows = change(1, inserted=dict.fromkeys(range(_MANY), "a"))
        more = change(1, inserted=dict.fromkeys(range(_MANY), "b"))
        with closing(opened().begin(1)) as transaction:
            both = pa.concat_tables([rows.inserted, more.inserted])
            new = Change(inserted=both, updated=rows.updated, deleted=both.slice(0, 0).select(_KEY))
            transaction.commit(new, note(1))

        with closing(opened().begin(2)) as transaction:
            wanted = more.inserted.select(_KEY)
            assert transaction.rows_of(wanted).num_rows == _MANY
            gone = wanted.slice(0, _MANY - 100)
            transaction.commit(
                Change(inserted=rows.updated, updated=rows.updated, deleted=gone), note(2)
            )

        left = [row for batch in opened().scan(["id", "name"]) for row in batch.to_pylist()]
        assert len(left) == _MANY + 100
        assert sorted(row["id"] for row in left if row["name"] == "b") == list(
            range(_MANY - 100, _MANY)
        )

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
        types = [word for word in self.kept_types if word in KEY_TYPES]
        names, table = [f"k{at}" for at in range(len(types))], opened()
        declared = (f"{name} {word} NOT NULL" for name, word in zip(names, types, strict=True))
        make(table, ", ".join(["id INT NOT NULL", *declared]), keys=("id", *names))
        table.commit_note(note(0))
        like = arrow_schema(table.columns())
        values = {name: self.values_of(word) for name, word in zip(names, types, strict=True)}
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

    def test_keys_that_look_alike_are_others(self, opened: Opener) -> None:
        """Case, marks, blanks and zeros count; rows that share an offset are of two partitions."""
        make(opened(), "name STRING NOT NULL, id INT", keys=("name",))
        opened().commit_note(note(0))
        like = arrow_schema(opened().columns())
        made = [
            {"name": name, "id": at, **origin(1, at // 2), "_partition": at % 2}
            for at, name in enumerate(ALIKE)
        ]
        rows = pa.Table.from_pylist(made, like)
        nothing, of_key = rows.slice(0, 0), rows.select(["name"])
        with closing(opened().begin(1)) as transaction:
            given = Change(inserted=rows, updated=nothing, deleted=of_key.slice(0, 0))
            transaction.commit(given, note(1))
        assert exact(scanned(opened(), like)) == exact(rows)

        with closing(opened().begin(2)) as transaction:
            if not self.kind.is_log:
                found = transaction.rows_of(of_key.slice(0, 2))
                assert exact(found.select(like.names)) == exact(rows.slice(0, 2))
            later = rows.slice(1, 1).set_column(1, "id", pa.array([-1], pa.int32()))
            given = Change(inserted=nothing, updated=later, deleted=of_key.slice(0, 1))
            transaction.commit(given, note(2))
        left = pa.concat_tables([later, rows.slice(2)])
        assert exact(scanned(opened(), like)) == exact(left)

    def test_a_long_text_is_kept(self, opened: Opener) -> None:
        """Of a million characters, each of two bytes; it is found, and changed."""
        begin(opened)
        text = "\u00e9" * 1_000_000
        commit(opened(), 1, inserted={1: text, 2: "b"})

        assert rows_in(opened()) == {1: text, 2: "b"}
        commit(opened(), 2, updated={1: f"{text[1:]}!"})
        assert rows_in(opened()) == {1: f"{text[1:]}!", 2: "b"}

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
        (more,) = parse_columns("more SMALLINT")
        more = replace(more, type=self.kind.stored_type(more.type))
        (name,) = parse_columns("name STRING")
        layout = with_columns(opened(), [name, more])
        if not self.kind.statements.add:
            with pytest.raises(RefusedError):
                opened().reshape(layout, note(2))
            return

        assert opened().reshape(layout, note(2)).metadata == note(2)

        columns = opened().columns()
        assert [(each.name, each.nullable) for each in columns[:2]] == [
            ("id", False),
            ("name", True),
        ]
        assert columns[-1] == more
        row = {"id": 2, "name": None, "more": 5, **origin(3, 2)}
        rows = pa.Table.from_pylist([row], arrow_schema(columns))
        with closing(opened().begin(3)) as transaction:
            given = Change(inserted=rows, updated=rows.slice(0, 0), deleted=keys())
            transaction.commit(given, note(3))
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
        found, wider = (self.kind.stored_type(parse_type(name)) for name in ("INT", "BIGINT"))
        if not self.kind.can_widen(found, wider):
            return

        (id_,) = parse_columns("id BIGINT NOT NULL")
        opened().reshape(with_columns(opened(), [replace(id_, type=wider)]), note(3))

        columns = opened().columns()
        assert (columns[0].type, columns[0].nullable) == (wider, False)
        assert rows_in(opened()) == {1: "a", 2: "B"}
        rows = pa.Table.from_pylist(
            [{"id": id_, "name": "new", **origin(4, id_)} for id_ in (1, 2**40)],
            arrow_schema(columns),
        )
        with closing(opened().begin(4)) as transaction:
            keys_of_rows = pa.table({"id": pa.array([1, 2**40], pa.int64())})
            assert transaction.rows_of(keys_of_rows)["name"].to_pylist() == ["a"]
            given = Change(inserted=rows.slice(1), updated=rows.slice(0, 1), deleted=keys())
            transaction.commit(given, note(4))
        assert rows_in(opened()) == {1: "new", 2: "B", 2**40: "new"}
        assert opened().log().last_seq("orders") == 4

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_any_step_of_a_widening_may_fail(self, opened: Opener) -> None:
        """Either all of some columns have their wider types, and the note, or none."""
        digits, seqs = iter(range(6, 39)), itertools.count(2)
        make(opened(), "id INT NOT NULL, a DECIMAL(5, 2), b DECIMAL(5, 2)")
        if not self.kind.can_widen(parse_type("DECIMAL(5, 2)"), parse_type("DECIMAL(6, 2)")):
            return
        opened().commit_note(note(0))
        row = {"id": 1, "a": Decimal("123.45"), "b": Decimal("-999.99")}
        rows = pa.Table.from_pylist([{**row, **origin(1, 1)}], arrow_schema(opened().columns()))
        with closing(opened().begin(1)) as transaction:
            gone = rows.slice(0, 0)
            given = Change(inserted=rows, updated=gone, deleted=gone.select(["id"]))
            transaction.commit(given, note(1))

        def attempt(step: FailingStep) -> bool:
            table, seq, more = opened(), next(seqs), next(digits)
            wide = parse_columns(f"a DECIMAL({more}, 2), b DECIMAL({more}, 2)")
            layout = with_columns(table, wide)
            with suppress(StepFailedError, IngestionError), step:
                table.reshape(layout, note(seq))
            found = {each.type for each in opened().columns() if each.name in row} - {_INT}
            assert len(found) == 1, f"one of two columns is wider, {step}"
            assert scanned_rows(opened(), [*row]) == [row], step
            is_done = found == {wide[0].type}
            assert opened_seq(opened) == (seq if is_done else seq - 1), step
            if not is_done:
                opened().reshape(layout, note(seq))
            assert opened().columns()[1:3] == wide, step
            return is_done

        fail_at_steps(attempt, self.packages(opened, seq=2), most=self.steps_of_others)
        with closing(opened().begin(next(seqs))) as transaction:
            assert transaction.rows_of(keys(1)).num_rows == 1

    def packages(self, opened: Opener, *, seq: int) -> frozenset[str]:
        """Return the files and folders of what is the sink's own, whose lines are made to fail."""
        with closing(opened().begin(seq)) as transaction:
            return packages_of(opened(), transaction)

    def test_columns_are_renamed_and_dropped_with_a_note(self, opened: Opener) -> None:
        """Values stay under the other name, and are found by it; or the sink cannot."""
        begin(opened)
        commit(opened(), 1, inserted={1: "a", 2: "b", 3: "c"})
        commit(opened(), 2, updated={2: "B"}, deleted=(3,))
        table = opened()
        if not self.kind.renames_columns:
            return

        more = (*parse_columns("id INT NOT NULL, title STRING, more INT"), *system_columns())
        renamed = Layout(columns=more, found=table.columns(), renamed={"title": "name"})
        assert table.reshape(renamed, note(3)).metadata == note(3)
        with pytest.raises(CommitConflictError):
            table.reshape(Layout(columns=more, found=table.columns()), note(3, reason="another's"))
        plain = parse_columns("id INT NOT NULL, title STRING")
        fewer = Layout(columns=(*plain, *system_columns()), found=table.columns())
        table.reshape(fewer, note(4))
        names = [each.name for each in opened().columns()]
        assert names == [each.name for each in (*plain, *system_columns())]
        found = [row for batch in opened().scan(["id", "title"]) for row in batch.to_pylist()]
        assert {row["id"]: row["title"] for row in found} == {1: "a", 2: "B"}
        with closing(opened().begin(5)) as transaction:
            assert transaction.rows_of(keys(2))["title"].to_pylist() == ["B"]
        assert opened().log().last_seq("orders") == 4

    def test_columns_of_others_are_not_dropped(self, opened: Opener) -> None:
        """One that somebody has added since the columns were read stays."""
        if not self.kind.statements.add:
            return
        begin(opened)
        mine, theirs = parse_columns("mine STRING, theirs STRING")
        layout = with_columns(opened(), [mine])
        opened().reshape(with_columns(opened(), [theirs]), note(1))
        there = opened().columns()

        with pytest.raises(TableBusyError, match="changed the columns"):
            opened().reshape(layout, note(2))

        assert opened().columns() == there
        assert opened().log().last_seq("orders") == 1

    def test_a_column_gets_another_name_and_a_wider_type(self, opened: Opener) -> None:
        """At once, with one note; values stay; or the sink cannot."""
        make(opened(), "id INT NOT NULL, count INT, name STRING")
        opened().commit_note(note(0))
        rows = [{"id": n, "count": -n, "name": str(n), **origin(1, n)} for n in range(3)]
        inserted = pa.Table.from_pylist(rows, arrow_schema(opened().columns()))
        with closing(opened().begin(1)) as transaction:
            nothing = inserted.slice(0, 0)
            given = Change(inserted=inserted, updated=nothing, deleted=nothing.select(["id"]))
            transaction.commit(given, note(1))
        int_, bigint = (self.kind.stored_type(parse_type(name)) for name in ("INT", "BIGINT"))
        if not (self.kind.renames_columns and self.kind.can_widen(int_, bigint)):
            return

        wanted = (
            *parse_columns("id BIGINT NOT NULL, name STRING, total BIGINT"),
            *system_columns(),
        )
        layout = Layout(columns=wanted, found=opened().columns(), renamed={"total": "count"})
        opened().reshape(layout, note(2))

        found = {each.name: each.type for each in opened().columns()}
        assert (found["id"], found["total"]) == (bigint, bigint)
        assert scanned_rows(opened(), ["id", "total", "name"]) == [
            {"id": n, "total": -n, "name": str(n)} for n in range(3)
        ]
        assert [metadata for metadata, _ in past_of(opened)] == [note(n) for n in range(3)]
        with closing(opened().begin(3)) as transaction:
            wide = pa.table({"id": pa.array([2, 2**40], pa.int64())})
            assert transaction.rows_of(wide)["total"].to_pylist() == [-2]

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_any_step_of_a_reshape_may_fail(self, opened: Opener) -> None:
        """The columns are those that the notes tell of; or the sink cannot."""
        if not self.kind.renames_columns:
            return
        books = Books(opened)
        first = change(1, inserted={1: "a", 2: "b"})
        with closing(opened().begin(1)) as transaction:
            transaction.commit(first, note(1))
        books.take(note(1), first)
        name = "name"

        def attempt(step: FailingStep) -> bool:
            nonlocal name
            table, meant = opened(), note(books.seq, run_id=f"{step}")
            other = f"name_{books.seq}_{len(step.taken)}"
            own = parse_columns(f"id INT NOT NULL, {other} STRING")
            wanted = (*own, *system_columns())
            with suppress(StepFailedError, IngestionError), step:
                found = table.columns()
                table.reshape(Layout(columns=wanted, found=found, renamed={other: name}), meant)
            is_done = opened_seq(opened) == books.seq
            if is_done:
                books.take(meant)
                name = other
            assert [each.name for each in opened().columns()][:2] == ["id", name], step
            rows = {row["id"]: row[name] for row in scanned_rows(opened(), ["id", name])}
            assert rows == books.rows, step
            assert past_of(opened) == books.past, step
            return is_done

        fail_at_steps(attempt, self.packages(opened, seq=2), most=self.steps_of_others)

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
        if not self.kind.has_names:
            return
        begin(opened)
        for seq in range(1, 5):
            commit(opened(), seq, inserted={seq: "a"})
        commit(opened(), 5, updated={1: "b"})

        for _ in range(2):
            named(opened).maintain(dt.timedelta(0), 1_000_000)

        assert rows_in(opened()) == {1: "b", 2: "a", 3: "a", 4: "a"}
        assert opened().log().last_seq("orders") == 5
        commit(opened(), 6, updated={2: "b"}, deleted=(3,))
        assert rows_in(opened()) == {1: "b", 2: "b", 4: "a"}

    def test_rows_are_deleted_by_their_keys(self, opened: Opener) -> None:
        """In one commit with its note, which counts them; a key that no row has is none."""
        begin(opened)
        commit(opened(), 1, inserted={1: "a", 2: "b", 3: "c"})
        table = opened()
        if not isinstance(table, ErasableTable):
            return

        done = table.delete(keys(1, 3, 9), note(2, kind="truncate"))

        assert rows_in(opened()) == {2: "b"}
        assert (done.metrics[DELETED], done.metadata) == (2, note(2, kind="truncate"))
        commit(opened(), 3, inserted={3: "c"})
        assert rows_in(opened()) == {2: "b", 3: "c"}

    def test_what_is_erased_is_gone(self, opened: Opener, tmp_path: Path) -> None:
        """The rows of the key, no other, in one commit with its note; and the bytes of their files.

        A server's files are its own: see ``is_on_disk``.
        """
        secret = os.urandom(24).hex()
        begin(opened)
        commit(opened(), 1, inserted={1: secret, 2: "b", 3: f"{secret}!"})
        commit(opened(), 2, updated={3: "c"})
        table = opened()
        if not isinstance(table, ErasableTable):
            return
        if self.is_on_disk:
            assert files_with(secret, tmp_path), "no file below tmp_path has the text of a row"

        written = table.written_files()
        done = table.erase(keys(1, 3), note(3, kind="erase"))
        table.remove_older_versions(written)

        assert rows_in(opened()) == {2: "b"}
        assert (done.metrics[DELETED], done.metadata) == (2, note(3, kind="erase"))
        if self.is_on_disk:
            assert files_with(secret, tmp_path) == []
        of_nobody = opened()
        assert isinstance(of_nobody, ErasableTable)
        assert of_nobody.erase(keys(1), note(4, kind="erase")).metrics[DELETED] == 0
        commit(opened(), 5, inserted={3: "c"})
        assert rows_in(opened()) == {2: "b", 3: "c"}

    def test_an_erased_key_is_in_no_file(self, opened: Opener, tmp_path: Path) -> None:
        """A text that is a key has indexes and statistics, of which the bytes go as well."""
        if not (self.is_on_disk and isinstance(opened(), ErasableTable)):
            return
        secret, like = os.urandom(24).hex(), pa.schema([("name", pa.string())])
        make(opened(), "name STRING NOT NULL, id INT", keys=("name",))
        opened().commit_note(note(0))
        names = (f"{secret}!", secret)
        rows = [{"name": name, "id": at, **origin(1, at)} for at, name in enumerate(names)]
        inserted = pa.Table.from_pylist(rows, arrow_schema(opened().columns()))
        with closing(opened().begin(1)) as transaction:
            nothing = inserted.slice(0, 0)
            given = Change(inserted=inserted, updated=nothing, deleted=nothing.select(["name"]))
            transaction.commit(given, note(1))
        # Statistics have the beginning of a text.
        assert files_with(secret[:16], tmp_path), "no file below tmp_path has the text of a row"

        table = opened()
        assert isinstance(table, ErasableTable)
        written = table.written_files()
        erased = pa.Table.from_pylist([{"name": name} for name in names], like)
        table.erase(erased, note(2, kind="erase"))
        table.remove_older_versions(written)

        assert files_with(secret[:16], tmp_path) == []
        assert scanned_rows(opened(), ["name", "id"]) == []

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_any_step_of_an_erase_may_fail(self, opened: Opener) -> None:
        """The row is gone, with its note, or it is there; or the sink cannot."""
        if not isinstance(opened(), ErasableTable):
            return
        books = Books(opened)
        first = change(1, inserted={id_: str(id_) for id_ in range(100)})
        with closing(opened().begin(1)) as transaction:
            transaction.commit(first, note(1))
        books.take(note(1), first)

        def attempt(step: FailingStep) -> bool:
            table, meant = opened(), note(books.seq, run_id=f"{step}", kind="erase")
            assert isinstance(table, ErasableTable)
            id_ = min(books.rows)
            with suppress(StepFailedError, IngestionError), step:
                table.erase(keys(id_), meant)
            return books.is_done(meant, change(books.seq, deleted=(id_,)), step)

        fail_at_steps(attempt, self.packages(opened, seq=2), most=self.steps_of_others)

    def test_a_table_that_is_set_aside_leaves_its_name(self, opened: Opener) -> None:
        """Where it is outside the lake: once, whatever comes after; its rows stay its own."""
        if not self.is_beside:
            return
        begin(opened)
        commit(opened(), 1, inserted={1: "a"})
        aside = named(opened).set_aside("20240101")

        assert aside is not None, "a table that has a name of its own must be set aside"
        assert not opened().log().exists
        assert named(opened).set_aside("20240101") == aside
        begin(opened)
        assert rows_in(opened()) == {}
        assert rows_in(Place(opened).named(aside)()) == {1: "a"}

    def test_a_table_takes_the_place_of_another(self, opened: Opener) -> None:
        """With its rows, notes and id; the old one keeps its own, under another name."""
        if not self.is_beside:
            return
        place = Place(opened)
        begin(opened)
        commit(opened(), 1, inserted={1: "old"})
        make(place.beside())
        place.beside().commit_note(note(0, run_id="new"))
        commit(place.beside(), 1, run_id="new", inserted={2: "new"})
        old, new = (each().log().table_id() for each in (opened, place.beside))
        assert old != new, "they are two tables, and the ledger tells them apart by their ids"

        aside = named(opened).set_aside("20240101", is_replaced=True)

        assert aside is not None
        assert named(opened).set_aside("20240101", is_replaced=True) == aside
        kept = place.named(aside)
        assert (opened().log().table_id(), kept().log().table_id()) == (new, old)
        assert (rows_in(opened()), rows_in(kept())) == ({2: "new"}, {1: "old"})
        assert [each.run_id for each, _ in past_of(opened)] == ["new", "new"]
        assert [each.run_id for each, _ in past_of(kept)] == ["r", "r"]
        assert not place.beside().log().exists
        commit(opened(), 2, inserted={3: "c"}, deleted=(2,))
        assert rows_in(opened()) == {3: "c"}

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_any_step_of_a_swap_may_fail(self, opened: Opener) -> None:
        """No row is lost, and the same swap, made again, comes to its end."""
        if not self.is_beside:
            return
        place, turns = Place(opened), iter(range(1, 1_000))
        begin(opened)
        commit(opened(), 1, inserted={0: "a"})

        def attempt(step: FailingStep) -> bool:
            turn, table = next(turns), named(opened)
            begin(place.beside)
            commit(place.beside(), 1, inserted={turn: "a"})
            with suppress(StepFailedError, IngestionError), step:
                table.set_aside(f"2024{turn:04}", is_replaced=True)
            is_done = opened().log().exists and rows_in(opened()) == {turn: "a"}
            aside = named(opened).set_aside(f"2024{turn:04}", is_replaced=True)
            assert aside is not None, step
            assert rows_in(opened()) == {turn: "a"}, step
            assert rows_in(place.named(aside)()) == {turn - 1: "a"}, step
            assert not place.beside().log().exists, step
            return is_done

        fail_at_steps(attempt, self.packages(opened, seq=2), most=self.steps_of_others)

    def test_an_empty_batch_is_a_note(self, opened: Opener) -> None:
        """A commit without a change, or with one of no row, is a commit, and the rows stay."""
        books = Books(opened)
        first = change(1, inserted={1: "a"})
        for given in (first, None, change(3)):
            with closing(opened().begin(books.seq)) as transaction:
                transaction.commit(given, note(books.seq))
            books.take(note(books.seq), given)

        books.check()
        assert opened().log().last_seq("orders") == 3

    def test_what_is_there_is_not_committed_again(self, opened: Opener) -> None:
        """A seq that the table holds, or one beyond the next, is refused, and one not begun."""
        begin(opened)
        with closing(opened().begin(1)) as transaction, pytest.raises(ValueError, match="begun"):
            transaction.commit(None, note(2))
        commit(opened(), 1, inserted={1: "a"})
        commit(opened(), 2, inserted={2: "b"})

        for seq in (0, 1, 2, 4):
            with pytest.raises(CommitConflictError):
                commit(opened(), seq, inserted={seq + 10: "again"})

        assert rows_in(opened()) == {1: "a", 2: "b"}
        assert [metadata for metadata, _ in past_of(opened)] == [note(0), note(1), note(2)]

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

    def test_a_log_is_read_while_a_transaction_is_open(self, opened: Opener) -> None:
        """It tells what was committed until then, and the transaction goes on."""
        begin(opened)
        commit(opened(), 1, inserted={1: "a"})
        table = opened()
        with closing(table.begin(2)) as transaction:
            if not self.kind.is_log:
                assert transaction.rows_of(keys(1)).num_rows == 1
            for log in () if self.kind.is_log else (table.log(), opened().log()):
                assert (log.last_seq("orders"), log.exists) == (1, True)
            transaction.commit(change(2, updated={1: "b"}), note(2))

        assert rows_in(opened()) == {1: "b"}
        assert opened().log().last_seq("orders") == 2

    def test_a_table_of_another_stream_stays_as_it_is(self, opened: Opener) -> None:
        """Whoever opens it for another stream finds no seq of theirs, and changes nothing."""
        begin(opened)
        commit(opened(), 1, inserted={1: "a"})
        of_others = Place(opened).of_stream("others")
        with suppress(IngestionError):
            make(of_others())

        log = of_others().log()
        assert (log.exists, log.is_empty, log.last_seq("others")) == (True, False, None)
        for seq in (1, 2):
            with pytest.raises(CommitConflictError), closing(of_others().begin(seq)):
                pass
        if self.is_beside:
            named(of_others).drop()
            named(of_others).set_aside("20240101")

        assert rows_in(opened()) == {1: "a"}
        assert [metadata for metadata, _ in past_of(opened)] == [note(0), note(1)]
        commit(opened(), 2, updated={1: "b"})

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
            other.join(1)
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

        # A log that is opened looks at nothing before it is asked.
        logs = [late.log() for _ in range(2)]
        with pytest.raises(CommitConflictError):
            commit(late, 1, inserted={1: "late"})
        with pytest.raises(CommitConflictError):
            late.commit_note(note(1, run_id="late"))

        del logs
        assert rows_in(opened()) == {}
        assert opened().log().last_seq("orders") == 0
        assert before != late.log().table_id() == opened().log().table_id()
        commit(late, 1, inserted={1: "a"})

    def test_a_writer_that_is_killed_leaves_whole_commits(self, opened: Opener) -> None:
        """After each of several kills, rows and notes say the same, and the next one goes on.

        The writer is another process. This one was refused before, which must keep nobody out.
        """
        books, dice = Books(opened), random.Random(1)
        # With its traceback, and so with all that it had opened.
        with pytest.raises(CommitConflictError) as refused:
            opened().begin(5)
        for _ in range(self.kills):
            last = books.seq - 1
            with writing(opened, last + 1) as writer:
                deadline = time.monotonic() + self.seconds / 2
                while (opened_seq(opened) or 0) <= last:
                    assert writer.is_alive(), f"the writer ended by itself, by {writer.exitcode}"
                    assert time.monotonic() < deadline, (
                        "another process commits nothing, and a begin here was refused: "
                        f"{refused.value}"
                    )
                time.sleep(dice.random() / 10)

            for seq in range(books.seq, (opened_seq(opened) or 0) + 1):
                books.take(note(seq), change(seq, inserted={seq: str(seq)}))
            books.check("a writer was killed")
            mine = change(books.seq, inserted={books.seq: str(books.seq)})
            with closing(opened().begin(books.seq)) as transaction:
                transaction.commit(mine, note(books.seq))
            books.take(note(books.seq), mine)
        books.check()

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_any_step_of_a_commit_may_fail(self, opened: Opener) -> None:
        """Whatever line or call within it raises, rows are those of the notes, and it goes on."""
        books = Books(opened)
        first = change(1, inserted={1: "1"})
        with closing(opened().begin(1)) as transaction:
            transaction.commit(first, note(1))
        books.take(note(1), first)

        def attempt(step: FailingStep) -> bool:
            seq, last = books.seq, max(books.rows)
            meant = note(seq, run_id=f"{step}")
            gone = () if len(books.rows) < 3 else (min(books.rows),)
            given = change(seq, inserted={last + 1: f"{seq}"}, updated={last: "u"}, deleted=gone)
            acting = suppress(StepFailedError, IngestionError)
            with closing(opened().begin(seq)) as transaction, acting, step:
                transaction.commit(given, meant)
            return books.is_done(meant, given, step)

        fail_at_steps(attempt, self.packages(opened, seq=2), most=self.steps, has_calls=True)

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
        types = self.kept_types
        names = [f"_v{at}{self.named}" for at in range(len(types))]
        declared = [f"{quoted(name)} {word}" for name, word in zip(names, types, strict=True)]
        table = opened()
        make(table, ", ".join(["id INT NOT NULL", *declared]))
        table.commit_note(note(0))
        like = arrow_schema(table.columns())
        of = {name: (*self.values_of(word), None) for name, word in zip(names, types, strict=True)}
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


def files_with(text: str, folder: Path) -> list[Path]:
    """Name the files below a folder that have a text in them."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return [file for file in files if text.encode() in file.read_bytes()]


def named(opened: Opener) -> NamedTable:
    """Open a table that has a name outside the lake."""
    table = opened()
    assert isinstance(table, NamedTable)
    return table
