"""What the docs say is what the code does."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from dagster_cloud_cli.config.models import load_dagster_cloud_yaml

from oncelake.assets.checks.checks import check_specs
from oncelake.ingestion import errors
from oncelake.ingestion.cli.app import app
from oncelake.ingestion.cli.commands.run import RunResult
from oncelake.ingestion.cli.commands.status import _status_document
from oncelake.ingestion.declaration.files.loader import DeclaredStream, load_streams, read_outlines
from oncelake.ingestion.declaration.formats import FORMATS
from oncelake.ingestion.declaration.spec import ABOUT_RUNS, StreamSpec
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.modes import keep_columns
from oncelake.ingestion.operations.status.status import StreamStatus
from oncelake.ingestion.pipeline import validate
from oncelake.ingestion.pipeline.report import RunReport
from tests.support.world import ROOT

PAGES = sorted((ROOT / "docs").rglob("*.md"))
ALL_PAGES = [*sorted(ROOT.glob("*.md")), *PAGES]
YAML = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([\w./-]*)(?:#([\w-]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"`((?:ingestion|assets|resources|tests|bench|docs)/[\w./-]*)(?:::([\w.]+))?`")
COMMANDS: Any = typer.main.get_command(app)
RUNBOOK = ROOT / "docs" / "runbook.md"
QUOTED = re.compile(r'"([^"]+)"')
COMMAND = re.compile(r"^(?:\$ )?(oncelake [^#\n]*)|`(oncelake [^`]*)`", re.MULTILINE)
# Behind another word of a shell; an image, or a user, may have the same name.
IN_A_LINE = re.compile(r"\boncelake (?!oncelake |import )[a-z-][^#`\n]*")
# A command with a value behind it, such as the stream's name, in a message of the code.
REMEDY = re.compile(r"oncelake [a-z-]+(?: [a-z-]+)? \0[^,;.()`\n]*")
PACKAGES = ("ingestion", "assets", "resources")
REASON = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)


def examples(page: Path) -> list[dict[str, object]]:
    """The declarations on a page: what has a topic and a schema."""
    found = (yaml.safe_load(text) for text in YAML.findall(page.read_text()))
    return [each for each in found if isinstance(each, dict) and _is_whole(each)]


def _is_whole(document: dict[str, object]) -> bool:
    has_columns = not {"schema", "tables"}.isdisjoint(document)
    return has_columns and not {"topic", "topic_pattern"}.isdisjoint(document)


@pytest.mark.parametrize(
    "declared",
    [pytest.param(each, id=f"{p.stem}-{n}") for p in PAGES for n, each in enumerate(examples(p))],
)
def test_an_example_in_the_docs_is_a_declaration(
    declared: dict[str, object], tmp_path: Path
) -> None:
    """A reader who copies it gets its streams, or what `oncelake discover` completes."""
    file = tmp_path / "example.yaml"
    file.write_text(json.dumps(declared, default=str))

    outlines = read_outlines(file)

    errors = [each.error for each in load_streams(tmp_path) if each.error]
    assert len(errors) <= len(outlines), errors


def test_there_are_examples() -> None:
    """The pages are found, and their examples are."""
    assert sum(len(examples(page)) for page in PAGES) >= 1


@pytest.mark.parametrize(
    "reasons",
    [
        pytest.param(validate.REASONS, id="every format"),
        pytest.param(keep_columns.REASONS, id="kept columns"),
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


def test_every_page_is_in_the_navigation() -> None:
    """A page that is not fails `make docs`."""
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2].partition("\nmarkdown_")[0]
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES}

    assert set(re.findall(r"[\w./-]+\.md", nav)) == pages


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page: Path) -> None:
    """The file exists, and so does the heading behind the hash."""
    broken = [
        f"{path}#{anchor}"
        for path, anchor in LINK.findall(page.read_text())
        if not (target := page.parent / path if path else page).exists()
        or (anchor and anchor not in anchors(target))
    ]

    assert broken == []


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_every_path_in_the_docs_exists(page: Path) -> None:
    """A file or folder of the tree is there, and so is the function or class named after ``::``."""
    missing = [
        f"{path}::{name}" if name else path
        for path, name in NAMED.findall(page.read_text())
        if not (ROOT / path).exists() or (name and name not in names_in(ROOT / path))
    ]

    assert missing == []


def test_every_field_that_changes_what_a_record_says_is_in_the_page_of_changes() -> None:
    """Those that the plan and the proof name are those of the docs."""
    change = (ROOT / "docs" / "change.md").read_text()
    named = (field.alias or name for name, field in StreamSpec.model_fields.items())
    of_runs = {StreamSpec.model_fields[name].alias or name for name in ABOUT_RUNS}

    assert {name for name in named if name not in of_runs and f"`{name}`" not in change} == set()


def test_the_fields_of_json_documents_are_listed() -> None:
    """Programs rely on them: a run's and a status's each stand on the page of commands."""
    page = (ROOT / "docs" / "operations.md").read_text().partition("## JSON documents")[2]
    places = {"seq": 1, "epoch": 1, "lag": 0, "delta_version": 1, "row_count": 1, "table": "t"}
    report = RunReport(stream="s", run_id="r", notices=(), next=Offsets(), **places)
    run = RunResult(stream="s", report=report).document()
    status = _status_document(StreamStatus(stream="s", table="t"))

    assert {name for name in (*run, *status) if f"`{name}`" not in page} == set()


def test_the_file_of_dagster_plus_is_valid() -> None:
    """Dagster's own command line reads the code location that the page shows."""
    [shown] = YAML.findall((ROOT / "docs" / "dagster-plus.md").read_text())

    [location] = load_dagster_cloud_yaml(shown).locations

    module = location.code_source and location.code_source.module_name
    assert import_module(str(module)).defs is not None


