"""The lake, as Dagster sees it: the folders of tables, state and declarations."""

from __future__ import annotations

from oncelake.resources.part import SettingsPart, setting


class LakeResource(SettingsPart):
    """Where the tables lie, and what the engine keeps beside them."""

    lake: str | None = setting("lake")
    state: str | None = setting("state")
    streams: str | None = setting("streams")
    jars: str | None = setting("jars")
