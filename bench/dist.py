"""The wheel and the source archive, built twice to the same bytes, and what goes with them.

python -m bench.dist FOLDER

The version is the one of ``pyproject.toml``; a tag, given as the variable TAG, must be it, behind a
``v``. Only files that git knows are built from, so that nothing else of a clone is published.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
# The time of each file in both archives, whatever SOURCE_DATE_EPOCH the one who builds has set.
_EPOCH: Final = "1580601600"
_PINNED: Final = re.compile(r"^[\w.-]+==[^\\\n]+", re.MULTILINE)


def project_version(root: Path = ROOT) -> str:
    """Return the version that ``pyproject.toml`` states, and nothing else."""
    stated: str = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    return stated


def refuse_other_tag(tag: str, root: Path = ROOT) -> None:
    """Exit unless a tag is the version, and the changelog has a section of it."""
    version = project_version(root)
    if tag != f"v{version}":
        sys.exit(
            f"dist: the tag {tag} is not v{version}. Next: tag again, or correct pyproject.toml"
        )
    if f"\n## {version} " not in (root / "CHANGELOG.md").read_text():
        sys.exit(f"dist: CHANGELOG.md has no section {version}. Next: write it, and tag again")


def constraints(lock: str) -> str:
    """Return the exact versions of a lock file, without its hashes."""
    return "".join(f"{line.strip()}\n" for line in _PINNED.findall(lock))


def build(source: Path, into: Path) -> dict[str, str]:
    """Build the source archive, and the wheel from it; return each file's sha256."""
    uv = [str(Path(sys.executable).with_name("uv")), "build", "--quiet", "--no-create-gitignore"]
    here = ["--no-build-isolation", "--python", sys.executable, "--out-dir", str(into)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": _EPOCH}
    subprocess.run([*uv, *here, str(source)], check=True, env=environment)
    return {
        each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in sorted(into.iterdir())
    }


def copy_known_files(into: Path, root: Path = ROOT) -> Path:
    """Copy what git knows of a clone, links as links."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, into / name, follow_symlinks=False)
    return into


def main(target: Path) -> None:
    """Build twice, compare, and put what is published into an empty folder."""
    if tag := os.environ.get("TAG"):
        refuse_other_tag(tag)
    with tempfile.TemporaryDirectory(prefix="dist-") as folder:
        at = Path(folder)
        first = build(copy_known_files(at / "one"), at / "first")
        if (second := build(copy_known_files(at / "two"), at / "second")) != first:
            sys.exit(f"dist: built twice, and not the same: {first}, {second}")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(at / "first", target)
    (target / "constraints.txt").write_text(constraints((ROOT / "requirements.lock").read_text()))
    shutil.copy(ROOT / "oncelake.cdx.json", target)
    for name, sha256 in first.items():
        print(f"{sha256}  {name}")
    print(f"{target}: built twice, the same bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
