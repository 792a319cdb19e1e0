"""Plays all pairs: python -m tests.pairs [--seeds 1] [--first 1] [--alone] [--only TEXT] [--list].

Fields meet several at a time, unless each pair is to be ``--alone``; what fails so is played again
pair by pair, and pairs that fail are told with their seed. ``--list`` writes the pairs that are
refused.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

from tests.pairs.catalogue import LIST, name_of, packs, pairs, playable, refused, topics
from tests.pairs.plan import Feature
from tests.pairs.play import play, refusal


def found(features: Sequence[Feature], seed: int) -> list[str]:
    """Play features, and return what is wrong, or the exception that ended it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return play(features, seed, Path(folder))
        except Exception as error:  # noqa: BLE001 (it is what was found)
            return ["".join(traceback.format_exception(error)[-2:])]


def blamed(features: Sequence[Feature], seed: int) -> Iterator[tuple[Sequence[Feature], list[str]]]:
    """Yield the pairs of a pack that fail alone; the pack itself where none does."""
    told = False
    for pair in combinations(features, 2) if len(features) > 2 else ():
        for own in range(seed, seed + 3):
            if problems := found(pair, own):
                told = True
                yield pair, [f"seed {own}", *problems]
                break
    if not told:
        yield features, [f"seed {seed}", *found(features, seed)]


def write_list() -> None:
    """Write the pairs that are refused together, by the refusal, and the topics of the others."""
    by_text = defaultdict[str, list[str]](list)
    with tempfile.TemporaryDirectory() as folder:
        for nth, pair in enumerate(pairs()):
            if text := refusal(pair, Path(folder) / str(nth)):
                by_text[text].append(name_of(pair))
        valid = playable({name for names in by_text.values() for name in names})
        topics = [name_of(each) for each in packs(valid, Path(folder))]
    listed = {"refused": by_text, "topics": topics}
    LIST.write_text(json.dumps(listed, indent=1, sort_keys=True) + "\n")
    refused, all_ = sum(map(len, by_text.values())), len(list(pairs()))
    print(f"{all_} pairs: {refused} refused, {len(valid)} on {len(topics)} topics")


def main() -> int:
    """Play what is asked for; return 1 where something is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--minutes", type=float, default=1e9)
    given = parser.parse_args()
    if given.list:
        write_list()
        return 0
    packed: list[tuple[Feature, ...]] = [*playable(refused())] if given.alone else topics()
    packed = [each for each in packed if given.only in name_of(each)]
    begun, played, bad = time.monotonic(), 0, set[str]()
    for seed in range(given.first, given.first + given.seeds):
        for features in packed:
            if time.monotonic() - begun > given.minutes * 60:
                break
            played += 1
            if found(features, seed):
                for pair, problems in blamed(features, seed):
                    if name_of(pair) not in bad:
                        bad.add(name_of(pair))
                        print(f"{name_of(pair)}\n  " + "\n  ".join(problems[:6]), flush=True)
    seconds = time.monotonic() - begun
    print(f"{played} topics of {len(packed)} played in {seconds:.0f} s; {len(bad)} are wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
