"""``oncelake init``: a first declaration for a topic, proposed from its last records."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oncelake.ingestion.cli import output
from oncelake.ingestion.cli.command import AsJson
from oncelake.ingestion.cli.commands.streams import load_settings
from oncelake.ingestion.declaration.names import sink_names
from oncelake.ingestion.errors import DONE, WRONG, counted

if TYPE_CHECKING:
    from oncelake.ingestion.declaration.spec import StreamSpec
    from oncelake.ingestion.declaration.types import SqlType
    from oncelake.ingestion.operations.init.initialize import Initialized

_SHOWN = 10
_LONGEST = 40
_IN_DOCUMENT = 10_000


def _known_sink(name: str) -> str:
    if name not in sink_names():
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(sink_names())}.")
    return name


def init(
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="Name of a Kafka topic.")
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", help="One file for all topics that match it, a table each."),
    ] = None,
    sample: Annotated[
        int, typer.Option("--sample", min=1, max=10_000, help="How many records to look at.")
    ] = 1_000,
    stream: Annotated[
        str | None, typer.Option(help="The stream's name; default: one like the topic's.")
    ] = None,
    sink: Annotated[
        str,
        typer.Option(
            help="What shall keep the rows: docs/sinks.md says what each can.",
            autocompletion=sink_names,
            callback=_known_sink,
        ),
    ] = "delta",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the YAML, and write nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Propose a stream for a topic: look at its last records, and write a file to start from.

    Comments in the file say why each line is proposed, and what to check. The report shows ten
    records as its rows, and which would go to quarantine. The file validates and runs as it is;
    one that is there already is never overwritten. Exits with 2 when the topic is empty, or when
    no declaration fits what is in it, and says what to write instead. With --pattern, the file
    declares every topic that matches, with the columns of its own schema, and the topics found
    are written beside it, as `oncelake discover` does.
    """
    from oncelake.ingestion.declaration.names import nearest_allowed
    from oncelake.ingestion.operations.init.family import propose_family
    from oncelake.ingestion.operations.init.initialize import (
        initialize,
        path_of,
        refuse_existing,
        write_file,
    )

    settings = load_settings()
    meant = topic or pattern
    if meant is None or (topic and pattern):
        raise typer.BadParameter("name a TOPIC, or several by --pattern.")
    path = path_of(nearest_allowed(meant) if stream is None else stream, settings, sink)
    if not dry_run:
        refuse_existing(path)
    if topic is None:
        text, topics = propose_family(meant, path, limit=sample, settings=settings, sink=sink)
        family = {"pattern": meant, "topics": topics, "path": path, "yaml": text}
        _report_family(family, is_written=not dry_run, as_json=as_json)
        return
    proposed = initialize(topic, path, limit=sample, settings=settings, sink=sink)
    if not dry_run:
        write_file(proposed.path, proposed.text)
    if as_json:
        output.document(_document(proposed, is_written=not dry_run))
    elif dry_run:
        output.say(proposed.text.rstrip("\n"))
    else:
        print_initialized(proposed)


def _report_family(family: dict[str, Any], *, is_written: bool, as_json: bool) -> None:
    from oncelake.ingestion.cli.commands.discover import discovery_document, print_discovery
    from oncelake.ingestion.declaration.files.drafts import shown_path
    from oncelake.ingestion.declaration.files.loader import read_outlines
    from oncelake.ingestion.operations.discover import discover
    from oncelake.ingestion.operations.init.initialize import write_file

    path, text, found = family["path"], family["yaml"], None
    if is_written:
        write_file(path, text)
        (outline,) = read_outlines(path)
        found = discover(outline, load_settings())
        found.write()
    if as_json:
        discovered = discovery_document(found) if found else None
        output.document({**family, "written": is_written, "discovered": discovered})
    else:
        output.say(text.rstrip("\n"))
    if found and not as_json:
        output.say(f"\n{shown_path(path)}: written")
        print_discovery(found, is_written=True)
    raise typer.Exit(WRONG if found and found.unknown else DONE)


