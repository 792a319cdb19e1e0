"""One stream at work: its declaration, its places on disk, and the Kafka that it reads.

Each operation makes one at its door and hands it on, so that no function takes these apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Stream:
    """What an operation on a stream needs to know.

    Attributes:
        spec: The declaration; once ``resolve_topics`` has been asked, with its topics by name.
    """

    spec: StreamSpec
    settings: Settings

    @property
    def name(self) -> str:
        """The stream's name, which is its table's as well."""
        return self.spec.name

    @cached_property
    def paths(self) -> StreamPaths:
        """Where its tables, lock and checkpoints lie."""
        return StreamPaths.of(self.name, self.settings, self.spec.sink)

    @cached_property
    def kafka(self) -> Kafka:
        """The client of its cluster, made when it is first asked for.

        Raises:
            DependencyError: no Kafka is configured and the embedded one is not up.
        """
        return Kafka(self.settings)
