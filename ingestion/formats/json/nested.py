"""JSON values as values of the declared types: taken where nothing is lost, else a problem.

``from_json`` rounds, turns ``1e400`` into infinity and writes numbers as text without a word. So it
is asked for a *witness*: the same shape, with another type wherever it would be lenient; from the
witness the value is made, and what is wrong with it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from ingestion.formats.json.scalars import leaf_of

CORRUPT: Final = "_corrupt_record"


def witness_of(kind: DataType) -> DataType:
    """Return the type to ask ``from_json`` for, so that nothing is lost on the way."""
    return with_leaves(kind, lambda leaf: leaf_of(leaf).witness)


def witnessed(text: Column, fields: Iterable[StructField], **options: str) -> Column:
    """Read witnesses; what ``from_json`` could not read is told in the field ``CORRUPT``."""
    shape = StructType([*fields, StructField(CORRUPT, StringType())])
    return F.from_json(
        text, shape, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, **options}
    )


def bare(kind: DataType) -> DataType:
    """Return a type without what it says of nulls, which a witness does not say."""
    return with_leaves(kind, lambda leaf: leaf)


def with_leaves(kind: DataType, leaf: Callable[[DataType], DataType]) -> DataType:
    """Return the same shape with other types in it; every part of it may be null."""
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, with_leaves(f.dataType, leaf)) for f in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(with_leaves(kind.elementType, leaf))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, with_leaves(kind.valueType, leaf))
    return leaf(kind)


def value_of(witness: Column, kind: DataType) -> Column:
    """Return the value that a witness holds; of no use where there is a problem with it."""
    if not _is_made(kind):
        return witness
    if isinstance(kind, StructType):
        fields = (value_of(witness.getField(f.name), f.dataType).alias(f.name) for f in kind)
        return F.when(witness.isNotNull(), F.struct(*fields))
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return F.transform(witness, lambda each: value_of(each, element))
    if isinstance(kind, MapType):
        item = kind.valueType
        return F.transform_values(witness, lambda _, each: value_of(each, item))
    make = leaf_of(kind).value
    assert make is not None, "a leaf that is made says how"
    return make(witness)


def problems_of(witness: Column, kind: DataType, path: str) -> Iterator[Column]:
    """Yield, for each part of a value, a reason and where it is, or null.

    Each is a struct of ``reason`` and ``detail``.
    """
    if isinstance(kind, StructType):
        for field in kind:
            inner, at = witness.getField(field.name), f"{path}.{field.name}"
            if not field.nullable:
                is_missing = witness.isNotNull() & _is_null(inner, field.dataType)
                yield F.when(is_missing, _told("missing_required", f"{at} is missing"))
            yield from problems_of(inner, field.dataType, at)
        return
    if isinstance(kind, ArrayType):
        yield _first_within(witness, kind.elementType, f"{path}[]")
        return
    if isinstance(kind, MapType):
        yield _first_within(F.map_values(witness), kind.valueType, f"{path}{{}}")
        return
    problem = leaf_of(kind).problem
    if problem is not None:
        reason = F.when(witness.isNotNull(), problem(witness))
        detail = F.lit(f"{path}: expected {kind.simpleString().upper()}")
        yield F.when(reason.isNotNull(), F.struct(reason.alias("reason"), detail.alias("detail")))


def is_suspect(value: Column, witness: Column, kind: DataType) -> Column | None:
    """Tell, cheaply, that ``problems_of`` may find something; ``None`` where it never does."""
    if not _has_problems(kind):
        return None
    if isinstance(kind, StructType | ArrayType | MapType):
        return witness.isNotNull()
    suspect = leaf_of(kind).suspect
    found = witness.isNotNull() if suspect is None else suspect(value, witness)
    return F.coalesce(found, F.lit(False))


def _first_within(elements: Column, kind: DataType, path: str) -> Column:
    """Return the first problem of any element."""
    nothing = F.lit(None).cast("struct<reason: string, detail: string>")

    def first(found: Column, each: Column) -> Column:
        return F.coalesce(found, *problems_of(each, kind, path), nothing)

    if not _has_problems(kind):
        return nothing
    return F.aggregate(elements, nothing, first)


def _is_null(witness: Column, kind: DataType) -> Column:
    """Tell a field that is absent or null; JSON's null is a value to VARIANT."""
    if isinstance(witness_of(kind), VariantType):
        return witness.isNull() | F.is_variant_null(witness)
    return witness.isNull()


def _told(reason: str, detail: str) -> Column:
    return F.struct(F.lit(reason).alias("reason"), F.lit(detail).alias("detail"))


def _is_made(kind: DataType) -> bool:
    return witness_of(kind) != bare(kind)


def _has_problems(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(not f.nullable or _has_problems(f.dataType) for f in kind)
    if isinstance(kind, ArrayType):
        return _has_problems(kind.elementType)
    if isinstance(kind, MapType):
        return _has_problems(kind.valueType)
    return leaf_of(kind).problem is not None
