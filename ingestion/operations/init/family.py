"""``oncelake init --pattern``: one declaration for all topics of a pattern, a table each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from oncelake.ingestion.errors import InvalidSpecError, counted
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.operations.init.detect_format import Detected, detect_format
from oncelake.ingestion.operations.init.find_keys import names_in_keys
from oncelake.ingestion.operations.init.initialize import write_yaml
from oncelake.ingestion.operations.init.propose import Proposal
from oncelake.ingestion.operations.init.sample import TopicSample, read_sample
from oncelake.ingestion.settings import Settings

# Topics that are looked into, at most, for one that holds records.
_MOST_LOOKED_AT = 20


def propose_family(
    pattern: str, path: Path, *, limit: int, settings: Settings, sink: str = "delta"
) -> tuple[str, list[str]]:
    """Propose the declaration of all topics that match, as YAML, and name these; write nothing.

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
    topics = [name for name in Kafka(settings).names() if matches(name)]
    sample, detected = _detected(pattern, topics, limit, settings)
    proposal = Proposal()
    proposal.add("topic_pattern", pattern)
    proposal.add("table_per_topic", True)
    proposal.add("format", detected.declared())
    if sink != "delta":
        proposal.add("sink", sink)
    follows = "columns and types of newer schemas are followed; no column ever leaves by itself"
    proposal.add("schema", _source(sample.topic, detected), follows)
    proposal.add("schema_change", "evolve")
    _propose_keys(proposal, sample, detected, settings)
    matching = counted(len(topics), "topic matches", "topics match")
    text = write_yaml(
        proposal,
        f"Proposed by `oncelake init --pattern`: {matching}; of {sample.topic}: {detected.why}.",
        f"Its topics and columns are in {path.stem}.topics.yaml: docs/evolve.md",
    )
    return text, topics


def _detected(
    pattern: str, topics: Sequence[str], limit: int, settings: Settings
) -> tuple[TopicSample, Detected]:
    """Return the records of the first topic that has some of a known format, and that."""
    problem = "no topic that may be seen matches. Next: correct it"
    for topic in topics[:_MOST_LOOKED_AT]:
        try:
            sample = read_sample(topic, limit, settings)
            return sample, detect_format(sample, settings)
        except InvalidSpecError as error:
            none = f"none of {counted(len(topics), 'topic')} that match holds records of a known"
            problem = f"{none} format; {error}"
    raise InvalidSpecError(f"--pattern {pattern}: {problem}")


def _source(topic: str, detected: Detected) -> str:
    """Return what gives each topic its columns."""
    if detected.type == "debezium" and detected.options.get("schemas"):
        return "embedded"
    of_registry = detected.type in {"avro", "json_schema", "protobuf"}
    if of_registry or detected.options.get("encoding") == "avro":
        return "registry"
    raise InvalidSpecError(
        f"topic {topic!r} holds {detected.why}: its records have no schema with them, so that "
        "one file cannot give each topic its own columns. Next: oncelake init TOPIC for each, "
        "or, where all have the same columns, declare them as `schema` beside "
        "`table_per_topic: true`"
    )


def _propose_keys(
    proposal: Proposal, sample: TopicSample, detected: Detected, settings: Settings
) -> None:
    format_, names = names_in_keys(sample, settings)
    # Of plain JSON no schema tells, so that what one topic's keys have may be in no other's.
    if detected.type != "debezium" and (not names or format_.type == "json"):
        named = f"; where all have these, write `keys: [{', '.join(names)}]`" if names else ""
        why = f"every record is a row: no schema of a Kafka key names keys{named}"
        proposal.add("mode", "append", why)
        return
    why = "the columns that the schema of the Kafka key names; check: one row for each"
    proposal.add("keys", "from_key", why)
    if detected.type != "debezium":
        proposal.add("key_format", format_.type, "the Kafka keys are encoded so")
