"""The options, run ids and error handling that all commands share."""

from __future__ import annotations

import re
import secrets
import sys
import time
from itertools import zip_longest
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from oncelake.ingestion.cli.output import document, note, print_failure
from oncelake.ingestion.errors import REFUSED, InvalidSpecError
from oncelake.ingestion.operations.failure import Failure

WATCH_EVERY = "5s"
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}

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
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed without a terminal.")]
Jobs = Annotated[
    int, typer.Option("--jobs", min=1, help="How many streams are run at once, at most.")
]


def names_in(text: str | None) -> tuple[str, ...]:
    """Read names with commas between them."""
    return tuple(filter(None, map(str.strip, (text or "").split(","))))


def read_duration(text: str | float) -> float:
    """Return the seconds of a duration, such as ``500ms``, ``5s``, ``10m`` or ``1h``."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", str(text))
    if parts is None or not float(parts[1]):
        raise typer.BadParameter(f"{text!r} is no duration; write for example 5s, 10m or 1h")
    return float(parts[1]) * _SECONDS[parts[2]]


class OncelakeCommand(TyperCommand):
    """A command whose errors are printed, not thrown: in red, and with ``--json`` as a document."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words; ``--watch`` may stand without its seconds, which Typer cannot read."""
        words = []
        for word, after in zip_longest(args, args[1:], fillvalue=""):
            is_bare = word == "--watch" and not after[:1].isdigit()
            words += [word, WATCH_EVERY] if is_bare else [word]
        return super().parse_args(ctx, words)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; one that failed ends with the code of the contract."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except Exception as error:  # noqa: BLE001 (beyond this line there is only a shell)
            stream = ctx.params.get("stream")
            failure = Failure.of(error, stream=stream, debug=is_debugging(ctx))
            print_failure(failure)
            if ctx.params.get("as_json"):
                document(failure.document())
            raise typer.Exit(failure.exit_code) from None


def confirm(question: str, *, yes: bool, refusal: str) -> None:
    """Confirm on a terminal; elsewhere the word must be given with the command.

    Raises:
        InvalidSpecError: nobody can be asked, and ``--yes`` is not there.
        Exit: the answer is no.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidSpecError(f"{refusal}. Next: add --yes to do so")
    if not typer.confirm(question, err=True):
        note("nothing was changed")
        raise typer.Exit(REFUSED)


def is_debugging(ctx: typer.Context) -> bool:
    """Tell whether tracebacks were asked for."""
    return bool(ctx.find_root().params.get("debug"))


def new_run_id() -> str:
    """Name a run after its time, short and unique, such as ``cli-20261121T101500-4f2a``."""
    return f"cli-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
