"""A schema registry of a few lines on loopback: it answers by HTTP what Confluent's own would."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import NAMESPACE_OID, UUID, uuid4, uuid5

from oncelake.ingestion.settings import Settings
from tests.support.http_server import Handler, served

Reference = tuple[str, str, int]


@dataclass
class SmallRegistry:
    """Schemas by id, and by subject and version.

    Attributes:
        address: Where it answers.
        hidden: Subjects and versions that are deleted, but not for good.
        has_guids: Whether it answers by GUIDs, as newer registries do.
    """

    address: str = ""
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    versions: dict[tuple[str, int], int] = field(default_factory=dict)
    hidden: set[tuple[str, int]] = field(default_factory=set)
    has_guids: bool = True

    @property
    def settings(self) -> Settings:
        """Settings that name it."""
        return Settings(schema_registry=self.address)

    def add(
        self,
        text: str | dict[str, Any],
        type_: str = "AVRO",
        *,
        references: Sequence[Reference] = (),
        at: tuple[str, int] | None = None,
    ) -> int:
        """Register a schema, under a subject and a version of it if they are given."""
        number = len(self.schemas) + 1
        names = ("name", "subject", "version")
        self.schemas[number] = {
            "schema": text if isinstance(text, str) else json.dumps(text),
            "schemaType": type_,
            "references": [dict(zip(names, each, strict=True)) for each in references],
        }
        self.versions[at or (f"subject-{number}", 1)] = number
        return number

    @staticmethod
    def guid(number: int) -> UUID:
        """Return the GUID of a schema."""
        return uuid5(NAMESPACE_OID, str(number))

    def answer(self, path: str) -> tuple[int, dict[str, Any] | list[Any]]:
        """Return status and body of a GET."""
        asked = urlsplit(path)
        parts = [unquote(part) for part in asked.path.strip("/").split("/")[1:]]
        if parts[:2] == ["schemas", "ids"]:
            schema = self.schemas.get(int(parts[2]))
            return (200, schema) if schema else (404, _error(40403, "Schema not found"))
        if parts == ["schemas", "types"]:
            return 200, ["AVRO", "JSON", "PROTOBUF"]
        if parts[:2] == ["schemas", "guids"]:
            known = {str(self.guid(number)): each for number, each in self.schemas.items()}
            if not self.has_guids:
                return 404, _error(404, "HTTP 404 Not Found")
            schema = known.get(parts[2])
            return (200, schema) if schema else (404, _error(40403, "Schema not found"))
        if len(parts) == 3:
            known_versions = [version for subject, version in self.versions if subject == parts[1]]
            missing = (404, _error(40401, f"Subject '{parts[1]}' not found."))
            return (200, known_versions) if known_versions else missing
        at = (parts[1], int(parts[3]))
        is_shown = at not in self.hidden or parse_qs(asked.query).get("deleted") == ["true"]
        number = self.versions.get(at) if is_shown else None
        if number is None:
            return 404, _error(40401, f"Subject '{at[0]}' not found.")
        return 200, {"id": number, "subject": at[0], "version": at[1], **self.schemas[number]}


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error_code": code, "message": message}


@contextmanager
def small_registry() -> Iterator[SmallRegistry]:
    """Yield a registry that lives as long as the block."""
    registry = SmallRegistry()
    with served(partial(_Answers, registry)) as address:
        # Another one may get the same port, and a process remembers what an address has answered.
        registry.address = f"{address}/{uuid4().hex}"
        yield registry


class _Answers(Handler):
    """Answers for a registry."""

    def __init__(self, registry: SmallRegistry, *arguments: Any) -> None:
        self._registry = registry
        super().__init__(*arguments)

    def get(self) -> None:
        status, body = self._registry.answer(self.path)
        self.answer(status, json.dumps(body).encode())
