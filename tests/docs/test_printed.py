"""What the docs show as printed is what the program prints, on a screen of 80 columns.

A block of a page that names no language shows an output, or stands in ``_NOT_PRINTED``. One story
is played on a real broker, the tutorial's, and each other page asks for what it shows where the
story has come that far. What differs from day to day and from machine to machine is masked; a line
``…`` stands for lines that are left out.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable, write_deltalake

from oncelake.ingestion.local.project import write_project
from tests.support.world import ROOT

BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Those of docs/found/ are typed by tests/audit/test_found_elsewhere.py.
PAGES: Final = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "found"),
]
# Diagrams, and what a person writes: where a block begins, by page.
_NOT_PRINTED: Final = {
    "README.md": ["assets/streams/orders.yaml "],
    "architecture.md": ["Kafka\n"],
    "cluster.md": ["spark.driver.host", "spark.kubernetes.namespace"],
    "dagster.md": ["ops:"],
    "deploy.md": ["*/10 * * * *", "docker build", "docker run", "dagster code-server"],
    "storage.md": ["ONCELAKE_LAKE=", "oncelake jars"],
}
_VARIES: Final = {
    r"\d{4}-\d\d-\d\d": "DATE",
    r"\d\d:\d\d:\d\d": "TIME",
    r"127\.0\.0\.1:\d+ \(pid \d+, cluster \S+\)": "ADDRESS",
    # The progress tells a pace only where it was measured for long enough.
    r"( · )?\d[\d.,]* records/s": "",
}
# What needs a person, a browser, or the environment that the tests have already.
_NOT_TYPED: Final = re.compile(
    r"^(make|source|export|dagster|rm|python3 -m venv|pip|cd|DAGSTER_HOME=\S+|oncelake new"
    r"|oncelake kafka (up|down)).*\n",
    re.MULTILINE,
)


class Project:
    """A folder in which somebody follows the tutorial."""

    def __init__(self, folder: Path, kafka: str) -> None:
        self.folder = folder / "shop"
        write_project(self.folder)
        kept = {name: text for name, text in os.environ.items() if not name.startswith("ONCELAKE")}
        self.environment = kept | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "80",
            "ONCELAKE_KAFKA": kafka,
            "ONCELAKE_JARS": str(ROOT / ".jars"),
        }

    def type(self, commands: str, **environment: str) -> str:
        """Type commands into a shell; return what they print, errors and all."""
        done = subprocess.run(
            ["bash", "-c", commands],
            cwd=self.folder,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout


def printed_on(page: Path) -> list[tuple[str, str]]:
    """The outputs on a page, each with the commands before it."""
    commands, found = "", []
    for language, text in BLOCK.findall(page.read_text()):
        if language:
            commands = text if language == "sh" else commands
        elif not any(text.lstrip().startswith(known) for known in _NOT_PRINTED.get(page.name, ())):
            first, _, rest = text.partition("\n")
            found.append((first[2:] + "\n", rest) if first[:2] == "$ " else (commands, text))
    return found


def masked(text: str) -> list[str]:
    """The lines of an output without what differs each time, and without blanks at their ends."""
    for pattern, name in _VARIES.items():
        text = re.sub(pattern, name, text)
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def differs(shown: str, printed: str) -> str:
    """Say what a page shows that is not printed, in its order; nothing where it is the same."""
    lines, parts = masked(printed), [list[str]()]
    for line in masked(shown):
        parts.append([]) if line == "…" else parts[-1].append(line)
    at = 0
    for nth, part in enumerate(parts):
        places = range(at, len(lines) - len(part) + 1) if nth else range(1)
        found = next((n for n in places if lines[n : n + len(part)] == part), None)
        if found is None:
            return "\n".join(["not printed:", *part, "but:", *lines[at:]])
        at = found + len(part)
    return "\n".join(["also printed:", *lines[at:]]) if parts[-1] and lines[at:] else ""


def sales() -> Iterator[tuple[int, dict[str, Any]]]:
    """The records of the example of ``oncelake init``, with their partitions."""
    for partition, name, city in ((0, "Bob", "Rome"), (1, "Ann", "Oslo")):
        for nth in range(6):
            yield (
                partition,
                {
                    "id": 2 * (nth % 3) + 1 + partition,
                    "customer": {"name": name, "city": city},
                    "total": 9.5 + 11.5 * partition + nth,
                    "lines": 2 + nth % 3,
                    "updated_at": f"2026-03-01T{8 + nth:02}:00:00Z",
                },
            )
    yield 1, {"id": "seven", "total": 3, "lines": 1, "updated_at": "2026-03-01T16:00:00Z"}


def send_sales(address: str) -> None:
    """Fill the topic ``sales``."""
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic("sales", 2, 1)])["sales"].result(30)
    producer = Producer({"bootstrap.servers": address})
    for partition, value in sales():
        producer.produce("sales", json.dumps(value), json.dumps({"id": value["id"]}), partition)
    assert producer.flush(30) == 0


def harm(project: Project) -> None:
    """Do to a copy of the lake what a pipeline with a bug would have done."""
    shutil.copytree(project.folder / "lake", project.folder / "harmed")
    DeltaTable(project.folder / "harmed" / "orders").delete("id = 1")
    DeltaTable(project.folder / "harmed" / "orders").update({"total": "9.50"}, predicate="id = 4")


def load_by_another(project: Project) -> None:
    """Fill a table of the tutorial's orders as another loader would have, in a lake of its own."""
    rows = DeltaTable(project.folder / "lake" / "orders").to_pyarrow_table()
    own = [name for name in rows.column_names if not name.startswith("_")]
    write_deltalake(project.folder / "company-lake" / "orders", rows.select(own))


