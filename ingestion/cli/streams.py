"""``oncelake validate`` and ``oncelake schema``, and how every command finds a declaration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ingestion.cli import output
from ingestion.cli.options import AnyStreams, AsJson
from ingestion.errors import DONE, USAGE

if TYPE_CHECKING:
    from ingestion.declaration.loader import DeclaredStream
    from ingestion.declaration.spec import StreamSpec
    from ingestion.settings import Settings


def validate(streams: AnyStreams = None, as_json: AsJson = False) -> None:
    """Check the declarations, all or the named, without Spark and without Kafka.

    Each line that is wrong is printed as file:line: field: what is wrong and what to write
    instead. Exits with 2 when there is one.
    """
    from ingestion.settings import load_settings

    found = chosen(streams, load_settings())
    if as_json:
        output.document(
            {"valid": not _broken(found), "streams": [_document(each) for each in found]}
        )
    else:
        for each in _broken(found):
            output.say(str(each.error), "bold red")
        output.say(_verdict(found))
    raise typer.Exit(USAGE if _broken(found) else DONE)


def schema() -> None:
    """Print the JSON Schema of a declaration, for editors that complete and check YAML."""
    from ingestion.declaration.loader import json_schema

    output.document(json_schema())


def chosen(names: list[str] | None, settings: Settings) -> list[DeclaredStream]:
    """Return the declarations of these names, or all of them when none is named.

    Raises:
        InvalidSpecError: a name is not declared; says the nearest that is.
    """
    from ingestion.declaration.loader import load_streams

    if names:
        return [declared_as(name, settings) for name in dict.fromkeys(names)]
    return list(load_streams(settings.streams))


def declared_as(name: str, settings: Settings) -> DeclaredStream:
    """Return the declaration of a name, sound or broken.

    Raises:
        InvalidSpecError: the name is not declared; says the nearest that is.
    """
    from ingestion.declaration.loader import DeclaredStream, find_stream, load_streams

    for each in load_streams(settings.streams):
        if each.name == name:
            return each
    spec = find_stream(settings.streams, name)
    return DeclaredStream(name=name, path=settings.streams, spec=spec, error=None)


def sound(declared: DeclaredStream) -> StreamSpec:
    """Return the stream that a file declares.

    Raises:
        InvalidSpecError: the file is broken.
    """
    if declared.spec is None:
        raise declared.error or AssertionError(declared)
    return declared.spec


def _broken(found: list[DeclaredStream]) -> list[DeclaredStream]:
    return [each for each in found if each.spec is None]


def _verdict(found: list[DeclaredStream]) -> str:
    broken = len(_broken(found))
    streams = output.counted(len(found), "stream")
    return f"{streams}, {broken} broken" if broken else f"{streams}, all valid"


def _document(declared: DeclaredStream) -> dict[str, object]:
    lines = str(declared.error).splitlines() if declared.error else []
    return {
        "stream": declared.name,
        "path": str(declared.path),
        "valid": declared.spec is not None,
        "errors": lines,
    }
