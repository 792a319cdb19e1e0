"""The declared streams: the files of one folder.

A broken file never takes another down: it is listed with its error, and the caller that wanted all
of them decides what to do about it.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_columns
from oncelake.ingestion.declaration.derived import (
    FROM_KEY,
    SchemaSource,
    adjusted,
    as_ddl,
    schema_source,
    united,
)
from oncelake.ingestion.declaration.fields import Declaration
from oncelake.ingestion.declaration.messages import Problem, problems_in
from oncelake.ingestion.declaration.names import name_problem, nearest_allowed, suggest
from oncelake.ingestion.declaration.routes import RoutedFile
from oncelake.ingestion.declaration.sink_rules import sink_violations
from oncelake.ingestion.declaration.sinks import SinkSpec
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.topics_file import SUFFIX, FoundTopic, read_topics
from oncelake.ingestion.declaration.yaml_reader import BadYamlError, YamlTree, read_tree
from oncelake.ingestion.errors import BadFieldError, InvalidSpecError
from oncelake.ingestion.settings import project_root

# The fields that decide what the others may say, and those that a field rests on, if not on these.
_SHAPE: Final = frozenset({"schema", "mode", "keys", "sequence_by"})
_OF_VALUE: Final = frozenset({"schema", "value_schema", "explode"})
_OF_TABLE: Final = _SHAPE | {"aggregates", "window", "explode", "deletes", "extra_fields"}
_RESTS_ON: Final = {
    "topic": frozenset({"topics", "topic_pattern"}),
    "topics": frozenset(),
    "topic_pattern": frozenset(),
    "table_per_topic": frozenset({"topics"}),
    "starting": frozenset({"topic_pattern"}),
    "quarantine_rate": frozenset(),
    "keys": frozenset({"schema", "mode"}),
    "sequence_by": frozenset({"schema", "mode"}),
    "where": _OF_VALUE,
    "select": _OF_VALUE | {"transform"},
    "apply_as_deletes": frozenset({"schema", "mode"}),
    "expectations": _OF_TABLE,
    "maintenance": _OF_TABLE,
}
# Stands for an expectation that is wrong, so that the others keep their numbers.
_HARMLESS: Final = {"type": "expect_table_row_count_to_be_between", "min_value": 0}
# Fields of a stream that follow from the file, and what to do about them in it.
_NOT_WRITTEN: Final = {
    "name": "the file's name is the stream's; remove it",
    "schema_from": "unknown key; write `schema: registry`, or `schema: embedded`",
    "route": "unknown key; did you mean `route_by`, beside `tables`?",
}
_MAX_BYTES: Final = 1_000_000
_AT_LEAST: Final = """write at least
    topic: {name}
    schema: id BIGINT NOT NULL, name STRING
    keys: [id]"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outline:
    """A file whose topics, or columns, stand in another beside it (``topics_file``).

    Attributes:
        declared: Its fields, each by itself; its `schema` is none where ``source`` gives it.
        source: What gives the columns; ``None`` where the file has them.
    """

    path: Path
    tree: YamlTree
    declared: Declaration
    source: SchemaSource | None

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
            return _stream_name(declared.name, *(groups or [topic]))
        numbered = {str(number): each for number, each in enumerate(groups, 1)}
        filled = re.sub(r"\{(\d+)\}", lambda at: numbered.get(at[1], at[0]), declared.table)
        return _stream_name(filled)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredStream:
    """One file of the streams' folder: a stream, or what is wrong with it.

    The name is one like the file's, and unique, where the file's own is not allowed.
    """

    name: str
    path: Path
    spec: StreamSpec | None
    error: InvalidSpecError | None

    @property
    def sink(self) -> SinkSpec | None:
        """What keeps its rows; ``None`` of a broken file."""
        return self.spec.sink if self.spec else None

    def require_spec(self) -> StreamSpec:
        """Return the stream.

        Raises:
            InvalidSpecError: the file is broken.
        """
        if self.spec is None:
            raise self.error or InvalidSpecError(str(self.path))
        return self.spec


