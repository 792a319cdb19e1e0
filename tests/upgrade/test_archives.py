"""A release has its archive, which its program wrote; a format changes by rule."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelake.ingestion.tables.format import engine_version
from tests.support.world import ROOT
from tests.upgrade.archive import ARCHIVES, MANIFEST, manifest_of
from tests.upgrade.shape import shape

RELEASES = sorted(ARCHIVES.glob("*.tar.xz"))
MOST_BYTES = 1_500_000
# New fields of notes and journals that an older version may drop when it goes on, each with the
# reason: they need no greater format. One without which a row, an offset, a count or a proof would
# be wrong does.
ADDITIVE: dict[str, str] = {}


def test_this_version_has_its_archive() -> None:
    """Before a release `make archive` writes it; each later version must read it."""
    assert f"{engine_version()}.tar.xz" in {each.name for each in RELEASES}, "Next: make archive"
    assert sum(each.stat().st_size for each in RELEASES) < MOST_BYTES


@pytest.mark.parametrize("archive", RELEASES, ids=lambda each: each.name)
def test_an_archive_is_of_the_release_that_its_name_says(archive: Path) -> None:
    """Each note in it names that version and its format."""
    assert faults_of(archive) == []


def test_an_archive_of_another_version_is_noticed(tmp_path: Path) -> None:
    """Neither another name nor another manifest makes it that of a release."""
    renamed = tmp_path / "9.9.9.tar.xz"
    shutil.copy(RELEASES[0], renamed)
    was = faults_of(renamed)
    with tarfile.open(RELEASES[0]) as tar:
        tar.extractall(tmp_path / "all", filter="data")
    manifest = tmp_path / "all" / MANIFEST
    manifest.write_text(manifest.read_text().replace(engine_version(), "9.9.9"))
    with tarfile.open(renamed, "w:xz", preset=0) as tar:
        for name in (MANIFEST, "lake"):
            tar.add(tmp_path / "all" / name, name)

    assert [each.split()[0] for each in was] == ["manifest", "notes"]
    assert [each.split()[0] for each in faults_of(renamed)] == ["notes"]


def faults_of(archive: Path) -> list[str]:
    """Say what in an archive is not of the version that its name says."""
    manifest, version = manifest_of(archive), archive.name.removesuffix(".tar.xz")
    written = {(note.get("oncelake"), note.get("format")) for note in notes_in(archive)}
    meant = {(version, manifest["shape"]["format"])}
    return [
        *([f"manifest of {manifest['oncelake']}"] if manifest["oncelake"] != version else []),
        *([f"notes of {written}"] if written != meant else []),
    ]


def test_the_archive_of_this_version_is_written_by_this_code() -> None:
    """Whoever changes what is written makes it anew or, behind a release, another version."""
    manifest = manifest_of(ARCHIVES / f"{engine_version()}.tar.xz")
    assert manifest["shape"] == shape(), "Next: make archive, before the release; else a version"


@pytest.mark.parametrize("archive", RELEASES, ids=lambda each: each.name)
def test_a_format_gets_another_number_with_what_an_older_version_may_not_drop(
    archive: Path,
) -> None:
    """Within a number nothing goes, no kind comes, and a new field may be dropped, for a reason."""
    assert changes_within(manifest_of(archive)["shape"], shape()) == []


def changes_within(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Name what has changed without another number, and may not."""
    if now["format"] != before["format"]:
        return []
    found = []
    for name, fields in before.items():
        if isinstance(fields, dict):
            found += [f"{name}.{f} is another" for f in fields if now[name].get(f) != fields[f]]
        elif isinstance(fields, list):
            found += [f"{name}.{f} is gone" for f in fields if f not in now[name]]
        if isinstance(fields, (dict, list)):
            new = (f"{name}.{f}" for f in now[name] if f not in fields)
            is_closed = name in {"kinds", "side files"}
            found += [f"{each} is new" for each in new if is_closed or each not in ADDITIVE]
    return found


def test_a_field_that_is_needed_and_a_new_kind_are_noticed() -> None:
    """The rule itself: without another number they are named, with it they may come."""
    now = shape()
    more = {**now, "CommitMetadata": [*now["CommitMetadata"], "needed"]}
    kinds = {**now, "kinds": [*now["kinds"], "purge"]}
    less = {**now, "ledger": {}}

    assert changes_within(now, now) == []
    assert changes_within(now, more) == ["CommitMetadata.needed is new"]
    assert changes_within(now, kinds) == ["kinds.purge is new"]
    assert len(changes_within(now, less)) == len(now["ledger"])
    assert changes_within(now, {**more, "format": now["format"] + 1}) == []


def notes_in(archive: Path) -> Iterator[dict[str, Any]]:
    """Yield the notes of all Delta tables' commits, and of PostgreSQL's."""
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content is None:
                continue
            if re.search(r"_delta_log/\d+\.json$", member.name):
                actions = map(json.loads, content.read().splitlines())
                texts = [a["commitInfo"].get("userMetadata") for a in actions if "commitInfo" in a]
                yield from (json.loads(text) for text in texts if text)
            elif member.name == "postgres.sql":
                text = content.read().decode().replace("''", "'")
                yield from map(json.loads, re.findall(r"'(\{\"format\".*?\})', \d", text))


def test_a_notice_of_deprecation_names_the_version_of_the_removal() -> None:
    """What is replaced goes on for two releases, and says until when (SUPPORT.md)."""
    code = [*(ROOT / "ingestion").rglob("*.py"), *(ROOT / "assets").rglob("*.py")]
    lines = [line for file in code for line in file.read_text().splitlines()]
    notices = [line for line in lines if re.search(r"[\"'].*deprecated", line)]
    assert [each for each in notices if not re.search(r"removed in \d+\.\d+", each)] == []
