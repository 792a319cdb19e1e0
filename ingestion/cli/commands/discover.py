"""``oncelake discover`` and ``schema``: what Kafka and a registry say of a declaration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oncelake.ingestion.cli import output
from oncelake.ingestion.cli.command import AsJson, Stream
from oncelake.ingestion.cli.commands.streams import load_settings, load_stream
from oncelake.ingestion.errors import DONE, WRONG, InvalidSpecError, counted

if TYPE_CHECKING:
    from oncelake.ingestion.declaration.files.outlines import Outline
    from oncelake.ingestion.declaration.files.topics import FoundTopic
    from oncelake.ingestion.operations.discover import Discovery
    from oncelake.ingestion.settings import Settings

_ROUNDED = (
    "rounds: JSON Schema's `number` does not say how many digits there are; where each counts, "
    "write the type in `columns`, such as DECIMAL(38, 9)"
)
Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE", help="Names of files, without `.yaml`; default: all of them."),
]


def discover(
    files: Files = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what is new, and write nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write down the topics of declarations, and their columns, beside each: NAME.topics.yaml.

    For files with `schema: registry`, `schema: embedded`, or `topic_pattern` and
    `table_per_topic: true`; the others need none. Topics that are new are added, with a stream
    and a table each; columns of the newest schemas are united with those that are known. A topic
    that is gone keeps its table. Exits with 1 when no columns are known of a topic, and says why.
    """
    from oncelake.ingestion.operations.discover import discover

    settings = load_settings()
    found = [discover(outline, settings) for outline in _outlines(files, settings)]
    for each in found:
        if not dry_run:
            each.write()
        if not as_json:
            print_discovery(each, is_written=not dry_run)
    if as_json:
        output.document({"files": list(map(discovery_document, found)), "written": not dry_run})
    raise typer.Exit(WRONG if any(each.unknown for each in found) else DONE)


def show(stream: Stream, as_json: AsJson = False) -> None:
    """Show the columns of a stream, where they come from, and what got none."""
    from oncelake.ingestion.operations.discover import topics_of

    spec, settings = load_stream(stream)
    topics = topics_of(spec, settings)
    if as_json:
        columns = [
            {"name": each.name, "type": str(each.type), "nullable": each.nullable}
            for each in spec.columns
        ]
        said = [{"topic": t.name, "origin": t.origin, "left_out": t.left_out} for t in topics]
        output.document({"stream": spec.name, "columns": columns, "keys": spec.keys, "of": said})
        return
    for column in spec.columns:
        says = " (declared)" if column.name in spec.overrides or not topics else ""
        output.say(f"{column.as_ddl()}{says}")
    output.say(f"keys: {', '.join(spec.keys) or 'none'}")
    for topic in topics:
        output.say(f"{topic.name}: {topic.origin}")
        for name, why in topic.left_out.items():
            output.say(f"  {name} has no column: {why}", "yellow")


def _outlines(names: list[str] | None, settings: Settings) -> Iterator[Outline]:
    """Yield the files that need what was found; of all without names."""
    from oncelake.ingestion.declaration.files.drafts import shown_path
    from oncelake.ingestion.declaration.files.loader import outlines_in, read_outlines

    if not names:
        yield from outlines_in(settings.streams)
        return
    for name in names:
        path = settings.streams / f"{name.removesuffix('.yaml')}.yaml"
        outlines = read_outlines(path)
        if not outlines:
            raise InvalidSpecError(
                f"{shown_path(path)} names its topics and columns itself: there is nothing to "
                "discover. Next: oncelake plan"
            )
        yield from outlines


def print_discovery(found: Discovery, *, is_written: bool) -> None:
    """Print what was found for a file."""
    name = found.outline.declared.name
    verb = "" if is_written else "would be "
    output.say(f"{name}: {counted(len(found.topics), 'topic')}")
    for topic in found.added:
        output.say(f"  {topic}: {verb}added, as {found.outline.name_of(topic)}", "green")
    for topic in found.changed:
        now, before = found.topics[topic], found.before[topic]
        other = f"columns: {now.schema}"
        if now.schema == before.schema:
            other = f"keys: {', '.join(now.keys)}"
        output.say(f"  {topic}: {verb}given other {other}", "green")
    for topic in found.gone:
        output.say(f"  {topic}: is gone from Kafka; its table stays", "yellow")
    for topic, why in found.unknown.items():
        output.say(f"  {topic}: no columns are known: {why}", "bold red")
    for topic in (*found.added, *found.changed):
        for said, style in _about_columns(found, found.topics[topic]):
            output.say(f"  {topic}: {said}", style)


def _about_columns(found: Discovery, topic: FoundTopic) -> Iterator[tuple[str, str]]:
    """Yield what a person may want otherwise of the columns of a topic, and its style."""
    declared = found.outline.declared
    are_rounded = declared.format.type == "json_schema"
    for column in topic.columns:
        if column.type.contains("VARIANT"):
            yield f"{column.as_ddl()} is JSON: no other type holds it all", ""
        if are_rounded and column.type.contains("DOUBLE") and column.name not in declared.overrides:
            yield f"{column.as_ddl()} {_ROUNDED}", "yellow"
    for name, why in topic.left_out.items():
        yield f"{name} has no column: {why}", "yellow"


def discovery_document(found: Discovery) -> dict[str, Any]:
    """Return what was found for a file as a document has it."""
    return {
        "file": found.outline.path.stem,
        "table": found.outline.table or None,
        "topics": list(found.topics.values()),
        "added": found.added,
        "changed": found.changed,
        "gone": found.gone,
        "unknown": found.unknown,
    }
