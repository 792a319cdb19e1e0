"""Which record type fills a table: one of a topic, unless the declaration names it, or several.

Fields are matched by name, so a record of any type can look like a row of any other, with nulls for
the fields that it lacks. What a topic's records were called is kept by every commit: a type of its
own is noticed however the batches are cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from oncelake.ingestion.declaration.messages import printable
from oncelake.ingestion.declaration.spec import RECORD_TYPES, StreamSpec
from oncelake.ingestion.errors import NOTHING_WRITTEN, SeveralRecordTypesError, counted
from oncelake.ingestion.pipeline.counts import BatchCounts

# A name that YAML takes as it is.
_PLAIN: Final = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)


def learn_record_types(
    counts: BatchCounts, spec: StreamSpec, declaration: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Return a commit's declaration with the record type of each topic whose records it applies.

    Args:
        counts: Those of the batch, with the rows of each record type.
        spec: The stream.
        declaration: What the last commit kept.

    Raises:
        SeveralRecordTypesError: there is another type than the one known, or there are several.
    """
    if spec.record_types:
        return declaration
    known = dict((declaration or {}).get(RECORD_TYPES, {}))
    most_first = sorted(counts.types, key=lambda of: (-counts.types[of], *of))
    for topic, type_ in most_first:
        if known.setdefault(topic, type_) != type_:
            rows = {each: counts.types[topic, each] for of, each in most_first if of == topic}
            raise _refusal(spec.name, spec.file, topic, rows=rows, known=known[topic])
    return {**(declaration or {}), RECORD_TYPES: known} if known else declaration


def _refusal(
    stream: str, file: str, topic: str, *, rows: Mapping[str, int], known: str
) -> SeveralRecordTypesError:
    described = {type_: counted(number, "row") for type_, number in rows.items()}
    described.setdefault(known, "in the table already")
    types = "; ".join(f"{printable(type_)} ({many})" for type_, many in described.items())
    name = known if _PLAIN.fullmatch(known) else json.dumps(known, ensure_ascii=False)
    return SeveralRecordTypesError(
        stream,
        f"topic {topic} has records of several types: {types}. A record of one would be taken for "
        f"a row of another, with nulls for the fields that it lacks. {NOTHING_WRITTEN}",
        remedy=f"write the type that is meant into {file}: `record: {name}`; the others "
        "are counted as filtered, and another stream may read them. If one table is for several, "
        "name them all: `record: [a, b]`",
    )