def load_streams(folder: Path) -> tuple[DeclaredStream, ...]:
    """Read every declaration of a folder, the broken ones too; none when there is no folder.

    Raises:
        InvalidSpecError: ``folder`` is something else than a folder.
    """
    files = _files_in(folder)
    taken = {path.stem for path in files if _file_name_problem(path) is None}
    streams = []
    for path in files:
        is_named_well = _file_name_problem(path) is None
        name = path.stem if is_named_well else nearest_allowed(path.stem, taken)
        taken.add(name)
        streams += _streams_of(path, name, taken - {name})
    return tuple(sorted(streams, key=lambda stream: stream.name))


class StreamFolder:
    """The declarations of a folder, read again when a file has come, gone or changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: object = None
        self._declared: tuple[DeclaredStream, ...] = ()

    def read(self) -> tuple[DeclaredStream, ...]:
        """Return what is declared now."""
        stamp = sorted(filter(None, map(_stamp_of, self._path.glob("*"))))
        if stamp != self._stamp:
            self._declared, self._stamp = load_streams(self._path), stamp
        return self._declared


def find_stream(folder: Path, name: str) -> StreamSpec:
    """Read the declaration of one stream; the other files may be broken.

    Raises:
        InvalidSpecError: there is no such stream, or its file is broken.
    """
    by_name = {stream.name: stream for stream in load_streams(folder)}
    if name not in by_name:
        for stream in by_name.values():
            # A stream of a file of several is not known while that is broken.
            if stream.error and name.startswith(f"{stream.path.stem}_"):
                raise stream.error
        how = f"declare it in {shown_path(folder)}/<stream>.yaml"
        hint = suggest(name, by_name) if by_name else how
        raise InvalidSpecError(f"no stream is called {name!r} in {shown_path(folder)}; {hint}")
    return by_name[name].require_spec()


def load_stream(path: Path) -> StreamSpec:
    """Read one declaration, which has its topics and columns itself.

    Raises:
        InvalidSpecError: the file is broken; one line for each problem, with file, line, field
            and what to write instead.
    """
    return _spec_of(path, _tree_of(path), path.stem)


def read_outline(path: Path) -> Outline | None:
    """Read a declaration whose topics, or columns, stand in a file beside it; else ``None``.

    Raises:
        InvalidSpecError: the file is broken.
    """
    return _outline_of(path, _tree_of(path))


def outlines_in(folder: Path) -> list[Outline]:
    """Return those of the files of a folder that are sound."""
    outlines = []
    for path in _files_in(folder):
        with suppress(InvalidSpecError):
            outlines.append(read_outline(path))
    return [outline for outline in outlines if outline is not None]


def reload_stream(declared: DeclaredStream) -> DeclaredStream | None:
    """Read a stream's file again; ``None`` when it declares that stream no longer."""
    path = declared.path
    if not path.exists():
        return None
    others = {other.stem for other in _files_in(path.parent)} - {path.stem}
    streams = _streams_of(path, path.stem, others)
    return next((stream for stream in streams if stream.name == declared.name), None)


@contextmanager
def locating_problems(folder: Path) -> Iterator[None]:
    """Give a problem with a field, which Spark has found, the file and line of that field.

    Raises:
        InvalidSpecError: instead of a ``BadFieldError``, where the stream's file is there.
    """
    try:
        yield
    except BadFieldError as error:
        files = (each.path for each in load_streams(folder) if each.name == error.stream)
        path = next(files, None)
        if path is None:
            raise
        try:
            line = read_tree(_text_of(path)).line_of(error.field)
        except BadYamlError:
            line = 1
        text = f"{_dotted(error.field)}: {error.problem}"
        raise _invalid(path, [(line, text)]) from error


