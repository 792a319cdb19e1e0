"""A schema registry of two addresses, of which one does not answer as it should."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from oncelake.ingestion.errors import DependencyError
from oncelake.ingestion.kafka.schema_registry import fresh_registry
from oncelake.ingestion.settings import Settings
from tests.support.frail_broker import free_ports
from tests.support.proxy import Fault, Proxy
from tests.support.small_registry import SmallRegistry, small_registry


@dataclass(frozen=True, kw_only=True)
class TwoAddresses:
    """One registry behind two proxies."""

    registry: SmallRegistry
    proxies: tuple[Proxy, Proxy]
    settings: Settings

    def schema(self, number: int) -> str:
        """Ask for a schema, remembering nothing."""
        return fresh_registry(self.settings).schemas([number])[number].text


@pytest.fixture
def two() -> Iterator[TwoAddresses]:
    """A registry whose addresses both work."""
    ports = free_ports(2)
    with small_registry() as registry:
        at = urlsplit(registry.address)
        port = at.port or 0
        with Proxy.between(port, port=ports[0]) as one, Proxy.between(port, port=ports[1]) as other:
            urls = ",".join(f"http://127.0.0.1:{each}{at.path}" for each in ports)
            settings = Settings(schema_registry=urls, kafka_timeout_seconds=2)
            yield TwoAddresses(registry=registry, proxies=(one, other), settings=settings)


@pytest.mark.parametrize("fault", ["reset", "stall", "throttle"])
@pytest.mark.parametrize("which", [0, 1])
def test_the_other_address_of_a_registry_answers(
    two: TwoAddresses, which: int, fault: Fault
) -> None:
    """One that resets connections, or does not answer in time, ends no run."""
    number = two.registry.add('"long"')
    two.proxies[which].switch(fault)

    assert two.schema(number) == '"long"'


def test_a_registry_of_which_no_address_answers_ends_the_run(two: TwoAddresses) -> None:
    """A schema is unknown only if the registry says so; then it is asked again."""
    number = two.registry.add('"long"')
    for proxy in two.proxies:
        proxy.switch("reset")

    with pytest.raises(DependencyError, match="does not answer"):
        two.schema(number)

    two.proxies[1].switch("none")
    assert two.schema(number) == '"long"'
