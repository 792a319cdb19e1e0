"""Schemas that move: the columns that records have, a table has, and a host's file knows.

A shape stands for columns: how wide ``n`` is, and whether ``more`` and ``last`` are there. What is
decided by it is the product's own code, over declarations of these columns.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from greenlet import getcurrent

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_columns
from oncelake.ingestion.declaration.derived import as_ddl, united
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.pipeline.schema import follow as follow_schema
from tests.model.process import step

if TYPE_CHECKING:
    from tests.model.frames import Frame, Waiting
    from tests.model.world import World

_WIDTHS = ("SMALLINT", "INT", "BIGINT")
_LATER = ("more", "last")
# The file of the second host cannot be written.
HOSTS = 2


class Shape(NamedTuple):
    """The columns of a record, of a row, or of a table."""

    width: int = 0
    more: int = 0
    last: int = 0

    @classmethod
    def of(cls, ddl: str) -> Shape:
        """Read columns; those that are there twice are a mistake of whoever added them."""
        columns = parsed(ddl)
        names = [column.name for column in columns]
        assert len({*names}) == len(names), f"a column is there twice: {ddl}"
        types = {column.name: str(column.type) for column in columns}
        return cls(_WIDTHS.index(types["n"]), *(name in types for name in _LATER))

    def within(self, *others: Shape) -> Shape:
        """Return what others hold of it, too."""
        return Shape(*map(min, zip(self, *others, strict=True)))

    def holds(self, other: Shape) -> bool:
        """Tell whether it has all columns of another, as wide or wider."""
        return other.within(self) == other

    def moved(self, dice: Random) -> Shape:
        """Return it with a column more, or a wider one."""
        at, most = dice.randrange(len(self)), (len(_WIDTHS) - 1, 1, 1)
        return Shape(*(min(n + (i == at), most[i]) for i, n in enumerate(self)))


@cache
def parsed(ddl: str) -> tuple[DeclaredColumn, ...]:
    """Read columns, which never change."""
    return parse_columns(ddl)


@cache
def types_of(shape: Shape) -> dict[str, SqlType]:
    """Return the types that a schema of a shape says."""
    later = (f", {name} STRING" for name, has in zip(_LATER, shape[1:], strict=True) if has)
    ddl = f"id INT NOT NULL, at INT, n {_WIDTHS[shape.width]}{''.join(later)}"
    return {column.name: column.type for column in parsed(ddl)}


FOLLOWED = StreamSpec.model_validate(
    {
        "name": "s",
        "topic": "t",
        "schema": "id INT NOT NULL, at INT, n SMALLINT",
        "schema_from": {"kind": "registry"},
        "format": "avro",
        "keys": ["id"],
        "sequence_by": ["at"],
        "apply_as_deletes": "at < 0",
        "schema_change": "evolve",
        "on_new_field": "evolve",
        "on_wider_type": "evolve",
    }
)


@cache
def declared(ddl: str) -> StreamSpec:
    """Return the declaration with other columns: to make one costs as much as a schedule."""
    spec = StreamSpec.model_validate(
        {**FOLLOWED.model_dump(by_alias=True, exclude_unset=True), "schema": ddl}
    )
    _ = (spec.columns, spec.subscribed, spec.types, spec.table_columns)
    return spec


def with_columns(_: StreamSpec, columns: Any) -> StreamSpec:
    """Stand in for ``StreamSpec.with_columns``."""
    return declared(as_ddl(columns))


def keep_columns(spec: StreamSpec, world: World) -> str | None:
    """Write down the columns that a run has met, where the host's file can be written."""
    step("write the topics file")
    host = world.hosts.get(getattr(getcurrent(), "name", ""), 0)
    if host + 1 == HOSTS:
        return "the file cannot be written"
    world.files[host] = as_ddl(united(parsed(world.files[host]), spec.types))
    return None


def decode(
    records: Frame | Waiting, _plan: object, stream: Any, _frames: object
) -> Frame | Waiting:
    """Read Kafka, or the quarantine, once, and compare the columns with the schemas there."""
    step("fetch")
    if stream.spec.follows_schema:
        shapes = dict.fromkeys(record.shape for record in records.records())
        follow_schema._refuse_moved(stream, map(types_of, shapes))
    return records
