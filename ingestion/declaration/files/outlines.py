"""Declarations whose topics, or columns, stand in a file beside them (``topics_file``).

What was found of a topic completes the declaration to what a person would have written of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.derived import (
    FROM_KEY,
    SchemaSource,
    adjusted,
    as_ddl,
    schema_source,
    united,
)
from oncelake.ingestion.declaration.fields import Declaration
from oncelake.ingestion.declaration.files.drafts import Draft, shown_path
from oncelake.ingestion.declaration.files.topics import (
    FoundTopic,
    discover_command,
    keeper_of,
    read_topics,
)
from oncelake.ingestion.errors import InvalidSpecError

# Fields that say that there is a stream for each topic, and which topics.
_OF_SEVERAL: Final = frozenset({"topics", "topic_pattern", "table_per_topic", "table"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Outline:
    """The written part of a declaration that needs a file of topics or columns.

    Attributes:
        draft: A file, or a table of one.
        declared: Its fields, each by itself; its `schema` is none where ``source`` gives it.
        source: What gives the columns; ``None`` where the file has them.
        table: The table of a routed file; empty of any other file.
        records: Full names of the record types that the columns are of; none where any is.
    """

    draft: Draft
    declared: Declaration
    source: SchemaSource | None
    table: str = ""
    records: tuple[str, ...] = ()

    @classmethod
    def of(cls, draft: Draft, *, table: str = "", records: tuple[str, ...] = ()) -> Outline | None:
        """Return what is written of a declaration; ``None`` of one that needs no more.

        Raises:
            InvalidSpecError: a field is wrong.
        """
        content = draft.tree.content
        is_per_topic = content.get("table_per_topic") is True and "topic_pattern" in content
        try:
            source = schema_source(content.get("schema"))
            if source is None and not is_per_topic:
                return None
            columns = {"schema": "_ STRING"} if source else {}
            declared = Declaration.model_validate({**draft.written, **columns, "name": draft.name})
        except ValidationError as error:
            raise draft.problems(error) from None
        if table and source and source.kind == "embedded":
            problem = "nothing tells which schemas are of this table; write the columns"
            raise draft.problem(("schema",), problem)
        records = declared.record or records
        return cls(draft=draft, declared=declared, source=source, table=table, records=records)

    @property
    def path(self) -> Path:
        """The file."""
        return self.draft.path

    @property
    def is_automatic(self) -> bool:
        """Tell whether whoever meets a new topic writes it down."""
        return self.declared.discover == "auto" and keeper_of(self.path) is None

    @property
    def takes_keys(self) -> bool:
        """Tell whether the schema of the Kafka keys names the key columns."""
        declared = self.declared
        is_by_default = declared.format.type == "debezium" and declared.write_mode.has_keys
        says = declared.keys == (FROM_KEY,)
        return self.source is not None and (says or (is_by_default and not declared.keys))

    def matches(self, topic: str) -> bool:
        """Tell whether a topic belongs to it."""
        declared = self.declared
        if declared.topic_pattern is not None:
            return re.fullmatch(declared.topic_pattern, topic) is not None
        return topic in (declared.topic, *declared.topics)

    def name_of(self, topic: str) -> str:
        """Return the name of the stream of a topic; it may be none that is allowed."""
        declared = self.declared
        if not declared.table_per_topic:
            return declared.name
        match = re.fullmatch(declared.topic_pattern or "", topic)
        groups = [each or "" for each in match.groups()] if match else []
        if declared.table is None:
            return stream_name(declared.name, *(groups or [topic]))
        numbered = {str(number): each for number, each in enumerate(groups, 1)}
        filled = re.sub(r"\{(\d+)\}", lambda at: numbered.get(at[1], at[0]), declared.table)
        return stream_name(filled)

    def found(self) -> dict[str, FoundTopic]:
        """Return what was found of its topics, by name.

        Raises:
            InvalidSpecError: the file that has it is not as it was written.
        """
        return {
            each.name: each
            for each in read_topics(self.path)
            if each.table == self.table and self.matches(each.name)
        }

    def drafts(self) -> list[Draft]:
        """Return the stream of all topics that were found, or one for each.

        Raises:
            InvalidSpecError: none was, of a file that is not routed.
        """
        topics, draft = [*self.found().values()], replace(self.draft, stands_alone=True)
        if not topics:
            unknown = InvalidSpecError(
                f"{shown_path(self.path)}: what it reads is not known yet. Next: "
                f"{discover_command(self.path)}, which asks Kafka"
            )
            if not self.table:
                raise unknown
            return [replace(draft, error=unknown)]
        if not self.declared.table_per_topic:
            return [self._completed(draft, topics)]
        return [
            self._completed(of_topic(draft, self.name_of(topic.name), topic.name), [topic])
            for topic in topics
        ]

    def _completed(self, draft: Draft, topics: Sequence[FoundTopic]) -> Draft:
        """Return what a file would say of these topics if it had their columns itself."""
        source = self.source
        if source is None:
            return draft
        records = self.records
        if self.table:
            # Not every topic has all kinds, and those of others never change a table's columns.
            topics = [topic for topic in topics if topic.schema] or topics
            records = records or tuple(topic.record for topic in topics)
        known_from = {"schema_from": {**source.model_dump(), "records": records}}
        try:
            tree = replace(draft.tree, content=self._content(draft, topics))
        except InvalidSpecError as error:
            return replace(draft, error=error)
        return replace(draft, tree=tree, given={**draft.given, **known_from})

    def _content(self, draft: Draft, topics: Sequence[FoundTopic]) -> dict[str, Any]:
        declared = self.declared
        content, columns = {**draft.tree.content, **_followed(declared)}, _columns_of(draft, topics)
        if self.takes_keys:
            content["keys"] = list(_keys_of(draft, topics[0]))
        if declared.on_new_field == "quarantine":
            content.setdefault("extra_fields", "reject")
        keys = content.get("keys", ())
        try:
            own = adjusted(
                columns,
                overrides=declared.overrides,
                exclude=declared.exclude,
                required=(keys,) if isinstance(keys, str) else keys,
            )
        except ValueError as error:
            raise draft.problem(("columns",), str(error)) from None
        return {**content, "schema": as_ddl(own)}


def of_topic(draft: Draft, name: str, topic: str) -> Draft:
    """Return what a file says of one of its topics, each of which is a stream."""
    written = draft.tree.content
    content = {field: each for field, each in written.items() if field not in _OF_SEVERAL}
    starting = content.get("starting")
    if isinstance(starting, dict) and isinstance(starting.get("offsets"), dict):
        own = {topic: starting["offsets"].get(topic, {})}
        content["starting"] = {**starting, "offsets": own}
    field = "topics" if "topics" in written else "topic_pattern"
    return draft.of(name, {**content, "topic": topic}, (field, f"topic {topic!r}"))


def stream_name(*parts: str) -> str:
    """Return the name of the stream of a topic, made of parts of the topic's."""
    return re.sub(r"[^a-z0-9]+", "_", "_".join(parts).lower()).strip("_")


