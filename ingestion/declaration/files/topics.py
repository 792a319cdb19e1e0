"""The topics that were found for a declaration, and their columns: ``shop.topics.yaml``.

It lies beside ``shop.yaml``, is written by ``oncelake discover`` and by runs that meet a newer
schema, and belongs into version control: a declaration is read with it, and without Kafka. Each
topic is one line, or one for each table that it fills, so that a change shows as one, and a
thousand of them are read at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_columns
from oncelake.ingestion.errors import InvalidSpecError

SUFFIX: Final = ".topics.yaml"
# In a folder of declarations whose topics are kept elsewhere: the command that finds them anew.
KEPT_BY: Final = ".topics_kept_by"
_HEAD: Final = """\
# Written by `oncelake discover {name}`: the topics of {name}.yaml, and their columns. Keep it in
# version control with that file; it is read instead of Kafka and the schema registry.
topics:
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundTopic:
    """One topic that belongs to a declaration.

    Attributes:
        name: The topic.
        id: Kafka's id of it, which another topic of that name does not have; empty where Kafka
            lists the topic, and does not describe it.
        first_seen: When it was first found, in ISO format.
        table: The table of a routed file that the columns are of; empty of any other file.
        is_gone: Whether Kafka has it no longer; its table stays.
        schema: The columns that its schemas give, as DDL; empty where none are known.
        keys: The columns that the schema of its Kafka keys names.
        record: Full name of the record type that gave the columns, of the last where several did.
        origin: Which schemas gave the columns, for people.
        left_out: Why a field has no column, by its name.
    """

    name: str
    id: str = ""
    first_seen: str
    table: str = ""
    is_gone: bool = False
    schema: str = ""
    keys: tuple[str, ...] = ()
    record: str = ""
    origin: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, line: str) -> FoundTopic:
        """Read one line of a file; raise ``ValueError`` if it is not one.

        A newer version may say more.
        """
        values = json.loads(line.removeprefix("- "))
        try:
            known = {name: values[name] for name in cls.__slots__ if name in values}
            return cls(**{**known, "keys": tuple(values.get("keys", ()))})
        except (TypeError, AttributeError) as error:
            raise ValueError(str(error)) from None

    @property
    def columns(self) -> tuple[DeclaredColumn, ...]:
        """The columns that its schemas give; none where the file has them, or nobody knows any."""
        return parse_columns(self.schema) if self.schema else ()

    def line(self) -> str:
        """Write it as an item of a list; what says nothing is left out."""
        said = {name: value for name, value in asdict(self).items() if value}
        return f"- {json.dumps(said, ensure_ascii=False)}\n"


def topics_file(declaration: Path) -> Path:
    """Return the file of the topics of a declaration."""
    return declaration.with_suffix(SUFFIX)


def keeper_of(declaration: Path) -> str | None:
    """Return the command by which somebody else keeps the topics of a declaration."""
    path = declaration.with_name(KEPT_BY)
    return path.read_text("utf-8") if path.exists() else None


def discover_command(declaration: Path) -> str:
    """Return the command that finds the topics of a declaration, and their columns."""
    return keeper_of(declaration) or f"oncelake discover {declaration.stem}"


def has_topics(declaration: Path) -> bool:
    """Tell whether topics were found for a declaration."""
    return topics_file(declaration).exists()


def read_topics(declaration: Path) -> list[FoundTopic]:
    """Return the topics that were found for a declaration; none without a file.

    Raises:
        InvalidSpecError: the file is not as it was written.
    """
    path = topics_file(declaration)
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSpecError(f"{path.name} cannot be read: {error}") from error
    topics = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("- "):
            try:
                topics.append(FoundTopic.read(line))
            except ValueError as error:
                remedy = f"restore it, or delete it and run {discover_command(declaration)}"
                if keeper_of(declaration):
                    remedy += "; if it is of the component's state, name another key in defs_state"
                problem = f"{path.name}:{number}: not as it was written: {error}"
                raise InvalidSpecError(f"{problem}. Next: {remedy}") from None
    return topics


def write_topics(declaration: Path, topics: Iterable[FoundTopic], *, table: str = "") -> None:
    """Write the file whole, or not at all, where anything is new.

    Args:
        topics: All of a declaration, or of a table; those of other tables stay.
        table: The table of a routed file.

    Raises:
        OSError: the folder cannot be written.
    """
    path, known = topics_file(declaration), read_topics(declaration)
    kept = (each for each in known if table and each.table not in ("", table))
    found = sorted((*topics, *kept), key=lambda topic: (topic.name, topic.table))
    if found == known:
        return
    lines = [_HEAD.format(name=declaration.stem), *(topic.line() for topic in found)]
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text("".join(lines), "utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
