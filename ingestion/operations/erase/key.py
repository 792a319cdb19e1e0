"""The key of an erase, as a person writes it: no value may be taken for another.

It is read as a strict record of JSON is, whatever the stream's format; a DECIMAL may stand in
quotes, too. A raw record is compared with it loosely: it may be bad for how its key is written.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_columns
from oncelake.ingestion.declaration.formats import Options
from oncelake.ingestion.declaration.spec import StreamSpec, meaning, meaning_changes
from oncelake.ingestion.errors import InvalidSpecError, RefusedError
from oncelake.ingestion.formats.coerce import from_base64
from oncelake.ingestion.formats.decoder import BadBytesError, Encoded, arrow_type
from oncelake.ingestion.formats.json import REASONS
from oncelake.ingestion.formats.json.strict import StrictReader
from oncelake.ingestion.lake.ledger import LedgerRow
from oncelake.ingestion.pipeline.schema.types import type_of_columns
from oncelake.ingestion.tables.table import SinkTable

# A value of each type, as JSON has it; of all others, 42.
_EXAMPLES: Final[Mapping[str, Any]] = {
    "STRING": "ada",
    "VARCHAR": "ada",
    "BINARY": "YWRh",
    "BOOLEAN": True,
    "DATE": "2026-11-22",
    "TIMESTAMP": "2026-11-22T10:00:00Z",
    "TIMESTAMP_NTZ": "2026-11-22T10:00:00",
}


def parse_key(spec: StreamSpec, table: SinkTable, text: str) -> pa.Table:
    """Return a key that is written as JSON as a table of one row, typed as the stream's table is.

    Raises:
        InvalidSpecError: it is none; says what it must be.
    """
    stored = {column.name: column for column in table.columns()}
    values = _parse_object(spec, text)
    if problem := next(_problems(spec, stored, values), None):
        raise _bad_key(spec, problem, values)
    names = spec.keys or tuple(values)
    schema = type_of_columns(stored[name] for name in names)
    columns = pa.schema([(each.name, arrow_type(each.dataType)) for each in schema])
    encoded = Encoded(
        schema=schema,
        is_key=False,
        options=Options(),
        extra_fields="reject",
        lenient=frozenset(each.name for each in columns if pa.types.is_decimal(each.type)),
    )
    try:
        row = StrictReader(encoded)(text.encode(errors="surrogateescape")).row
    except BadBytesError as error:
        raise _bad_key(spec, f"{error} ({REASONS[error.reason]})", values) from None
    return pa.table(
        [pa.array([value], each.type) for value, each in zip(row, columns, strict=True)], columns
    )


def is_of_key(
    spec: StreamSpec, key: pa.Table, *, raw_key: bytes | None, raw_value: bytes | None
) -> bool | None:
    """Tell whether a raw record is of a key; ``None`` where that cannot be read of it."""
    elsewhere = {*spec.select, spec.explode, *spec.metadata_columns}
    if spec.transform or not elsewhere.isdisjoint(key.column_names):
        # A key that is computed is not what the record says under that name.
        return None
    of_key, of_value = (
        {_has_key(row, key) for row in _objects(raw, spec.format.type)} - {None}
        for raw in (raw_key, raw_value)
    )
    if True in of_key | of_value:
        return True
    # What a value leaves open the Kafka key may confirm, but not rule out.
    answers = of_key if raw_value is None else of_value
    if not answers and spec.tombstone_policy == "delete":
        # Then the Kafka key is the row's.
        return _is_bare_key(raw_key, key) or None
    return False if answers else None


def _objects(raw: bytes | None, format_: str) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON object in a record's key or value, and of an envelope of Debezium its rows."""
    try:
        found = json.loads(raw or b"null", object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError):
        return
    rows = [found]
    if format_ == "debezium" and isinstance(found, dict):
        envelope = found["payload"] if found.keys() == {"schema", "payload"} else found
        is_object = isinstance(envelope, dict)
        rows = [envelope, envelope.get("before"), envelope.get("after")] if is_object else []
    yield from (row for row in rows if isinstance(row, dict))


