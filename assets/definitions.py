"""The code location of this repository: one use of the component, with nothing said."""

from __future__ import annotations

import dagster as dg

from oncelake.assets.component import Streams


def definitions() -> dg.Definitions:
    """Wire the streams that are declared in the folder of the settings."""
    return Streams().definitions()


# Each process of a run would start a JVM.
defs = dg.Definitions.merge(definitions(), dg.Definitions(executor=dg.in_process_executor))
