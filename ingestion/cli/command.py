"""The outermost line of every command: errors become one line and an exit code here."""

from __future__ import annotations

import secrets
import time
from typing import Any

import typer
from typer.core import TyperCommand

from ingestion.cli.output import document, print_failure
from ingestion.operations.failure import Failure


class OncelakeCommand(TyperCommand):
    """A command whose errors are told, not thrown: in red, and with ``--json`` as a document."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises:
            typer.Exit: always when it failed, with the code of the contract.
        """
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except Exception as error:  # noqa: BLE001 (beyond this line there is only a shell)
            named = ctx.params.get("stream")
            failure = Failure.of(error, stream=named, debug=is_debugging(ctx))
            print_failure(failure)
            if ctx.params.get("as_json"):
                document(failure.document())
            raise typer.Exit(failure.exit_code) from None


def is_debugging(ctx: typer.Context) -> bool:
    """Tell whether tracebacks were asked for."""
    return bool(ctx.find_root().params.get("debug"))


def new_run_id() -> str:
    """Name a run after its time, short and unique, such as ``cli-20261121T101500-4f2a``."""
    return f"cli-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
