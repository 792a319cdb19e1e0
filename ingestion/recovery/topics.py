"""Which topics a run reads, and whether they are still those that the table was filled from.

A pattern is resolved once, when an operation begins, so that a run reads what it set out to read. A
topic that appears later is found by the next run and read from its start. One that the table was
filled from, and that is gone, is still asked for: it is then missing, as a declared one would be.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace

from oncelake.ingestion.declaration.ddl import parse_columns
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import (
    ClusterChangedError,
    IdentityChangedError,
    RefusedError,
    TopicMissingError,
    TopicRecreatedError,
)
from oncelake.ingestion.kafka.admin import Kafka, Topics
from oncelake.ingestion.lake.ledger import load_ledger
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.recovery.position import Position, read_position
from oncelake.ingestion.recovery.schema_diff import column_changes
from oncelake.ingestion.tables.commit_metadata import UNKNOWN, Identity


def resolve_topics(stream: Stream) -> Stream:
    """Return the stream with its topics by name, and with the columns that a schema gave its table.

    Raises:
        TopicMissingError: no topic matches the pattern.
        RefusedError: none does, and the table, which knows the topics of earlier runs, is not as it
            was left.
        DependencyError: Kafka does not answer.
    """
    spec = stream.spec
    if spec.topic_pattern is None and not spec.follows_schema:
        return stream
    known, refusal = UNKNOWN, None
    try:
        at = read_position(stream.paths, RefusedError)
        known = at.identity if at else UNKNOWN
        spec = as_of_table(spec, at, stream.paths)
    except RefusedError as error:
        # Who takes the lock heals that, or refuses it; a rebuild reads a table of another sink.
        refusal = error
        known = next((row.identity for row in reversed(load_ledger(stream.paths).rows)), UNKNOWN)
    if spec.topic_pattern is not None:
        matching = _matching(spec.topic_pattern, stream, known)
        if not matching:
            raise refusal or _none_matches(spec, stream.kafka)
        spec = spec.model_copy(update={"topics": matching, "topic_pattern": None})
    return replace(stream, spec=spec)


def as_of_table(spec: StreamSpec, position: Position | None, paths: StreamPaths) -> StreamSpec:
    """Return a declaration with the columns of its table where a schema gave it more.

    What was found is kept beside the file of the declaration, but another host, or a container
    that is gone, may have written that. What the table cannot become is left out: values that do
    not fit go to quarantine.
    """
    if position is None or not position.columns or not spec.follows_schema:
        return spec
    return without_refused(spec.as_of(position.columns), position.columns, paths)


def as_of_its_table(spec: StreamSpec, paths: StreamPaths) -> StreamSpec:
    """Return the same, where its table can be read."""
    if spec.follows_schema:
        with suppress(RefusedError):
            return as_of_table(spec, read_position(paths, RefusedError), paths)
    return spec


def without_refused(wanted: StreamSpec, ddl: str, paths: StreamPaths) -> StreamSpec:
    """Return a declaration without those new columns and wider types that its table cannot get.

    What a person has written of a column stays, and is refused as in any declaration.

    Args:
        wanted: The declaration, whose columns a schema gives.
        ddl: The columns that the table has, as declared.
        paths: Where the table is.
    """
    if wanted.ddl == ddl or not paths.table.log().exists:
        return wanted
    changes = column_changes(wanted, paths)
    refused = {change.field for change in changes if change.effect == "refused"}
    refused -= {*wanted.overrides}
    own = {column.name: column for column in parse_columns(ddl)}
    kept = (own.get(each.name) if each.name in refused else each for each in wanted.columns)
    return wanted.with_columns([column for column in kept if column is not None])


def _matching(pattern: str, stream: Stream, known: Identity) -> tuple[str, ...]:
    names = {*stream.kafka.names(), *known.topic_ids}
    return tuple(sorted(name for name in names if re.fullmatch(pattern, name)))


def _none_matches(spec: StreamSpec, kafka: Kafka) -> TopicMissingError:
    return TopicMissingError(
        spec.name,
        f"no topic at {kafka.address} that may be seen matches {spec.topic_pattern!r}.",
        remedy=f"create one, or correct `topic_pattern` in {spec.file}",
    )


def identity_of(spec: StreamSpec, topics: Topics) -> Identity:
    """Return the identity that the declaration and the cluster give a stream now."""
    return Identity(
        cluster_id=topics.cluster_id,
        topic_ids=topics.ids,
        keys=spec.keys,
        order=spec.sequence_by,
        rule=spec.rule,
    )


def changed_identity(spec: StreamSpec, known: Identity) -> IdentityChangedError | None:
    """Say where mode, keys or order are not those that the table was written with."""
    if known == UNKNOWN:
        return None
    if known.rule != spec.rule:
        written, declared = f"mode {known.rule}", spec.rule
    elif (known.keys, known.order) != (spec.keys, spec.sequence_by):
        written = f"keys {list(known.keys)} and sequence_by {list(known.order)}"
        declared = f"keys {list(spec.keys)} and sequence_by {list(spec.sequence_by)}"
    else:
        return None
    return IdentityChangedError(
        spec.name,
        f"the table was written with {written}; the file declares {declared}.",
        remedy=f"restore {spec.file}, or oncelake rebuild {spec.name}, which builds a new "
        "table beside the old one",
    )


def refuse_another_topic(spec: StreamSpec, kafka: Kafka, identity: Identity) -> Topics:
    """Make sure that the offsets still mean the same records.

    A topic that was deleted and created again, and is longer than before, raises no error anywhere
    else: its records below our offset would be skipped in silence.

    Raises:
        ClusterChangedError: another cluster answers.
        TopicRecreatedError: a topic's id is another.
    """
    try:
        found = kafka.topics(spec.name, spec.subscribed)
    except TopicMissingError:
        # On another cluster it is not missing: it was looked for in the wrong place.
        _refuse_another_cluster(spec, kafka, identity, kafka.cluster_id())
        raise
    _refuse_another_cluster(spec, kafka, identity, found.cluster_id)
    if identity == UNKNOWN:
        return found
    for name, topic_id in found.ids.items():
        known = identity.topic_ids.get(name, topic_id)
        if known != topic_id:
            raise TopicRecreatedError(
                spec.name,
                f"topic {name} was deleted and created again: its id was {known} and is "
                f"{topic_id}, so the table's offsets mean other records.",
                remedy=f"oncelake adopt-topic {spec.name} --yes, to read the new topic from its "
                "start into the same table",
            )
    return found


def _refuse_another_cluster(
    spec: StreamSpec, kafka: Kafka, identity: Identity, cluster_id: str
) -> None:
    if identity == UNKNOWN or cluster_id == identity.cluster_id:
        return
    raise ClusterChangedError(
        spec.name,
        f"the table was filled from cluster {identity.cluster_id}; {kafka.address} is cluster "
        f"{cluster_id}.",
        remedy=f"correct ONCELAKE_KAFKA, or, if this cluster replaces the other, "
        f"oncelake adopt-topic {spec.name} --yes",
    )
