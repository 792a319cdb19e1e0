"""The documentation as a site with a folder for each version, each with a search of its own.

The pages of a version are those of its tag; the working tree's are the newest. A page links to the
same page of the other versions by ``versions.json``, which Material reads.

    python -m bench.site site
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
_REDIRECT = '<!doctype html><meta http-equiv="refresh" content="0; url={}/"><a href="{}/">{}</a>\n'


def build(source: Path, into: Path) -> None:
    """Build the pages of a folder, strictly."""
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(into)]
    subprocess.run(command, cwd=source, env=environment, check=True)


@contextmanager
def checked_out(tag: str, root: Path) -> Iterator[Path]:
    """Check a tag out, in a folder for as long as it is needed."""
    with tempfile.TemporaryDirectory() as folder:
        add = ["git", "worktree", "add", "--quiet", "--detach", folder, tag]
        subprocess.run(add, cwd=root, check=True)
        try:
            yield Path(folder)
        finally:
            remove = ["git", "worktree", "remove", "--force", folder]
            subprocess.run(remove, cwd=root, check=True)


def main(site: Path, root: Path = ROOT) -> None:
    """Build every version, and tell each of the others."""
    newest = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    listed = ["git", "tag", "--list", "v*", "--sort=-version:refname"]
    tags = subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True).stdout
    versions = [newest]
    build(root, site / newest)
    for tag in tags.split():
        if (version := tag.removeprefix("v")) not in versions:
            with checked_out(tag, root) as source:
                build(source, site / version)
            versions.append(version)
    known = [{"version": each, "title": each, "aliases": []} for each in versions]
    known[0]["aliases"] = ["latest"]
    (site / "versions.json").write_text(json.dumps(known))
    (site / "index.html").write_text(_REDIRECT.format(newest, newest, newest))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
