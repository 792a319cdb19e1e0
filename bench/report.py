"""The figures as Markdown, and their place in a page."""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from bench.runner import CONTENDERS, ENGINES, SPARK, Figures

_BLOCK: Final = re.compile(r"(<!-- figures[^>]*-->\n).*?(<!-- end of figures -->)", re.DOTALL)
_ALL: Final = (
    *("load, cold", "load, warm", "changes, cold", "changes, warm"),
    *("100 records, cold", "500 columns, cold"),
)
_OURS: Final = ("10,000 into 1 M, warm", "10,000 into 4 M, warm", "10,000 into 16 M, warm")


def markdown(figures: Figures, scale: float) -> str:
    """Return the tables; what was not measured is an ellipsis, what never is a dash."""
    when = f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, {os.cpu_count()} cores" if figures else "…"
    where = f"{when}, Spark {version('pyspark')}, delta-rs {version('deltalake')}"
    scaled = "" if scale == 1 else f", {scale:g} of every size"
    return "\n".join(
        (
            _row(f"wall s / CPU s ({where}{scaled})", *_ALL),
            _row(*("---" for _ in range(len(_ALL) + 1))),
            *(_row(name, *(_cost(figures, name, part) for part in _ALL)) for name in CONTENDERS),
            "",
            _row("wall s / CPU s", "batch of 500", "Spark jobs of it", *_OURS),
            _row(*("---" for _ in range(len(_OURS) + 3))),
            *(
                _row(name, *_batch(figures, name), *(_cost(figures, name, part) for part in _OURS))
                for name in ENGINES
            ),
            "",
            _row("1 M records of 2 KB in one batch, cold", "wall s / CPU s", "JVM", "Python"),
            _row(*("---" for _ in range(4))),
            *(_row(name, *_memory(figures, name)) for name in ENGINES),
            "",
            _row("many streams in one process", "measured"),
            _row("---", "---"),
            *(_row(what, found) for what, found in _many(figures.get(ENGINES[0], {}))),
            "",
        )
    )


def write_figures(page: Path, tables: str) -> None:
    """Replace the tables of a page."""
    text, count = _BLOCK.subn(lambda found: found[1] + tables + found[2], page.read_text())
    if count != 1:
        raise SystemExit(f"{page} has {count} places for figures, and not one")
    page.write_text(text)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _cost(figures: Figures, name: str, part: str) -> str:
    if part.startswith("500 columns") and name not in SPARK:
        return "\N{EN DASH}"
    cost = figures.get(name, {}).get(part)
    return f"{cost['wall']:.1f} / {cost['cpu']:.1f}" if cost else "…"


def _batch(figures: Figures, name: str) -> tuple[str, str]:
    cost: dict[str, Any] = figures.get(name, {}).get("batches, warm", {})
    if "batch_wall" not in cost:
        return "…", "…"
    return f"{cost['batch_wall']:.2f} / {cost['batch_cpu']:.2f}", f"{cost['batch_jobs']:.0f}"


def _many(figures: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str]]:
    run = figures.get("20 streams of 1,000, in one run")
    yield (
        "`run`: each stream of 1,000 records after the first",
        f"{run['each']:.2f} s" if run else "…",
    )
    live = figures.get("10 streams, followed")
    texts = {
        "from the record's timestamp to its commit, p50 / p99": "{p50:.1f} s / {p99:.1f} s",
        "runs in that time": "{runs:,.0f}",
        "JVM and Python after the first minute": "{jvm_mb:.0f} MB, {python_mb:.0f} MB",
        "JVM and Python at the end": "{jvm_mb_end:.0f} MB, {python_mb_end:.0f} MB",
        "cores used while no record comes": "{idle:.2f}",
    }
    for what, text in texts.items():
        yield f"`follow`, 10 streams of 100 records/s: {what}", text.format(**live) if live else "…"


def _memory(figures: Figures, name: str) -> tuple[str, str, str]:
    cost: dict[str, Any] = figures.get(name, {}).get("2 KB each, cold", {})
    peaks = [f"{cost[of] / 1024:.1f} GB" if cost else "…" for of in ("jvm_mb", "python_mb")]
    return _cost(figures, name, "2 KB each, cold"), peaks[0], peaks[1]
