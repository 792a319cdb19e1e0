"""A browser, and an installation for it to look at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.world import settings_in
from tests.ui.installation import Installation, installed, order, running

_CHROMIUM = os.environ.get("CHROMIUM", "chromium")
_SCHEMA = "id BIGINT NOT NULL, status STRING, total DECIMAL(12, 2), updated_at TIMESTAMP NOT NULL"
STREAMS = ("orders", "payments", "visits", "refunds")
_ORDERS = {"schema": _SCHEMA, "keys": ["id"], "sequence_by": ["updated_at"]}


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """The machine's own Chromium; without one there is nothing to test with."""
    found = shutil.which(_CHROMIUM)
    if found is None:
        pytest.skip(f"{_CHROMIUM} was not found; install it (Debian, Ubuntu: apt install chromium)")
    with sync_playwright() as playwright:
        # Chromium's own sandbox does not run as root, as which containers do.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def shop(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, kafka_address: str
) -> Iterator[Installation]:
    """A shop's streams: one in order, one with little to read, one with a lot."""
    folder = tmp_path_factory.mktemp("ui")
    with installed(folder, settings_in(folder, kafka_address)) as place:
        for stream in STREAMS:
            place.create_topic(f"shop.{stream}")
        place.declare(
            "orders",
            topic="shop.orders",
            description="Orders of the shop, as they are now",
            owners=["team:shop"],
            freshness_minutes=30,
            sensor_seconds=5,
            **_ORDERS,
        )
        place.declare("payments", topic="shop.payments", sensor_seconds=5, **_ORDERS)
        place.declare(
            "visits", topic="shop.visits", max_offsets_per_trigger=100, sensor=False, **_ORDERS
        )
        place.declare(
            "refunds",
            topic="shop.refunds",
            sensor=False,
            publish="checked",
            expect={"small": {"rule": "total < 100", "on_miss": "refuse"}},
            **_ORDERS,
        )
        place.send("shop.refunds", *map(order, range(30)))
        place.send("shop.orders", *map(order, range(300)), b"garbage", order(300, total="ten"))
        place.send("shop.payments", *map(order, range(30)))
        place.send("shop.visits", *map(order, range(20_000)))
        with running(place):
            yield place
        for stream in STREAMS:
            place.delete_topic(f"shop.{stream}")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """A window of the browser."""
    page = browser.new_page(viewport={"width": 1280, "height": 800}, timezone_id="UTC")
    page.set_default_timeout(30_000)
    yield page
    page.screenshot(path=tmp_path / "last.png")
    page.close()
