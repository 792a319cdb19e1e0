"""AWS Glue's schema registry by moto, and frames as AWS's serializers write them."""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from botocore.session import get_session

from oncelake.ingestion.settings import Settings
from tests.support.store import use_store

REGION = "us-east-1"


def in_frame(id: uuid.UUID, payload: bytes, *, is_packed: bool = False) -> bytes:
    """Put Glue's header in front of a payload."""
    body = zlib.compress(payload) if is_packed else payload
    return b"\3" + (b"\5" if is_packed else b"\0") + id.bytes + body


@dataclass
class Glue:
    """One registry, of a test's own."""

    client: Any
    name: str = field(default_factory=lambda: f"r{uuid.uuid4().hex[:12]}")

    @classmethod
    @contextmanager
    def at(cls, address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Glue]:
        """Make a registry in moto, which botocore finds by the environment; there may be few."""
        use_store(address, monkeypatch)
        made = cls(get_session().create_client("glue", region_name=REGION))
        made.client.create_registry(RegistryName=made.name)
        try:
            yield made
        finally:
            made.client.delete_registry(RegistryId={"RegistryName": made.name})
            made.client.close()

    @property
    def url(self) -> str:
        """The registry, as a setting names it."""
        return f"glue://{REGION}/{self.name}"

    @property
    def settings(self) -> Settings:
        """Settings that name it."""
        return Settings(schema_registry=self.url)

    def add(self, text: str | dict[str, Any], type_: str = "AVRO", name: str = "") -> uuid.UUID:
        """Register the first schema of a name."""
        made = self.client.create_schema(
            RegistryId={"RegistryName": self.name},
            SchemaName=name or uuid.uuid4().hex,
            DataFormat=type_,
            Compatibility="NONE",
            SchemaDefinition=text if isinstance(text, str) else json.dumps(text),
        )
        return uuid.UUID(made["SchemaVersionId"])

    def add_version(self, text: dict[str, Any], name: str) -> uuid.UUID:
        """Register a further schema of a name."""
        place = {"RegistryName": self.name, "SchemaName": name}
        made = self.client.register_schema_version(
            SchemaId=place, SchemaDefinition=json.dumps(text)
        )
        return uuid.UUID(made["SchemaVersionId"])
