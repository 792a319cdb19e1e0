"""The schema registry: the schemas that records are written with, by id or GUID.

The schema of either never changes, so each is requested once per process. A registry that does not
answer stops the run, and nothing is lost; a record is bad only if the registry itself answers that
the id is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from uuid import UUID

from oncelake.ingestion.errors import DependencyError, InvalidSpecError, RefusedError, first_line
from oncelake.ingestion.kafka.security import redact
from oncelake.ingestion.settings import Settings, variable

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

_NOT_FOUND: Final = 40403
# The registry has no such subject, or no such version of it.
_NO_SUBJECT: Final = (40401, 40402)
# By HTTP: the registry has no such subject, or no such version of it.
_GONE: Final = 404
# By HTTP: the registry has no such GUID, or knows nothing of GUIDs.
_NO_GUIDS: Final = (404, 405)
# By HTTP: a schema that is incompatible with the subject's, or none to the registry.
_REFUSALS: Final = (409, 422)
_RETRIES: Final = 2
# A subject of several record types is looked through for one of them, so far.
_MOST_VERSIONS: Final = 100
# Ids are Java ints.
_MOST_ID: Final = 2**31 - 1

# What a record names its schema by.
SchemaId = int | UUID
_Id = TypeVar("_Id", int, UUID, SchemaId)


class _UnknownGuidError(Exception):
    """The registry does not know a GUID, or has no API for GUIDs."""


class _ReferenceGoneError(Exception):
    """A schema refers to one that is not in the registry any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterSchema:
    """The schema of an id.

    Attributes:
        type: ``AVRO``, ``PROTOBUF`` or ``JSON``.
        text: The schema as its writer registered it.
        references: Name and text of each schema that it refers to; a schema comes after those
            that it refers to itself. A JSON Schema has none, since nothing reads them.
        problem: Why no record can be read by it, such as a reference that is gone; empty if one
            can.
        is_whole: Whether the registry has all that it refers to; if not, it may have it later.
    """

    id: SchemaId
    type: str
    text: str
    references: tuple[tuple[str, str], ...] = ()
    problem: str = ""
    is_whole: bool = True


