"""JSON objects decoded into Arrow columns by Arrow's own reader, and those that it must not judge.

Arrow's reader refuses what the rule refuses: a name twice, a value of another type, an integer or
a decimal that does not fit, a lone surrogate, text behind the object. It takes three things that
the rule does not take, ``NaN`` and ``Infinity``, a decimal in quotes, and a name in another case;
each makes a record doubtful here. What Arrow refuses is doubtful, too, whether it is bad or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

from oncelake.ingestion.verify.columns import NotInColumnsError
from oncelake.ingestion.verify.columns.parts import PartsReader

# One object on one line; whatever else is whole is rare, and read alone.
_PLAIN: Final = r"^\{[^\n\r\x00]*\}$"
# A number may be none, or beyond a double by its exponent or its digits; and Arrow 26 ends the
# process at a decimal of ``1e-999999999``.
_NOT_FINITE: Final = r"[:\[,]\s*-?(NaN|Inf)|[0-9][eE][+-]?0*[1-9][0-9]{2}"
_LONGEST: Final = 300
_TOO_LONG: Final = rf"[0-9.]{{{_LONGEST}}}"
_MOST_FIELDS: Final = 300


class JsonReader(PartsReader):
    """Reads objects of some fields, and others that nobody declares."""

    def __init__(
        self,
        schema: pa.Schema,
        *,
        rejects: bool = False,
        whole: Sequence[str] = (),
        doubtful: Sequence[str] = (),
    ) -> None:
        """Take the fields that are wanted.

        Args:
            schema: Their names and types.
            rejects: Whether a record that has others is doubtful.
            whole: Those of which each part must be wanted, however deep.
            doubtful: Patterns of records that are doubtful, too.
        """
        super().__init__(schema)
        self._rejects = rejects
        self._sizes = {name: _size(schema.field(name).type) for name in whole}
        self._asked = pa.schema([_optional(each) for each in schema])
        whole_row = pa.struct(list(schema))
        self._size, self._has_others = _size(whole_row), False
        decimals = (f.name for f in _fields(whole_row) if pa.types.is_decimal(_item(f.type)))
        names = "|".join(map(re.escape, sorted({*decimals})))
        quoted = rf'"({names})"\s*:\s*("|\[[^":{{}}]*"[^"]*"\s*[,\]])|\\u[^"]*"\s*:'
        self._patterns = [_NOT_FINITE, *doubtful, *([quoted] if names else [])]

    def read(self, values: Sequence[bytes]) -> tuple[pa.Table, pa.Array]:
        """Return the fields of the records that are not doubtful, and where those records are.

        Raises:
            NotInColumnsError: the objects are not alike enough to be read together.
        """
        doubtful = self._doubtful(pa.array(values, pa.binary()))
        at = pc.indices_nonzero(pc.invert(doubtful))
        kept = list(values) if len(at) == len(values) else [values[i] for i in at.to_pylist()]
        return self.read_parts(kept, at)

    def _doubtful(self, values: pa.Array) -> pa.Array:
        """Tell the records that the rule might read otherwise, or refuse, whatever Arrow says."""
        doubtful = pc.invert(pc.match_substring_regex(values, _PLAIN))
        patterns = self._patterns
        if (pc.max(pc.binary_length(values)).as_py() or 0) > _LONGEST:
            patterns = [*patterns, _TOO_LONG]
            openings = pc.add(pc.count_substring(values, "{"), pc.count_substring(values, "["))
            doubtful = pc.or_(doubtful, pc.greater(openings, _LONGEST))
        return pc.or_(doubtful, pc.match_substring_regex(values, "|".join(patterns)))

    def _table(self, values: Sequence[bytes]) -> pa.Table | None:
        """Read records; none if Arrow refuses any of them."""
        if not self._has_others:
            table = self._parsed(values, "error")
            if table is not None or self._rejects:
                return table
            # Only a field that nobody declares makes both differ.
            self._has_others = self._parsed(values, "ignore") is not None
        return self._parsed(values, "infer") if self._has_others else None

    def _parsed(self, values: Sequence[bytes], others: str) -> pa.Table | None:
        lines = b"\n".join(values)
        try:
            lines.decode()
            table = json.read_json(
                pa.BufferReader(lines),
                json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
                json.ParseOptions(explicit_schema=self._asked, unexpected_field_behavior=others),
            )
        except (pa.ArrowInvalid, UnicodeDecodeError):
            return None
        # Two objects on a line would be two rows.
        if table.num_rows != len(values) or _has_other_case(table.schema, self._schema):
            return None
        if any(_size(table.schema.field(n).type) > size for n, size in self._sizes.items()):
            return None
        if _size(pa.struct(list(table.schema))) > _MOST_FIELDS + self._size:
            raise NotInColumnsError("its objects have too many fields that nobody declares")
        return _as_declared(table, self._schema)


def _as_declared(table: pa.Table, schema: pa.Schema) -> pa.Table | None:
    """Leave out what nobody declares; none where a part is null that may not be."""
    columns = [_part(table.column(each.name).combine_chunks(), each) for each in schema]
    found = [each for each in columns if each is not None]
    return pa.table(found, schema=schema) if len(found) == len(columns) else None


def _part(values: pa.Array, field: pa.Field) -> pa.Array | None:
    """Return a value's declared parts."""
    if pa.types.is_struct(field.type):
        found = [_part(values.field(each.name), each) for each in field.type]
        parts = [each for each in found if each is not None]
        if len(parts) < len(found):
            return None
        is_there = values.is_valid()
        for part, of_type in zip(parts, field.type, strict=True):
            if not of_type.nullable and part.filter(is_there).null_count:
                return None
        return pa.StructArray.from_arrays(parts, fields=list(field.type), mask=values.is_null())
    if pa.types.is_list(field.type):
        items = _part(values.values, field.type.value_field)
        if items is None:
            return None
        return pa.ListArray.from_arrays(values.offsets, items, field.type, mask=values.is_null())
    return None if _is_too_large(values) else values


