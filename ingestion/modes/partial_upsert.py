"""An upsert of partial updates: a column that a record leaves null keeps what is there.

Each column of a row is the last value that was not null since the key's last delete. Without
``sequence_by`` that fold goes by the offsets of one partition, in which records arrive: so it
is the same however the batches are cut. With a declared order a late record would need an order of
its own for every column, which is why the two together are refused when the file is loaded.

Rows to records: as in an upsert. A superseded record lost its place, and not what it said.
"""

from __future__ import annotations

from collections.abc import Mapping

from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.upsert import UpsertMode, winner_per_key


class PartialUpsertMode(UpsertMode):
    """Writes one batch to a table whose rows grow column by column."""

    def _winner_per_key(self) -> str:
        """Select the newest record of each key, with older ones' values since the last delete."""
        keys, folded = sql.names(self._keys), self._folded
        values = "".join(
            f", max_by({sql.name(column)}, CASE WHEN {sql.name(column)} IS NOT NULL "
            f"AND (_deleted_at IS NULL OR _offset > _deleted_at) THEN _offset END) "
            f"AS {sql.name(column)}"
            for column in folded
        )
        of_newest = [name for name in self._engine.columns("good") if name not in folded]
        return f"""
            WITH newest AS ({winner_per_key(self._target, "DESC")}),
            marked AS (
                SELECT *, max(CASE WHEN _disposition = 'delete' THEN _offset END)
                    OVER (PARTITION BY {keys}) AS _deleted_at
                FROM good
            ),
            folded AS (
                SELECT {keys}, max(_deleted_at) AS _deleted_at{values} FROM marked GROUP BY {keys}
            )
            SELECT {sql.names(of_newest, "n")}, {sql.names([*folded, "_deleted_at"], "f")}
            FROM newest n JOIN folded f ON {sql.equal(self._keys, "n", "f")}
        """

    def _stamped(self, *, is_chosen: bool) -> str:
        stamped = super()._stamped(is_chosen=is_chosen)
        if is_chosen:
            return stamped
        return f"SELECT *, CAST(NULL AS BIGINT) AS _deleted_at FROM ({stamped}) g"

    def _values(self) -> Mapping[str, str]:
        return {
            column: f"CASE WHEN s._deleted_at IS NOT NULL THEN {sql.name(column, 's')} "
            f"ELSE coalesce({sql.name(column, 's')}, {sql.name(column, 't')}) END"
            for column in self._folded
        }

    @property
    def _folded(self) -> list[str]:
        return [name for name in self._target.spec.types if name not in self._keys]


MODE = PartialUpsertMode
