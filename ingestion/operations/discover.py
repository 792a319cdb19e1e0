"""``oncelake discover``: the topics of a declaration and their columns, written down beside it.

What is there stays: a topic that is gone keeps its table, and a column keeps its place where a
newer schema lacks it. New topics are added, and columns of the newest schemas united with those
that are known.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from oncelake.ingestion.declaration.ddl import parse_columns
from oncelake.ingestion.declaration.derived import Derived, SchemaSource, as_ddl, united
from oncelake.ingestion.declaration.files.drafts import shown_path
from oncelake.ingestion.declaration.files.loader import DeclaredStream, outlines_in, read_outlines
from oncelake.ingestion.declaration.files.outlines import Outline
from oncelake.ingestion.declaration.files.topics import (
    FoundTopic,
    discover_command,
    has_topics,
    keeper_of,
    topics_file,
    write_topics,
)
from oncelake.ingestion.declaration.names import hint
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import InvalidSpecError, counted
from oncelake.ingestion.formats import protobuf
from oncelake.ingestion.formats.connect import ConnectJson
from oncelake.ingestion.formats.decoder import UNFORESEEN, BadBytesError
from oncelake.ingestion.formats.registry.columns import (
    Types,
    column_types,
    embedded_types,
    key_names,
    record_name,
    struct_types,
)
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.schema_registry import WriterSchema, registry_of
from oncelake.ingestion.operations.init.sample import read_sample
from oncelake.ingestion.settings import Settings

# Of each topic whose records have their schema with them.
_SAMPLED: Final = 100
_LOOK_EVERY_SECONDS: Final = 60.0
_MOST_NAMED: Final = 10
# Streams of one file may meet new schemas at once.
_WRITING: Final = threading.Lock()


@dataclass(frozen=True, kw_only=True, slots=True)
class Discovery:
    """The topics and columns that were found for one declaration.

    Attributes:
        before: The topics that were known, by name.
        topics: Those that are known now.
        unknown: Why no columns are known of a topic, by its name.
    """

    outline: Outline
    before: Mapping[str, FoundTopic]
    topics: Mapping[str, FoundTopic]
    unknown: Mapping[str, str]

    @property
    def added(self) -> tuple[str, ...]:
        """Topics that were not known before."""
        return tuple(name for name in self.topics if name not in self.before)

    @property
    def gone(self) -> tuple[str, ...]:
        """Topics that Kafka has no longer."""
        return tuple(name for name, topic in self.topics.items() if topic.is_gone)

    @property
    def changed(self) -> tuple[str, ...]:
        """Topics whose columns, or keys, are others now."""
        pairs = ((name, topic, self.before.get(name)) for name, topic in self.topics.items())
        return tuple(
            name
            for name, now, before in pairs
            if before and (now.schema, now.keys) != (before.schema, before.keys)
        )

    def write(self) -> None:
        """Write the file, where anything is new.

        Raises:
            InvalidSpecError: it cannot be written.
        """
        outline = self.outline
        try:
            write_topics(outline.path, self.topics.values(), table=outline.table)
        except OSError as error:
            raise InvalidSpecError(_unwritable(outline, error)) from error


def discover(outline: Outline, settings: Settings) -> Discovery:
    """Find the topics of a declaration, and their columns; nothing is written yet.

    Raises:
        InvalidSpecError: no topic matches, or the file of the topics is not as it was written.
        DependencyError: Kafka or the schema registry does not answer.
    """
    kafka, before = Kafka(settings), outline.found()
    existing = kafka.names()
    names = [name for name in existing if outline.matches(name)]
    known = [name for name in before if name not in names]
    if not names and not known:
        declared = outline.declared
        what = declared.topic_pattern or declared.topic or ", ".join(declared.topics)
        meant = "" if declared.topic_pattern else hint(what, existing)
        raise InvalidSpecError(
            f"{shown_path(outline.path)}: no topic at {kafka.address} that may be seen matches "
            f"{what!r}{meant or '.'} Next: create one, or correct the file"
        )
    ids = kafka.known_topics(names).ids
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    topics = {name: replace(before[name], is_gone=True) for name in known}
    unknown = {}
    for name in names:
        new = FoundTopic(name=name, id="", first_seen=now, table=outline.table)
        there = before.get(name, new)
        there = replace(there, id=ids.get(name, ""), is_gone=False)
        try:
            topics[name] = _with_columns(outline, there, settings)
        except _UnknownSchemaError as error:
            topics[name] = there
            unknown[name] = str(error)
    return Discovery(outline=outline, before=before, topics=topics, unknown=unknown)


def keep_columns(spec: StreamSpec, settings: Settings) -> str | None:
    """Write down the columns that a run has met; say why where that was not possible.

    Copies of declarations stay as they are: whoever keeps the topics finds the columns, too.

    Nothing hangs on it: the table has them, and so does whoever reads it.
    """
    types = {name: type_ for name, type_ in spec.types.items() if name not in spec.overrides}
    for outline in outlines_in(settings.streams):
        if outline.source is None or keeper_of(outline.path):
            continue
        with _WRITING:
            known = outline.found()
            changed = {
                name: replace(topic, schema=_united(topic.schema, types))
                for name, topic in _own(outline, spec).items()
            }
            try:
                if changed:
                    write_topics(outline.path, {**known, **changed}.values(), table=outline.table)
            except OSError as error:
                return _unwritable(outline, error)
    return None


def topics_of(spec: StreamSpec, settings: Settings) -> tuple[FoundTopic, ...]:
    """Return what is written down of the topics of a stream; none where its file has all itself."""
    return tuple(
        topic for outline in outlines_in(settings.streams) for topic in _own(outline, spec).values()
    )


def _own(outline: Outline, spec: StreamSpec) -> dict[str, FoundTopic]:
    """Return what was found of those topics of a file that are a stream's."""
    found = outline.found()
    return {name: topic for name, topic in found.items() if outline.name_of(name) == spec.name}


