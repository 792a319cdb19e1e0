"""A newer Oncelake beside this one: a copy of the project, whose format has a note field more."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.world import ROOT, World, environment_of

VERSION: Final = "9.8.0"
_EDITS: Final = {
    "ingestion/tables/format.py": [
        ("FORMAT: Final = 1", "FORMAT: Final = 2"),
        ('return version("oncelake")', f'return "{VERSION}"'),
    ],
    # A field without which the newer one does not know what its batches mean.
    "ingestion/tables/commit_metadata.py": [
        ("            **marks(),\n", '            **marks(),\n            "needed": 7,\n'),
        (
            "        refuse_newer(stream, where, raw)\n",
            "        refuse_newer(stream, where, raw)\n"
            '        assert raw["format"] < 2 or raw["needed"] == 7, "dropped"\n',
        ),
    ],
}


class Newer:
    """Runs commands of the newer version, each in a process of its own."""

    def __init__(self, folder: Path) -> None:
        """Copy the project into a folder, and edit the copy."""
        self.folder = folder
        for name in ("oncelake", "ingestion", "assets", "resources"):
            skipped = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=skipped)
        for name, edits in _EDITS.items():
            text = (folder / name).read_text()
            for old, new in edits:
                assert text.count(old) == 1, f"{name}: {old!r}"
                text = text.replace(old, new)
            (folder / name).write_text(text)

    def oncelake(self, world: World, *words: str) -> subprocess.CompletedProcess[str]:
        """Type a command; the stream's name is its last word."""
        return subprocess.run(
            [sys.executable, "-m", "ingestion", *words, world.name],
            cwd=self.folder,
            env={**environment_of(world.settings), "PYTHONPATH": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
