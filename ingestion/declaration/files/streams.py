"""The streams of one file: one, or several by its tables or its topics.

What must stay true: no two streams share a name or a table, whatever file they are of, and the
routes of a file's tables know of one another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError

from oncelake.ingestion.declaration.files.drafts import Draft
from oncelake.ingestion.declaration.files.outlines import Outline, of_topic, stream_name
from oncelake.ingestion.declaration.names import name_problem
from oncelake.ingestion.declaration.routes import BY_SCHEMA, HEADER, OF_THE_FILE, RoutedFile
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import InvalidSpecError

Outcome = StreamSpec | InvalidSpecError
Part = tuple[Draft, Outline | None] | InvalidSpecError

_WAYS_OUT: Final = {
    "tables": "call one otherwise",
    "topics": "give it a file of its own, under another name",
    "topic_pattern": "say by `table`, of the groups of `topic_pattern`, what its name is",
}


def streams_of(file: Draft, taken: Mapping[str, str]) -> dict[str, Outcome]:
    """Return the streams of a file, or what is wrong with one, by name.

    Args:
        file: As it is read.
        taken: The files of the streams that others declare, by name.

    Raises:
        InvalidSpecError: the file is broken, and so are all of its streams.
    """
    drafts, routed = drafts_of(file), _routed_file(file)
    streams = [_outcome(draft) for draft in drafts]
    clashes = [*_clashes(drafts, taken), *_shared_tables(file, streams)]
    if routed is not None:
        sound = (each for each in streams if isinstance(each, StreamSpec))
        routes = routed.routes(file.name, sound)
        streams = [
            _outcome(replace(each, given={**each.given, "route": routes[each.name]}))
            for each in drafts
        ]
    outcomes = [*zip(drafts, streams, strict=True)]
    wrong = [
        each
        for draft, each in outcomes
        if isinstance(each, InvalidSpecError) and not draft.stands_alone
    ]
    if clashes or wrong:
        raise _joined([*clashes, *wrong])
    return {draft.name: each for draft, each in outcomes}


def drafts_of(file: Draft) -> list[Draft]:
    """Return what a file says of each of its streams.

    Raises:
        InvalidSpecError: that cannot be told.
    """
    return [
        draft
        for part, outline in _parts(file)
        for draft in (outline.drafts() if outline else _per_topic(part))
    ]


def outlines_of(file: Draft) -> list[Outline]:
    """Return the parts of a file whose topics, or columns, stand in a file beside it.

    Raises:
        InvalidSpecError: one is broken.
    """
    return [outline for _, outline in _parts(file) if outline is not None]


def _parts(file: Draft) -> list[tuple[Draft, Outline | None]]:
    """Return what declares each table of a routed file, or the file."""
    routed = _routed_file(file)
    if routed is None:
        return [(file, Outline.of(file))]
    declared = routed.declarations(file.tree.content)
    parts = [_part(file, table, content, routed) for table, content in declared]
    if len(sound := [part for part in parts if isinstance(part, tuple)]) < len(parts):
        raise _joined(_mistakes(parts))
    return sound


def _mistakes(parts: Iterable[Part]) -> Iterator[object]:
    """Yield what is wrong with tables, as far as their columns are known."""
    for part in parts:
        yield _outcome(part[0]) if isinstance(part, tuple) and part[1] is None else part


def _part(file: Draft, table: str, content: dict[str, Any], routed: RoutedFile) -> Part:
    draft = _of_table(file, table, content)
    routes = map(str, routed.routes_of(table) if routed.route_by == BY_SCHEMA else ())
    try:
        return draft, Outline.of(draft, table=table, records=tuple(routes))
    except InvalidSpecError as error:
        return error


def _routed_file(file: Draft) -> RoutedFile | None:
    content = file.tree.content
    if {"tables", "route_by"}.isdisjoint(content):
        return None
    if content.get("table_per_topic"):
        problem = "a file has tables by topic, or by route; remove one of them"
        raise file.problem(("table_per_topic",), problem)
    fields = {key: content[key] for key in RoutedFile.model_fields if key in content}
    try:
        return RoutedFile.model_validate(fields)
    except ValidationError as error:
        wrong = file.problems(error)
    # Whatever the routes are, what is wrong with a table is told at once.
    tables = fields.get("tables")
    sound = {
        table: {name: each for name, each in own.items() if name not in OF_THE_FILE}
        for table, own in (tables.items() if isinstance(tables, dict) else ())
        if isinstance(own, dict) and not name_problem(f"t_{table}")
    }
    routed = RoutedFile.model_construct(route_by=HEADER, tables=sound)
    parts = (_part(file, *each, routed) for each in routed.declarations(content))
    raise _joined([wrong, *_mistakes(parts)])


def _of_table(file: Draft, table: str, content: dict[str, Any]) -> Draft:
    """Return what declares one table, with the lines of its own fields and of the file's."""
    at, lines = ("tables", table), file.tree.lines
    own = {path[2:]: line for path, line in lines.items() if path[:2] == at}
    shared = {p: n for p, n in lines.items() if p[:1] not in {path[:1] for path in own}}
    draft = file.of(f"{file.name}_{table}", content, ("tables", f"table {table!r}"))
    return replace(draft, tree=replace(draft.tree, lines={**shared, **own}))


def _per_topic(draft: Draft) -> list[Draft]:
    """Return what declares each topic of a file that lists them; of any other, the file."""
    if draft.tree.content.get("table_per_topic") is not True:
        return [draft]
    names = {topic: stream_name(draft.name, topic) for topic in draft.spec().topics}
    return [of_topic(draft, name, topic) for topic, name in names.items()]


def _outcome(draft: Draft) -> Outcome:
    try:
        return draft.spec()
    except InvalidSpecError as error:
        return error


def _joined(outcomes: Iterable[object]) -> InvalidSpecError:
    """Return the errors that are among these as one, with each of their lines once."""
    errors = (each for each in outcomes if isinstance(each, InvalidSpecError))
    lines = dict.fromkeys(line for error in errors for line in str(error).splitlines())
    return InvalidSpecError("\n".join(lines))


def _clashes(drafts: Iterable[Draft], taken: Mapping[str, str]) -> Iterator[InvalidSpecError]:
    """Yield what is wrong with names of several streams: not allowed, or another's already."""
    parts: dict[str, str] = {}
    for draft in drafts:
        name, (field, part) = draft.name, draft.part
        problem = name_problem(name) if part else None
        why = f": {problem}" if problem else ""
        if other := parts.get(name) or taken.get(name):
            why = f", and so is {other}; {_WAYS_OUT[field]}"
        if why:
            yield draft.problem((field,), f"{part} would be the stream {name!r}{why}")
        parts[name] = part


def _shared_tables(file: Draft, streams: Iterable[Outcome]) -> Iterator[InvalidSpecError]:
    """Yield which two streams of a file have one table, or one name of it in a catalog."""
    tables: dict[tuple[str, str], str] = {}
    for spec in (each for each in streams if isinstance(each, StreamSpec)):
        places = [(spec.sink.name, spec.sink.table_of(spec.name))]
        if catalog := spec.sink.catalog:
            places.append((catalog.kind, catalog.name_of(spec.name).lower()))
        for place in places:
            other = tables.setdefault(place, spec.name)
            if other != spec.name:
                problem = f"{other} and {spec.name} would share {place[1]}; give each its own"
                yield file.problem(("sink",), problem)
