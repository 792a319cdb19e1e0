"""``oncelake init``: a declaration written for a topic, and what it makes of the sample."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from oncelake.ingestion.declaration.files.drafts import shown_path
from oncelake.ingestion.declaration.files.yaml_reader import read_tree
from oncelake.ingestion.declaration.messages import printable
from oncelake.ingestion.declaration.names import name_problem, nearest_allowed
from oncelake.ingestion.declaration.rules.sinks import LONGEST_TABLE
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import InvalidSpecError, counted
from oncelake.ingestion.operations.init.decode_sample import validate_sample
from oncelake.ingestion.operations.init.propose import Proposal, propose
from oncelake.ingestion.operations.init.sample import TopicSample, read_sample
from oncelake.ingestion.settings import Settings

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_RESERVED: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
_WIDTH: Final = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Initialized:
    """A proposed declaration.

    Attributes:
        path: Where it belongs.
        text: The file's text.
        spec: What it declares.
        sample: What it was proposed from.
        records: What a run would make of each record of the sample, by Kafka's time.
    """

    path: Path
    text: str
    spec: StreamSpec
    sample: TopicSample
    records: Sequence[dict[str, Any]]

    @property
    def good(self) -> list[dict[str, Any]]:
        """The records that would be applied."""
        return [each for each in self.records if each["_disposition"] in ("row", "delete")]

    @property
    def quarantined(self) -> list[dict[str, Any]]:
        """The records that would go to quarantine."""
        return [each for each in self.records if each["_disposition"] == "quarantined"]

    @property
    def bad(self) -> list[dict[str, Any]]:
        """For each reason, the most frequent first, how many records there are, and the first."""
        reasons = Counter(row["_reason"] for row in self.quarantined)
        first = {row["_reason"]: row for row in reversed(self.quarantined)}
        place = ("topic", "partition", "offset", "detail")
        return [
            {"reason": name, "records": count, **{n: first[name][f"_{n}"] for n in place}}
            for name, count in reasons.most_common()
        ]


def write_file(path: Path, text: str) -> None:
    """Write a new file of a declaration.

    Raises:
        InvalidSpecError: there is one by now, or it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise InvalidSpecError(
            f"{shown_path(path)} cannot be written: {error.strerror}. Next: make the "
            "folder writable, or set ONCELAKE_STREAMS to another one"
        ) from error


def path_of(stream: str, settings: Settings, sink: str = "delta") -> Path:
    """Return where the file of a stream belongs; raise ``InvalidSpecError`` for a bad name."""
    if problem := name_problem(stream):
        instead = f"Next: --stream {nearest_allowed(stream)}"
        raise InvalidSpecError(f"--stream {stream}: {problem}. {instead}")
    if sink == "postgres" and (size := len(stream)) > LONGEST_TABLE:
        raise InvalidSpecError(
            f"--stream {stream}: the name of its table in PostgreSQL would have {size} bytes, and "
            f"may have {LONGEST_TABLE}. Next: --stream {stream[:LONGEST_TABLE].strip('_')}"
        )
    return settings.streams / f"{stream}.yaml"


def refuse_existing(path: Path) -> None:
    """Raise ``InvalidSpecError`` if there is such a file."""
    if path.exists():
        raise _exists(path)


def initialize(
    topic: str, path: Path, *, limit: int, settings: Settings, sink: str = "delta"
) -> Initialized:
    """Propose the declaration of a topic; nothing is written yet.

    Args:
        topic: The topic.
        path: The file to be written.
        limit: How many records are read, at most.
        settings: Where Kafka and the schema registry are.
        sink: What shall keep the rows.

    Raises:
        InvalidSpecError: the topic is empty or missing, or cannot be understood.
        DependencyError: Kafka or the schema registry does not answer.
    """
    name = path.stem
    sample = read_sample(topic, limit, settings)
    proposal = propose(name, sample, settings, sink=sink)
    # By it editors complete the file.
    has_schema = (path.parent.parent / "stream.schema.json").exists()
    text = write_text(proposal, sample, has_schema=has_schema)
    spec = StreamSpec.model_validate({**read_tree(text).content, "name": name})
    records = validate_sample(sample, spec, settings)
    return Initialized(path=path, text=text, spec=spec, sample=sample, records=records)


def write_text(proposal: Proposal, sample: TopicSample, *, has_schema: bool = False) -> str:
    """Write the proposal for a topic as YAML."""
    read, places = counted(len(sample.records), "record"), ", ".join(map(str, sample.ranges))
    text = write_yaml(
        proposal,
        f"Proposed by `oncelake init` from the last {read}: {places}.",
        "Check what the comments say; all fields: docs/streams.md",
    )
    return f"# yaml-language-server: $schema=../stream.schema.json\n{text}" if has_schema else text


def write_yaml(proposal: Proposal, *about: str) -> str:
    """Write a proposal as YAML, the reasons for each field before it."""
    lines = [line for text in about for line in _comment(text)]
    for name, notes in proposal.notes.items():
        lines += [""] if notes else []
        for note in notes:
            is_first_of_absent = name not in proposal.fields and note is notes[0]
            lines += _comment(f"{name} {note}" if is_first_of_absent else note)
        if name in proposal.fields:
            lines += _field(name, proposal.fields[name])
    return "\n".join([*lines, ""])


def _comment(text: str) -> Iterator[str]:
    """Write a sentence as comment, its first line marked where it takes more than one."""
    line = "#"
    for word in printable(text, longest=2_000).split(" "):
        if len(line) + len(word) >= _WIDTH and line != "#":
            yield line
            line = "#  "
        line += f" {word}"
    yield line


def _field(name: str, value: Any) -> Iterator[str]:
    if name in ("schema", "value_schema") and " " in value:
        yield f"{name}: |"
        yield from (f"  {line}" for line in value.splitlines())
    else:
        yield f"{name}: {_flow(value)}"


def _flow(value: Any) -> str:
    """Write a value in one line; text in quotes unless it is a plain name."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_flow(n)}: {_flow(each)}' for n, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    return json.dumps(value, ensure_ascii=False)


def _exists(path: Path) -> InvalidSpecError:
    return InvalidSpecError(
        f"{shown_path(path)} is there already, and is not overwritten. Next: edit it, or choose "
        "another name with --stream NAME; --dry-run only prints"
    )
