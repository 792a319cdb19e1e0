"""What somebody sees who works with Dagster's web UI, in a real browser.

``make test`` plays the first story; ``make test-ui`` all of them, and ``make screenshots`` takes the
pictures of the docs from them on the way.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.world import ROOT
from tests.ui.installation import LOCATION, PATIENCE_SECONDS, Installation

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]
whole = pytest.mark.skipif(not os.environ.get("UI"), reason="a part of make test-ui")

_PATIENCE = PATIENCE_SECONDS * 1000
_TRACE = re.compile(r"Traceback|Stack Trace|File \"")


def photograph(page: Page, name: str) -> None:
    """Take a picture for the docs, where that is asked for."""
    if os.environ.get("SCREENSHOTS"):
        page.wait_for_timeout(500)
        page.screenshot(path=ROOT / "docs" / "images" / f"{name}.png")


def materialize(page: Page, shop: Installation, stream: str) -> str:
    """Materialize a stream by a click, and look at its run; return the run's id."""
    page.goto(f"{shop.url}/assets/{stream}")
    page.get_by_role("button", name="Materialize").first.click()
    page.get_by_role("link", name="View", exact=True).click()
    page.wait_for_url("**/runs/*")
    return page.url.rpartition("/")[2]


def ends_with(page: Page, status: str) -> None:
    """Wait until the run on the page has ended in this way."""
    expect(page.get_by_text(status, exact=True).first).to_be_visible(timeout=_PATIENCE)


def row_of(page: Page, name: str) -> Locator:
    """Return the row of a table that begins with this name."""
    return page.get_by_role("row").filter(has=page.get_by_text(name, exact=True)).first


def test_a_click_reads_the_topic_and_shows_what_was_read(shop: Installation, page: Page) -> None:
    """Materialize starts a run; its materialization says which offsets, and what became of them."""
    materialize(page, shop, "orders")
    ends_with(page, "Success")

    page.goto(f"{shop.url}/assets/orders?view=events")

    ranges = page.get_by_role("row").filter(has_text="shop.orders")
    expect(ranges.first).to_be_visible()
    expect(page.get_by_text("shop.orders", exact=True)).to_have_count(2)
    expect(row_of(page, "read")).to_contain_text("302")
    expect(row_of(page, "inserted")).to_contain_text("300")
    expect(row_of(page, "quarantined")).to_contain_text("2")
    photograph(page, "materialization")
