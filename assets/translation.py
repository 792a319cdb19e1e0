"""Under which keys and names streams stand in Dagster: decided when they are loaded, and only here.

Assets, checks, sensors, jobs, history, refusals and alerts ask one ``Translation``, so that a team
that calls things otherwise has to say so once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import dagster as dg

# The tables beside a stream's own, named after it as their folders are.
SIDE_TABLES: Final = ("quarantine", "ledger")
# The resources of what runs streams, and of what only asks about them.
RUNNING: Final = ("kafka", "lake", "spark")
ASKING: Final = ("kafka", "lake")


def kafka_key(topic: str) -> dg.AssetKey:
    """Return the key of a topic, where nothing else is asked for."""
    return dg.AssetKey(["kafka", topic])


@dataclass(frozen=True, kw_only=True)
class Translation:
    """Under which keys and names streams stand in Dagster.

    Attributes:
        keys: The key of each stream's asset; of one that is not here, its name.
        topic_key: Returns the key of a topic.
        has_side_assets: Whether quarantine and ledger are assets.
        prefix: What the names of jobs, sensors, schedules, ops and resources begin with.
    """

    keys: Mapping[str, dg.AssetKey] = field(default_factory=dict)
    topic_key: Callable[[str], dg.AssetKey] = kafka_key
    has_side_assets: bool = True
    prefix: str = ""

    def key(self, stream: str) -> dg.AssetKey:
        """Return the key of a stream's asset."""
        return self.keys.get(stream) or dg.AssetKey(stream)

    def side_keys(self, stream: str) -> dict[str, dg.AssetKey]:
        """Return the keys of quarantine and ledger, by table; none where they are no assets."""
        *folders, name = self.key(stream).path
        tables = SIDE_TABLES if self.has_side_assets else ()
        return {table: dg.AssetKey([*folders, f"{name}__{table}"]) for table in tables}

    def links(self, stream: str) -> dict[str, dg.MetadataValue[dg.AssetKey]]:
        """Return the metadata that leads to the tables beside a stream's own."""
        keys = self.side_keys(stream).items()
        return {table: dg.MetadataValue.asset(key) for table, key in keys}

    def stream_of(self, key: dg.AssetKey) -> str:
        """Return the stream of an asset; where no keys are known, the last part of its own."""
        if not self.keys:
            return key.path[-1]
        return next((stream for stream, its_key in self.keys.items() if its_key == key), "")

    def name(self, name: str) -> str:
        """Return the name of a job, a sensor, a schedule or an op."""
        return f"{self.prefix}{name}"

    def resource_keys(self, parts: Sequence[str] = RUNNING) -> list[str]:
        """Return the keys of resources, which name Oncelake even without a prefix."""
        return [f"{self.prefix}oncelake_{part}" for part in parts]

    def resources(self, context: Any, parts: Sequence[str] = RUNNING) -> list[Any]:
        """Return the resources that a run, or a tick, was given."""
        return [getattr(context.resources, key) for key in self.resource_keys(parts)]


# As the streams' files name everything.
AS_DECLARED: Final = Translation()