def shown_path(path: Path) -> str:
    """Write a path as people type it: from the project root, when it lies inside."""
    absolute, root = path.absolute(), project_root()
    return str(absolute.relative_to(root) if absolute.is_relative_to(root) else absolute)


def _stamp_of(file: Path) -> tuple[object, ...]:
    try:
        at = file.stat()
    except OSError:
        return ()
    return file.name, at.st_ino, at.st_mtime_ns, at.st_size


def _files_in(folder: Path) -> list[Path]:
    """List the declarations, `.yml` before `.yaml` so that the right one of a pair wins."""
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise InvalidSpecError(f"{shown_path(folder)} is not a folder; correct ONCELAKE_STREAMS")
    files = (path for path in folder.iterdir() if path.suffix.lower() in {".yaml", ".yml"})
    visible = (p for p in files if not p.name.startswith(".") and not p.name.endswith(SUFFIX))
    return sorted(visible, key=lambda path: (path.stem, path.suffix == ".yaml", path.name))


def _file_name_problem(path: Path) -> str | None:
    if path.suffix != ".yaml":
        return f"a stream's file ends in .yaml; rename it to {path.stem}.yaml"
    if problem := name_problem(path.stem):
        return f"{problem}; rename the file, for example to {nearest_allowed(path.stem)}.yaml"
    return None


def _streams_of(path: Path, name: str, others: set[str]) -> list[DeclaredStream]:
    """Read one file: a stream, one for each of its topics, or what is wrong with it."""
    try:
        tree = _tree_of(path)
        if (outline := _outline_of(path, tree)) is not None:
            return _found_streams(outline, others)
        specs = _specs_in(path, tree, others)
    except InvalidSpecError as error:
        return [DeclaredStream(name=name, path=path, spec=None, error=error)]
    return [DeclaredStream(name=spec.name, path=path, spec=spec, error=None) for spec in specs]


def _tree_of(path: Path) -> YamlTree:
    if problem := _file_name_problem(path):
        raise _invalid(path, [(1, problem)])
    try:
        tree = read_tree(_text_of(path))
    except BadYamlError as error:
        raise _invalid(path, [(error.line, error.reason)]) from error
    if not isinstance(tree.content, dict):
        is_empty = tree.content is None
        problem = "the file is empty" if is_empty else "a declaration is a map of keys to values"
        raise _invalid(path, [(1, f"{problem}; {_AT_LEAST.format(name=path.stem)}")])
    return tree


def _outline_of(path: Path, tree: YamlTree) -> Outline | None:
    content = tree.content
    if _is_routed(tree):
        return None
    is_per_topic = content.get("table_per_topic") is True and "topic_pattern" in content
    try:
        source = schema_source(content.get("schema"))
        if source is None and not is_per_topic:
            return None
        columns = {"schema": "_ STRING"} if source else {}
        written = {name: each for name, each in content.items() if name not in _NOT_WRITTEN}
        declared = Declaration.model_validate({**written, **columns, "name": path.stem})
    except ValidationError as error:
        raise _invalid(path, _lines_of(problems_in(error), tree)) from None
    return Outline(path=path, tree=tree, declared=declared, source=source)


def _found_streams(outline: Outline, taken: set[str]) -> list[DeclaredStream]:
    """Return a stream of all topics that were found for a file, or one for each."""
    path, is_per_topic = outline.path, outline.declared.table_per_topic
    topics = [each for name, each in read_topics(path).items() if outline.matches(name)]
    if not topics:
        raise InvalidSpecError(
            f"{shown_path(path)}: what it reads is not known yet. Next: oncelake discover "
            f"{path.stem}, which asks Kafka and writes {path.stem}{SUFFIX}"
        )
    if not is_per_topic:
        return [_found_stream(outline, path.stem, topics)]
    remedy = "say by `table`, of the groups of `topic_pattern`, what its name is"
    names = {topic.name: outline.name_of(topic.name) for topic in topics}
    _refuse_clash(shown_path(path), names, taken, remedy=remedy)
    return [_found_stream(outline, names[topic.name], [topic]) for topic in topics]


