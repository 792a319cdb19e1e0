"""A release has its archive, which its program wrote; a format changes by rule."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from oncelake.ingestion.tables.format import engine_version
from tests.upgrade.archive import ARCHIVES, MANIFEST, manifest_of, releases, version_of
from tests.upgrade.shape import shape

RELEASES = releases()
_NOTE_ROW = "INSERT INTO public.oncelake_notes "
# In sinks of these a note is read from the archive's files; those of Kafka by going on alone.
_NOTED = ("delta", "iceberg", "postgres")
MOST_BYTES = 1_500_000
# New fields of notes and journals that an older version may drop when it goes on, each with the
# reason: they need no greater format. One without which a row, an offset, a count or a proof would
# be wrong does.
ADDITIVE: dict[str, str] = {}
# What versions of all formats read before they can know of any number (SUPPORT.md).
FOR_GOOD = {"Lease", "ProcessId"}


def test_this_version_has_its_archive() -> None:
    """Before a release `make archive` writes it; each later version must read it."""
    assert f"{engine_version()}.tar.xz" in {each.name for each in RELEASES}, "Next: make archive"
    assert sum(each.stat().st_size for each in RELEASES) < MOST_BYTES


@pytest.mark.parametrize("archive", RELEASES, ids=lambda each: each.name)
def test_an_archive_is_of_the_release_that_its_name_says(archive: Path) -> None:
    """Each note of Delta, Iceberg and PostgreSQL in it names that version and its format."""
    assert faults_of(archive) == []


def test_an_archive_of_another_version_is_noticed(tmp_path: Path) -> None:
    """Neither another name nor another manifest makes it that of a release."""
    renamed = tmp_path / "9.9.9.tar.xz"
    shutil.copy(RELEASES[0], renamed)
    was = faults_of(renamed)
    with tarfile.open(RELEASES[0]) as tar:
        tar.extractall(tmp_path / "all", filter="data")
    manifest = tmp_path / "all" / MANIFEST
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "oncelake": "9.9.9"}))
    with tarfile.open(renamed, "w:xz", preset=0) as tar:
        for name in (MANIFEST, "postgres.sql", "lake"):
            tar.add(tmp_path / "all" / name, name)

    assert [each.split()[0] for each in was] == ["manifest", "notes"]
    assert [each.split()[0] for each in faults_of(renamed)] == ["notes"]


def faults_of(archive: Path) -> list[str]:
    """Say what in an archive is not of the version that its name says."""
    manifest, version = manifest_of(archive), version_of(archive)
    found = {(sink, note.get("oncelake"), note.get("format")) for sink, note in notes_in(archive)}
    written = sorted(found, key=str)
    meant = [(sink, version, manifest["shape"]["format"]) for sink in _NOTED]
    return [
        *([f"manifest of {manifest['oncelake']}"] if manifest["oncelake"] != version else []),
        *([f"notes of {written}"] if written != meant else []),
    ]


def test_the_archive_of_this_version_has_the_streams_and_fields_of_now() -> None:
    """Whoever changes either makes it anew or, behind a release, another version."""
    manifest = manifest_of(ARCHIVES / f"{engine_version()}.tar.xz")
    made_by = crc32((Path(__file__).parent / "make.py").read_bytes())
    now = {"shape": shape(), "made by": made_by}
    was = {name: manifest[name] for name in now}
    assert was == now, "Next: make archive, before the release; else a version"


@pytest.mark.parametrize("archive", RELEASES, ids=lambda each: each.name)
def test_a_format_gets_another_number_with_what_an_older_version_may_not_drop(
    archive: Path,
) -> None:
    """Within a number nothing goes, no kind comes, and a new field may be dropped, for a reason."""
    assert changes_within(manifest_of(archive)["shape"], shape()) == []


def changes_within(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Name what has changed without another number, and may not."""
    is_another = now["format"] != before["format"]
    found = []
    for name, fields in before.items():
        if is_another and name not in FOR_GOOD:
            continue
        if isinstance(fields, str) and now[name] != fields:
            found.append(f"{name} is another")
        elif isinstance(fields, dict):
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
    more = {**now, "CommitMetadata": {**now["CommitMetadata"], "needed": "int"}}
    other = {**now, "fence": "another", "Identity": {**now["Identity"], "rule": "int"}}
    no_lease = {**now, "Lease": {}, "format": now["format"] + 1}
    kinds = {**now, "kinds": [*now["kinds"], "purge"]}
    less = {**now, "ledger": {}}

    assert changes_within(now, now) == []
    assert changes_within(now, more) == ["CommitMetadata.needed is new"]
    assert changes_within(now, kinds) == ["kinds.purge is new"]
    assert len(changes_within(now, less)) == len(now["ledger"])
    assert changes_within(now, other) == ["Identity.rule is another", "fence is another"]
    assert len(changes_within(now, no_lease)) == len(now["Lease"])
    assert changes_within(now, {**more, "format": now["format"] + 1}) == []


def notes_in(archive: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the notes in the files of an archive, each with its sink."""
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content is None:
                continue
            if re.search(r"_delta_log/\d+\.json$", member.name):
                actions = map(json.loads, content.read().splitlines())
                texts = [a["commitInfo"].get("userMetadata") for a in actions if "commitInfo" in a]
                yield from (("delta", json.loads(text)) for text in texts if text)
            elif member.name.endswith(".metadata.json"):
                summaries = [each["summary"] for each in json.load(content).get("snapshots", ())]
                texts = [each.get("oncelake.note") for each in summaries]
                yield from (("iceberg", json.loads(text)) for text in texts if text)
            elif member.name == "postgres.sql":
                lines = content.read().decode().replace("''", "'").splitlines()
                rows = [each for each in lines if each.startswith(_NOTE_ROW)]
                texts = [text for row in rows for text in re.findall(r"'(\{.*\})', \d", row)]
                assert len(texts) == len(rows)
                yield from (("postgres", json.loads(text)) for text in texts)
