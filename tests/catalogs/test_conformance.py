"""The battery of every sink, on a table of each catalog."""

from __future__ import annotations

import uuid
from functools import partial
from pathlib import Path

import pytest

from oncelake.ingestion.declaration.sinks import SINKS, IcebergSink
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.iceberg import table as iceberg
from oncelake.ingestion.storage.location import Location
from oncelake.testing import Opener, SinkConformance
from tests.support.catalogs import NAME, TriedCatalog, only_catalogs


@only_catalogs
class TestCatalog(SinkConformance):
    """Iceberg, in the catalog."""

    kind = SINKS["iceberg"]
    # A step of its client takes long, and a request takes longer.
    steps, steps_of_others, seconds = 10, 0, 300
    named = " ,;:{}()[]='\"%@-"
    is_on_disk = False

    @pytest.fixture
    def opened(self, tmp_path: Path, catalog: TriedCatalog) -> Opener:
        """Open a table of its own name."""
        name = f"{catalog.namespace}.t{uuid.uuid4().hex[:12]}"
        sink, settings = IcebergSink(table=name, catalog=NAME), Settings(lake=tmp_path)
        return partial(iceberg.open_table, "orders", sink, settings, Location.of(tmp_path))
