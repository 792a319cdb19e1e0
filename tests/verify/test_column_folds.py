"""What is folded by queries over all batches is what the rule folds, record by record."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.verify.columns.events import SENT, Events, RowColumns
from oncelake.ingestion.verify.columns.proof import queries_of
from oncelake.ingestion.verify.fold.classify import Classifier
from oncelake.ingestion.verify.fold.rule import Recount
from oncelake.ingestion.verify.read.record import Record
from tests.support.long import IS_LONG
from tests.verify.factories import P0, P1, Folded, declared, record

GONE = {"apply_as_deletes": "name = 'gone'"}
FLOATS = "id BIGINT NOT NULL, name STRING, at FLOAT"
SPECS = {
    "upsert": declared(**GONE),
    "soft upsert": declared(deletes="soft", **GONE),
    "partial updates": declared(sequence_by=[], ignore_null_updates=True, **GONE),
    "insert_only": declared(mode="insert_only"),
    "scd2": declared(mode="scd2", **GONE),
    "scd2 by the record's time": declared(mode="scd2", sequence_by=["_timestamp"], **GONE),
    "scd2 that tracks": declared(mode="scd2", track=["name"], **GONE),
    "scd2 that tracks a float": declared(mode="scd2", schema=FLOATS, track=["at"], **GONE),
    "scd2 by a float": declared(mode="scd2", schema=FLOATS, **GONE),
}
SYSTEM = {
    "_topic": pa.string(),
    "_partition": pa.int32(),
    "_offset": pa.int64(),
    "_timestamp": SENT,
    "_epoch": pa.int32(),
    "_seq": pa.int64(),
}
# Of each record: its key, its name, its time, and whether it begins a batch.
STORIES = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.sampled_from(["a", "b", "gone", None]),
        st.sampled_from([0, 1, 2, 3, -0.0]),
        st.sampled_from([True, False, False, False, False, False]),
    ),
    min_size=30,
    max_size=70,
)


def batches_of(story: Sequence[Any], chance: st.DataObject, *, spec: StreamSpec) -> list[Any]:
    """Return the batches of a story; some records wait for one of their own, or are read again."""
    records = [
        record(
            offset,
            {"id": id, "name": name, "at": at},
            partition=(offset if spec.sequence_by else id) % 2,
        )
        for offset, (id, name, at, _) in enumerate(story)
    ]
    starts = [0, *(n for n in range(1, len(story)) if story[n][-1]), len(story)]
    batches = [records[one:other] for one, other in pairwise(starts)]
    at = chance.draw(st.integers(1, len(batches)))

    def some(last: int) -> list[Record]:
        drawn = st.lists(st.sampled_from(records[:last]), unique=True, max_size=15)
        return sorted(chance.draw(drawn))

    waiting, again = some(starts[at]), some(len(records))
    batches = [[each for each in batch if each not in waiting] for batch in batches]
    return [*batches[:at], waiting, *batches[at:], again]


class InColumns:
    """Batches folded by queries, after those that a memory is of."""

    def __init__(
        self,
        spec: StreamSpec,
        batches: Sequence[Sequence[Record]],
        *,
        after: int = 0,
        memory: pa.Table | None = None,
    ) -> None:
        """Fold them."""
        self.columns = RowColumns.of(spec, [P0, P1], epoch=1)
        with duckdb.connect(config={"threads": 1}) as database:
            database.execute("SET TimeZone = 'UTC'")
            events = Events(database, self.columns)
            database.execute("CREATE TEMP TABLE remembered AS FROM events")
            if memory is not None:
                database.register("memory", memory)
                database.execute("INSERT INTO remembered BY NAME FROM memory")
            classifier = Classifier(spec)
            for seq, records in enumerate(batches, after + 1):
                events.judged(classifier.classify(records, seq=seq).changes, {P0: 0, P1: 1})
            queries = queries_of(database, spec)
            recounts = {seq: Recount() for seq in range(after + 1, after + len(batches) + 1)}
            queries.fold(recounts, has_replays=True)
            self.recounts = [*recounts.values()]
            self.expected = database.execute("FROM expected ORDER BY ALL").fetchall()
            self.memory = database.sql(queries.to_remember()).to_arrow_table()

    def digests(self, rows: Sequence[Any]) -> list[Any]:
        """Return place and digest of rows, as those of a table are compared."""
        booleans = dict.fromkeys(self.columns.names, pa.bool_())
        types = {**booleans, **self.columns.types, **self.columns.validity, **SYSTEM}
        named = [dict(zip(types, row, strict=True)) for row in rows]
        with duckdb.connect(config={"threads": 1}) as database:
            database.register("rows", pa.Table.from_pylist(named, pa.schema([*types.items()])))
            query = f"SELECT _partition, _offset, {self.columns.found()} FROM rows ORDER BY ALL"
            return database.execute(query).fetchall()


def said(recounts: Sequence[Recount]) -> list[Any]:
    """Return what is compared of the counts of batches."""
    counted = ("versions", "closed", "untracked", "withdrawn", "restored")
    return [
        (+each.dispositions, each.counts["superseded"], {n: each.extra[n] for n in counted})
        for each in recounts
    ]


@pytest.mark.parametrize("mode", SPECS)
@settings(
    deadline=None,
    max_examples=40 if IS_LONG else 6,
    derandomize=not IS_LONG,
    database=None,
    # Each costs half a second.
    phases=(Phase.generate,),
)
@given(story=STORIES, data=st.data())
def test_queries_over_all_batches_say_what_the_rule_says(
    mode: str, story: Sequence[Any], data: st.DataObject
) -> None:
    """Whatever comes late, twice or at the same time, and wherever another proof goes on."""
    spec = SPECS[mode]
    batches = batches_of(story, data, spec=spec)
    cut = data.draw(st.integers(0, len(batches)))
    due = Folded(*batches, spec=spec)

    whole = InColumns(spec, batches)
    assert said(whole.recounts) == said(due.recounts)
    assert whole.expected == whole.digests(due.rows)
    memory = InColumns(spec, batches[:cut]).memory
    going_on = InColumns(spec, batches[cut:], after=cut, memory=memory)
    assert said(going_on.recounts) == said(due.recounts[cut:])
    assert going_on.expected == whole.expected
