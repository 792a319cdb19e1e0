"""Names that a stream may have, and the word that a person probably meant by a misspelt one.

A stream's name is a file, an asset, a table and a folder at once.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Iterator
from importlib.metadata import entry_points
from itertools import count
from typing import Final

from oncelake.ingestion.errors import hint as hint
from oncelake.ingestion.errors import nearest as nearest

# What can keep a stream's rows, beside what other packages register as entry points.
OWN_SINKS: Final = ("delta", "iceberg", "postgres", "kafka")
SINKS_OF_OTHERS: Final = "oncelake.sinks"
MAX_LENGTH: Final = 100

# An asset of that name cannot exist in Dagster, and would break the whole code location.
_RESERVED: Final = frozenset(keyword.kwlist) | {
    *("arg_dict", "input_arg_dict", "output_arg_dict", "input", "output"),
    *("conf", "config", "context", "meta"),
    *("bool", "dict", "float", "int", "str", "type"),
    # Of ours: the job of all streams, and the assets of Kafka's topics.
    *("job", "kafka"),
}


def sink_names() -> tuple[str, ...]:
    """Return what can keep a stream's rows; nothing of other packages is imported."""
    others = entry_points(group=SINKS_OF_OTHERS).names
    return (*OWN_SINKS, *sorted(others - {*OWN_SINKS}))


def name_problem(name: str) -> str | None:
    """Say why a stream cannot have that name, and what to choose instead; None when it can."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        return "a stream's name is lower-case letters, digits and _, with a letter in front"
    if "__" in name:
        return "a stream's name holds no `__`: it separates the names of its companion tables"
    if len(name) > MAX_LENGTH:
        return f"a stream's name has at most {MAX_LENGTH} characters"
    if name in _RESERVED:
        return f"{name!r} is a word that Dagster, Python or Oncelake keeps for itself"
    return None


def name_trouble(name: str) -> str:
    """Say why a file cannot name this field; empty if it can."""
    # With quotes and escapes, a key of YAML has at most 1,024 characters.
    is_named = bool(name) and name.isprintable() and len(name) <= 255
    return "" if is_named else "a file cannot have this name in one line"


def nearest_allowed(name: str, taken: Collection[str] = ()) -> str:
    """Return a name that is allowed, not in ``taken``, and as like to ``name`` as can be."""
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[: MAX_LENGTH - 10]
    if name_problem(plain):
        plain = f"stream_{plain}".strip("_")
    return next(each for each in _numbered(plain) if each not in taken)


def plain_name(name: str, taken: Collection[str] = ()) -> str:
    """Return a name of letters, digits and _ alone, like another, that is not in ``taken``."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or "column"
    plain = f"c{plain}" if plain[0].isdigit() else plain
    lower = {each.lower() for each in taken}
    return next(each for each in _numbered(plain) if each.lower() not in lower)


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}_{number}" for number in count(2))


def suggest(word: str, choices: Collection[str], *, likeness: float = 0.6) -> str:
    """Suggest the nearest choice; where none is near, list them all."""
    near = nearest(word, choices, likeness=likeness)
    return f"did you mean `{near}`?" if near else f"there are: {', '.join(choices)}"