def test_the_runbook_has_every_error() -> None:
    """Each class of an error that the engine raises on purpose has an entry that names it."""
    branches = (errors.IngestionError, errors.TerminalError, errors.TransientError)
    every = {
        name
        for name, error in vars(errors).items()
        if isinstance(error, type) and issubclass(error, errors.IngestionError)
    }
    leaves = every - {branch.__name__ for branch in branches}

    assert leaves - set(re.findall(r"`(\w+Error)`", RUNBOOK.read_text())) == set()


def test_the_runbook_has_every_check() -> None:
    """Each check that a stream's asset can have has an entry under its name."""
    asked = {"expectations": [{"type": "expect_column_values_to_be_unique", "column": "id"}]}
    spec = StreamSpec.model_validate(
        {
            "name": "orders",
            "topic": "o",
            "schema": "id INT",
            "keys": ["id"],
            "verify": True,
            **asked,
        }
    )
    declared = DeclaredStream(name="orders", path=Path("orders.yaml"), spec=spec, error=None)
    checks = {check.name for check in check_specs(declared)}

    assert "verified" in checks
    assert checks - set(HEADING.findall(RUNBOOK.read_text())) == set()


def test_the_runbook_quotes_what_the_code_says() -> None:
    """A message that is searched for as it was shown is found: every quotation is in the code."""
    said = texts_of("ingestion", "assets")
    fragments = {
        piece.strip(" .;:")
        for quoted in QUOTED.findall(" ".join(RUNBOOK.read_text().split()))
        for piece in quoted.split("…")
    }

    assert {each for each in fragments if len(each) > 3 and each not in said} == set()


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_every_command_in_the_docs_exists(page: Path) -> None:
    """What the docs tell a reader to type is a command, with options that it has."""
    typed = typed_on(page)

    assert [problem for words in typed if (problem := unknown_in(words[1:]))] == []


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_every_command_in_the_docs_is_complete(page: Path) -> None:
    """What names its stream can be typed as it stands: no option that it needs is left out."""
    typed = typed_on(page)

    assert [problem for words in typed if (problem := missing_in(words[1:]))] == []


