"""The events of records, as one relation in DuckDB: key, place, and the row that each makes.

``events`` has a row a change: ``k``, a hash of its key; ``o0``, ``o1``, …, its declared order;
``seq``, ``tp`` and ``off``, its batch, the number of its partition and its offset; ``gone``,
whether it deletes; ``digest``, a hash of the row that the table has where this record is the
newest, or has a version; of partial updates ``h0``, ``h1``, …, a hash of each column that is not
null; ``t``, a hash of the columns that are tracked, if any are. DuckDB keeps it, on disk where it
is larger than memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import duckdb
import pyarrow as pa

from oncelake.ingestion.declaration.modes import CURRENT, DELETED_COLUMN, VALID_FROM, VALID_TO
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.sql import OFFLINE, identifier
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.verify.columns import NotInColumnsError
from oncelake.ingestion.verify.columns.memory import key_hash
from oncelake.ingestion.verify.columns.types import arrow_type
from oncelake.ingestion.verify.read.record import RowChange

SENT: Final = pa.timestamp("us", "UTC")
# What is known of a record that was decided alone.
_OF_RECORDS: Final = (
    *(("_partition", pa.int32()), ("_offset", pa.int64()), ("_seq", pa.int64())),
    *(("_timestamp", SENT), ("_gone", pa.bool_())),
)
# The number of the partition stands for topic and partition.
_OWN: Final = ("_partition", "_offset", "epoch_us(_timestamp)", "_seq")
_DIGITS_OF_64_BITS: Final = 18
_DATABASE: Final = {
    **OFFLINE,
    "memory_limit": "600MB",
    "preserve_insertion_order": "false",
    # No condition reads a file.
    "enable_external_access": "false",
}


@contextmanager
def database_in(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database that spills into a folder, and is gone when the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        TemporaryDirectory(prefix="columns-", dir=folder) as scratch,
        closing(duckdb.connect(config={**_DATABASE, "temp_directory": scratch})) as database,
    ):
        database.execute("SET TimeZone = 'UTC'")
        yield database


@dataclass(frozen=True, kw_only=True, slots=True)
class RowColumns:
    """The columns of a stream's table, as the digest of a row takes them.

    Attributes:
        types: The declared columns, with their types in Arrow.
        flag: The column that marks a row as deleted, where there is one.
        parts: The names in ``events`` of the hashes of columns that a null leaves as they were.
        validity: When a version begins and ends, with its types in Arrow, where rows are versions.
        keys: The columns that make the key.
        tracked: Those of which one differs between two versions; none where each record is one.
        order: The declared order; ``_timestamp`` is the record's time.
        partitions: The partitions that are read; a partition's number is its place here.
    """

    types: Mapping[str, pa.DataType]
    flag: str | None
    validity: Mapping[str, pa.DataType]
    parts: tuple[str, ...]
    keys: tuple[str, ...]
    tracked: tuple[str, ...]
    order: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]
    epoch: int

    @classmethod
    def of(
        cls, spec: StreamSpec, partitions: Iterable[TopicPartition], *, epoch: int
    ) -> RowColumns:
        """Return those of a stream.

        Raises:
            NotInColumnsError: a column is of a type that is not compared by a hash.
        """
        validity: dict[str, pa.DataType] = {}
        if spec.mode == "scd2":
            moment = arrow_type(spec.sequence_types[spec.sequence_by[0]])
            validity = {VALID_FROM: moment, VALID_TO: moment}
        return cls(
            types={column.name: arrow_type(column.type) for column in spec.columns},
            flag=DELETED_COLUMN if spec.deletes == "soft" else None,
            validity=validity,
            parts=parts_of(spec),
            keys=spec.keys,
            tracked=spec.track,
            order=spec.sequence_by,
            partitions=tuple(sorted(partitions)),
            epoch=epoch,
        )

    @property
    def schema(self) -> pa.Schema:
        """The declared columns."""
        return pa.schema([*self.types.items()])

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are compared, without the system's."""
        flags = [self.flag] if self.flag else []
        return (*self.types, *flags, *([*self.validity, CURRENT] if self.validity else []))

    def found(self) -> str:
        """Write the hash of a row of the table."""
        digest = self.digest(identifier(self.flag or ""))
        if self.validity:
            return version_digest(digest, VALID_FROM, VALID_TO, CURRENT)
        return filled_digest(digest, self.hashes().values()) if self.parts else digest

    def digest(self, flag: str) -> str:
        """Write the hash of a row, given what marks it as deleted, but for validity and parts."""
        flags = [flag] if self.flag else []
        columns = [] if self.parts else [self._hashed(n, identifier(n)) for n in self.types]
        return f"hash({', '.join([*columns, *flags, *_OWN])})"

    def hashes(self) -> dict[str, str]:
        """Write the parts of a row."""
        pairs = zip(self.parts, self.types, strict=False)
        return {
            part: f"CASE WHEN {value} IS NOT NULL THEN hash({self._hashed(name, value)}) END"
            for part, name in pairs
            for value in (identifier(name),)
        }

    def orders(self) -> dict[str, str]:
        """Write the declared order, by the names of its columns in ``events``."""
        return {f"o{n}": self._compared(name) for n, name in enumerate(self.order)}

    def change(self) -> str:
        """Write the hash by which two versions differ, if columns are tracked."""
        values = ", ".join(self._hashed(name, self._compared(name)) for name in self.tracked)
        return f", CASE WHEN NOT _gone THEN hash({values}) END AS t" if values else ""

    def _hashed(self, name: str, value: str) -> str:
        """Write a value as it is hashed: DuckDB's hash of 0 is that of the DECIMAL below it."""
        return f"{value}, {value}::VARCHAR" if _is_wide(self.types[name]) else value

    def _compared(self, name: str) -> str:
        """Write a value without the sign of a zero, which orders nothing and changes nothing."""
        is_float = pa.types.is_floating(self.types.get(name, pa.null()))
        return f"{identifier(name)} + 0.0" if is_float else identifier(name)


