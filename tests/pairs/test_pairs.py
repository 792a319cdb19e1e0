"""Every field of a declaration beside every other: rows, books, quarantine and proof are right.

``make pairs`` plays all topics, with as many seeds as there is time for.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from oncelake.ingestion.declaration.fields import Declaration
from oncelake.ingestion.declaration.formats import FORMATS
from oncelake.ingestion.declaration.modes import MODES
from oncelake.ingestion.declaration.parts import Starting
from oncelake.ingestion.declaration.routes import RoutedFile
from oncelake.ingestion.declaration.sinks import SINKS
from tests.pairs.catalogue import (
    FEATURES,
    UNPAIRED,
    name_of,
    pairs,
    playable,
    refused,
    topics,
)
from tests.pairs.play import play, refusal
from tests.support.long import IS_LONG

# `make test` plays each topic of so many; `make test-long` all.
ONE_IN = 1 if IS_LONG else 10


@pytest.mark.parametrize("pack", topics()[::ONE_IN], ids=name_of)
def test_fields_together_mean_what_their_pages_promise(pack: tuple, tmp_path: Path) -> None:  # type: ignore[type-arg]
    """Rows, quarantine and counts are the oracle's, and the proof holds."""
    assert play(pack, 1, tmp_path) == []


def test_pairs_that_contradict_are_refused_and_no_others(tmp_path: Path) -> None:
    """The list says which, and with what words."""
    found = {name_of(pair): refusal(pair, tmp_path / str(nth)) for nth, pair in enumerate(pairs())}

    assert {name: text for name, text in found.items() if text} == refused()


def test_the_topics_hold_all_pairs() -> None:
    """Each pair that is valid, and needs no Spark, meets on one."""
    met = {name_of(pair) for pack in topics() for pair in combinations(pack, 2)}

    assert [name for pair in playable(refused()) if (name := name_of(pair)) not in met] == []


def _words() -> set[str]:
    """Return all that may be written, an option of a map by its path."""
    fields = {each.alias or name for name, each in Declaration.model_fields.items()}
    fields |= RoutedFile.model_fields.keys()
    options = {o for each in FORMATS.values() for o in each.options.model_fields}
    fields |= {f"format.{name}" for name in options}
    fields |= {f"format: {name}" for name, each in FORMATS.items() if each.for_values}
    fields |= {f"key_format: {name}" for name, each in FORMATS.items() if each.for_keys}
    fields |= {f"mode: {name}" for name in MODES} | {f"sink: {name}" for name in SINKS}
    return fields | {f"starting.{name}" for name in Starting.model_fields}


def _paired() -> set[str]:
    """Return what some feature declares."""
    paths = {path for each in FEATURES for path in {**each.fields, **each.needs}}
    values = {
        f"{path.removesuffix('.type')}: {value}"
        for each in FEATURES
        for path, value in each.fields.items()
        if isinstance(value, str)
    }
    roots = {path.partition(".")[0] for path in paths}
    of_sinks = {path.replace("sink.", "sink: ") for path in paths}
    return {*paths, *values, *roots, *of_sinks}


def test_a_field_that_is_added_is_paired() -> None:
    """Or the list says why it is not, of nothing that is paired or unknown."""
    missing = _words() - _paired() - UNPAIRED.keys()

    assert (sorted(missing), sorted(UNPAIRED.keys() - (_words() - _paired()))) == ([], [])
