"""Conversion of Protobuf's types, well-known ones included, to declared columns.

An absent field without presence has its default, as in proto3; every other absent field is null.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor as Field
from pyspark.sql.types import DataType, StringType, StructType, TimestampType

from ingestion.formats.coerce import Convert, MisfitError, Source, exact, mismatch
from ingestion.formats.nested import array_of, map_of, struct_of

_KINDS: Final = {
    Field.CPPTYPE_BOOL: "boolean",
    Field.CPPTYPE_INT32: "integer",
    Field.CPPTYPE_INT64: "integer",
    Field.CPPTYPE_UINT32: "integer",
    Field.CPPTYPE_UINT64: "integer",
    Field.CPPTYPE_FLOAT: "float",
    Field.CPPTYPE_DOUBLE: "double",
}
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_NANOS: Final = 10**9
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{each}Value"
    for each in ("Bool", "Int32", "Int64", "UInt32", "UInt64", "Float", "Double", "String", "Bytes")
)


class ProtobufNode(NamedTuple):
    """A field, or one item of a repeated field."""

    field: Any
    is_item: bool = False


class View:
    """A message as a mapping by field name; an absent field with presence is null."""

    __slots__ = ("_message",)

    def __init__(self, message: Any) -> None:
        self._message = message

    def get(self, name: str) -> Any:
        """Return a field's value."""
        field = self._message.DESCRIPTOR.fields_by_name.get(name)
        if field is None or (field.has_presence and not self._message.HasField(name)):
            return None
        return getattr(self._message, name)


def whole_fields(message: Any) -> dict[str, ProtobufNode]:
    """Return the fields of a message by name."""
    return {each.name: ProtobufNode(each) for each in message.fields}


def converter(node: ProtobufNode, target: DataType) -> Convert:
    """Return the conversion of a non-null value to the declared type."""
    field = node.field
    if field.is_repeated and not node.is_item:
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            return _map(entry, target)
        return array_of(ProtobufNode(field, is_item=True), target, converter)
    if field.cpp_type == Field.CPPTYPE_MESSAGE:
        return _message(field.message_type, target)
    if field.cpp_type == Field.CPPTYPE_ENUM:
        return _enum(field.enum_type, target)
    if field.cpp_type == Field.CPPTYPE_STRING:
        return exact(Source("bytes" if field.type == Field.TYPE_BYTES else "string"), target)
    return exact(Source(_KINDS[field.cpp_type]), target)


def _map(entry: Any, target: DataType) -> Convert:
    key, value = (entry.fields_by_name[name] for name in ("key", "value"))
    if key.type != Field.TYPE_STRING:
        return mismatch("a map without text keys", target)
    return map_of(ProtobufNode(value), target, converter)


def _message(message: Any, target: DataType) -> Convert:
    if message.full_name == _TIMESTAMP and isinstance(target, TimestampType):
        moment = exact(Source("timestamp", _NANOS), target)
        return lambda value: moment(value.seconds * _NANOS + value.nanos)
    if message.full_name in _WRAPPERS and not isinstance(target, StructType):
        inner = converter(ProtobufNode(message.fields_by_name["value"]), target)
        return lambda value: inner(value.value)
    to_struct = struct_of(whole_fields(message), target, converter)
    return lambda value: to_struct(View(value))


def _enum(enum: Any, target: DataType) -> Convert:
    if not isinstance(target, StringType):
        return exact(Source("integer"), target)
    names = {number: each.name for number, each in enum.values_by_number.items()}

    def convert(number: int) -> str:
        if number not in names:
            raise MisfitError(f"{number} is no value of {enum.name}")
        return str(names[number])

    return convert