def _followed(declared: Declaration) -> dict[str, Any]:
    """Return what a newer schema does, in full."""
    evolves = declared.schema_change == "evolve"
    on_new = declared.on_new_field or ("evolve" if evolves else "ignore")
    on_wider = declared.on_wider_type or ("evolve" if evolves else "quarantine")
    is_evolving = "evolve" in (on_new, on_wider)
    schema_change = "evolve" if is_evolving else declared.schema_change
    return {"on_new_field": on_new, "on_wider_type": on_wider, "schema_change": schema_change}


def _columns_of(draft: Draft, topics: Sequence[FoundTopic]) -> tuple[DeclaredColumn, ...]:
    """Return the columns that hold the records of all these topics."""
    columns: tuple[DeclaredColumn, ...] = ()
    for topic in topics:
        if not topic.schema:
            problem = f"no columns are known of topic {topic.name!r}"
            remedy = f"Next: {discover_command(draft.path)}, once it holds records"
            raise draft.problem(("schema",), f"{problem}. {remedy}")
        columns = united(columns, {each.name: each.type for each in topic.columns})
    return columns


def _keys_of(draft: Draft, topic: FoundTopic) -> Sequence[str]:
    if not topic.keys:
        problem = f"the Kafka keys of topic {topic.name!r} name no columns"
        raise draft.problem(("keys",), f"{problem}; write for example `keys: [id]`")
    return topic.keys
