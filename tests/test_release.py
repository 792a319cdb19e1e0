"""What a release is made of: one version, a workflow that can be tried, files built twice."""

from __future__ import annotations

import re
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.dist import build, constraints, copy_known_files, project_version, refuse_other_tag
from oncelake.ingestion.local.project import TEMPLATES
from tests.release import WORKFLOW, jobs_in_order
from tests.support.long import only_long
from tests.support.world import ROOT

WORKFLOWS = [
    *sorted((ROOT / ".github" / "workflows").glob("*.yml")),
    ROOT / "docs" / "examples" / "github-actions.yml",
    *sorted((TEMPLATES / "project" / ".github" / "workflows").glob("*.yml")),
]


def steps_of(workflow: Path) -> list[dict[str, Any]]:
    """Return every step, in the order of the jobs."""
    jobs = jobs_in_order(yaml.safe_load(workflow.read_text()))
    return [step for _, job in jobs for step in job["steps"]]


def test_the_version_stands_in_one_place() -> None:
    """What is installed, and the changelog, have the version that pyproject.toml states."""
    assert version("oncelake") == project_version()
    refuse_other_tag(f"v{project_version()}")


@pytest.mark.parametrize("tag", ["v9.9.9", project_version(), "main"])
def test_another_tag_publishes_nothing(tag: str) -> None:
    """A tag is the version behind a v, or the build ends."""
    with pytest.raises(SystemExit, match="Next: tag again"):
        refuse_other_tag(tag)


def test_every_command_of_the_workflow_is_a_target_or_a_plain_one() -> None:
    """So that make release-dry can run each of them here."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    commands = [step["run"] for step in steps_of(WORKFLOW) if "run" in step]

    made = [each.split()[1] for each in commands if each.startswith("make ")]
    assert {*made} <= targets
    assert {"dist", "wheel-test", "newest-dagster"} <= {*made}
    plain = [each.split()[0] for each in commands if not each.startswith("make ")]
    assert plain == ["git", "mkdir"]


def test_only_two_jobs_may_sign_and_only_one_may_publish() -> None:
    """Neither runs anything of this repository; both need the tests to be green."""
    jobs = dict(jobs_in_order(yaml.safe_load(WORKFLOW.read_text())))

    assert {name for name, job in jobs.items() if "id-token" in job["permissions"]} == {
        "attest",
        "publish",
    }
    assert [name for name, job in jobs.items() if "environment" in job] == ["publish"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert (jobs["attest"]["needs"], jobs["publish"]["needs"]) == ("test", "attest")
    assert not any("make" in step.get("run", "") for step in jobs["attest"]["steps"])
    assert "secrets." not in WORKFLOW.read_text()


def test_no_job_keeps_the_token_that_it_was_checked_out_with() -> None:
    """What is built and tested could read it."""
    out = [step for step in steps_of(WORKFLOW) if "actions/checkout" in step.get("uses", "")]

    assert out
    assert all(step["with"]["persist-credentials"] is False for step in out)


@pytest.mark.parametrize("workflow", [each for each in WORKFLOWS if each.name != "ci.yml"])
def test_foreign_steps_are_pinned(workflow: Path) -> None:
    """By a commit, which nobody can move, with its version beside it."""
    used = re.findall(r"uses: (\S+)( # v[\d.]+)?", workflow.read_text())

    assert used
    assert [each for each, tag in used if not re.search(r"@[0-9a-f]{40}$", each) or not tag] == []


def test_constraints_are_the_locked_versions() -> None:
    """Without hashes, which pip would then ask of the wheel itself, too; with their conditions."""
    found = constraints((ROOT / "requirements.lock").read_text()).splitlines()

    assert len(found) > 200
    assert all(re.fullmatch(r"[\w.-]+==\S+( ; .+)?", each) for each in found)
    assert any(each.startswith("pyspark==") for each in found)


@only_long
def test_two_builds_are_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the files' modes, and SOURCE_DATE_EPOCH; the wheel has the bill and templates."""
    first = build(copy_known_files(tmp_path / "one"), tmp_path / "first")
    other = copy_known_files(tmp_path / "another" / "place")
    for path in other.rglob("*.py"):
        path.chmod(0o600)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert build(other, tmp_path / "second") == first

    (wheel,) = (tmp_path / "first").glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "wheel", "zip")
    (about,) = (tmp_path / "wheel").glob("*.dist-info")
    bill = about / "sboms" / "oncelake.cdx.json"
    assert bill.read_bytes() == (ROOT / "oncelake.cdx.json").read_bytes()
    assert (about / "licenses" / "LICENSE").is_file()
    assert "License-Expression: Apache-2.0" in (about / "METADATA").read_text()
    written = tmp_path / "wheel" / "oncelake" / "ingestion" / "local" / "templates"
    kept = {each.relative_to(TEMPLATES) for each in TEMPLATES.rglob("*") if each.is_file()}
    assert {each.relative_to(written) for each in written.rglob("*") if each.is_file()} == kept
