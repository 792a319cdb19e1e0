"""What a lake in a store asks of the store: requests by kind, and what they cost a month.

    python -m bench.requests

Moto stands in for the store, behind a proxy that counts. All runs in one process, as `follow` does,
so that what is fetched once is fetched once; CPU-seconds are this process's and its children's,
beside those of a lake in a folder.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.topic import ORDERS, Topic
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.local import broker
from oncelake.ingestion.operations.follow.follow import Follow
from oncelake.ingestion.operations.run import Run
from oncelake.ingestion.pipeline.spark.session import SharedSpark, start_session
from oncelake.ingestion.settings import Settings, load_settings
from tests.support.store import environment_of_store, make_bucket, moto
from tests.support.store_proxy import StoreProxy

# Amazon's list price in us-east-1, in US dollars for a thousand requests.
PRICES: Final = {"GET": 0.0004, "HEAD": 0.0004, "PUT": 0.005, "POST": 0.005, "LIST": 0.005}
_FOLLOWED_SECONDS: Final = 180
_BATCHES: Final = 5
_STREAM: Final = "orders"
_DECLARED: Final = {"topic": _STREAM, "schema": ORDERS, "keys": ["id"]}


def main() -> None:
    """Measure, and print a table in Markdown."""
    with tempfile.TemporaryDirectory() as folder, moto(Path(tempfile.mkdtemp())) as address:
        at = Path(folder)
        up = broker.up(at / "kafka", jars=load_settings().jars, tied_to_caller=True)
        try:
            with StoreProxy.before(address) as proxy:
                os.environ.update(environment_of_store(proxy.address))
                bucket = make_bucket(address)
                _measure(at, up.address, f"s3://{bucket}/lake", proxy)
        finally:
            broker.down(at / "kafka")


def _measure(at: Path, kafka: str, lake: str, proxy: StoreProxy) -> None:
    (at / "streams").mkdir()
    (at / "streams" / f"{_STREAM}.yaml").write_text(json.dumps(_DECLARED))
    stored = load_settings(kafka=kafka, lake=lake, state=at / "stored", streams=at / "streams")
    spark = start_session(stored)
    spec, number = StreamSpec.model_validate({"name": _STREAM, **_DECLARED}), iter(range(1_000))

    def run(settings: Settings) -> None:
        Run(
            spec=spec, settings=settings, spark=lambda _: spark, run_id=f"run-{next(number)}"
        ).execute()

    def follow() -> None:
        Follow(
            settings=stored,
            spark=SharedSpark(lambda _: spark),
            run_id="follow",
            on_report=lambda declared, report: None,
            on_failure=lambda declared, error: print(error),
            for_seconds=_FOLLOWED_SECONDS,
        ).execute()

    topic = Topic(stored, _STREAM)
    beside = stored.model_copy(update={"lake": at / "lake", "state": at / "beside"})
    topic.insert(500)
    for settings in (stored, beside):
        run(settings)
    spent: dict[str, list[float]] = {"stored": [], "beside": []}
    print("| what | " + " | ".join(PRICES) + " | in all | a thousand cost |")
    print("|---" * (len(PRICES) + 3) + "|")
    for _ in range(_BATCHES):
        topic.insert(500)
        batch = _counted(proxy, lambda: spent["stored"].append(_seconds(lambda: run(stored))))
        spent["beside"].append(_seconds(lambda: run(beside)))
    run(stored)
    _print("a batch of 500, warm", batch)
    _print("a run that finds nothing", _counted(proxy, lambda: run(stored)))
    followed = _counted(proxy, follow)
    hour = Counter({kind: n * 3600 // _FOLLOWED_SECONDS for kind, n in followed.items()})
    _print("an hour of `follow` without records", hour)
    stored_s, beside_s = (sorted(each)[_BATCHES // 2] for each in spent.values())
    print(
        f"\nA batch of 500, CPU-s of this process: {stored_s:.2f}, and {beside_s:.2f} in a folder."
    )


def _counted(proxy: StoreProxy, act: Callable[[], object]) -> Counter[str]:
    with proxy.counted() as requests:
        act()
    return requests.counts


def _seconds(act: Callable[[], object]) -> float:
    before = time.process_time()
    act()
    return time.process_time() - before


def _print(what: str, counts: Counter[str]) -> None:
    cost = sum(PRICES[kind] * n for kind, n in counts.items())
    cells = [what, *(counts[kind] for kind in PRICES), counts.total(), f"${cost:.3f}"]
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
