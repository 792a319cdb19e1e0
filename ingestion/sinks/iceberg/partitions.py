"""The partitions of an Iceberg table: a row's values by the transforms of its specification.

A reader that filters skips the partitions that cannot have what it looks for, and so does a lookup:
a value that is not the format's loses rows. So each is computed here, a column at a time, exactly
as Iceberg's specification says. Days and moments are numbers, as in manifests, and those of UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import cached_property
from itertools import count
from typing import Any, Final, TypeAlias
from urllib.parse import quote_plus

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as iceberg
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import (
    PARTITION_FIELD_ID_START,
    PartitionField,
    PartitionFieldValue,
    PartitionKey,
    PartitionSpec,
)
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AddPartitionSpecUpdate, SetDefaultSpecUpdate, TableUpdate
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
    parse_transform,
)
from pyiceberg.typedef import Record

from oncelake.ingestion.declaration.partitions import DeclaredPartition
from oncelake.ingestion.sinks.files import as_numbers

AnyTransform: TypeAlias = Transform[Any, Any]
Values: TypeAlias = tuple[Any, ...]
_Numbers: TypeAlias = npt.NDArray[np.int64]

_MICROS_IN_HOUR: Final = 3_600_000_000
_MICROS_IN_DAY: Final = 24 * _MICROS_IN_HOUR
_TEXTS: Final = (pa.string(), pa.large_string())
_BYTES: Final = (pa.binary(), pa.large_binary())
# A truncated DECIMAL may have a digit more than its column.
_LONGEST_DECIMAL: Final = 76
# Of a name, and of a value: both are in the name of a folder, of which most systems take 255 bytes.
_LONGEST_IN_PATH: Final = 100
# Floats have several zeros and no number; of other types no stream has a column.
COMPUTED: Final = (
    iceberg.BooleanType,
    iceberg.IntegerType,
    iceberg.LongType,
    iceberg.DecimalType,
    iceberg.StringType,
    iceberg.BinaryType,
    iceberg.DateType,
    iceberg.TimestampType,
    iceberg.TimestamptzType,
)


def can_compute(transform: AnyTransform, type_: iceberg.IcebergType) -> bool:
    """Tell whether ``transformed`` gives the values of a column of a type."""
    if isinstance(transform, VoidTransform):
        return True
    return isinstance(type_, COMPUTED) and transform.can_transform(type_)


def transformed(transform: AnyTransform, values: pa.Array) -> pa.Array:
    """Return the partition's value of each value of a column; that of null is null."""
    if isinstance(transform, VoidTransform):
        return pa.nulls(len(values), pa.int32())
    if isinstance(transform, IdentityTransform):
        return as_numbers(values)
    if isinstance(transform, BucketTransform):
        return _buckets(values, transform.num_buckets)
    if isinstance(transform, TruncateTransform):
        return _truncated(values, transform.width)
    compute = _BY_TIME[type(transform)]
    is_day = pa.types.is_date(values.type)
    unit = 1 if is_day else _MICROS_IN_DAY
    return _of_numbers(values, lambda numbers: compute(numbers, unit), pa.int32())


def _days(numbers: _Numbers, per_day: int) -> _Numbers:
    return numbers // per_day


def _hours(numbers: _Numbers, per_day: int) -> _Numbers:
    return numbers // (per_day // 24)


def _months(numbers: _Numbers, per_day: int) -> _Numbers:
    days = _days(numbers, per_day).astype("datetime64[D]")
    return days.astype("datetime64[M]").astype(np.int64)


def _years(numbers: _Numbers, per_day: int) -> _Numbers:
    return _months(numbers, per_day) // 12


_BY_TIME: Final[dict[type[AnyTransform], Callable[[_Numbers, int], _Numbers]]] = {
    YearTransform: _years,
    MonthTransform: _months,
    DayTransform: _days,
    HourTransform: _hours,
}


def _of_numbers(
    values: pa.Array, compute: Callable[[_Numbers], npt.NDArray[Any]], type_: pa.DataType
) -> pa.Array:
    """Compute with all numbers of a column at once; null stays null."""
    numbers = as_numbers(values).cast(pa.int64())
    computed = compute(numbers.fill_null(0).to_numpy(zero_copy_only=False))
    is_null = numbers.is_null().to_numpy(zero_copy_only=False)
    return pa.array(computed.astype(type_.to_pandas_dtype()), mask=is_null)


def _of_each(values: pa.Array, compute: Callable[[Any], Any], type_: pa.DataType) -> pa.Array:
    """Compute with each value of a column once; null stays null."""
    encoded = values.dictionary_encode()
    computed = pa.array(map(compute, encoded.dictionary.to_pylist()), type_)
    return computed.take(encoded.indices)