def follow_the_tutorial(project: Project) -> Iterator[str]:
    """Type what the tutorial says; yield what is printed where it shows that.

    The run that its sensor starts is typed, too.
    """
    yield "Kafka is up at 127.0.0.1:1 (pid 1, cluster c)\n"
    blocks = BLOCK.findall((ROOT / "docs" / "tutorial.md").read_text())
    for (language, text), (following, _) in pairwise(blocks):
        if language == "sh" and (commands := _NOT_TYPED.sub("", text)).strip():
            if "oncelake status" in commands:
                project.type("oncelake run orders")
            printed = project.type(commands)
            if not following:
                yield printed


@pytest.fixture(scope="module")
def story(kafka_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What is printed of what each page shows."""
    project = Project(tmp_path_factory.mktemp("tutorial"), kafka_address)
    admin = AdminClient({"bootstrap.servers": kafka_address})
    admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(30)
    outputs = [*follow_the_tutorial(project)]
    told = {"tutorial.md": "".join(outputs)}
    # On a terminal the lines of the progress take one another's place.
    first_run = next(each for each in outputs if "superseded" in each)
    told["README.md"] = "".join(first_run.partition("orders: balanced")[1:])
    told["rewind.md"] = project.type("oncelake history orders")
    file = project.folder / "assets" / "streams" / "orders.yaml"
    before = file.read_text()
    file.write_text(before.replace("  status STRING\n", "  status STRING,\n  city STRING\n"))
    told["change.md"] = project.type("oncelake plan orders").replace(str(project.folder), "")
    file.write_text(before)
    harm(project)
    goes_on = project.type("oncelake verify orders --certificate orders.json")
    told["verify.md"] = goes_on.partition("orders.json")[0]
    told["verify.md"] += project.type("oncelake verify orders", ONCELAKE_LAKE="harmed")
    against = "oncelake verify orders --against orders.json"
    told["certificate.md"] = project.type(against, ONCELAKE_LAKE="harmed")
    told["certificate.md"] = told["certificate.md"].replace(f"{project.folder}/", "")
    audit = "oncelake audit --topic orders --table harmed/orders --keys id"
    told["audit.md"] = project.type(audit).replace(
        str(project.folder / "harmed"), "s3://company-lake"
    )
    load_by_another(project)
    adopt = BLOCK.findall((ROOT / "docs" / "adopt.md").read_text())
    told["adopt.md"] = "".join(
        project.type(text, ONCELAKE_LAKE="company-lake")
        for language, text in adopt
        if language == "sh"
    ).replace(f"{project.folder}/", "")
    send_sales(kafka_address)
    told["init.md"] = project.type("oncelake init sales")
    yield told
    for deleted in admin.delete_topics(["orders", "sales"]).values():
        deleted.result(30)


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("page", [page for page in PAGES if printed_on(page)], ids=lambda p: p.stem)
def test_what_a_page_shows_is_printed(page: Path, story: dict[str, str]) -> None:
    """Line by line, in the order of the page: on one that nothing plays, nothing is shown."""
    shown = "".join(text for _, text in printed_on(page))

    assert differs(shown, story[page.name]) == ""


@pytest.mark.parametrize(
    ("shown", "says"),
    [
        ("a\nb\nc\n", ""),
        ("a\n…\nc\n", ""),
        ("a\n…\n", ""),
        ("…\nb\nc\n", ""),
        ("a\nc\n", "not printed"),
        ("a\nb\n", "also printed"),
        ("b\n…\n", "not printed"),
        ("…\nc\n…\nb\n", "not printed"),
    ],
)
def test_a_line_that_is_not_printed_is_told(shown: str, says: str) -> None:
    """Nor is a line left out without a sign."""
    assert says in differs(shown, "a\nb\nc\n")
    assert bool(differs(shown, "a\nb\nc\n")) == bool(says)
