"""The options and arguments that several commands share, declared once."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout; progress is on stderr.")
]
Stream = Annotated[str, typer.Argument(metavar="STREAM", help="Name of a declared stream.")]
Streams = Annotated[list[str], typer.Argument(metavar="STREAM", help="Names of declared streams.")]
AnyStreams = Annotated[
    list[str] | None,
    typer.Argument(metavar="STREAM", help="Names of declared streams; default: all of them."),
]
AnyStream = Annotated[
    str | None, typer.Argument(metavar="STREAM", help="Name of a stream; default: all of them.")
]