def print_initialized(proposed: Initialized) -> None:
    """Print what was written, what would be applied, and what comes next."""
    from oncelake.ingestion.declaration.files.drafts import shown_path

    spec, total = proposed.spec, len(proposed.records)
    output.say(f"{shown_path(proposed.path)}: written, from {counted(total, 'record')}\n")
    output.say(proposed.text)
    columns = [column.name for column in spec.columns]
    shown = (_shown(row, spec) for row in proposed.good[-_SHOWN:])
    output.table(columns, ([as_cell(row.get(n, "deleted")) for n in columns] for row in shown))
    output.say(f"\n{len(proposed.good):,} of {counted(total, 'record')} would be applied")
    if ignored := sum(row["_disposition"] == "ignored" for row in proposed.records):
        output.say(f"  {counted(ignored, 'null value')} would be ignored")
    print_quarantined(proposed.bad)
    output.say(f"\nNext: check the file; oncelake validate {spec.name}; oncelake run {spec.name}")


def _shown(row: dict[str, Any], spec: StreamSpec) -> dict[str, Any]:
    """Return the columns of a row; of a delete its key, since it leaves nothing else."""
    is_delete = row["_disposition"] == "delete"
    return {
        each.name: with_json(row[each.name], each.type)
        for each in spec.columns
        if not is_delete or each.name in spec.keys
    }


def print_quarantined(bad: Iterable[Mapping[str, Any]]) -> None:
    """Print for each reason how many records would go to quarantine, and where the first is."""
    for each in bad:
        at = f"{each['topic']}-{each['partition']} offset {each['offset']}"
        detail = f" ({as_cell(each['detail'])})" if each["detail"] else ""
        many = f"{each['records']:,} quarantined as {each['reason']}"
        output.say(f"  {many}, first at {at}{detail}", "yellow")


def with_json(value: Any, type_: SqlType) -> Any:
    """Return a value of a row with the JSON of each VARIANT in it instead of its bytes."""
    from pyspark.sql.types import VariantVal

    from oncelake.ingestion.storage.processes import deeper_calls

    if value is None or not type_.contains("VARIANT"):
        return value
    if type_.word == "STRUCT":
        return {name: with_json(value[name], part) for name, part in type_.parts.items()}
    if type_.word == "ARRAY":
        return [with_json(each, type_.parts["element"]) for each in value]
    if type_.word == "MAP":
        # Arrow has pairs.
        return {name: with_json(each, type_.parts["value"]) for name, each in dict(value).items()}
    # A sink without VARIANT has the text already, and Spark's engine an object.
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        value = VariantVal(value["value"], value["metadata"])
    with deeper_calls():
        return value.toJson()


def as_cell(value: Any, longest: int = _LONGEST) -> str:
    """Write a value for a cell of a table: one line, cut."""
    from oncelake.ingestion.declaration.messages import printable

    if isinstance(value, dict | list):
        value = json.dumps(value, ensure_ascii=False, default=str)
    text = value if isinstance(value, bytes) else "-" if value is None else str(value)
    return printable(text, longest=longest)


def as_json_value(value: Any) -> Any:
    """Return a value as a JSON document can hold it."""
    if isinstance(value, dict):
        return {name: as_json_value(each) for name, each in value.items()}
    if isinstance(value, list):
        return [as_json_value(each) for each in value]
    is_plain = value is None or isinstance(value, bool | int)
    is_number = isinstance(value, float) and math.isfinite(value)
    return value if is_plain or is_number else as_cell(value, _IN_DOCUMENT)


def _document(proposed: Initialized, *, is_written: bool) -> dict[str, Any]:
    spec = proposed.spec
    return {
        "stream": spec.name,
        "topic": proposed.sample.topic,
        "path": proposed.path,
        "written": is_written,
        "yaml": proposed.text,
        "format": spec.format.type,
        **output.fields_of(spec, "mode", "keys", "sequence_by"),
        "sampled": len(proposed.records),
        "applied": len(proposed.good),
        "rows": [
            {name: as_json_value(value) for name, value in _shown(row, spec).items()}
            for row in proposed.good[-_SHOWN:]
        ],
        "quarantined": [
            {
                **{name: row[f"_{name}"] for name in ("partition", "offset", "reason", "detail")},
                "value": as_cell(row["_value"], _IN_DOCUMENT),
            }
            for row in proposed.quarantined
        ],
    }
