"""The ways in which the demo's messages are broken: one function each, named for what is wrong.

Several of them are what lenient parsers let through in silence, so a stream that quarantines
every one of them is strict.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any, Final

Pair = tuple[bytes | None, bytes | None]
Damage = Callable[[bytes, bytes, Random], Pair]


def damaged(key: bytes, value: bytes, rng: Random) -> tuple[str, bytes | None, bytes | None]:
    """Break one message in one of the ways below, and say in which."""
    sort, damage = rng.choice(_DAMAGES)
    return sort, *damage(key, value, rng)


def _truncated(key: bytes, value: bytes, rng: Random) -> Pair:
    return key, value[: rng.randrange(1, len(value))]


def _not_json(key: bytes, value: bytes, rng: Random) -> Pair:
    return key, rng.choice((b"", b"PING", b"<html>502 Bad Gateway</html>", b"[]", b"null"))


def _invalid_utf8(key: bytes, value: bytes, rng: Random) -> Pair:
    return key, value.replace(b'"origin": "', b'"origin": "\xff')


def _two_documents(key: bytes, value: bytes, rng: Random) -> Pair:
    return key, value + value


def _text_for_a_number(key: bytes, value: bytes, rng: Random) -> Pair:
    flight = json.loads(value)
    return key, _json(flight | {"flight": f"{flight['carrier']}{flight['flight']}"})


def _fraction_for_an_integer(key: bytes, value: bytes, rng: Random) -> Pair:
    return key, _json(json.loads(value) | {"sched_dep_time": 8.5})


def _no_key_field(key: bytes, value: bytes, rng: Random) -> Pair:
    return key, _without(value, "origin")


def _null_key_field(key: bytes, value: bytes, rng: Random) -> Pair:
    return key, _json(json.loads(value) | {"carrier": None})


def _no_updated_at(key: bytes, value: bytes, rng: Random) -> Pair:
    return key, _without(value, "updated_at")


def _no_such_date(key: bytes, value: bytes, rng: Random) -> Pair:
    return key, _json(json.loads(value) | {"updated_at": "2013-02-30T25:61:00Z"})


def _tombstone(key: bytes, value: bytes, rng: Random) -> Pair:
    return key, None


def _nothing_at_all(key: bytes, value: bytes, rng: Random) -> Pair:
    return None, None


def _json(flight: dict[str, Any]) -> bytes:
    return json.dumps(flight).encode()


def _without(value: bytes, field: str) -> bytes:
    return _json({name: known for name, known in json.loads(value).items() if name != field})


_DAMAGES: Final[tuple[tuple[str, Damage], ...]] = (
    ("truncated", _truncated),
    ("not JSON, or no object", _not_json),
    ("invalid UTF-8", _invalid_utf8),
    ("two documents", _two_documents),
    ("text for a number", _text_for_a_number),
    ("fraction for an integer", _fraction_for_an_integer),
    ("no key field", _no_key_field),
    ("null key field", _null_key_field),
    ("no updated_at", _no_updated_at),
    ("no such date", _no_such_date),
    ("tombstone without an order", _tombstone),
    ("neither key nor value", _nothing_at_all),
)
