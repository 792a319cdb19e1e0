"""The script for places that need an account, where stand-ins of them are."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from botocore.session import get_session

from oncelake.ingestion.storage.location import Location
from tests import world
from tests.support.long import only_long
from tests.support.unity import TOKEN, SmallUnity, small_unity

pytestmark = [pytest.mark.kafka, only_long]


@pytest.fixture
def unity(bucket: str, kafka_address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallUnity]:
    """A lake in moto, where Glue is, too, and a catalog."""
    monkeypatch.setattr(world, "_RECORDS", 2_000)
    with small_unity() as unity:
        for name, value in {
            "ONCELAKE_LAKE": f"{bucket}/lake",
            "ONCELAKE_KAFKA": kafka_address,
            "ONCELAKE_READER": "librdkafka",
            "ONCELAKE_UNITY": unity.address,
            "ONCELAKE_UNITY_TOKEN": TOKEN,
            "WORLD_SCHEMA": "main.sales",
            "WORLD_DATABASE": "world",
        }.items():
            monkeypatch.setenv(name, value)
        yield unity


@pytest.mark.parametrize("place", ["aws", "databricks"])
def test_the_script_holds_and_leaves_nothing(
    place: str, unity: SmallUnity, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person with an account gets one line; topic, folder and entry are gone."""
    glue = get_session().create_client("glue", region_name=os.environ["AWS_REGION"])
    glue.create_database(DatabaseInput={"Name": "world"})
    try:
        code = world.main([place])

        assert (code, f"| {place} |" in capsys.readouterr().out) == (0, True)
        assert Location.of(bucket).folders() == ()
        assert glue.get_tables(DatabaseName="world")["TableList"] == []
        assert unity.tables == {}
        assert any("tables" in each for each in unity.requests) == (place == "databricks")
    finally:
        glue.delete_database(Name="world")
        glue.close()


def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is made."""
    monkeypatch.delenv("ONCELAKE_LAKE", raising=False)

    assert world.main(["gcs"]) == 2
    assert "needs ONCELAKE_LAKE. Next: docs/world.md" in capsys.readouterr().out
