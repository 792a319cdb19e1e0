"""``make site``: a folder of pages for each version."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from bench.site import main


def write(root: Path, version: str) -> None:
    """Write a project of one page that names its version."""
    (root / "docs").mkdir(exist_ok=True)
    (root / "docs" / "index.md").write_text(f"# Of {version}\n")
    (root / "mkdocs.yml").write_text("site_name: Oncelake\ntheme: {name: material, font: false}\n")
    (root / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')


def git(root: Path, *words: str) -> None:
    """Run git as somebody."""
    somebody = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
    subprocess.run(["git", *somebody, *words], cwd=root, check=True)


def test_each_tagged_version_has_its_pages_and_the_newest_comes_first(tmp_path: Path) -> None:
    """A reader of an older release finds what that release does, and a menu of all of them."""
    root, site = tmp_path / "project", tmp_path / "site"
    root.mkdir()
    git(root, "init", "--quiet")
    for version in ("0.9.0", "0.10.0"):
        write(root, version)
        git(root, "add", ".")
        git(root, "commit", "--quiet", "--message", version)
        git(root, "tag", f"v{version}")
    write(root, "0.11.0")

    main(site, root)

    known = json.loads((site / "versions.json").read_text())
    assert [each["version"] for each in known] == ["0.11.0", "0.10.0", "0.9.0"]
    assert known[0]["aliases"] == ["latest"]
    for each in known:
        assert f"Of {each['version']}" in (site / each["version"] / "index.html").read_text()
    assert "0.11.0/" in (site / "index.html").read_text()
