"""A declaration that no run has tried yet, compared with the topic's last records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from oncelake.ingestion.declaration.names import nearest
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import counted
from oncelake.ingestion.operations.init.decode_sample import validate_sample
from oncelake.ingestion.operations.init.sample import read_sample
from oncelake.ingestion.pipeline.counts import LIKENESS
from oncelake.ingestion.settings import Settings

_RECORDS: Final = 200


def unfilled_columns(spec: StreamSpec, settings: Settings) -> Iterator[str]:
    """Say which columns none of the last records fills, though they have a field named alike.

    Nothing is said of several topics, and of values that Spark filters or transforms.

    Raises:
        InvalidSpecError: the topic is missing or empty.
        DependencyError: Kafka or the schema registry does not answer.
    """
    if spec.topic is None or spec.is_transformed or spec.explode:
        return
    sampled = validate_sample(read_sample(spec.topic, _RECORDS, settings), spec, settings)
    rows = [row for row in sampled if row["_disposition"] == "row"]
    fields = Counter(name for row in rows for name in row["_extra"] or ())
    for name in (column.name for column in spec.value_columns):
        field = nearest(name, fields, likeness=LIKENESS)
        if field and all(row[name] is None for row in rows):
            yield (
                f"column {name} is null in the last {counted(len(rows), 'record')}, of which "
                f"{counted(fields[field], 'has', 'have')} a field {field} that is not declared. "
                "Next: if that is meant, correct `schema`"
            )