class Registry:
    """One registry, and the schemas that it has returned so far.

    Raises:
        InvalidSpecError: no registry is set, or its authorities cannot be read.
    """

    def __init__(self, settings: Settings) -> None:
        if not settings.schema_registry:
            raise InvalidSpecError(
                f"{variable('schema_registry')} is not set, and the stream's format needs the "
                "schema registry's address, such as http://registry:8081"
            )
        self._settings = settings
        self._client = _client(settings)
        self._known: dict[SchemaId, WriterSchema] = {}

    def schemas(self, ids: Iterable[_Id]) -> Mapping[_Id, WriterSchema]:
        """Return the schemas of these ids; ids that the registry does not know are left out.

        Raises:
            DependencyError: it does not answer, or not as a schema registry does.
        """
        found = {}
        # Larger ids do not exist, and a registry may answer them with any error.
        possible = {each for each in ids if isinstance(each, UUID) or each <= _MOST_ID}
        for each in sorted(possible, key=str):
            schema = self._known.get(each) or self._ask(each)
            if schema is not None:
                found[each] = schema
                # What is missing today may be registered before the next batch.
                if not schema.problem:
                    self._known[each] = schema
        return found

    def versions(self, subject: str, number: int | None = None) -> Iterator[WriterSchema]:
        """Yield the schemas of a subject, the newest first, or one version; none if it has none.

        Raises:
            DependencyError: it does not answer, or not as a schema registry does.
        """
        found = [number] if number else self._of_subject(self._client.get_versions, subject) or ()
        for each in sorted(found, reverse=True)[:_MOST_VERSIONS]:
            version = self._of_subject(self._client.get_version, subject, each)
            if version is not None:
                yield from self.schemas([version.schema_id or 0]).values()

    def _of_subject(self, request: Callable[..., Any], *of: object) -> Any:
        """Return what is registered under a subject; ``None`` if it has no such thing."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return request(*of)
        except SchemaRegistryError as error:
            if error.error_code in _NO_SUBJECT:
                return None
            raise self._unreachable(error) from error
        except Exception as error:
            raise self._unreachable(error) from error

    def register(self, stream: str, subject: str, text: str) -> int:
        """Register a schema of Avro that a stream writes by, unless it is there; return its id.

        Raises:
            RefusedError: the registry does not take it under this subject.
            DependencyError: it does not answer, or not as a schema registry does.
        """
        from confluent_kafka.schema_registry import Schema

        try:
            return self._client.register_schema(subject, Schema(text, "AVRO"))
        except Exception as error:
            if getattr(error, "http_status_code", None) not in _REFUSALS:
                raise self._unreachable(error) from error
            raise RefusedError(
                stream,
                f"the schema registry at {self._settings.schema_registry} does not take the schema "
                f"of subject {subject}: {redact(first_line(error), self._settings)}. Nothing was "
                "written.",
                remedy="change the declaration, the subject's compatibility, or the topic's name",
            ) from error

    def _ask(self, number: SchemaId) -> WriterSchema | None:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            schema = self._schema(number)
            written = WriterSchema(
                id=number, type=schema.schema_type or "AVRO", text=schema.schema_str or ""
            )
            if written.type == "JSON":
                return written
            return replace(written, references=tuple(dict(self._referred(schema, set())).items()))
        except _ReferenceGoneError as error:
            return replace(written, problem=str(error), is_whole=False)
        except _UnknownGuidError:
            return None
        except SchemaRegistryError as error:
            # Any other 404 comes from a server that is not a registry.
            if error.error_code == _NOT_FOUND:
                return None
            raise self._unreachable(error) from error
        except Exception as error:
            raise self._unreachable(error) from error

    def _schema(self, number: SchemaId) -> Schema:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        if not isinstance(number, UUID):
            return self._client.get_schema(number)
        try:
            return self._client.get_schema_by_guid(str(number))
        except SchemaRegistryError as error:
            if error.http_status_code not in _NO_GUIDS:
                raise
            # A server that is no registry answers alike, and fails here.
            self._client.get_schema_types()
            raise _UnknownGuidError from error

    def _referred(
        self, schema: Schema, known: set[tuple[str, str, int]]
    ) -> Iterator[tuple[str, str]]:
        """Yield what a schema refers to, each once: they may refer to one another in circles."""
        for each in schema.references or ():
            name, subject, version = place = str(each.name), str(each.subject), each.version or 1
            if place in known:
                continue
            known.add(place)
            found = self._version(name, subject, version)
            yield from self._referred(found, known)
            yield name, str(found.schema_str)

    def _version(self, name: str, subject: str, version: int) -> Schema:
        """Return what a subject has as a version, also where that was deleted but not for good."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return self._client.get_version(subject, version, deleted=True).schema
        except SchemaRegistryError as error:
            # The server has just returned a schema: it is a registry, and its answer counts.
            if error.http_status_code != _GONE:
                raise
            raise _ReferenceGoneError(
                f"it refers to {name}, version {version} of subject {subject}, which the registry "
                "does not have"
            ) from error

    def _unreachable(self, error: Exception) -> DependencyError:
        said = redact(first_line(error), self._settings) or type(error).__name__
        login = "its …_USERNAME, …_PASSWORD and …_SSL_CA"
        login = "the login that botocore finds" if self._settings.in_glue else login
        return DependencyError(
            f"the schema registry at {self._settings.schema_registry} does not answer as expected: "
            f"{said}. Nothing is lost. Next: check {variable('schema_registry')}, {login}, and "
            "the registry; then run the same command again"
        )


@cache
def registry_of(settings: Settings) -> Registry:
    """Return the registry of these settings, one per process."""
    return Registry(settings)


def fresh_registry(settings: Settings) -> Registry:
    """Return one with empty caches, so that schemas deleted meanwhile are unknown to it."""
    registry = Registry(settings)
    registry._client.clear_caches()
    return registry


@cache
def _client(settings: Settings) -> SchemaRegistryClient:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    if settings.in_glue:
        from oncelake.ingestion.kafka.glue import GlueClient

        return cast("SchemaRegistryClient", GlueClient(settings))
    password = settings.schema_registry_password
    options: dict[str, Any] = {
        "url": settings.schema_registry,
        "timeout": settings.kafka_timeout_seconds,
        "max.retries": _RETRIES,
        "retries.wait.ms": 200,
    }
    if settings.schema_registry_username:
        secret = password.get_secret_value() if password else ""
        options["basic.auth.user.info"] = f"{settings.schema_registry_username}:{secret}"
    if settings.schema_registry_ssl_ca:
        options["ssl.ca.location"] = str(settings.schema_registry_ssl_ca)
    try:
        return SchemaRegistryClient(options)
    except OSError as error:
        ca = f"{variable('schema_registry_ssl_ca')}: {settings.schema_registry_ssl_ca}"
        raise InvalidSpecError(
            f"{ca} cannot be read as the PEM file of authorities: {error.strerror or error}"
        ) from error