def _refuse_clash(
    where: str, names: Mapping[str, str], taken: Collection[str], *, remedy: str
) -> None:
    """Refuse names of streams, by topic, that are not allowed, or are another's already.

    Args:
        where: The file, and the field where there is one.
        names: The name of the stream of each topic.
        taken: Names that other files have.
        remedy: What to do about two of one name.
    """
    topics: dict[str, str] = {}
    for topic, name in names.items():
        subject = f"{where}: topic {topic!r} would be the stream {name!r}"
        if problem := name_problem(name):
            raise InvalidSpecError(f"{subject}: {problem}")
        if name in topics or name in taken:
            other = f"topic {topics[name]!r}" if name in topics else f"{name}.yaml"
            raise InvalidSpecError(f"{subject}, and so is {other}; {remedy}")
        topics[name] = topic


def _found_stream(outline: Outline, name: str, topics: Sequence[FoundTopic]) -> DeclaredStream:
    try:
        tree = replace(outline.tree, content=_found_content(outline, topics))
        source = outline.source and outline.source.model_dump()
        spec = _spec_of(outline.path, tree, name, given={"schema_from": source})
    except InvalidSpecError as error:
        return DeclaredStream(name=name, path=outline.path, spec=None, error=error)
    return DeclaredStream(name=name, path=outline.path, spec=spec, error=None)


def _found_content(outline: Outline, topics: Sequence[FoundTopic]) -> dict[str, Any]:
    """Return what a file would say of these topics if it had them, and their columns, itself."""
    content, declared, source = dict(outline.tree.content), outline.declared, outline.source
    if declared.table_per_topic:
        for field in ("topics", "topic_pattern", "table_per_topic", "table"):
            content.pop(field, None)
        content["topic"] = topics[0].name
    if source is None:
        return content
    columns = _columns_of(outline, topics)
    content |= _followed(declared)
    if outline.takes_keys:
        content["keys"] = list(_keys_of(outline, topics[0]))
    if declared.on_new_field == "quarantine":
        content.setdefault("extra_fields", "reject")
    try:
        own = adjusted(
            columns,
            overrides=declared.overrides,
            exclude=declared.exclude,
            required=_listed(content.get("keys", ())),
        )
    except ValueError as error:
        raise _invalid_at(outline, "columns", str(error)) from None
    return {**content, "schema": as_ddl(own)}


def _followed(declared: Declaration) -> dict[str, Any]:
    """Return what a newer schema does, in full."""
    evolves = declared.schema_change == "evolve"
    on_new = declared.on_new_field or ("evolve" if evolves else "ignore")
    on_wider = declared.on_wider_type or ("evolve" if evolves else "quarantine")
    is_evolving = "evolve" in (on_new, on_wider)
    schema_change = "evolve" if is_evolving else declared.schema_change
    return {
        "on_new_field": on_new,
        "on_wider_type": on_wider,
        "schema_change": schema_change,
    }


def _columns_of(outline: Outline, topics: Sequence[FoundTopic]) -> tuple[DeclaredColumn, ...]:
    """Return the columns that hold the records of all these topics."""
    columns: tuple[DeclaredColumn, ...] = ()
    for topic in topics:
        if not topic.schema:
            problem = f"no columns are known of topic {topic.name!r}"
            remedy = f"Next: oncelake discover {outline.path.stem}, once it holds records"
            raise _invalid_at(outline, "schema", f"{problem}. {remedy}")
        columns = united(columns, {each.name: each.type for each in parse_columns(topic.schema)})
    return columns


def _keys_of(outline: Outline, topic: FoundTopic) -> Sequence[str]:
    if not topic.keys:
        problem = f"the Kafka keys of topic {topic.name!r} name no columns"
        raise _invalid_at(outline, "keys", f"{problem}; write for example `keys: [id]`")
    return topic.keys


def _listed(value: Any) -> Sequence[str]:
    return (value,) if isinstance(value, str) else value


