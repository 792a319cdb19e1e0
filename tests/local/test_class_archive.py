"""An archive of classes is used where it fits, and nothing is heard of it where it does not."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from oncelake.ingestion.kafka.java import find_java
from oncelake.ingestion.local.class_archive import (
    archive_key,
    archive_options,
    class_path,
    has_archive,
    install_archive,
    remove_archives,
)
from oncelake.ingestion.operations import archive_classes
from tests.support.world import ROOT

FLAGS = ("-XX:ArchiveClassesAtExit",)


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    """A folder of one jar."""
    (tmp_path / "jars" / "spark").mkdir(parents=True)
    (tmp_path / "jars" / "spark" / "a.jar").write_bytes(b"a")
    return tmp_path / "jars"


def install(jars: Path, content: bytes, key: str = "key") -> Path:
    """Put an archive in its place."""
    (jars / "draft").write_bytes(content)
    return install_archive(jars, key, jars / "draft")


def java(*options: str) -> str:
    """Start a JVM that only says its version, and return what it printed."""
    command = [find_java(), *(option.strip('"') for option in options), "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return (done.stdout + done.stderr).replace(", sharing", "")


def archive_of_another_class_path(jars: Path) -> bytes:
    """Have Java make an archive that does not fit a class path without ``other``."""
    other = jars.parent / "other"
    other.mkdir()
    java(f"-XX:ArchiveClassesAtExit={jars.parent / 'made'}", "-Xlog:disable", "-cp", str(other))
    return (jars.parent / "made").read_bytes()


def test_another_jar_or_another_flag_is_another_archive(jars: Path) -> None:
    """The key changes with what Java ties an archive to, and with nothing else."""
    before = archive_key(jars, FLAGS)

    assert archive_key(jars, FLAGS) == before
    assert archive_key(jars, (*FLAGS, "-XX:+UseSerialGC")) != before
    (jars / "spark" / "a.jar").write_bytes(b"aa")
    other_size = archive_key(jars, FLAGS)
    (jars / "spark" / "b.jar").write_bytes(b"b")
    assert len({before, other_size, archive_key(jars, FLAGS)}) == 3


def test_another_java_is_another_archive(
    jars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Java says of its version is part of the key."""
    before = archive_key(jars, FLAGS)
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\necho another >&2\n")
    (home / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))

    assert archive_key(jars, FLAGS) != before


def test_links_to_the_same_jars_share_an_archive(jars: Path, tmp_path: Path) -> None:
    """A copy of the project that links to the jars has the class path of the original."""
    (tmp_path / "link").symlink_to(jars)

    assert class_path(tmp_path / "link") == class_path(jars)
    assert archive_key(tmp_path / "link", FLAGS) == archive_key(jars, FLAGS)


def test_a_whole_archive_is_offered_to_java(jars: Path) -> None:
    """Until it is removed."""
    assert archive_options(jars) == ()
    archive = install(jars, b"classes")

    assert archive_options(jars)[-1] == f'"-XX:SharedArchiveFile={archive}"'
    remove_archives(jars)
    assert archive_options(jars) == ()


def test_an_archive_that_was_cut_off_is_not_offered(jars: Path) -> None:
    """Java would crash on it; set-up makes it again."""
    install(jars, b"classes").write_bytes(b"class")

    assert archive_options(jars) == ()
    assert not has_archive(jars, "key")


def test_a_note_that_none_could_be_made_is_no_archive(jars: Path) -> None:
    """It keeps set-up from trying again, and is not offered to Java."""
    install(jars, b"")

    assert has_archive(jars, "key")
    assert not has_archive(jars, "other")
    assert archive_options(jars) == ()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(archive_of_another_class_path, id="another class path"),
        pytest.param(lambda _: b"\0" * 100_000, id="zeros"),
        pytest.param(lambda _: b"classes" * 100_000, id="no archive at all"),
    ],
)
def test_java_starts_in_silence_without_an_archive_that_does_not_fit(
    jars: Path, content: Callable[[Path], bytes]
) -> None:
    """Whatever lies there, the JVM starts and prints nothing."""
    install(jars, content(jars))

    assert java(*archive_options(jars), "-cp", str(jars / "spark" / "a.jar")) == java()


def test_java_starts_in_silence_when_the_archive_is_gone(jars: Path) -> None:
    """Another set-up may remove it between being offered and being opened."""
    install(jars, b"classes")
    options = archive_options(jars)
    remove_archives(jars)

    assert java(*options) == java()


def test_a_setup_without_java_goes_on(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does anything else that is wrong end it."""
    monkeypatch.setenv("JAVA_HOME", str(jars))

    assert "no java" in " ".join(archive_classes.archive_classes(jars))


def test_setup_goes_on_without_an_archive(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says why, it is not tried at every set-up, and older archives are gone."""
    install(jars, b"classes", key="older")
    monkeypatch.setattr(archive_classes, "_run_elsewhere", lambda *_: "no memory")

    told = list(archive_classes.archive_classes(jars))

    assert "no memory" in told[-1]
    assert list(archive_classes.archive_classes(jars)) == []
    assert archive_options(jars) == ()
    assert len(list(jars.glob("classes-*.jsa"))) == 1


def test_setup_says_when_the_archive_is_made(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes minutes, and says so before; its end is a line, too."""

    def written(folder: Path, _: Path) -> str:
        (folder / "classes.jsa").write_bytes(b"classes")
        return ""

    monkeypatch.setattr(archive_classes, "_run_elsewhere", written)

    before, after = archive_classes.archive_classes(jars)

    assert "a minute or two" in before
    assert after == "classes: archived"
    assert archive_options(jars)


def test_every_long_step_of_setup_begins_with_a_line() -> None:
    """What installs or fetches says so first: make's own commands, or the module that does it."""
    asked = subprocess.run(
        ["make", "-n", "-B", "setup"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = asked.stdout.splitlines()

    long = [n for n, line in enumerate(lines) if " -m venv " in line or "pip install" in line]
    assert len(long) == 4
    assert [lines[n] for n in long if not lines[n - 1].startswith("echo ")] == []
