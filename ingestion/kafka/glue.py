"""AWS Glue's schema registry, behind the methods of Confluent's client that are needed.

A schema's id is the UUID of its version. Glue gives it for good, so it is requested once; one that
is not `AVAILABLE` is unknown as long as it is not.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, NoReturn
from uuid import UUID

from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.error import SchemaRegistryError

from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.settings import Settings, variable

_ATTEMPTS: Final = 3
# As Confluent's registry answers: it has no such schema, and no such subject.
_NO_SCHEMA: Final = 40403
_NO_SUBJECT: Final = 40401
_REFUSED: Final = 422


class _Version(NamedTuple):
    """A version of a subject."""

    schema_id: UUID


class GlueClient:
    """Reads one registry, ``glue://REGION/REGISTRY``, with the credentials that botocore finds.

    Raises:
        InvalidSpecError: botocore is not installed.
    """

    def __init__(self, settings: Settings) -> None:
        try:
            from botocore.config import Config
            from botocore.session import get_session
        except ImportError as error:
            raise InvalidSpecError(
                f"{variable('schema_registry')} names AWS Glue's, and its client is not installed. "
                "Next: make setup in a clone, or pip install 'WHEEL[glue]' (docs/embedding.md)"
            ) from error
        _, _, region, self._registry = (settings.schema_registry or "").split("/")
        seconds = settings.kafka_timeout_seconds
        retries = {"total_max_attempts": _ATTEMPTS}
        config = Config(connect_timeout=seconds, read_timeout=seconds, retries=retries)
        self._glue = get_session().create_client("glue", region_name=region, config=config)

    def get_schema(self, number: int) -> NoReturn:
        """Know no number: Glue's ids are UUIDs."""
        raise SchemaRegistryError(400, _NO_SCHEMA, f"no schema {number}")

    def get_schema_by_guid(self, guid: str) -> Schema:
        """Return the schema of a version."""
        found = self._version(_NO_SCHEMA, SchemaVersionId=guid)
        return Schema(found["SchemaDefinition"], found["DataFormat"])

    def get_versions(self, subject: str) -> list[int]:
        """Return the numbers that versions of a schema's name may have."""
        newest = self._of_name(subject, {"LatestVersion": True})
        return [*range(1, newest["VersionNumber"] + 1)]

    def get_version(self, subject: str, number: int) -> _Version:
        """Return a version of a schema's name."""
        found = self._of_name(subject, {"VersionNumber": number})
        return _Version(UUID(found["SchemaVersionId"]))

    def register_schema(self, subject: str, schema: Schema) -> NoReturn:
        """Refuse: what Glue's registry has, nobody but its owner writes."""
        raise SchemaRegistryError(_REFUSED, _REFUSED, "AWS Glue's registry is only read")

    def clear_caches(self) -> None:
        """Do nothing: nothing is kept."""

    def _of_name(self, subject: str, number: dict[str, Any]) -> dict[str, Any]:
        schema = {"RegistryName": self._registry, "SchemaName": subject}
        return self._version(_NO_SUBJECT, SchemaId=schema, SchemaVersionNumber=number)

    def _version(self, unknown: int, **asked: Any) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._glue.get_schema_version(**asked)
        except self._glue.exceptions.EntityNotFoundException as error:
            raise SchemaRegistryError(400, unknown, str(error)) from error
        if found["Status"] != "AVAILABLE":
            raise SchemaRegistryError(400, unknown, f"it is {found['Status']}")
        return found