def _invalid_at(outline: Outline, field: str, problem: str) -> InvalidSpecError:
    return _invalid(outline.path, [(outline.tree.line_of((field,)), f"{field}: {problem}")])


def _is_routed(tree: YamlTree) -> bool:
    return not {"tables", "route_by"}.isdisjoint(tree.content)


def _specs_in(path: Path, tree: YamlTree, others: set[str]) -> list[StreamSpec]:
    if _is_routed(tree):
        return _one_per_table(path, tree, others)
    spec = _spec_of(path, tree, path.stem)
    return _one_per_topic(path, spec, others) if spec.table_per_topic else [spec]


def _one_per_table(path: Path, tree: YamlTree, taken: set[str]) -> list[StreamSpec]:
    """Return a stream for each table, none under a name that another file has."""
    fields = {key: tree.content.get(key) for key in RoutedFile.model_fields if key in tree.content}
    try:
        routed = RoutedFile.model_validate(fields)
    except ValidationError as error:
        raise _invalid(path, _lines_of(problems_in(error), tree)) from None
    named = {table: f"{path.stem}_{table}" for table in routed.tables}
    trees = {
        table: _tree_of_table(tree, table, content)
        for table, content in routed.declarations(tree.content)
    }
    specs = {table: _spec_of(path, each, named[table]) for table, each in trees.items()}
    if problem := _clash_of_tables(specs.values(), taken):
        field, text = problem
        raise _invalid(path, [(tree.line_of((field,)), f"{field}: {text}")])
    policies = {table: spec.tombstone_policy for table, spec in specs.items()}
    routes = routed.routes(path.stem, policies)
    return [
        _spec_of(path, each, named[table], given={"route": routes[table]})
        for table, each in trees.items()
    ]


def _clash_of_tables(specs: Iterable[StreamSpec], taken: set[str]) -> tuple[str, str] | None:
    """Say why the tables of a file cannot stand beside one another, or beside other files."""
    places: dict[tuple[str, str], str] = {}
    for spec in specs:
        if spec.table_per_topic:
            return "table_per_topic", "a file has tables by topic, or by route; remove one of them"
        if spec.name in taken:
            return "tables", f"{spec.name}.yaml is a stream of that name; call one otherwise"
        place = spec.sink.name, spec.sink.table_of(spec.name)
        if other := places.get(place):
            return "sink", f"{other} and {spec.name} would share {place[1]}; give each its own"
        places[place] = spec.name
    return None


def _tree_of_table(tree: YamlTree, table: str, content: dict[str, Any]) -> YamlTree:
    """Return what declares one table, with the lines of its own fields and of the file's."""
    at = ("tables", table)
    own = {path[2:]: line for path, line in tree.lines.items() if path[:2] == at}
    shared = {p: n for p, n in tree.lines.items() if p[:1] not in {path[:1] for path in own}}
    return replace(tree, content=content, lines={**shared, **own})


def _one_per_topic(path: Path, spec: StreamSpec, taken: set[str]) -> list[StreamSpec]:
    """Return a stream for each topic, none under a name that another file has."""
    names = {topic: _stream_name(spec.name, topic) for topic in spec.topics}
    remedy = "give it a file of its own, under another name"
    _refuse_clash(f"{shown_path(path)}: topics", names, taken, remedy=remedy)
    streams = [_of_topic(spec, name, topic) for topic, name in names.items()]
    for stream in streams:
        for at, problem in sink_violations(stream, stream.table_columns):
            subject = f"{shown_path(path)}: {at}: topic {stream.topic!r} would be the stream "
            raise InvalidSpecError(f"{subject}{stream.name!r}: {problem}")
    return streams


