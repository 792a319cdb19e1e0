"""Where a declaration asks of its sink what that cannot do, each named by the field to edit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ingestion.declaration.ddl import DeclaredColumn
from ingestion.declaration.fields import Declaration
from ingestion.declaration.sinks import SINKS, refused_types
from ingestion.declaration.violations import Violation

_AS_TEXT: Final = "declare it as STRING, and `select` it as text, for example by to_json({0})"


def sink_violations(spec: Declaration, columns: tuple[DeclaredColumn, ...]) -> Iterator[Violation]:
    """Yield every disagreement between a declaration and its sink.

    Args:
        spec: The declaration.
        columns: The table's columns, but for those of every table.
    """
    name = spec.sink.name
    kind = SINKS[name]
    if spec.mode not in kind.modes:
        allowed = " or ".join(f"`mode: {mode}`" for mode in kind.modes)
        yield "mode", f"`sink: {name}` cannot keep `mode: {spec.mode}`; write {allowed}"
    if not kind.merges:
        yield from _log_violations(spec)
    for column in columns:
        for word in dict.fromkeys(refused_types(name, column.type)):
            field = "extra_fields" if column.name not in spec.types else "schema"
            remedy = "write `ignore` or `reject`"
            if field == "schema":
                remedy = _AS_TEXT.format(column.name)
            yield field, f"{column.name}: `sink: {name}` cannot keep a {word}; {remedy}"


def _log_violations(spec: Declaration) -> Iterator[Violation]:
    """A log takes what comes, in the order of the offsets, and changes nothing that is there."""
    why = f"`sink: {spec.sink.name}` writes a log, which"
    if spec.sequence_by:
        yield (
            "sequence_by",
            f"{why} cannot put a late record in its place; remove it, so that offsets order the "
            "records of a key",
        )
    if spec.deletes == "soft":
        yield "deletes", f"{why} says that a key is gone by a null value; write `hard`"
    if spec.ignore_null_updates:
        yield "ignore_null_updates", f"{why} has no row to keep columns of; remove it"
    if spec.unavailable == "keep":
        yield (
            "format",
            f"{why} has no row to keep the columns of that a record leaves out; use `sink: delta`",
        )
