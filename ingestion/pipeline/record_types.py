"""Which record type fills a table: one of a topic, unless the declaration names it, or several.

Fields are matched by name, so a record of any type can look like a row of any other, with nulls for
the fields that it lacks. What a topic's records were called is kept by every commit: a type of its
own is noticed however the batches are cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ingestion.declaration.messages import printable
from ingestion.declaration.spec import RECORD_TYPES, StreamSpec
from ingestion.errors import SeveralRecordTypesError, counted
from ingestion.pipeline.counts import IS_GOOD
from ingestion.sinks.engine import Engine

# A name that YAML takes as it is.
_PLAIN: Final = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)


def learn_record_types(
    engine: Engine, spec: StreamSpec, declaration: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Return a commit's declaration with the record type of each topic whose records it applies.

    Args:
        engine: Holds the batch; one query, and only where a registry names types.
        spec: The stream.
        declaration: What the last commit kept.

    Raises:
        SeveralRecordTypesError: there is another type than the one known, or there are several.
    """
    if spec.record or not spec.format.options.uses_registry:
        return declaration
    types = dict((declaration or {}).get(RECORD_TYPES, {}))
    rows = engine.rows(
        'SELECT _topic, _record, count(*) AS "rows" FROM batch '
        f"WHERE {IS_GOOD} AND _record IS NOT NULL GROUP BY _topic, _record "
        'ORDER BY "rows" DESC, _topic, _record'
    )
    for row in rows:
        if types.setdefault(row["_topic"], row["_record"]) != row["_record"]:
            of_topic = [each for each in rows if each["_topic"] == row["_topic"]]
            raise _refusal(spec, of_topic, types[row["_topic"]])
    return {**(declaration or {}), RECORD_TYPES: types} if types else declaration


def _refusal(
    spec: StreamSpec, rows: Sequence[Mapping[str, Any]], known: str
) -> SeveralRecordTypesError:
    named = {row["_record"]: counted(row["rows"], "row") for row in rows}
    named.setdefault(known, "in the table already")
    said = "; ".join(f"{printable(name)} ({many})" for name, many in named.items())
    name = known if _PLAIN.fullmatch(known) else json.dumps(known, ensure_ascii=False)
    return SeveralRecordTypesError(
        spec.name,
        f"topic {rows[0]['_topic']} has records of several types: {said}. A record of one would "
        "be taken for a row of another, with nulls for the fields that it lacks. Nothing was "
        "written, and no offset moved.",
        remedy=f"write the type that is meant into {spec.name}.yaml: `record: {name}`; the others "
        "are counted as filtered, and another stream may read them. If one table is for several, "
        "name them all: `record: [a, b]`",
    )