def _buckets(values: pa.Array, count: int) -> pa.Array:
    """Number the buckets by the positive part of a hash: murmur3, 32 bits of it."""
    if pa.types.is_decimal(values.type):
        hashes = _of_each(values, lambda value: mmh3.hash(_as_bytes(_unscaled(value))), pa.int32())
    elif values.type in (*_TEXTS, *_BYTES):
        hashes = _of_each(values, mmh3.hash, pa.int32())
    else:
        hashes = _of_numbers(values, _murmur3, pa.int32())
    return _of_numbers(hashes, lambda hashes: (hashes & 0x7FFFFFFF) % count, pa.int32())


def _murmur3(numbers: _Numbers) -> npt.NDArray[np.uint32]:
    """Hash the 8 bytes of each number, the lowest first."""
    blocks = np.ascontiguousarray(numbers, "<i8").view("<u4").reshape(-1, 2)
    hashes = np.zeros(len(blocks), np.uint32)
    for block in blocks.T:
        mixed = _rotated(block * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        hashes = _rotated(hashes ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    hashes ^= np.uint32(8)
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))


def _rotated(bits: npt.NDArray[np.uint32], by: int) -> npt.NDArray[np.uint32]:
    return (bits << np.uint32(by)) | (bits >> np.uint32(32 - by))


def _unscaled(value: Decimal) -> int:
    sign, digits, _ = value.as_tuple()
    return int(Decimal((sign, digits, 0)))


def _as_bytes(number: int) -> bytes:
    """Write a number as few bytes with a sign, the highest first."""
    bits = (number if number >= 0 else ~number).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


def _truncated(values: pa.Array, width: int) -> pa.Array:
    """Cut numbers to multiples, towards the lower one, and texts to so many code points."""
    if pa.types.is_decimal(values.type):
        scale = values.type.scale
        type_ = pa.decimal256(_LONGEST_DECIMAL, scale)
        return _of_each(values, lambda value: _floor(value, width, scale), type_)
    if values.type in _TEXTS:
        return pc.utf8_slice_codeunits(values, 0, width)
    if values.type in _BYTES:
        return pc.binary_slice(values, 0, width)
    # What lies below the lowest number of the type begins again at its highest, as in Java.
    return _of_numbers(values, lambda numbers: numbers - numbers % width, values.type)


def _floor(value: Decimal, width: int, scale: int) -> Decimal:
    number = _unscaled(value)
    floor = number - number % width
    return Decimal((int(floor < 0), tuple(map(int, str(abs(floor)))), -scale))


def specification(
    schema: Schema,
    declared: Sequence[DeclaredPartition],
    past: TableMetadata | None = None,
) -> PartitionSpec:
    """Return a specification, whose fields are named as Iceberg does.

    Args:
        schema: The columns that the table is to have.
        past: Of a table that is there: a field that it has had stays the same one.
    """
    specs = past.partition_specs if past else []
    known = {(field.source_id, str(field.transform)): field for s in specs for field in s.fields}
    last = past.last_partition_id if past else None
    numbers = count(PARTITION_FIELD_ID_START if last is None else last + 1)
    fields, taken = list[PartitionField](), set(schema.column_names)
    for each in declared:
        transform = parse_transform(
            f"{each.transform}[{each.number}]" if each.number else each.transform
        )
        name = each.column
        if not isinstance(transform, IdentityTransform):
            word = "trunc" if isinstance(transform, TruncateTransform) else each.transform
            name = f"{name}_{word}{f'_{each.number}' if each.number else ''}"
            # A field of another column's name would be taken for that column.
            name = next(name + "_" * more for more in count() if name + "_" * more not in taken)
        taken.add(name)
        source = schema.find_field(each.column).field_id
        fields.append(
            known.get((source, str(transform)))
            or PartitionField(source, next(numbers), transform, name)
        )
    return PartitionSpec(*fields, spec_id=max((s.spec_id for s in specs), default=-1) + 1)


def divided_by(spec: PartitionSpec, past: TableMetadata) -> tuple[TableUpdate, ...]:
    """Return what makes a specification that of new files; one that was there comes back."""
    for earlier in past.partition_specs:
        if earlier.fields == spec.fields:
            return (SetDefaultSpecUpdate(spec_id=earlier.spec_id),)
    return AddPartitionSpecUpdate(spec=spec), SetDefaultSpecUpdate(spec_id=-1)


def divided_as_of(schema: Schema, past: TableMetadata) -> tuple[TableUpdate, ...]:
    """Return what lets new files follow the newest specification of columns that were there."""
    able = [spec.spec_id for spec in past.partition_specs if not uncomputed(schema, spec)]
    if past.default_spec_id in able or not able:
        return ()
    return (SetDefaultSpecUpdate(spec_id=max(able)),)


def declared(schema: Schema, spec: PartitionSpec) -> tuple[DeclaredPartition, ...]:
    """Return a specification as a declaration has it, without fields that are always null."""
    return tuple(
        DeclaredPartition(
            transform=str(field.transform).partition("[")[0],
            column=schema.find_column_name(field.source_id) or f"column {field.source_id}",
            number=_number_of(field.transform),
        )
        for field in spec.fields
        if not isinstance(field.transform, VoidTransform)
    )


