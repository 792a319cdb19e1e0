"""The lake, as Dagster sees it: the folders of tables, state and declarations."""

from __future__ import annotations

from pathlib import Path

from oncelake.resources.part import SettingsPart, setting


class LakeResource(SettingsPart):
    """Where the tables lie, and what the engine keeps beside them."""

    lake: str | None = setting("lake")
    state: str | None = setting("state")
    streams: str | None = setting("streams")
    jars: str | None = setting("jars")

    def reading(self, streams: Path) -> LakeResource:
        """Return the same lake, with the declarations in another folder."""
        return self.model_copy(update={"streams": str(streams.absolute())})
