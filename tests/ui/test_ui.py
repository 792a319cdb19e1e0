"""What somebody sees who works with Dagster's web UI, in a real browser.

``make test`` plays the first story; ``make test-ui`` all of them, one after the other, and ``make
screenshots`` takes the pictures of the docs on the way.
"""

from __future__ import annotations

import os
import re

import dagster as dg
import pytest
from playwright.sync_api import Locator, Page, expect

from oncelake.assets.doctor.idle import LAG_SENSOR
from oncelake.assets.failures import as_markdown
from oncelake.assets.jobs.jobs import INGEST_JOB
from tests.support.world import ROOT
from tests.ui.installation import LOCATION, PATIENCE_SECONDS, Installation, order

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
    known = {run.run_id for run in shop.runs()}
    page.goto(f"{shop.url}/assets/{stream}")
    page.get_by_role("button", name="Materialize").first.click()
    shop.wait_until(lambda: {run.run_id for run in shop.runs()} - known, "a run by the click")
    (run_id,) = {run.run_id for run in shop.runs()} - known
    page.goto(f"{shop.url}/runs/{run_id}")
    return run_id


def ends_with(page: Page, status: str) -> None:
    """Wait until the run on the page has ended in this way."""
    expect(page.get_by_text(status, exact=True).first).to_be_visible(timeout=_PATIENCE)


def row_of(page: Page, name: str) -> Locator:
    """Return the row of a table that begins with this name."""
    return page.get_by_role("row").filter(has=page.get_by_text(name, exact=True)).first


def value_of(page: Page, name: str, value: str) -> Locator:
    """Return what stands beside a name in a table, if it is this value and no longer one."""
    return row_of(page, name).get_by_text(value, exact=True)


def test_a_click_reads_the_topic_and_shows_what_was_read(shop: Installation, page: Page) -> None:
    """Materialize starts a run; its materialization says which offsets, and what became of them."""
    materialize(page, shop, "orders")
    ends_with(page, "Success")

    page.goto(f"{shop.url}/assets/orders?view=events")

    ranges = page.get_by_role("row").filter(has_text="shop.orders")
    expect(ranges.first).to_be_visible()
    expect(page.get_by_text("shop.orders", exact=True)).to_have_count(2)
    expect(value_of(page, "read", "302")).to_be_visible()
    expect(value_of(page, "inserted", "300")).to_be_visible()
    expect(value_of(page, "quarantined", "2")).to_be_visible()
    photograph(page, "materialization")


@whole
def test_the_numbers_of_runs_are_plotted(shop: Installation, page: Page) -> None:
    """The asset's page draws what each run read."""
    page.goto(f"{shop.url}/assets/orders")
    page.get_by_text("Plots", exact=True).click()

    expect(page.get_by_text("read", exact=True).first).to_be_visible()
    expect(page.locator("canvas").first).to_be_visible()


@whole
def test_each_check_says_what_it_means(shop: Installation, page: Page) -> None:
    """The checks of a stream are there with their outcome, and with a sentence that explains it."""
    page.goto(f"{shop.url}/assets/orders?view=checks")

    for name in ("books_balance", "offsets_contiguous", "quarantine_rate", "freshness"):
        expect(page.get_by_text(name, exact=True).first).to_be_visible()
    expect(page.get_by_text("Every offset and every record of the run")).to_be_visible()
    photograph(page, "checks")


@whole
def test_the_check_of_the_quarantine_leads_there(shop: Installation, page: Page) -> None:
    """From the check one click shows the quarantine: how many wait, and what to do."""
    page.goto(f"{shop.url}/assets/orders?view=checks&checkDetail=quarantine_rate")
    page.get_by_role("link", name="orders__quarantine").first.click()

    expect(page.get_by_text("Records that could not be applied, raw")).to_be_visible()
    page.goto(f"{shop.url}/assets/orders__quarantine?view=events")
    expect(value_of(page, "waiting", "2")).to_be_visible()


@whole
def test_a_text_from_a_record_is_shown_as_it_is(shop: Installation, page: Page) -> None:
    """No browser fetches a picture that a key of a record names, and no link has another name."""
    elsewhere = "http://127.0.0.1:9/"
    hostile = (
        f'![p]({elsewhere}) [l]({elsewhere}) <img src="{elsewhere}"> [r][1]\n\n[1]: {elsewhere}'
    )
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    shop.report(
        dg.AssetCheckEvaluation(
            asset_key=dg.AssetKey("visits"),
            check_name="books_balance",
            passed=False,
            description=as_markdown(hostile),
            metadata={"says": dg.MetadataValue.md(as_markdown(hostile)), hostile: hostile},
        )
    )

    page.goto(f"{shop.url}/assets/visits?view=checks&checkDetail=books_balance")

    expect(page.get_by_text(f"![p]({elsewhere})").first).to_be_visible()
    expect(page.locator(f'a[href^="{elsewhere}"]', has_text=re.compile("^[lr]$"))).to_have_count(0)
    assert not [url for url in requested if url.startswith(elsewhere)]


