"""Where a declaration asks of its sink what that cannot do, each named by the field to edit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ingestion.declaration.ddl import DeclaredColumn
from ingestion.declaration.fields import Declaration
from ingestion.declaration.modes import MODES
from ingestion.declaration.sinks import SINKS
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
    if spec.mode in kind.refused_modes:
        allowed = " or ".join(f"`mode: {mode}`" for mode in MODES if mode not in kind.refused_modes)
        yield "mode", f"`sink: {name}` cannot keep `mode: {spec.mode}`; write {allowed}"
    for column in columns:
        words = {part.word for part in column.type.walk()}
        for word in (word for word in kind.refused if word in words):
            field = "extra_fields" if column.name not in spec.types else "schema"
            remedy = "write `ignore` or `reject`"
            if field == "schema":
                remedy = _AS_TEXT.format(column.name)
            yield field, f"{column.name}: `sink: {name}` cannot keep a {word}; {remedy}"
