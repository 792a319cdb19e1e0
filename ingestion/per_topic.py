"""One declaration, a table each: a stream of its own for every topic that it names.

The file's name is the prefix, the topic's the rest: `orders.yaml` with `topics: [eu.paid, us.paid]`
declares the streams `orders_eu_paid` and `orders_us_paid`, which share nothing but the file.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from ingestion.names import problem_with
from ingestion.spec import StreamSpec


class BadNamesError(ValueError):
    """The topics of a declaration do not give each table a name of its own."""


def stream_of(prefix: str, topic: str) -> str:
    """Return the name of the stream that reads one topic of a declaration."""
    return f"{prefix}_{re.sub(r'[^a-z0-9]+', '_', topic.lower()).strip('_')}"


def each_topic(spec: StreamSpec, taken: Collection[str] = ()) -> tuple[StreamSpec, ...]:
    """Return the streams of a declaration: itself, or one for each topic.

    Args:
        spec: The declaration.
        taken: Names that other files have.

    Raises:
        BadNamesError: two topics give one name, or a name is taken or not allowed.
    """
    if not spec.table_per_topic:
        return (spec,)
    topics: dict[str, str] = {}
    for topic in spec.topics:
        name = stream_of(spec.name, topic)
        if problem := problem_with(name):
            raise BadNamesError(f"topic {topic!r} would be the stream {name!r}: {problem}")
        if name in topics or name in taken:
            other = f"topic {topics[name]!r}" if name in topics else f"{name}.yaml"
            raise BadNamesError(
                f"topic {topic!r} would be the stream {name!r}, and so is {other}; give it a file "
                "of its own, under another name"
            )
        topics[name] = topic
    return tuple(_only(spec, name, topic) for name, topic in topics.items())


def _only(spec: StreamSpec, name: str, topic: str) -> StreamSpec:
    offsets = spec.starting.offsets
    starting = spec.starting
    if offsets is not None:
        starting = starting.model_copy(update={"offsets": {topic: offsets.get(topic, {})}})
    only = {"name": name, "topic": topic, "topics": (), "table_per_topic": False}
    return spec.model_copy(update={**only, "starting": starting})