def _without_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Leave out what comes twice in one object: which of the two is meant, nobody can tell."""
    times = Counter(name for name, _ in pairs)
    return {name: value for name, value in pairs if times[name] == 1}


def _has_key(row: Mapping[str, Any], key: pa.Table) -> bool | None:
    try:
        return all(
            _read_loosely(row[name], key[name].type).equals(key[name].chunk(0))
            for name in key.column_names
        )
    except (KeyError, pa.ArrowException, TypeError, ValueError):
        return None


def _is_bare_key(raw: bytes | None, key: pa.Table) -> bool:
    """Tell whether the Kafka key is the value of the one key column."""
    if raw is None or key.num_columns > 1:
        return False
    text = raw.decode("utf-8", "replace").strip('"')
    return raw == key[0][0].as_py() or bool(_has_key({key.column_names[0]: text}, key))


def _read_loosely(value: object, type_: pa.DataType) -> pa.Array:
    """Return a raw value as the table has it, also where a producer writes it as another type.

    Raises:
        TypeError: it is null.
        ValueError, ArrowException: it is none of the type.
    """
    if value is None:
        raise TypeError("null is no value")
    if pa.types.is_binary(type_):
        return pa.array([from_base64(str(value))], type_)
    return pa.array([value if isinstance(value, str) else json.dumps(value)]).cast(type_)


def _parse_object(spec: StreamSpec, text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise _bad_key(spec, f"{text!r} is no JSON object", {})
    return values


def _problems(
    spec: StreamSpec, stored: Mapping[str, DeclaredColumn], values: Mapping[str, Any]
) -> Iterator[str]:
    """Say what is wrong with a key, but for the types of its values."""
    if not values or (spec.keys and set(values) != set(spec.keys)):
        own = f"; `keys` are {', '.join(spec.keys)}" if spec.keys else ""
        yield f"it names {', '.join(values) or 'no column'}{own}"
    for name, value in values.items():
        if name not in spec.types.keys() & stored.keys():
            yield f"{name!r} is not a column of `schema`"
        elif value is None:
            yield f"{name} is null, and a key column cannot be null"
        elif stored[name].type.contains("ARRAY", "MAP", "STRUCT", "VARIANT"):
            yield f"{name} is {spec.types[name]}, which no key can be of"


def _bad_key(spec: StreamSpec, problem: str, values: Iterable[str]) -> InvalidSpecError:
    """Return the error of a key, with an example of one."""
    names = spec.keys or [name for name in values if name in spec.types] or [spec.columns[0].name]
    examples = {name: _EXAMPLES.get(spec.types[name].word, 42) for name in names}
    example = json.dumps(examples, ensure_ascii=False)
    return InvalidSpecError(f"{spec.name}: --key: {problem}. Next: write for example '{example}'")


def _metadata_of(declared: Mapping[str, Any]) -> Mapping[str, tuple[str, str]]:
    """Return the columns that Kafka key and headers give, with the headers' names and formats."""
    formats = declared.get("header_format", {})
    headers = declared.get("from_headers", {}).items()
    of_headers = {name: (header, formats.get(name, "")) for name, header in headers}
    return {**dict.fromkeys(declared.get("from_key", ()), ("", "")), **of_headers}


def refuse_other_keys(spec: StreamSpec, row: LedgerRow) -> None:
    """Make sure that the columns of an erased key are made of a record as they were then.

    Raises:
        RefusedError: they are not, so that its records, read again, would not be recognised.
    """
    assert row.erased is not None, "asked of what an erase says of itself"
    then = {column.name: column.type for column in parse_columns(row.columns)}
    before, now = row.declaration, meaning(spec)
    names = row.erased["columns"]
    changed = {name for name in names if then.get(name) != spec.types.get(name)}
    if before is not None:
        was, becomes = before.get("select", {}), now.get("select", {})
        changed |= {name for name in names if was.get(name) != becomes.get(name)}
        sources = [_metadata_of(declared) for declared in (before, now)]
        changed |= {name for name in names if sources[0].get(name) != sources[1].get(name)}
        changed |= {"transform"} & {n for n, _ in meaning_changes(before, now)}
    if changed:
        raise RefusedError(
            spec.name,
            f"batch {row.seq} erased a key by {', '.join(sorted(names))}, and "
            f"{', '.join(sorted(changed))} has changed since: its records would not be recognised, "
            "and come back.",
            remedy=f"restore that in {spec.file}; or oncelake reset {spec.name} --yes, "
            "run, and erase again",
        )
