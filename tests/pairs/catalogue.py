"""All fields that are paired, all pairs of them, and the topics on which they are tried.

A topic with two fields tries one pair, one with six tries fifteen: ``packs`` puts as many fields
together as the loader takes, so that few topics try all pairs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Final

from tests.pairs.course import COURSE
from tests.pairs.fields import FIELDS
from tests.pairs.formats import FORMATS_OF_VALUES
from tests.pairs.plan import Feature
from tests.pairs.play import refusal

FEATURES: Final = (*FIELDS, *FORMATS_OF_VALUES, *COURSE)
LIST: Final = Path(__file__).with_name("pairs.json")
# So many fields at most meet on one topic.
IN_A_PACK: Final = 7


def name_of(features: Sequence[Feature]) -> str:
    """Return what a pair, or a pack, is called."""
    return " + ".join(feature.name for feature in features)


def pairs() -> Iterator[tuple[Feature, Feature]]:
    """Yield each two features that do not declare the same thing differently."""
    for one, other in combinations(FEATURES, 2):
        if not one.fields.keys() & other.fields.keys():
            yield one, other


def refused() -> Mapping[str, str]:
    """Return the pairs that are refused when they are loaded, with the refusal, as it is known."""
    known: dict[str, list[str]] = json.loads(LIST.read_text())["refused"]
    return {name: text for text, names in known.items() for name in names}


def topics() -> list[tuple[Feature, ...]]:
    """Return the packs as the list has them."""
    by_name = {each.name: each for each in FEATURES}
    names = json.loads(LIST.read_text())["topics"]
    return [tuple(by_name[name] for name in pack.split(" + ")) for pack in names]


def playable(known: Collection[str]) -> list[tuple[Feature, Feature]]:
    """Return the pairs that are played here: not those that are ``known`` to be refused."""
    valid = (pair for pair in pairs() if name_of(pair) not in known and not is_awaited(pair))
    return [pair for pair in valid if not needs_spark(pair)]


def needs_spark(features: Sequence[Feature]) -> bool:
    """Tell whether only Spark can play them; Great Expectations look at a frame of its own."""
    declared = {name for each in features for name in each.fields}
    return {"publish", "expectations"} <= declared or any(each.has_spark for each in features)


def is_awaited(features: Sequence[Feature]) -> bool:
    """Tell whether the oracle has a rule that engine and proof do not have yet.

    A change of Debezium that changes its route, and a TRUNCATE, concern all tables of a file.
    """
    fields = {**features[0].fields, **features[1].fields, **features[0].needs, **features[1].needs}
    is_routed_change = fields.get("format.type") == "debezium" and "route_by" in fields
    return is_routed_change or name_of(features) in OPEN


# Pairs whose promise is not kept: see ``test_open.py``.
OPEN: Final = frozenset(
    {
        # The proof reads records of before by the names of today.
        *("value_schema + renamed_from", "explode + renamed_from"),
    }
)


def packs(playable: Sequence[tuple[Feature, Feature]], folder: Path) -> list[tuple[Feature, ...]]:
    """Return few packs of features that hold all these pairs; ``folder`` is for trials."""
    left = {(one.name, other.name) for one, other in playable}
    together = set(left)
    made = list[tuple[Feature, ...]]()
    while left:
        names = _pack(left, together, folder / str(len(made)))
        left -= set(combinations(names, 2))
        made.append(tuple(each for each in FEATURES if each.name in names))
    return made


def _pack(left: set[tuple[str, str]], together: set[tuple[str, str]], folder: Path) -> list[str]:
    """Add features to the first pair that is left, those with the most pairs that are left first.

    Where that is no file that loads, the last is left out again.
    """
    by_name = {each.name: each for each in FEATURES}
    order = {name: nth for nth, name in enumerate(by_name)}
    names = list(min(left, key=lambda pair: (order[pair[0]], order[pair[1]])))
    tried = set(names)
    while len(names) < IN_A_PACK:
        gains = {
            name: sum(_pair(name, each, order) in left for each in names)
            for name in by_name
            if name not in tried and all(_pair(name, each, order) in together for each in names)
        }
        name = max(gains, key=lambda each: (gains[each], -order[each]), default=None)
        if name is None or not gains[name]:
            break
        tried.add(name)
        wider = sorted([*names, name], key=order.__getitem__)
        if refusal([by_name[each] for each in wider], folder) is None:
            names = wider
    return names


def _pair(one: str, other: str, order: Mapping[str, int]) -> tuple[str, str]:
    return (one, other) if order[one] < order[other] else (other, one)


_IS_THE_BASE: Final = "every topic of the pairs has it"
_NEEDS_SPARK: Final = "only Spark applies it"
_NEEDS_A_SERVER: Final = "it needs a server"
_NEEDS_A_REGISTRY: Final = "it needs a schema registry, or `oncelake discover`"
_HAS_A_TWIN: Final = "another option of the format is paired, which the same code reads"
# What is written in a declaration, and not paired, with the reason.
UNPAIRED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("name", "topic", "schema", "mode: upsert", "format: json"), _IS_THE_BASE),
    **dict.fromkeys(("declared_in", "route", "schema_from"), "nobody writes it"),
    "transform": _NEEDS_SPARK,
    **dict.fromkeys(("sink: postgres", "sink: kafka"), _NEEDS_A_SERVER),
    **dict.fromkeys(("columns", "exclude", "on_new_field", "on_wider_type"), _NEEDS_A_REGISTRY),
    **dict.fromkeys(("table", "record", "format.encoding"), _NEEDS_A_REGISTRY),
    **dict.fromkeys(("format: protobuf", "format: json_schema"), _NEEDS_A_REGISTRY),
    **dict.fromkeys(
        ("format.timestamps", "format.decimals", "header_format"), "the pairs have no such columns"
    ),
    **dict.fromkeys(("format.delimiter", "format.null_value", "format.quote"), _HAS_A_TWIN),
    **{
        f"key_format: {name}": _HAS_A_TWIN
        for name in (
            *("avro", "csv", "int", "json", "json_schema", "protobuf", "raw", "short", "string"),
            "uuid",
        )
    },
}