def _is_wide(type_: pa.DataType) -> bool:
    """Tell whether a type is a DECIMAL of more than 64 bits, or has one."""
    if pa.types.is_decimal(type_):
        return bool(type_.precision > _DIGITS_OF_64_BITS)
    return any(_is_wide(type_.field(n).type) for n in range(type_.num_fields))


def version_digest(row: str, valid_from: str, valid_to: str, current: str) -> str:
    """Write the hash of a version, given that of its row."""
    return f"hash({row}, {valid_from}, {valid_to}, {current})"


def parts_of(spec: StreamSpec) -> tuple[str, ...]:
    """Return the names of the parts of a row; none where each record has a whole row."""
    return tuple(f"h{n}" for n, _ in enumerate(spec.columns) if spec.ignore_null_updates)


def filled_digest(row: str, parts: Iterable[str]) -> str:
    """Write the hash of a row whose columns are hashed one by one."""
    return f"hash({', '.join([row, *parts])})"


@dataclass
class Events:
    """The relation ``events``.

    Attributes:
        database: Where it is.
        columns: Of the rows that the events make.
    """

    database: duckdb.DuckDBPyConnection
    columns: RowColumns

    def __post_init__(self) -> None:
        """Make it, empty."""
        types = {**dict(_OF_RECORDS), **self.columns.types}
        self.database.register("typed", pa.schema([*types.items()]).empty_table())
        self.database.execute(f"CREATE TABLE events AS {self._select('typed')}")
        self.database.unregister("typed")

    def add(self, relation: str, *, orders: Mapping[str, str] | None = None) -> None:
        """Take a relation of the declared columns and of what is known of their record.

        Args:
            relation: A name, or a query in brackets, which has ``_partition``, ``_offset``,
                ``_timestamp``, ``_seq`` and ``_gone``, too.
            orders: What gives the order, if the declared columns do not.
        """
        self.database.execute(f"INSERT INTO events {self._select(relation, orders)}")

    def _select(self, relation: str, orders: Mapping[str, str] | None = None) -> str:
        taken = self.columns.orders() if orders is None else orders
        given = "".join(f", {value} AS {name}" for name, value in taken.items())
        key, digest = key_hash(self.columns.keys), self.columns.digest("_gone")
        hashes = self.columns.hashes().items()
        parts = "".join(f", CASE WHEN NOT _gone THEN {each} END AS {part}" for part, each in hashes)
        return (
            f"SELECT {key} AS k{given}, _seq AS seq, _partition AS tp, _offset AS off, "
            f"_gone AS gone, {digest} AS digest{parts}{self.columns.change()} FROM {relation}"
        )

    def judged(self, changes: Sequence[RowChange], numbers: Mapping[TopicPartition, int]) -> None:
        """Take what was decided record by record.

        Raises:
            NotInColumnsError: a change has more to it than a row or a delete.
        """
        if any(change.moves or change.left_out or change.is_left for change in changes):
            raise NotInColumnsError("rows move, or keep columns that a record leaves out")
        if not changes:
            return
        types, orders = self.columns.types, self.columns.order
        names = [f"o{n}" for n, _ in enumerate(orders)]
        places = pa.struct([(o, types.get(n, SENT)) for o, n in zip(names, orders, strict=True)])
        schema = [*types.items(), *_OF_RECORDS, *([("_nth", places)] if names else [])]
        rows = [
            {
                **dict(zip(self.columns.keys, change.keyed, strict=True)),
                **dict(zip(types, change.row or (), strict=False)),
                "_partition": numbers[change.at],
                "_offset": change.offset,
                "_seq": change.seq,
                "_timestamp": change.row and change.row[-3],
                "_gone": change.is_delete,
                "_nth": dict(zip(names, change.place[1:], strict=False)),
            }
            for change in changes
        ]
        self.database.register("judged", pa.Table.from_pylist(rows, schema=pa.schema(schema)))
        self.add("judged", orders={name: f"_nth.{name}" for name in names})
        self.database.unregister("judged")
