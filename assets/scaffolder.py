"""``dg scaffold defs oncelake.Streams``: the component's file, and streams proposed from topics."""

from __future__ import annotations

import dagster as dg
from pydantic import BaseModel, Field

from oncelake.ingestion.declaration.names import nearest_allowed
from oncelake.ingestion.operations.init.initialize import initialize, write_file
from oncelake.ingestion.settings import load_settings

_SAMPLE = 1_000


class StreamsParameters(BaseModel):
    """What the command takes."""

    topics: str | None = Field(None, description="Kafka topics to propose streams for: a,b,c.")


class StreamsScaffolder(dg.Scaffolder[StreamsParameters]):
    """Writes the component's file and its folder of streams, as `oncelake init` proposes them."""

    @classmethod
    def get_scaffold_params(cls) -> type[StreamsParameters]:
        """Return what the command takes."""
        return StreamsParameters

    def scaffold(self, request: dg.ScaffoldRequest[StreamsParameters]) -> None:
        """Write the files; those of streams only for topics that are named."""
        folder = request.target_path / "streams"
        settings, taken = load_settings(), set[str]()
        proposed = []
        for topic in filter(None, map(str.strip, (request.params.topics or "").split(","))):
            name = nearest_allowed(topic, taken)
            taken.add(name)
            path = folder / f"{name}.yaml"
            proposed.append(initialize(topic, path, limit=_SAMPLE, settings=settings))
        folder.mkdir(parents=True, exist_ok=True)
        for each in proposed:
            write_file(each.path, each.text)
        dg.scaffold_component(request, {"streams": "streams", "jobs": {"prefix": "oncelake_"}})
