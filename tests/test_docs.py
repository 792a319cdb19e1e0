"""What the docs say is what the code does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from ingestion.declaration.formats import FORMATS
from ingestion.declaration.spec import StreamSpec
from ingestion.pipeline import validate
from tests.support.world import ROOT

PAGES = sorted((ROOT / "docs").rglob("*.md"))
YAML = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
REASON = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)


def examples(page: Path) -> list[dict[str, object]]:
    """The declarations on a page: what has a topic and a schema."""
    found = (yaml.safe_load(text) for text in YAML.findall(page.read_text()))
    return [each for each in found if isinstance(each, dict) and {"topic", "schema"} <= {*each}]


@pytest.mark.parametrize(
    "declared",
    [pytest.param(each, id=f"{p.stem}-{n}") for p in PAGES for n, each in enumerate(examples(p))],
)
def test_an_example_in_the_docs_is_a_declaration(declared: dict[str, object]) -> None:
    """A reader who copies it gets a stream."""
    assert StreamSpec.model_validate({"name": "example", **declared}).name == "example"


def test_there_are_examples() -> None:
    """The pages are found, and their examples are."""
    assert sum(len(examples(page)) for page in PAGES) >= 1


@pytest.mark.parametrize(
    "reasons",
    [
        pytest.param(validate.REASONS, id="every format"),
        *(
            pytest.param(import_module(each.module).REASONS, id=name)
            for name, each in FORMATS.items()
        ),
    ],
)
def test_every_reason_is_explained(reasons: Mapping[str, str]) -> None:
    """Each code stands in a table of the docs, with the sentence that the code has for it."""
    told = {code: says for page in PAGES for code, says in REASON.findall(page.read_text())}

    assert {code: told.get(code) for code in reasons} == dict(reasons)
