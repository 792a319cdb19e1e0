"""Topics of a test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.audit.pipelines import Source, fill, source


@pytest.fixture
def orders(kafka_address: str) -> Iterator[Source]:
    """A topic of the test's own, filled."""
    with source(kafka_address) as made:
        fill(made)
        yield made


@pytest.fixture
def empty(kafka_address: str) -> Iterator[Source]:
    """A topic of the test's own."""
    with source(kafka_address) as made:
        yield made
