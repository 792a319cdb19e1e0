"""The schema registry asked over plain HTTP, without the engine's client."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any, Final, NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from ingestion.errors import DependencyError, InvalidSpecError
from ingestion.settings import Settings

_NOT_FOUND: Final = 40403
# Ids are whole numbers of Java; a registry need not understand others.
_MOST_ID: Final = 2**31 - 1


class RegisteredSchema(NamedTuple):
    """What a schema id stands for.

    Attributes:
        type: ``AVRO``, ``PROTOBUF`` or ``JSON``.
        text: The schema.
        references: Name and text of the schemas it needs, the needed before the needing.
    """

    type: str
    text: str
    references: dict[str, str]


class SchemaSource:
    """Answers what an id stands for; remembers what it was told."""

    def __init__(self, settings: Settings | None) -> None:
        """Take where the registry is.

        Raises:
            InvalidSpecError: that is not known.
        """
        if settings is None or not settings.schema_registry:
            raise InvalidSpecError(
                "ONCELAKE_SCHEMA_REGISTRY is not set, and without the schemas nothing is provable"
            )
        self._settings, self._url = settings, settings.schema_registry.rstrip("/")
        self._known: dict[int, RegisteredSchema | None] = {}

    def __call__(self, number: int) -> RegisteredSchema | None:
        """Return the schema, or nothing when the registry does not know the id.

        Raises:
            DependencyError: the registry does not answer.
        """
        if number > _MOST_ID:
            return None
        if number not in self._known:
            self._known[number] = self._asked(number)
        return self._known[number]

    def _asked(self, number: int) -> RegisteredSchema | None:
        found = self._get(f"schemas/ids/{number}")
        if found is None:
            return None
        needed = dict(self._needed(found))
        return RegisteredSchema(found.get("schemaType", "AVRO"), found["schema"], needed)

    def _needed(self, schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
        for each in schema.get("references") or ():
            subject = quote(each["subject"], safe="")
            found = self._get(f"subjects/{subject}/versions/{each['version']}")
            if found is None:
                raise self._silent(f"{each['subject']} is gone, and other schemas need it")
            yield from self._needed(found)
            yield each["name"], found["schema"]

    def _get(self, path: str) -> dict[str, Any] | None:
        try:
            with urlopen(self._request(path), timeout=30, context=self._trust()) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except HTTPError as error:
            with error:
                if error.code == 404 and _code(error) == _NOT_FOUND:
                    return None
            raise self._silent(error) from error
        except (OSError, HTTPException, ValueError) as error:
            raise self._silent(error) from error

    def _request(self, path: str) -> Request:
        request = Request(f"{self._url}/{path}", headers={"Accept": "application/json"})
        if user := self._settings.schema_registry_username:
            secret = self._settings.schema_registry_password
            login = f"{user}:{secret.get_secret_value() if secret else ''}"
            request.add_header(
                "Authorization", f"Basic {base64.b64encode(login.encode()).decode()}"
            )
        return request

    def _trust(self) -> ssl.SSLContext | None:
        ca = self._settings.schema_registry_ssl_ca
        return ssl.create_default_context(cafile=ca) if ca else None

    def _silent(self, why: object) -> DependencyError:
        return DependencyError(
            f"the schema registry at {self._url} does not answer: {why}. "
            "Next: check ONCELAKE_SCHEMA_REGISTRY and the registry"
        )


def _code(error: HTTPError) -> int:
    try:
        return int(json.load(error)["error_code"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
