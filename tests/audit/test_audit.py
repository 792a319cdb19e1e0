"""``oncelake audit``: tables of five other writers, sound and with every fault in turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from oncelake.ingestion.operations.audit.audit import AuditReport, audit
from oncelake.ingestion.operations.audit.declare import AuditRequest
from oncelake.ingestion.settings import Settings
from tests.audit.pipelines import WRITERS, Source, catalog_of_others, faults, fill, sound, source
from tests.support.long import IS_LONG

pytestmark = pytest.mark.kafka

CASES = [(writer, fault) for writer in WRITERS for fault in faults(is_append=writer == "connect")]
# Each fault at least once, some of each writer: rows are compared, whoever wrote them.
TRIED = CASES if IS_LONG else CASES[::3]
COUNTS = ("missing", "doubled", "different", "extra", "unproven")


@pytest.fixture(scope="module")
def orders(kafka_address: str) -> Iterator[Source]:
    """A topic of 280 records."""
    with source(kafka_address) as made:
        fill(made)
        yield made


@pytest.fixture
def place(
    writer: str,
    settings: Settings,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Settings:
    """The settings; with a server of PostgreSQL, where the writer needs one."""
    for name, value in catalog_of_others(Path(settings.lake) / "others").items():
        monkeypatch.setenv(name, value)
    if writer != "postgres":
        return settings
    url = request.getfixturevalue("postgres_address")
    return settings.model_copy(update={"postgres": SecretStr(url)})


def compare(asked: dict[str, Any], topic: str, settings: Settings, **more: Any) -> AuditReport:
    """Audit a table, with all samples."""
    return audit(AuditRequest(topic=topic, **{**asked, **more}), settings, limit=1_000)


def counts(report: AuditReport) -> dict[str, int]:
    """Return what is not as it should be."""
    return {name: found for name in COUNTS if (found := getattr(report, name))}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_sound_table_is_called_sound(orders: Source, writer: str, place: Settings) -> None:
    """Every record is in it, and nothing else."""
    rows = sound(orders, is_append=writer == "connect")

    report = compare(WRITERS[writer](rows, place), orders.topic, place)

    assert counts(report) == {}, report
    newest = {each["kafka_partition"]: each["kafka_offset"] for each in rows}
    ends = {partition: offset + 1 for partition, offset in newest.items()}
    assert report.starting == ({} if writer == "connect" else ends)
    if writer == "connect":
        shown = ("kafka_partition", "kafka_offset")
        asked = WRITERS[writer](rows, place)
        assert compare(asked, orders.topic, place, place=shown).starting == ends
    assert (report.records, report.rows, report.proven) == (
        *(len(orders.events), len(rows)),
        len(rows),
    )
    assert report.exit_code == 0


@pytest.mark.parametrize(("writer", "fault"), TRIED)
def test_a_fault_is_found(orders: Source, writer: str, fault: str, place: Settings) -> None:
    """Key, partition and offset of each row are named, and no other row is accused."""
    is_append = writer == "connect"
    rows = sound(orders, is_append=is_append)
    planted = faults(is_append=is_append)[fault]
    where = planted.plant(rows, orders)
    more = {"keys": ["id"], "place": ("kafka_partition", "kafka_offset")} if is_append else {}

    report = compare(WRITERS[writer](rows, place), orders.topic, place, **more)

    assert counts(report) == {planted.kind: len(where)}, report
    samples = report.samples[planted.kind]
    assert sorted((each.key["id"], each.partition, each.offset) for each in samples) == sorted(
        where
    )
    assert (report.exit_code, report.starting) == (1, {})