def waiting_topics(outline: Outline, names: Iterable[str]) -> tuple[str, ...]:
    """Return those of some topics that belong to a declaration, and are not written down."""
    known = outline.found()
    return tuple(name for name in names if outline.matches(name) and name not in known)


def newer_columns(path: Path, spec: StreamSpec, settings: Settings) -> Iterator[str]:
    """Yield what the newest schemas of a stream's topics would add to what is written down.

    Raises:
        DependencyError: Kafka or the schema registry does not answer.
    """
    for outline in read_outlines(path):
        for topic in _own(outline, spec).values():
            if topic.is_gone:
                continue
            with suppress(_UnknownSchemaError):
                newest = _with_columns(outline, topic, settings)
                if newest.schema != topic.schema:
                    does = "will follow" if spec.follows_schema else "stay"
                    yield f"the columns by {newest.origin} are {newest.schema}: those here {does}"


class NewTopics:
    """Looks, now and then, for topics that nobody has written down yet."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._due = settings, 0.0

    def look(self, declared: Iterable[DeclaredStream]) -> tuple[str, ...]:
        """Write down new topics where `discover: auto` lets it, and say which others wait.

        Raises:
            DependencyError: Kafka or the schema registry does not answer.
        """
        if time.monotonic() < self._due:
            return ()
        self._due = time.monotonic() + _LOOK_EVERY_SECONDS
        outlines = [*_outlines_of(declared)]
        names = Kafka(self._settings).names() if outlines else ()
        # The tables of one file wait for the same topics.
        return tuple({said: None for each in outlines for said in self._look_at(each, names)})

    def _look_at(self, outline: Outline, names: Iterable[str]) -> Iterator[str]:
        path, waiting = outline.path, waiting_topics(outline, names)
        if waiting and outline.is_automatic:
            discover(outline, self._settings).write()
        elif waiting:
            more = len(waiting) - _MOST_NAMED
            shown = ", ".join(waiting[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
            remedy = f"Next: {discover_command(path)}"
            yield f"{path.name}: no stream yet for {shown}. {remedy}"


def discover_automatically(declared: Iterable[DeclaredStream], settings: Settings) -> None:
    """Write down what is new of those files that say `discover: auto`.

    Raises:
        DependencyError: Kafka or the schema registry does not answer.
    """
    for outline in _outlines_of(declared):
        if outline.is_automatic:
            discover(outline, settings).write()


def _outlines_of(declared: Iterable[DeclaredStream]) -> Iterator[Outline]:
    """Yield the sound files among those of some streams that need what was found."""
    for path in sorted({each.path for each in declared if not each.spec or has_topics(each.path)}):
        with suppress(InvalidSpecError):
            yield from read_outlines(path)


class _UnknownSchemaError(Exception):
    """Nothing tells what the records of a topic look like."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Described:
    """The columns of a topic by one schema.

    Attributes:
        origin: Which it is, for people.
        record: Full name of the record type; empty where it has none.
    """

    types: Types
    origin: str
    record: str = ""


