"""``oncelake new``: a project to start from, or a component in a project of ``dg``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from oncelake.ingestion.cli import output
from oncelake.ingestion.errors import InvalidSpecError, counted

_FIRST = "oncelake kafka up --sample; oncelake init orders; oncelake run orders"


def _plain_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
        raise typer.BadParameter("must be a letter, then letters, digits and underscores.")
    return name


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Of the folder.", callback=_plain_name)
    ],
    dg: Annotated[
        bool | None,
        typer.Option("--dg/--no-dg", help="A component; default: in a project of `dg`."),
    ] = None,
) -> None:
    """Write a project for streams: a folder, `dagster.yaml`, `.env.example`, and a workflow for CI.

    In a project of `dg` it writes a component `oncelake.Streams` and its folder of streams below
    the project's definitions. Overwrites nothing (exit 2), and needs no Kafka.
    """
    from oncelake.ingestion.declaration.files.drafts import shown_path
    from oncelake.ingestion.local.project import find_defs, write_component, write_project

    here = Path.cwd()
    defs = None if dg is False else find_defs(here)
    if dg and defs is None:
        problem = f"{here} is in no project of dg with a folder of definitions"
        raise InvalidSpecError(f"{problem}. Next: go to one, or leave out --dg")
    target = (defs or here) / name
    if defs:
        write_component(target)
        following = f"export ONCELAKE_STREAMS={shown_path(target)}/streams; oncelake init TOPIC"
    else:
        write_project(target)
        following = f"cd {name}; {_FIRST}"
    files = sorted(each for each in target.rglob("*") if each.is_file())
    output.say(f"{shown_path(target)}: {counted(len(files), 'file')}")
    for each in files:
        output.say(f"  {each.relative_to(target)}")
    output.say(f"\nNext: {following}")
