"""The format of what the lake holds: one number for all of it, carried by whatever says something.

A commit's note, a row of the ledger and a journal carry ``marks``, and whoever reads one of them
calls ``refuse_newer`` before anything else in it. What an older program may not overlook raises
the number (docs/decisions/15-one-number-for-the-format.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from oncelake.ingestion.errors import NewerFormatError

FORMAT: Final = 1


@cache
def engine_version() -> str:
    """Return the version of this engine."""
    try:
        return version("oncelake")
    except PackageNotFoundError:
        return "unknown"


def marks() -> dict[str, Any]:
    """Return what tells a reader the format, and the version of Oncelake that wrote it."""
    return {"format": FORMAT, "oncelake": engine_version()}


def known(kind: type, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a class has; a newer version of the same format may say more."""
    return {each.name: said[each.name] for each in fields(kind) if each.name in said}


def refuse_newer(stream: str, where: object, marked: Mapping[str, Any]) -> None:
    """Make sure that this version knows the format of what carries ``marks``.

    Raises:
        NewerFormatError: a newer version wrote it.
    """
    found = marked.get("format") or FORMAT
    # Another type is one more thing that only a newer version can mean.
    if not (isinstance(found, int) and found <= FORMAT):
        here, by = f"{engine_version()}, format {FORMAT}", marked.get("oncelake")
        raise NewerFormatError(
            stream,
            f"{where} was written by Oncelake {by}, format {found}; this is Oncelake {here}. "
            "Nothing was changed.",
            remedy=f"install Oncelake {by} or a later one here: make setup in its clone, or pip "
            "install 'WHEEL' with the path of its wheel (SUPPORT.md)",
        )