def _number_of(transform: AnyTransform) -> int:
    if isinstance(transform, BucketTransform):
        return transform.num_buckets
    return transform.width if isinstance(transform, TruncateTransform) else 0


def uncomputed(schema: Schema, spec: PartitionSpec) -> str | None:
    """Name a field of which no values are computed here, if there is any."""
    types = {field.field_id: field.field_type for field in schema.fields}
    for field in spec.fields:
        if isinstance(field.transform, VoidTransform):
            continue
        type_ = types.get(field.source_id)
        if type_ is None or not can_compute(field.transform, type_):
            return f"{field.transform} of {schema.find_column_name(field.source_id)}"
    return None


class Partitioning:
    """How the rows of a table are divided: by its columns, and one of its specifications."""

    def __init__(self, schema: Schema, spec: PartitionSpec) -> None:
        """Take the columns as they are now; the specification may be an older one."""
        self.spec_id = spec.spec_id
        self._schema = schema
        self._fields = spec.fields
        self._spec = _NamingSpec(*spec.fields, spec_id=spec.spec_id)

    def values(self, rows: pa.Table) -> list[pa.Array]:
        """Return what rows are divided by, a value for each row."""
        return [self._values(field, rows) for field in self._fields]

    def _values(self, field: PartitionField, rows: pa.Table) -> pa.Array:
        if isinstance(field.transform, VoidTransform):
            return pa.nulls(len(rows), pa.int32())
        name = self._schema.find_column_name(field.source_id)
        return transformed(field.transform, rows.column(name).combine_chunks())

    def key(self, values: Values) -> PartitionKey:
        """Return what names the folder of a partition, and the partition in a manifest."""
        named = map(PartitionFieldValue, self._fields, values)
        return _ComputedKey([*named], self._spec, self._schema)

    def wanted(self, keys: pa.Table) -> Callable[[Record], bool] | None:
        """Return what tells whether a partition may have a row of some keys.

        Only the fields that are computed of the keys' own columns say so: of any other column, a
        row may have been given another value since. ``None`` where there is no such field.
        """
        names = [self._schema.find_column_name(field.source_id) for field in self._fields]
        of_keys = [
            at
            for at, (field, name) in enumerate(zip(self._fields, names, strict=True))
            if name in keys.column_names
            and not isinstance(field.transform, VoidTransform)
            and can_compute(field.transform, self._schema.find_type(field.source_id))
        ]
        if not of_keys:
            return None
        columns = {str(at): self._values(self._fields[at], keys) for at in of_keys}
        distinct = pa.table(columns).group_by([*columns]).aggregate([])
        wanted = set(zip(*(each.to_pylist() for each in distinct.columns), strict=True))
        return lambda partition: tuple(partition[at] for at in of_keys) in wanted


def values_of(file: DataFile) -> Values:
    """Return the values of a file's partition, as they can be compared."""
    return tuple(file.partition[at] for at in range(len(file.partition)))


def identities(spec: PartitionSpec, file: DataFile) -> dict[int, Any]:
    """Return the values of a file's partition that are those of a column, by its field id."""
    values = zip(spec.fields, values_of(file), strict=True)
    return {f.source_id: v for f, v in values if isinstance(f.transform, IdentityTransform)}


class _ComputedKey(PartitionKey):
    """A partition whose values are computed; pyiceberg would take two of a column for a mistake."""

    @cached_property
    def partition(self) -> Record:
        return Record(*(each.value for each in self.field_values))


class _NamingSpec(PartitionSpec):
    """A specification that can name the folder of any partition.

    pyiceberg has no name for a day that Python does not have, and one of any length for a text.
    """

    def partition_type(self, schema: Schema) -> iceberg.StructType:
        """Return the types of the values, each of which may be null, as a void one is."""
        fields = super().partition_type(schema).fields
        return iceberg.StructType(
            *(iceberg.NestedField(f.field_id, f.name, f.field_type, required=False) for f in fields)
        )

    def partition_to_path(self, data: Record, schema: Schema) -> str:
        types = self.partition_type(schema).fields
        named = zip(self.fields, types, data._data, strict=True)
        return "/".join(
            f"{_short(field.name)}={_short(_human(field.transform, type_.field_type, value))}"
            for field, type_, value in named
        )


def _human(transform: AnyTransform, type_: iceberg.IcebergType, value: Any) -> str:
    with suppress(OverflowError):
        return transform.to_human_string(type_, value)
    return str(value)


def _short(text: str) -> str:
    """Quote a text for a path, and cut it short; the name of a file in it is no other's anyway."""
    return re.sub("%.?$", "", quote_plus(text, safe="")[:_LONGEST_IN_PATH])


def naming(specs: Sequence[PartitionSpec]) -> list[PartitionSpec]:
    """Return specifications that can name the folders of all their partitions."""
    return [_NamingSpec(*spec.fields, spec_id=spec.spec_id) for spec in specs]
