"""``oncelake init --pattern``: one declaration for all topics of a pattern, a table each."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from oncelake.ingestion.errors import InvalidSpecError, counted
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.operations.init.detect_format import Detected, detect_format
from oncelake.ingestion.operations.init.initialize import comment, flow
from oncelake.ingestion.operations.init.sample import read_sample
from oncelake.ingestion.settings import Settings

# Topics that are looked into, at most, for one that holds records.
_MOST_LOOKED_AT = 20


def propose_family(
    pattern: str, path: Path, *, limit: int, settings: Settings, sink: str = "delta"
) -> str:
    """Propose the declaration of all topics that match, as YAML; nothing is written.

    The records of one topic say how all are encoded. Their columns come from their schemas, which
    differ from topic to topic.

    Args:
        pattern: A regular expression, which whole names match.
        path: The file to be written.
        limit: How many records are read, at most.
        settings: Where Kafka and the schema registry are.
        sink: What shall keep the rows.

    Raises:
        InvalidSpecError: no topic matches, none holds a record, or the records have no schemas.
        DependencyError: Kafka or the schema registry does not answer.
    """
    try:
        matches = re.compile(pattern).fullmatch
    except re.error as error:
        raise InvalidSpecError(f"--pattern {pattern}: no regular expression: {error}") from error
    kafka = Kafka(settings)
    topics = [name for name in kafka.names() if matches(name)]
    topic, detected = _detected(pattern, topics, limit, settings)
    source = _source(detected)
    if source is None:
        raise InvalidSpecError(
            f"topic {topic!r} holds {detected.why}: its records have no schema with them, so that "
            "one file cannot give each topic its own columns. Next: oncelake init TOPIC for each, "
            "or, where all have the same columns, declare them as `schema` beside "
            "`table_per_topic: true`"
        )
    format_ = {"type": detected.type, **detected.options} if detected.options else detected.type
    why = f"{counted(len(topics), 'topic matches', 'topics match')}; of {topic}: {detected.why}"
    lines = [
        *comment(f"Proposed by `oncelake init --pattern`: {why}."),
        *comment(f"Its topics and columns are in {path.stem}.topics.yaml: docs/evolve.md"),
        f"topic_pattern: {flow(pattern)}",
        "table_per_topic: true",
        f"format: {flow(format_)}",
        *([f"sink: {sink}"] if sink != "delta" else []),
        *comment(
            "columns and types of newer schemas are followed; no column ever leaves by itself"
        ),
        f"schema: {source}",
        "schema_change: evolve",
        *comment("the columns that the schema of the Kafka key names; check: one row for each"),
        "keys: from_key",
    ]
    return "\n".join([*lines, ""])


def _detected(
    pattern: str, topics: list[str], limit: int, settings: Settings
) -> tuple[str, Detected]:
    """Return the first topic that holds records, and how they are encoded."""
    for topic in topics[:_MOST_LOOKED_AT]:
        with suppress(InvalidSpecError):
            sample = read_sample(topic, limit, settings)
            return topic, detect_format(sample, settings)
    found = f"none of {counted(len(topics), 'topic')} that match holds records of a known format"
    problem = found if topics else "no topic that may be seen matches"
    remedy = "Next: correct it, or look at one topic with oncelake init TOPIC"
    raise InvalidSpecError(f"--pattern {pattern}: {problem}. {remedy}")


def _source(detected: Detected) -> str | None:
    if detected.type == "debezium" and detected.options.get("schemas"):
        return "embedded"
    of_registry = detected.type in {"avro", "json_schema", "protobuf"}
    return "registry" if of_registry or detected.options.get("encoding") == "avro" else None