def _is_too_large(values: pa.Array) -> bool:
    """Tell whether a decimal has more digits before its point than its type; Arrow lets it pass."""
    if not pa.types.is_decimal(values.type):
        return False
    bounds = pc.min_max(values).as_py()
    end = Decimal(10) ** (values.type.precision - values.type.scale)
    return any(each is not None and abs(each) >= end for each in bounds.values())


def _optional(field: pa.Field) -> pa.Field:
    """Return a field that may be null, as any field of JSON may, with all its parts."""
    type_ = field.type
    if pa.types.is_struct(type_):
        type_ = pa.struct([_optional(each) for each in type_])
    elif pa.types.is_list(type_):
        type_ = pa.list_(_optional(type_.value_field))
    return pa.field(field.name, type_)


def _has_other_case(found: pa.Schema | pa.DataType, declared: pa.Schema | pa.DataType) -> bool:
    """Tell whether a field is called as a declared one is, but for the case of letters."""
    names = {each.name for each in declared}
    lowered = {name.lower() for name in names}
    if any(each.name not in names and each.name.lower() in lowered for each in found):
        return True
    return any(_inner_case(found.field(each.name).type, each.type) for each in declared)


def _inner_case(found: pa.DataType, declared: pa.DataType) -> bool:
    if pa.types.is_struct(declared):
        return _has_other_case(found, declared)
    return pa.types.is_list(declared) and _inner_case(found.value_type, declared.value_type)


def _fields(type_: pa.DataType) -> Iterator[pa.Field]:
    """Yield the fields within a type, however deep."""
    for each in _item(type_) if pa.types.is_struct(_item(type_)) else ():
        yield each
        yield from _fields(each.type)


def _size(type_: pa.DataType) -> int:
    return sum(1 for _ in _fields(type_))


def _item(type_: pa.DataType) -> pa.DataType:
    """Return what a list is of, however deep; any other type is its own item."""
    return _item(type_.value_type) if pa.types.is_list(type_) else type_