def test_every_command_in_a_message_can_be_typed() -> None:
    """It has the options that it needs, and `--yes` where it asks: not everybody has a terminal."""
    named = [
        [word.rstrip(":") for word in line.replace("\0", "…").split()]
        for line in REMEDY.findall(texts_of(*PACKAGES))
    ]
    lacking = [problem for words in named if (problem := missing_in(words[1:]))]
    asking = [" ".join(words) for words in named if asks(words[1:]) and "--yes" not in words]

    assert len(named) > 20
    assert lacking + asking == []


def test_the_tutorial_leaves_the_sensor_no_stream_without_a_topic() -> None:
    """What a clone declares beside its own stream is removed before the sensor runs all."""
    before = (ROOT / "docs" / "tutorial.md").read_text().partition("dagster sensor start")[0]

    for file in (ROOT / "assets" / "streams").glob("*.yaml"):
        assert f"\nrm assets/streams/{file.name}\n" in before


def test_nothing_says_to_install_oncelake_by_its_name() -> None:
    """No registry has it: whatever somebody puts there under that name would be installed."""
    texts = [texts_of(*PACKAGES), *(page.read_text() for page in ALL_PAGES)]

    assert [found for text in texts for found in re.findall(r"install '?oncelake.*", text)] == []


def test_the_runbook_names_the_commands_that_ask() -> None:
    """All of them, in one sentence at its head."""
    sentence = RUNBOOK.read_text().partition(" ask on a terminal")[0].rpartition(".\n")[2]

    assert set(re.findall(r"`([^`]+)`", sentence)) == {
        " ".join(words) for words in commands() if asks(list(words))
    }


def typed_on(page: Path) -> list[list[str]]:
    """The words of each command on a page, be it behind another one in what is fenced."""
    text = page.read_text()
    lines = [line or span for line, span in COMMAND.findall(text)]
    lines += [line for block in FENCED.findall(text) for line in IN_A_LINE.findall(block)]
    return [line.split() for line in lines]


def commands() -> Iterator[tuple[str, ...]]:
    """The words of each command."""
    for name, command in COMMANDS.commands.items():
        yield from ((name, each) for each in getattr(command, "commands", ()))
        yield (name,)


def asks(words: list[str]) -> bool:
    """Tell whether a command line is of a command that asks."""
    command = COMMANDS
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    return any("--yes" in each.opts for each in command.params)


def missing_in(words: list[str]) -> str:
    """A command line that has its stream, and lacks an option without which it is refused."""
    command = COMMANDS
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    needed = {each.opts[-1] for each in command.params if each.required and each.opts[0][0] == "-"}
    is_whole = bool(words) and not words[0].startswith("-")
    return " ".join([command.name, *words]) if is_whole and not needed <= {*words} else ""


def unknown_in(words: list[str]) -> str:
    """The first word of a command line that is neither a command of ``oncelake`` nor its option."""
    command = COMMANDS
    options = {name for each in command.params for name in each.opts}
    for word in words:
        name = word.partition("=")[0].rstrip("],")
        if subcommands := getattr(command, "commands", None):
            if name in subcommands:
                command = subcommands[name]
                options |= {"--help", *(it for each in command.params for it in each.opts)}
            elif not word.startswith(("-", "…")):
                return " ".join(words)
        if name.lstrip("[").startswith("--") and name.lstrip("[") not in options:
            return " ".join(words)
    return ""


def texts_of(*packages: str) -> str:
    """All texts in the code of some packages, with spaces where a value is put in."""
    texts = []
    for module in (each for package in packages for each in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (getattr(part, "value", "\0") for part in node.values)
                texts.append("".join(p if isinstance(p, str) else "\0" for p in parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(" ".join(text.split()) for text in texts)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = HEADING.findall(FENCED.sub("", page.read_text()))
    return {re.sub(r"[^\w -]", "", each).strip().lower().replace(" ", "-") for each in headings}


def names_in(module: Path) -> set[str]:
    """The classes and functions of a module, and the methods of its classes as ``Class.method``."""
    definitions = (ast.ClassDef, ast.FunctionDef)
    names = set()
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, definitions):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (each for each in node.body if isinstance(each, definitions))
            names |= {f"{node.name}.{each.name}" for each in inner}
    return names
