"""Aggregate: one row a group, into which every record is folded exactly once.

The batch is reduced to one state a group, and those are folded into the table's. Applying a batch
twice would count it twice, so all that protects a row is the fence: state and ``txn`` are one
commit. Nothing here can be replayed; ``oncelake rebuild`` makes the table anew.

Rows to records: a row is any number of records. ``inserted`` are the records of groups that were
new, ``updated`` those of groups that were there; ``groups`` rows carry the batch's seq, of which
``groups_new`` were new.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from oncelake.ingestion.declaration.aggregates import aggregates_of
from oncelake.ingestion.declaration.sql import quoted
from oncelake.ingestion.errors import NotReplayableError
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.aggregate_functions import folded, of_records, place_in
from oncelake.ingestion.modes.engines.spark import SparkEngine, translate
from oncelake.ingestion.modes.mode import Good, Target, WriteMode
from oncelake.ingestion.modes.watermark import clocks_after
from oncelake.ingestion.tables.commit_metadata import Kind


class AggregateMode(WriteMode):
    """Writes one batch to a table of groups."""

    deletes = ()

    def __init__(self, target: Target, good: Good) -> None:
        """Take the good records of a batch; nothing is read or written yet."""
        super().__init__(target, good)
        assert isinstance(target.engine, SparkEngine), "groups are folded by Spark alone"
        self._spark, self._frames = target.engine.spark, target.engine.frames
        self._records = target.engine.frame("good")
        self._aggregates = aggregates_of(target.spec)
        self._provenance = ("_epoch", *target.spec.origin, "_timestamp")
        self._groups_by = target.spec.row_keys

    def decide(self, kind: Kind) -> Mapping[str, int]:
        """Reduce the batch to its groups, and fold them into those that are there.

        Raises:
            NotReplayableError: the commit would fold records that may have been folded before.
        """
        if kind == "replay":
            name = self._target.spec.name
            raise NotReplayableError(
                name,
                "a record that is read again would be counted twice.",
                remedy=f"oncelake rebuild {name}, which folds the topic into a new table",
            )
        clocks = clocks_after(self._target, self._records) if self._target.spec.window else {}
        if not self._good.count:
            return {**self._counts("inserted", "updated"), "groups": 0, "groups_new": 0, **clocks}
        self._frames.keep(self._reduced()).createOrReplaceTempView("groups")
        keys = f"SELECT {sql.names(self._groups_by)} FROM groups"
        self._table.open_before(keys, size_bytes=self._good.size_bytes)
        self._folded().createOrReplaceTempView("folded")
        self._decide("SELECT * FROM folded")
        records = self._engine.rows("SELECT _what, sum(_records) AS n FROM decided GROUP BY _what")
        return {
            "inserted": 0,
            "updated": 0,
            **{row["_what"]: row["n"] for row in records},
            "groups": self._decision.count(("inserted", "updated")),
            "groups_new": self._decision.count(("inserted",)),
            **clocks,
        }

    @classmethod
    def changes(cls, counts: Mapping[str, int]) -> Mapping[str, int]:
        """Return the rows, which are groups."""
        new = counts.get("groups_new", 0)
        return {"inserted": new, "updated": counts.get("groups", 0) - new, "deleted": 0}

    def _reduced(self) -> DataFrame:
        """Return one row a group: its state, the newest record's place, and how many records."""
        spec = self._target.spec
        records = self._records.withColumn("_epoch", F.lit(self._target.epoch))
        if spec.window:
            window = F.window(quoted(spec.window.column), f"{spec.window.every_seconds} seconds")
            records = records.withColumns(
                {"window_start": window["start"], "window_end": window["end"]}
            )
        place = place_in(spec)
        states = {
            name: state
            for aggregate in self._aggregates
            for name, state in of_records(aggregate, place).items()
        }
        reduced = records.groupBy(*map(quoted, self._groups_by)).agg(
            *(state.alias(name) for name, state in states.items()),
            F.max(F.struct(*self._provenance)).alias("_newest"),
            F.count(F.lit(1)).alias("_records"),
        )
        newest = {name: F.col(f"_newest.{name}") for name in self._provenance}
        seq = F.lit(self._target.seq).cast("long")
        return reduced.withColumns({**newest, "_seq": seq}).drop("_newest")

    def _folded(self) -> DataFrame:
        """Return each group as it will be: new, or both states folded into one."""
        groups = self._spark.table("groups").alias("s")
        before = self._spark.table("before").alias("t")
        is_there, together = F.col("t._offset").isNotNull(), self._together()
        mine = {name: F.col(f"s.{quoted(name)}") for name in self._table.columns}
        row = (
            F.when(is_there, together[name]).otherwise(own).alias(name)
            if name in together
            else own.alias(name)
            for name, own in mine.items()
        )
        what = F.when(is_there, "updated").otherwise("inserted").alias("_what")
        same_group = F.expr(translate(sql.equal(self._groups_by, "t", "s")))
        joined = groups.join(before, same_group, "left")
        return joined.select(*row, what, F.col("s._records").alias("_records"))

    def _together(self) -> dict[str, Column]:
        """Return the columns of a group that was there: both states folded into one."""
        mine, theirs = (
            F.struct(*(F.col(f"{side}.{name}") for name in self._provenance)) for side in "st"
        )
        newest = {
            name: F.when(mine > theirs, F.col(f"s.{name}")).otherwise(F.col(f"t.{name}"))
            for name in self._provenance
        }
        states = {
            name: state
            for aggregate in self._aggregates
            for name, state in folded(aggregate, "t", "s").items()
        }
        return {**states, **newest}


MODE = AggregateMode
