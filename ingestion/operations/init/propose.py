"""A declaration with the reason for each line, from what a sample shows; whatever is proposed runs.

Where null values are seen, an order is proposed only if it has a place for them: a delete that goes
to quarantine leaves its row in the table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from oncelake.ingestion.declaration.messages import printable
from oncelake.ingestion.declaration.modes import RESERVED
from oncelake.ingestion.declaration.names import plain_name
from oncelake.ingestion.declaration.parts import FormatSpec
from oncelake.ingestion.declaration.sinks import SINKS
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.sql import quoted
from oncelake.ingestion.declaration.types import PLAIN_NAME, SqlType
from oncelake.ingestion.errors import InvalidSpecError, counted
from oncelake.ingestion.operations.init.decode_sample import decode_values
from oncelake.ingestion.operations.init.detect_format import Detected, detect_format
from oncelake.ingestion.operations.init.evidence import TopicEvidence
from oncelake.ingestion.operations.init.find_keys import Keys, find_keys
from oncelake.ingestion.operations.init.identify import (
    find_crossing_key,
    find_deletes,
    find_order,
    is_never_null,
)
from oncelake.ingestion.operations.init.json_types import Guess, without_twins
from oncelake.ingestion.operations.init.sample import TopicSample
from oncelake.ingestion.settings import Settings

# Positions in a database's log, as their connectors name them in `source`.
_POSITIONS: Final[Sequence[tuple[Mapping[str, str], Mapping[str, SqlType]]]] = (
    ({"lsn": "source.lsn"}, {"lsn": SqlType(word="BIGINT")}),
    (
        {"file": "source.file", "pos": "source.pos"},
        {"file": SqlType(word="STRING"), "pos": SqlType(word="BIGINT")},
    ),
)
_KAFKAS_TIME: Final = "_timestamp"
# Of so many records of a table that changes, some are of the same row.
_MANY: Final = 100
_SEVERAL: Final = "records of one key may come from several partitions, without a common order"
_NO_COLUMN: Final = "no column is never null and named like one that grows with each change"
_BY_TIME: Final = "no column was found that orders them, so Kafka's time does"


@dataclass(kw_only=True, slots=True)
class Proposal:
    """The fields of a declaration, and what to say of each.

    Attributes:
        fields: What is written.
        notes: Sentences by field, which may be one that is not written.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)

    def add(self, name: str, value: Any, *notes: str) -> None:
        """Propose a field, and say why."""
        self.fields[name] = value
        self.note(name, *notes)

    def note(self, name: str, *notes: str) -> None:
        """Say something of a field."""
        self.notes[name] = list(notes)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Order:
    """Columns that order records, and why; ``added`` are taken from an envelope's ``paths``."""

    columns: tuple[str, ...]
    why: Sequence[str]
    paths: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, SqlType] = field(default_factory=dict)

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that the format needs."""
        return {"columns": dict(self.paths)} if self.paths else {}


_ANY: Final = SqlType(word="STRING")
_OTHER_NAME: Final = Guess(
    None, "no table can have a column of this name; docs/transform.md tells how to read it"
)
_NO_ORDER: Final = _Order(columns=(), why=())


def propose(
    stream: str, sample: TopicSample, settings: Settings, *, sink: str = "delta"
) -> Proposal:
    """Propose a declaration for the topic of a sample.

    Args:
        sink: What shall keep the rows.

    Raises:
        InvalidSpecError: the sample cannot be understood.
        DependencyError: the schema registry does not answer.
    """
    evidence = _gather(sample, settings, sink)
    keys = find_keys(stream, evidence)
    names = _renamed(evidence.types, sink)
    if names.keys() & {*keys.columns}:
        keys = replace(keys, format=None, why=f"{keys.why}, which a null value's key does not name")
    evidence = evidence.with_keys(keys.columns)
    has_order = bool(keys.columns) and not SINKS[sink].is_log
    order = _find_order(keys, evidence) if has_order else _NO_ORDER
    proposal = Proposal()
    proposal.add("topic", sample.topic)
    proposal.add("format", evidence.detected.declared(**order.options), evidence.detected.why)
    if evidence.detected.record:
        proposal.add("record", evidence.detected.record)
    if sink != "delta":
        proposal.add("sink", sink, "the rows are kept there; what it can do: docs/sinks.md")
    _propose_schema(proposal, evidence, sink, {*keys.columns, *order.columns}, order.added)
    if keys.columns:
        proposal.add(
            "keys",
            [names.get(name, name) for name in keys.columns],
            keys.why,
            "check: the table has one row for each of its values",
            *_if_events(evidence, keys),
        )
        if keys.declared_format and not evidence.is_debezium:
            proposal.add("key_format", keys.declared_format, "the Kafka keys are encoded so")
        if order.columns:
            proposal.fields["sequence_by"] = [names.get(name, name) for name in order.columns]
        proposal.note("sequence_by", *order.why)
    else:
        proposal.add("mode", "append", f"every record is a row: {keys.why}")
    _propose_deletes(proposal, evidence, keys, order)
    return proposal


def _if_events(evidence: TopicEvidence, keys: Keys) -> Sequence[str]:
    """Say that nothing shows yet that records replace one another."""
    of_rows = [tuple(row[name] for name in keys.columns) for row in evidence.rows]
    if len(of_rows) < _MANY or len(set(of_rows)) < len(of_rows):
        return ()
    found = counted(len(of_rows), "record")
    return (
        f"check: no key comes twice in {found}. If each is an event that nothing replaces, "
        "`mode: insert_only` keeps the first of each key, and costs less",
    )


def _gather(sample: TopicSample, settings: Settings, sink: str) -> TopicEvidence:
    """Detect the format, and decode the sample with its columns."""
    detected = detect_format(sample, settings)
    columns = without_twins(detected.columns)
    fills_variants = FormatSpec(type=detected.type).fills_variants
    columns = {n: _kept(each, sink, fills_variants=fills_variants) for n, each in columns.items()}
    if detected.type == "debezium":
        # What a record leaves out is kept only where a column is taken as it is.
        columns |= dict.fromkeys(_renamed(columns, sink), _OTHER_NAME)
    detected = replace(detected, columns=columns)
    types = {name: each.type for name, each in detected.columns.items() if each.type is not None}
    if not types:
        why = "; ".join(f"{name}: {each.note}" for name, each in detected.columns.items())
        raise InvalidSpecError(
            f"topic {sample.topic!r}: no field of its values can be a column ({why or 'none'}). "
            "Next: sample more with --sample, or declare the columns by hand"
        )
    records = tuple(decode_values(sample, _appending(sample, detected, types), settings))
    return TopicEvidence(
        sample=sample, detected=detected, types=types, records=records, settings=settings
    )


def _kept(guess: Guess, sink: str, *, fills_variants: bool) -> Guess:
    """Propose no type that a sink cannot keep, but its JSON where that can stand for it."""
    refused = [] if guess.type is None else SINKS[sink].refused_in(guess.type)
    if not refused:
        return guess
    if fills_variants and "VARIANT" in SINKS[sink].stored_as:
        note = f"`sink: {sink}` keeps no {refused[0]}, but the text of its JSON"
        return Guess(SqlType(word="VARIANT"), note)
    return Guess(None, f"`sink: {sink}` cannot keep a {refused[0]}; `select` can make it text")


def _appending(
    sample: TopicSample,
    detected: Detected,
    types: Mapping[str, SqlType],
    order: _Order = _NO_ORDER,
) -> StreamSpec:
    """Return a declaration that decodes columns, and asks nothing more of them."""
    fields = {
        "name": "sample",
        "topic": sample.topic,
        "format": detected.declared(**order.options),
        "mode": "append",
        "types": detected.lenient,
        "record": detected.record or (),
    }
    return StreamSpec.model_validate({**fields, **_declared({**types, **order.added})})


def _propose_schema(
    proposal: Proposal,
    evidence: TopicEvidence,
    sink: str,
    required: Collection[str],
    added: Mapping[str, SqlType],
) -> None:
    fields = _declared({**evidence.types, **added}, required, sink)
    if other := fields.get("select"):
        why = "the value's own names; `select` has another for each that not every sink can store"
        proposal.add("value_schema", fields["value_schema"], why)
    notes = ["NOT NULL stands where a run needs it; any other column may be null or absent"]
    for name, guess in evidence.detected.columns.items():
        if guess.note:
            notes.append(f"{name}: {guess.note if guess.type else f'left out, since {guess.note}'}")
    proposal.add("schema", fields["schema"], *notes)
    if other:
        proposal.add("select", other, "each is a field of the value under another name")
    if lenient := evidence.detected.lenient:
        why = "numbers in quotes are taken for numbers; without this line they go to quarantine"
        proposal.add("types", lenient, why)


def _declared(
    types: Mapping[str, SqlType], required: Collection[str] = frozenset(), sink: str = "delta"
) -> dict[str, Any]:
    """Return the fields that declare columns; those with a name that no table has get another."""
    names = _renamed(types, sink)
    columns = (_column(names.get(n, n), t, required=n in required) for n, t in types.items())
    table = {"schema": ",\n".join(columns)}
    if not names:
        return table
    value = ",\n".join(_column(name, type_) for name, type_ in types.items())
    return {"value_schema": value, **table, "select": {new: quoted(n) for n, new in names.items()}}


def _renamed(names: Iterable[str], sink: str) -> dict[str, str]:
    """Return another name for each that a Delta table, or one of the sink, cannot have."""
    taken, renamed = [*names, *SINKS[sink].taken], dict[str, str]()
    for name in names:
        is_long = 0 < SINKS[sink].longest_name < len(name.encode())
        refused = (SINKS[each].refused_name(name, _ANY) for each in ("delta", sink))
        if name.lower() in RESERVED or any(refused) or is_long:
            # A number, and what comes before a digit, have room behind it.
            renamed[name] = plain_name(
                name[: SINKS[sink].longest_name - 5] if is_long else name, taken
            )
            taken.append(renamed[name])
    return renamed


def _column(name: str, type_: SqlType, *, required: bool = False) -> str:
    shown = name if PLAIN_NAME.fullmatch(name) else quoted(name)
    return f"{shown} {type_}{' NOT NULL' if required else ''}"


def _find_order(keys: Keys, evidence: TopicEvidence) -> _Order:
    """Choose what says which of two records of a key is newer.

    Where Kafka keeps the order of each key, a null value has no other.
    """
    crossing, nulls = _crossing_key(keys, evidence), evidence.tombstones
    is_kafkas = crossing is None and (keys.format is not None or evidence.sample.partitions == 1)
    if evidence.is_debezium:
        return _order_of_debezium(evidence, is_kafkas=is_kafkas)
    must_grow = crossing is not None
    found = find_order(keys.columns, evidence.types, evidence.records, must_grow=must_grow)
    several = f"the key {crossing} comes from several partitions" if must_grow else _SEVERAL
    if found and not nulls:
        grew = "grew" if found.grew else "did not change"
        why = f"{found.column} is never null, and {grew} along the records of a key; "
        why += "check: it grows with each change"
        return _Order(columns=(found.column,), why=[why] if is_kafkas else [why, several])
    if not is_kafkas:
        seen = counted(nulls, "was seen", "were seen")
        of_nulls = f"a null value has no other order, and {seen}"
        return _Order(columns=(_KAFKAS_TIME,), why=[several, of_nulls if nulls else _BY_TIME])
    if not nulls:
        return _Order(columns=(), why=[f"left out: {_NO_COLUMN}, and Kafka's offsets do"])
    though = f", though {found.column} would order the others" if found else ""
    lack = counted(nulls, "null value seen has no column", "null values seen have no column")
    why = f"left out{though}: {lack}, and would go to quarantine; Kafka keeps the order of a key "
    return _Order(columns=(), why=[f"{why}while its partition is one"])


def _crossing_key(keys: Keys, evidence: TopicEvidence) -> str | None:
    """Return a key from several partitions; by the Kafka keys, null values have one, too."""
    if keys.format:
        raw = find_crossing_key((each.key, each.partition) for each in evidence.sample.records)
        return None if raw is None else printable(raw)
    values = find_crossing_key(
        (tuple(each.row[name] for name in keys.columns), each.partition)
        for each in evidence.records
        if each.row is not None
    )
    return None if values is None else printable(", ".join(map(str, values)))


def _order_of_debezium(evidence: TopicEvidence, *, is_kafkas: bool) -> _Order:
    """Take Kafka's order of each key, else the position in the database's log."""
    if is_kafkas:
        why = "left out: Kafka keeps the order of each key; see docs/debezium.md for the "
        return _Order(columns=(), why=[f"{why}position in the database's log"])
    for paths, added in _POSITIONS:
        if paths.keys() & {name.lower() for name in evidence.types}:
            continue
        order = _Order(columns=tuple(paths), why=[_SEVERAL], paths=paths, added=added)
        spec = _appending(evidence.sample, evidence.detected, evidence.types, order)
        records = decode_values(evidence.sample, spec, evidence.settings)
        rows = [each.row for each in records if each.row is not None]
        if rows and all(is_never_null(name, rows) for name in paths):
            return order
    return _Order(columns=(_KAFKAS_TIME,), why=[_SEVERAL, _BY_TIME])


def _propose_deletes(
    proposal: Proposal, evidence: TopicEvidence, keys: Keys, order: _Order
) -> None:
    """Say what a delete is: a condition, a null value, or neither."""
    if evidence.is_debezium:
        return
    found = find_deletes(evidence.types, evidence.rows) if keys.columns else None
    if found:
        proposal.add("apply_as_deletes", found[0], f"check: {found[1]}")
    nulls = f"{counted(evidence.tombstones, 'null value was', 'null values were')} seen; "
    if not evidence.tombstones:
        if not set(order.columns) <= {*keys.columns, _KAFKAS_TIME}:
            why = f"no null value was seen; one would have no {', '.join(order.columns)}, so that "
            proposal.add("tombstones", "quarantine", f"{why}a person should see it")
        return
    if keys.format:
        proposal.note("tombstones", f"left out: {nulls}each deletes its Kafka key's row")
    else:
        lacking = f"their Kafka keys do not give {', '.join(keys.columns)}"
        why = lacking if keys.columns else "this mode deletes nothing"
        instead = "they go to quarantine; `tombstones: ignore` counts them instead"
        proposal.note("tombstones", f"left out: {nulls}{why}, so {instead}")
