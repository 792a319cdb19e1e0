"""Jars come when they are needed, from where the settings say, and never half."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oncelake.ingestion.errors import DependencyError, SetupError
from oncelake.ingestion.local.jars import fetch, locked_jars, missing_jars, require_jars
from oncelake.ingestion.local.process import file_lock
from oncelake.ingestion.settings import load_settings
from tests.support.world import JARS, ROOT

_REQUIRE = (
    "from oncelake.ingestion.local.jars import require_jars\n"
    "from oncelake.ingestion.settings import load_settings\n"
    "require_jars(load_settings(), 'spark')"
)
SPARK = [name for name in locked_jars() if name.startswith("spark/")]


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A repository like a company's mirror, with the files that Ivy has fetched already."""
    root = tmp_path_factory.mktemp("mirror")
    for pom in (JARS / "ivy").glob("*/*/ivy-*.xml.original"):
        version = pom.name.removeprefix("ivy-").removesuffix(".xml.original")
        organisation, name = pom.parts[-3:-1]
        folder = root.joinpath(*organisation.split("."), name, version)
        folder.mkdir(parents=True)
        shutil.copy(pom, folder / f"{name}-{version}.pom")
        for jar in pom.parent.glob(f"*s/{name}-{version}.jar"):
            shutil.copy(jar, folder)
    return root.as_uri()


@pytest.mark.slow
def test_a_run_gets_its_jars_from_the_mirror(
    mirror: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line a jar on stderr; the second time nothing is asked, and nothing said."""
    settings = load_settings(jars=tmp_path / "jars", maven=mirror)
    require_jars(settings, "spark")

    said = capsys.readouterr()
    assert missing_jars(settings.jars, ("spark",)) == ()
    assert said.out == ""
    assert f"spark: fetching {len(SPARK)} jars from {mirror}" in said.err
    assert f"spark: {len(SPARK)} of {len(SPARK)}, " in said.err
    assert sorted(each.name for each in settings.jars.iterdir()) == ["fetch.lock", "ivy", "spark"]
    require_jars(load_settings(jars=settings.jars, maven="off"), "spark")
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_mirror_without_a_jar_leaves_nothing(tmp_path: Path) -> None:
    """What is missing is named, and the folder has no part of it."""
    with pytest.raises(DependencyError, match=r"not found(.|\n)*Next: look at the network"):
        list(fetch(tmp_path, ("spark",), maven=(tmp_path / "nothing").as_uri()))

    assert missing_jars(tmp_path, ("spark",)) == tuple(SPARK)
    assert not list(tmp_path.glob("incoming-*"))


@pytest.mark.slow
def test_a_changed_jar_is_not_installed(mirror: str, tmp_path: Path) -> None:
    """A mirror that gives something else under the name of a jar is found out by its checksum."""
    harmed, jars = tmp_path / "mirror", tmp_path / "jars"
    shutil.copytree(mirror.removeprefix("file://"), harmed, copy_function=os.link)
    jar = next(harmed.rglob(f"{Path(SPARK[0]).name}"))
    jar.unlink()
    jar.write_bytes(b"something else")

    with pytest.raises(SetupError, match=rf"not the jars of jars\.lock: {SPARK[0]}"):
        require_jars(load_settings(jars=jars, maven=harmed.as_uri()), "spark")
    assert [each.name for each in jars.iterdir()] == ["fetch.lock"]


@pytest.mark.slow
def test_of_several_processes_one_fetches(mirror: str, tmp_path: Path) -> None:
    """The others say that they wait; what a process that was killed has left is removed."""
    jars = tmp_path / "jars"
    (jars / "incoming-jars-x").mkdir(parents=True)
    environment = {"ONCELAKE_JARS": str(jars), "ONCELAKE_MAVEN": mirror, "PYTHONPATH": str(ROOT)}
    command, out = [sys.executable, "-c", _REQUIRE], subprocess.PIPE
    with file_lock(jars / "fetch.lock"):
        started = [
            subprocess.Popen(command, env={**os.environ, **environment}, stderr=out, text=True)
            for _ in range(3)
        ]
        waiting = [each.stderr.readline() for each in started if each.stderr]
    said = [each.communicate(timeout=120)[1] for each in started]

    assert all("spark: another process fetches jars" in line for line in waiting)
    assert [each.returncode for each in started] == [0, 0, 0]
    assert "".join(said).count("spark: fetching") == 1
    assert all(f"spark: {len(SPARK)} jars, all there" in each for each in said)
    assert sorted(each.name for each in jars.iterdir()) == ["fetch.lock", "ivy", "spark"]


def test_nothing_is_fetched_where_that_is_forbidden(tmp_path: Path) -> None:
    """What lacks its jars says so, and what to do, at once."""
    settings = load_settings(jars=tmp_path / "jars", maven="off")

    with pytest.raises(SetupError, match=r"ONCELAKE_MAVEN=off\. Next: copy them there"):
        require_jars(settings, "spark")
    assert not settings.jars.exists()


def test_a_folder_that_cannot_be_written_in_is_named(tmp_path: Path) -> None:
    """Jars are not fetched to be thrown away."""
    (tmp_path / "jars").write_text("a file, which even root cannot write in")

    with pytest.raises(SetupError, match=r"is not possible: .*Next: oncelake jars"):
        require_jars(load_settings(jars=tmp_path / "jars"), "spark")
