"""``oncelake validate`` and ``oncelake schema``, and how every command finds a declaration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

import typer

from oncelake.ingestion.cli import output
from oncelake.ingestion.cli.command import AnyStreams, AsJson
from oncelake.ingestion.errors import DONE, USAGE, InvalidSpecError, counted

if TYPE_CHECKING:
    from oncelake.ingestion.declaration.files.loader import DeclaredStream
    from oncelake.ingestion.declaration.sinks import SinkSpec
    from oncelake.ingestion.declaration.spec import StreamSpec
    from oncelake.ingestion.settings import Settings


def load_settings() -> Settings:
    """Return the settings; they are imported late, so that help is there at once."""
    from oncelake.ingestion.settings import load_settings

    return load_settings()


def validate(streams: AnyStreams = None, as_json: AsJson = False) -> None:
    """Check the declarations, all or the named, without Spark and without Kafka.

    Each line that is wrong is printed as file:line: field: what is wrong and what to write
    instead. Exits with 2 when there is one, or no declaration at all. A notice names what is
    allowed, and probably not meant.
    """
    from oncelake.ingestion.declaration.files.drafts import shown_path
    from oncelake.ingestion.declaration.rules.notices import notices_of

    checked = chosen(streams, load_settings())
    broken = [declared for declared in checked if declared.spec is None]
    if as_json:
        output.document({"valid": not broken, "streams": list(map(_document, checked))})
    else:
        for declared in broken:
            output.say(str(declared.error), "bold red")
        for declared in checked:
            for notice in notices_of(declared.spec) if declared.spec else ():
                output.say(f"{shown_path(declared.path)}: notice: {notice}", "yellow")
        verdict = f"{len(broken)} broken" if broken else "all valid"
        output.say(f"{counted(len(checked), 'stream')}, {verdict}")
    raise typer.Exit(USAGE if broken else DONE)


def schema(ctx: typer.Context) -> None:
    """Print the JSON Schema of a declaration, for editors that complete and check YAML."""
    if ctx.invoked_subcommand is not None:
        return
    from oncelake.ingestion.declaration.spec import json_schema

    output.document(json_schema())


def chosen(names: Iterable[str] | None, settings: Settings) -> list[DeclaredStream]:
    """Return the declarations of these names, sound or broken; of all when none is named.

    The name of a file that declares several stands for all of them.

    Raises:
        InvalidSpecError: there is none of a name, or none at all: nothing to look at is not green.
    """
    from oncelake.ingestion.declaration.files.loader import find_stream, load_streams

    streams = load_streams(settings.streams)
    if not names:
        return list(streams or _refuse_none(settings))
    sound = (each for each in streams if each.spec is not None)
    if {*names} - {name for each in sound for name in (each.name, each.path.stem)}:
        from oncelake.ingestion.operations.discover import discover_automatically

        # One of them may be of a topic that nobody has written down yet.
        discover_automatically(streams, settings)
        streams = load_streams(settings.streams)
    by_name: dict[str, list[DeclaredStream]] = {}
    for declared in streams:
        for name in {declared.name, declared.path.stem}:
            by_name.setdefault(name, []).append(declared)
    for name in names:
        if name not in by_name:
            find_stream(settings.streams, name)
    return list({each.name: each for name in names for each in by_name[name]}.values())


def _refuse_none(settings: Settings) -> NoReturn:
    from oncelake.ingestion.declaration.files.drafts import shown_path

    folder = shown_path(settings.streams)
    is_there = settings.streams.exists()
    problem = f"{folder} holds no declaration" if is_there else f"there is no folder {folder}"
    raise InvalidSpecError(
        f"no stream is declared: {problem}. Next: write {folder}/<stream>.yaml, or set "
        "ONCELAKE_STREAMS to the folder that has them"
    )


def load_stream(name: str) -> tuple[StreamSpec, Settings]:
    """Return the declaration of one stream, which must be sound, and the settings."""
    from oncelake.ingestion.declaration.files.loader import find_stream

    settings = load_settings()
    return find_stream(settings.streams, name), settings


def declared_sink(name: str, settings: Settings) -> SinkSpec | None:
    """Return the sink of a stream; ``None`` if it is not declared, or its file is broken."""
    from oncelake.ingestion.declaration.files.loader import load_streams

    declared = load_streams(settings.streams)
    return next((each.sink for each in declared if each.name == name), None)


def refuse_unknown(name: str, settings: Settings, *, exists: bool) -> None:
    """Refuse a name that is not declared and, by ``exists``, has nothing on disk."""
    from oncelake.ingestion.declaration.names import name_problem

    if name_problem(name) or not exists:
        chosen([name], settings)


def _document(declared: DeclaredStream) -> dict[str, object]:
    from oncelake.ingestion.declaration.rules.notices import notices_of

    return {
        "stream": declared.name,
        "path": declared.path,
        "valid": declared.spec is not None,
        "errors": str(declared.error).splitlines() if declared.error else [],
        "notices": notices_of(declared.spec) if declared.spec else [],
    }
