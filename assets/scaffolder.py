"""``dg scaffold defs oncelake.Streams``: the component's file, and streams proposed from topics."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import BaseModel, Field

from oncelake.ingestion.declaration.names import nearest_allowed
from oncelake.ingestion.errors import IngestionError
from oncelake.ingestion.settings import load_settings

if TYPE_CHECKING:
    from oncelake.ingestion.operations.init.initialize import Initialized

_SAMPLE = 1_000


class StreamsParameters(BaseModel):
    """The arguments of the command."""

    topics: str | None = Field(None, description="Kafka topics to propose streams for: a,b,c.")


class StreamsScaffolder(dg.Scaffolder[StreamsParameters]):
    """Writes the component's file and its folder of streams, as `oncelake init` proposes them."""

    @classmethod
    def get_scaffold_params(cls) -> type[StreamsParameters]:
        """Return what the command takes."""
        return StreamsParameters

    def scaffold(self, request: dg.ScaffoldRequest[StreamsParameters]) -> None:
        """Write the files; those of streams only for topics that are named."""
        from oncelake.ingestion.cli.commands.init import print_initialized
        from oncelake.ingestion.operations.init.initialize import write_file

        folder = request.target_path / "streams"
        try:
            proposed = _proposed(folder, request.params.topics or "")
        except IngestionError as error:
            # So that the corrected command finds no folder: `dg` has made one.
            with suppress(OSError):
                request.target_path.rmdir()
            raise SystemExit(f"oncelake: {error}") from None
        folder.mkdir(parents=True, exist_ok=True)
        for each in proposed:
            write_file(each.path, each.text)
            print_initialized(each)
        prefix = re.sub(r"\W", "_", f"{request.target_path.name}_", flags=re.ASCII)
        dg.scaffold_component(request, {"streams": "streams", "jobs": {"prefix": prefix}})


def _proposed(folder: Path, topics: str) -> list[Initialized]:
    from oncelake.ingestion.operations.init.initialize import initialize

    settings, taken, proposed = load_settings(), set[str](), []
    for topic in filter(None, map(str.strip, topics.split(","))):
        name = nearest_allowed(topic, taken)
        taken.add(name)
        path = folder / f"{name}.yaml"
        proposed.append(initialize(topic, path, limit=_SAMPLE, settings=settings))
    return proposed
