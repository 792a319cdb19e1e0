"""A schema registry behind a login and a certificate, as hosted ones are, and what goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from oncelake.ingestion.errors import DependencyError, InvalidSpecError
from oncelake.ingestion.kafka.schema_registry import Registry, fresh_registry
from oncelake.ingestion.settings import Settings
from tests.support.registry import Guard, Subject, guarded

pytestmark = [pytest.mark.kafka]

SCHEMA = '"long"'
# What asks for a schema: the engine, and the proof, which remembers nothing of it.
ASKING: dict[str, Callable[[Settings, int], object]] = {
    "engine": lambda settings, number: Registry(settings).schemas([number]).get(number),
    "proof": lambda settings, number: fresh_registry(settings).schemas([number]).get(number),
}


@pytest.fixture(scope="module")
def guard(registry_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guard]:
    """The real registry behind HTTPS and a login, and its certificate."""
    with guarded(registry_address, tmp_path_factory.mktemp("guard")) as found:
        yield found


@pytest.fixture
def number(registry_address: str, settings: Settings) -> Iterator[int]:
    """The id of a schema that the registry knows."""
    with Subject(registry_address, "behind-a-login-value") as subject:
        yield subject.register(SCHEMA)


def behind(guard: Guard, settings: Settings, **other: object) -> Settings:
    """Return settings that get in, but for what is said otherwise."""
    right: Mapping[str, object] = {
        "schema_registry": guard.address,
        "schema_registry_username": guard.username,
        "schema_registry_password": guard.password,
        "schema_registry_ssl_ca": guard.certificate,
    }
    return Settings.model_validate({**settings.model_dump(), **right, **other})


@pytest.mark.parametrize("asked", ASKING.values(), ids=ASKING)
def test_who_has_login_and_certificate_gets_in(
    guard: Guard, settings: Settings, number: int, asked: Callable[[Settings, int], object]
) -> None:
    """A schema is told, and an id that the registry does not know is known to be none."""
    inside = behind(guard, settings)

    assert SCHEMA in str(asked(inside, number))
    assert asked(inside, 2**31 + 1) is None


@pytest.mark.parametrize("asked", ASKING.values(), ids=ASKING)
@pytest.mark.parametrize("content", [None, "no PEM"], ids=["not there", "of something else"])
def test_authorities_that_cannot_be_read_are_of_the_settings(
    tmp_path: Path, asked: Callable[[Settings, int], object], content: str | None
) -> None:
    """The variable and the file are named, and nothing is tried again."""
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    wrong = Settings(schema_registry="https://registry:8081", schema_registry_ssl_ca=file)

    with pytest.raises(InvalidSpecError, match=f"^ONCELAKE_SCHEMA_REGISTRY_SSL_CA: {file} "):
        asked(wrong, 1)


@pytest.mark.parametrize("asked", ASKING.values(), ids=ASKING)
@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"schema_registry_password": "guessed"}, "401"),
        ({"schema_registry_username": None, "schema_registry_password": None}, "401"),
        ({"schema_registry_ssl_ca": None}, "CERTIFICATE_VERIFY_FAILED"),
    ],
    ids=["wrong password", "no login", "unknown certificate"],
)
def test_a_missing_right_is_explained(
    guard: Guard,
    settings: Settings,
    number: int,
    asked: Callable[[Settings, int], object],
    other: Mapping[str, object],
    said: str,
) -> None:
    """The refusal is no word about an id: the run may be tried again, and nothing is quarantined.

    Neither password is in what is said.
    """
    with pytest.raises(DependencyError, match=said) as refused:
        asked(behind(guard, settings, **other), number)

    assert "ONCELAKE_SCHEMA_REGISTRY" in str(refused.value)
    assert guard.password not in str(refused.value)
    assert "guessed" not in str(refused.value)