@whole
def test_a_run_is_ended_by_terminate(shop: Installation, page: Page) -> None:
    """Terminate ends a run within seconds, in one sentence; the next run goes on behind it."""
    run_id = materialize(page, shop, "visits")
    expect(page.get_by_text("batch 2 committed").first).to_be_visible(timeout=_PATIENCE)
    photograph(page, "run")
    page.get_by_role("button", name="Terminate").click()
    page.get_by_role("button", name="Terminate 1 run").click()
    ends_with(page, "Canceled")

    events = shop.events_of(run_id)
    assert [says for says in events if _TRACE.search(says)] == []
    assert not _TRACE.search(shop.output_of(run_id))
    assert any("the next run goes on behind the last commit" in says for says in events)


@whole
def test_a_sensor_that_is_switched_on_starts_runs(shop: Installation, page: Page) -> None:
    """The switch on its page is all it takes: a tick finds the records, and a run reads them."""
    page.goto(f"{shop.url}/locations/{LOCATION}/sensors/{LAG_SENSOR}")
    row_of(page, "Running").locator("label").click()
    expect(page.get_by_text("1 run requested").first).to_be_visible(timeout=_PATIENCE)
    photograph(page, "sensor")

    shop.wait_until(lambda: shop.has_ended(INGEST_JOB), "a run by the sensor")
    page.goto(f"{shop.url}/assets/payments?view=events")
    expect(value_of(page, "inserted", "30")).to_be_visible()


@whole
def test_a_topic_shows_its_lag(shop: Installation, page: Page) -> None:
    """The sensor observes the topic, so its page shows how far the stream is."""
    shop.wait_until(lambda: shop.observations("kafka", "shop.orders") >= 1, "an observation")
    page.goto(f"{shop.url}/assets/kafka/shop.orders?view=events")

    expect(value_of(page, "lag", "0")).to_be_visible()


@whole
def test_a_refused_run_says_why_and_what_to_do(shop: Installation, page: Page) -> None:
    """The sensor starts one, whose page names the reason and the command; so do later ticks."""
    shop.delete_topic("shop.payments")
    shop.create_topic("shop.payments")
    shop.send("shop.payments", order(1))
    # By then a run was refused, though the topic is shorter than the table.
    shop.wait_until(
        lambda: "Next: oncelake adopt-topic payments" in shop.last_skip(LAG_SENSOR),
        "a tick that says why no run is started",
    )
    page.goto(f"{shop.url}/runs/{shop.runs(INGEST_JOB)[0].run_id}")
    ends_with(page, "Failure")

    expect(page.get_by_text("was deleted and created again").first).to_be_visible()
    expect(page.get_by_text("oncelake adopt-topic payments").first).to_be_visible()
    photograph(page, "refused")


@whole
def test_a_batch_at_the_gate_is_shown_and_published_once_it_is_accepted(
    shop: Installation, page: Page
) -> None:
    """No materialization; the check has the rows; the acceptance by its id lets it pass."""
    materialize(page, shop, "refunds")
    ends_with(page, "Success")
    shop.send("shop.refunds", order(100, total=5000), order(101))
    materialize(page, shop, "refunds")
    ends_with(page, "Failure")
    expect(page.get_by_text("is not published").first).to_be_visible()
    assert shop.materializations("refunds") == 1

    page.goto(f"{shop.url}/assets/refunds?view=checks&checkDetail=gate")
    expect(page.get_by_text("1 row does not meet total < 100").first).to_be_visible()
    photograph(page, "gate")
    page.goto(f"{shop.url}/assets/refunds?view=events")
    expect(page.get_by_text("Observed").first).to_be_visible()

    id = re.findall(r"--batch (\w+)", " ".join(shop.events_of(shop.runs()[0].run_id)))[0]
    shop.type("accept", "refunds", "--batch", id, "--reason", "a large one, for once")
    materialize(page, shop, "refunds")
    ends_with(page, "Success")
    page.goto(f"{shop.url}/assets/refunds?view=checks&checkDetail=gate")
    expect(page.get_by_text("was published as it is: a large one, for once").first).to_be_visible()
    assert shop.materializations("refunds") >= 2