def _with_columns(outline: Outline, topic: FoundTopic, settings: Settings) -> FoundTopic:
    source = outline.source
    if source is None:
        return topic
    of = _of_registry if source.kind == "registry" else _of_records
    schemas, keys = of(outline, source, topic.name, settings)
    ddl, left_out = "" if source.version else topic.schema, dict[str, str]()
    sink, fills_variants = outline.declared.sink.name, outline.declared.format.fills_variants
    for schema in schemas:
        derived = Derived.of(schema.types, sink, fills_variants=fills_variants)
        if not derived.types:
            why = "; ".join(f"{name}: {what}" for name, what in derived.left_out.items())
            raise _UnknownSchemaError(
                f"{schema.origin} gives no column ({why or 'it has no fields'})"
            )
        ddl, left_out = _united(ddl, derived.types), {**left_out, **derived.left_out}
    return replace(
        topic,
        schema=ddl,
        keys=tuple(keys) or topic.keys,
        record=schemas[-1].record if outline.table else "",
        origin="; ".join(schema.origin for schema in schemas),
        left_out=left_out,
    )


def _united(ddl: str, types: Mapping[str, Any]) -> str:
    return as_ddl(united(parse_columns(ddl) if ddl else (), types))


def _of_registry(
    outline: Outline, source: SchemaSource, topic: str, settings: Settings
) -> tuple[Sequence[_Described], Sequence[str]]:
    """Return the newest schema of each record type, and the names in the key's schema."""
    registry = registry_of(settings)
    versions = partial(registry.versions, number=source.version)
    # As the serializers of each name them.
    usual = topic if settings.in_glue else f"{topic}-value"
    of = {record: _subjects(source, topic, record, usual) for record in outline.records or ("",)}
    described = [_registered(outline, record, of[record], versions) for record in of]
    if not any(described):
        subjects = dict.fromkeys(subject for each in of.values() for subject in each)
        of_version = f"version {source.version} of " if source.version else ""
        of_records = f" with a schema of {' or '.join(of)}" if outline.records else ""
        raise _UnknownSchemaError(
            f"the schema registry has no {of_version}subject {' or '.join(subjects)}{of_records}; "
            "name it by `schema: {registry: {subject: …}}`"
        )
    names: Sequence[str] = ()
    for key in islice(registry.versions(f"{topic}-key"), 1):
        with suppress(BadBytesError):
            names = key_names(protobuf.prepared(key))
    return [each for each in described if each is not None], names


def _subjects(source: SchemaSource, topic: str, record: str, usual: str) -> tuple[str, ...]:
    """Return the subjects that the strategies of serializers give a record type, or any."""
    if source.subject:
        return (source.subject,)
    return (*((f"{topic}-{record}", record) if record else ()), usual)


def _registered(
    outline: Outline,
    record: str,
    subjects: Iterable[str],
    versions: Callable[[str], Iterator[WriterSchema]],
) -> _Described | None:
    """Return the newest schema of a record type, or of any, under the first subject with one."""
    format_ = outline.declared.format
    for subject in subjects:
        for schema in map(protobuf.prepared, versions(subject)):
            origin = f"subject {subject}, schema {schema.id}"
            try:
                types = column_types(schema, format_, (record,) if record else ())
                name = record or record_name(schema)
            except BadBytesError as error:
                raise _UnknownSchemaError(f"{origin}: {error}") from error
            except UNFORESEEN as error:
                # A registry may take what is no schema.
                raise _UnknownSchemaError(f"{origin}: unusable_schema: {error}") from error
            # A subject may have schemas of other record types, too.
            if types or not record:
                return _Described(types=types, origin=origin, record=name)
    return None


def _of_records(
    outline: Outline, source: SchemaSource, topic: str, settings: Settings
) -> tuple[Sequence[_Described], Sequence[str]]:
    """Return what the schemas in the newest records of a topic say, and the names in their keys."""
    try:
        sample = read_sample(topic, _SAMPLED, settings)
    except InvalidSpecError as error:
        raise _UnknownSchemaError(f"topic {topic} holds no record yet") from error
    split, types, names = ConnectJson().split, dict[str, Any](), tuple[str, ...]()
    for record in sorted(sample.records, key=lambda each: each.timestamp_micros):
        with suppress(ValueError):
            if record.value is not None:
                types |= embedded_types(split(record.value)[0])
            if record.key is not None:
                names = tuple(struct_types(split(record.key)[0]))
    origin = f"the last {counted(len(sample.records), 'record')}"
    return [_Described(types=types, origin=origin)], names


def _unwritable(outline: Outline, error: OSError) -> str:
    path = shown_path(topics_file(outline.path))
    return (
        f"{path} cannot be written: {error.strerror}. Next: run {discover_command(outline.path)} "
        "where it can, and keep the file with the declaration"
    )