def _stream_name(*parts: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", "_".join(parts).lower()).strip("_")


def _of_topic(spec: StreamSpec, name: str, topic: str) -> StreamSpec:
    starting = spec.starting
    if starting.offsets is not None:
        own = {topic: starting.offsets.get(topic, {})}
        starting = starting.model_copy(update={"offsets": own})
    changed = {"name": name, "topic": topic, "topics": (), "table_per_topic": False}
    return spec.model_copy(update={**changed, "starting": starting})


def _text_of(path: Path) -> str:
    try:
        if not path.resolve().is_relative_to(path.parent.resolve()):
            raise BadYamlError(1, "the file is a link out of its folder; put the file itself here")
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadYamlError(1, "this is not a file")
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadYamlError(1, f"the file cannot be read: {reason}") from error
    if len(content) > _MAX_BYTES:
        raise BadYamlError(1, f"the file is larger than {_MAX_BYTES:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadYamlError(line, "the text is not UTF-8; save the file as UTF-8") from error


def _spec_of(
    path: Path, tree: YamlTree, name: str, *, given: Mapping[str, Any] | None = None
) -> StreamSpec:
    """Make a stream of what a person wrote, and of fields that a person does not write."""
    content = dict(tree.content)
    mistakes = [
        (line, f"{_dotted(field)}: given twice, first in line {tree.line_of(field)}; remove one")
        for field, line in tree.repeated
    ]
    for field, problem in _NOT_WRITTEN.items():
        if content.pop(field, tree) is not tree:
            mistakes.append((tree.line_of((field,)), f"{field}: {problem}"))
    content |= given or {}
    try:
        spec = StreamSpec.model_validate({**content, "name": name})
    except ValidationError as error:
        problems = problems_in(error)
        problems += _further_problems(content, name, problems)
        mistakes += _lines_of(problems, tree)
        raise _invalid(path, mistakes) from None
    if mistakes:
        raise _invalid(path, mistakes)
    return spec


def _further_problems(
    content: Mapping[str, Any], name: str, problems: Iterable[Problem]
) -> tuple[Problem, ...]:
    """Find what is known only once the fields themselves are right, as far as they are."""
    bad = {field for problem in problems for field in problem.touches}
    good = {key: value for key, value in content.items() if key not in bad}
    parts = _good_parts(content, problems)
    try:
        StreamSpec.model_validate({"schema": "id BIGINT", **good, **parts, "name": name})
    except ValidationError as error:
        known = {problem.field for problem in problems}
        return tuple(
            problem
            for problem in problems_in(error)
            if problem.field not in known
            and not problem.touches & bad - (parts.keys() if len(problem.field) > 1 else set())
            and not any(_RESTS_ON.get(field, _SHAPE) & bad for field in problem.touches)
        )
    return ()


def _good_parts(content: Mapping[str, Any], problems: Iterable[Problem]) -> dict[str, Any]:
    """Return the items of `select` and `expectations` in which nothing is wrong, where some are."""
    bad = {problem.field[:2] for problem in problems if len(problem.field) > 1}
    parts: dict[str, Any] = {}
    if isinstance(of := content.get("select"), dict):
        parts["select"] = {key: sql for key, sql in of.items() if ("select", key) not in bad}
    if isinstance(of := content.get("expectations"), list):
        parts["expectations"] = [
            _HARMLESS if ("expectations", nth) in bad else each for nth, each in enumerate(of)
        ]
    return parts


def _lines_of(problems: Iterable[Problem], tree: YamlTree) -> list[tuple[int, str]]:
    return [(tree.line_of(one.field), _line_for(one, tree)) for one in problems]


def _line_for(problem: Problem, tree: YamlTree) -> str:
    known = () if problem.is_missing else tree.known_part(problem.field)
    return f"{_dotted(known or problem.field)}: {problem.text}"


def _dotted(field: Iterable[str | int]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in field)
    return text.removeprefix(".")


def _invalid(path: Path, problems: Iterable[tuple[int, str]]) -> InvalidSpecError:
    shown = shown_path(path)
    return InvalidSpecError("\n".join(f"{shown}:{line}: {text}" for line, text in sorted(problems)))
