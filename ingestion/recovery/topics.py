"""Which topics a run reads: those that are declared, or those that match a pattern today.

A pattern is asked once, when a run begins, so that a run reads what it set out to read. A topic
that appears later is found by the next run and read from its start. One that the table was filled
from, and that is gone, is still asked for: it is then missing, as a declared one would be.
"""

from __future__ import annotations

import re

from ingestion.declaration.spec import StreamSpec
from ingestion.errors import TopicMissingError
from ingestion.kafka.admin import Kafka
from ingestion.lake.paths import StreamPaths
from ingestion.recovery.read_position import read_position


def resolve_topics(spec: StreamSpec, kafka: Kafka, paths: StreamPaths) -> StreamSpec:
    """Return the declaration with its topics by name.

    Raises:
        TopicMissingError: no topic matches the pattern.
        RefusedError: the table, which knows the topics of earlier runs, is not as it was left.
        DependencyError: Kafka does not answer.
    """
    if spec.topic_pattern is None:
        return spec
    pattern = re.compile(spec.topic_pattern)
    at = read_position(spec.name, paths, even_if_altered=True, even_if_forgotten=True)
    known = at.identity.topic_ids if at else {}
    found = sorted(name for name in {*kafka.names(), *known} if pattern.fullmatch(name))
    if not found:
        raise TopicMissingError(
            spec.name,
            f"no topic at {kafka.address} matches {spec.topic_pattern!r}.",
            remedy=f"create one, or correct `topic_pattern` in {spec.name}.yaml",
        )
    return spec.model_copy(update={"topics": tuple(found), "topic_pattern": None})
