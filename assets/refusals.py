"""Memory of refused runs, so that nothing starts the same refusal again and again.

A refusal is written on the run as two tags: what it was, and the state of things at that time.
Until that state changes, a rerun would meet the same refusal. Not all that a set-up or a
declaration rests on can be looked at here, such as a registry: a refusal of these lapses.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import dagster as dg

from oncelake.assets.translation import Translation
from oncelake.ingestion.declaration.files.loader import DeclaredStream, reload_stream
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import (
    DependencyError,
    IngestionError,
    InvalidSpecError,
    SetupError,
    TerminalError,
)
from oncelake.ingestion.kafka.java import find_java
from oncelake.ingestion.settings import Settings, load_settings
from oncelake.ingestion.storage.volumes import is_writable_folder
from oncelake.ingestion.tables.format import engine_version

if TYPE_CHECKING:
    from oncelake.ingestion.tables.commit_log import CommitLog

REFUSED = "oncelake/refused"
REFUSED_AT = "oncelake/refused_at"
REFUSED_UNTIL = "oncelake/refused_until"
# As the longest pause of `follow`.
_LAPSES_SECONDS: Final = 600.0
_NO_RUN_RETRY = {"dagster/retry_on_asset_or_op_failure": "false"}


def remember_refusal(
    instance: dg.DagsterInstance, run_id: str, error: TerminalError, *, state: str
) -> None:
    """Write a refusal on its run, and keep the daemon from starting that run again."""
    tags = {**_NO_RUN_RETRY, REFUSED: type(error).__name__, REFUSED_AT: state}
    if isinstance(error, SetupError | InvalidSpecError):
        tags[REFUSED_UNTIL] = str(time.time() + _LAPSES_SECONDS)
    instance.add_run_tags(run_id, tags)


def standing_refusal(
    instance: dg.DagsterInstance,
    declared: DeclaredStream,
    settings: Settings,
    run: dg.DagsterRun | None,
) -> str | None:
    """Return in words why a stream's last run was refused, if nothing has changed since."""
    if run is None or REFUSED not in run.tags:
        return None
    has_lapsed = time.time() > float(run.tags.get(REFUSED_UNTIL, "inf"))
    if has_lapsed or run.tags.get(REFUSED_AT) != state_of(declared, settings):
        return None
    return (
        f"run {run.run_id[:8]} was refused ({run.tags[REFUSED]}), and neither the table, its "
        "declaration, Kafka nor this machine's set-up has changed since. "
        + _says(instance, run.run_id)
    )


def last_failures(
    instance: dg.DagsterInstance, streams: Iterable[str], translation: Translation
) -> dict[str, dg.DagsterRun]:
    """Return the last run of each stream whose last run failed, by one look for all of them.

    A run that was executed again has its parent's tags, whatever became of it.
    """
    names = {translation.key(stream): stream for stream in streams}
    entries = [each.asset_entry for each in instance.get_asset_records([*names])] if names else []
    ids = {names[each.asset_key]: each.last_run_id for each in entries if each.last_run_id}
    if not ids:
        return {}
    failed = dg.RunsFilter(run_ids=[*ids.values()], statuses=[dg.DagsterRunStatus.FAILURE])
    runs = {run.run_id: run for run in instance.get_runs(failed)}
    return {name: runs[run_id] for name, run_id in ids.items() if run_id in runs}


def _says(instance: dg.DagsterInstance, run_id: str) -> str:
    """Return the words in which a run was refused, with what to do next."""
    failed = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records
    for record in failed:
        event = record.event_log_entry.dagster_event
        data = event.step_failure_data.user_failure_data if event else None
        if data is not None and data.description:
            return data.description
    return "That run says what to do"


def state_of(declared: DeclaredStream, settings: Settings) -> str:
    """Return a short text that changes whenever a refused run may fare better.

    It covers the versions of table and ledger, the declaration as it is now, who Kafka is, and
    what a run needs of this machine. A run and a sensor that see the same must write the same:
    nothing here may depend on what only one of them was given, or has loaded.
    """
    from oncelake.ingestion.delta.log import DeltaLog
    from oncelake.ingestion.lake.paths import StreamPaths

    current = reload_stream(declared)
    spec = current.spec if current else None
    paths = StreamPaths.of(declared.name, settings, declared.sink)
    # A run of several streams has the tag of one.
    parts = [
        declared.name,
        _newest(paths.table.log),
        _newest(lambda: DeltaLog(paths.ledger)),
        _text(declared.path),
        _transformation(spec),
        _kafka(spec, settings),
        *_machine(settings),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _newest(open_log: Callable[[], CommitLog]) -> str:
    try:
        return str(open_log().versions()[:1])
    except (DependencyError, OSError) as error:
        return type(error).__name__


def _machine(settings: Settings) -> list[str]:
    """Return what a refusal can come from: jars, Java, this version, folders, settings."""
    jars = sorted((settings.jars / "spark").glob("*.jar"))
    folders = [at for at in (settings.lake, settings.state) if isinstance(at, Path)]
    try:
        java = find_java()
    except SetupError as error:
        java = str(error)
    return [
        *(f"{jar.name} {jar.stat().st_size}" for jar in jars),
        java,
        engine_version(),
        *(str(is_writable_folder(at)) for at in folders),
        # As everybody here reads them; of a secret it has only whether there is one.
        load_settings().model_dump_json(),
        _text(Path(__file__).with_name("definitions.py")),
    ]


def _text(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        return str(error)


def _transformation(spec: StreamSpec | None) -> str:
    """Return what the module is like that the declared Python function is in."""
    if spec is None or spec.transform is None:
        return "none"
    module = find_spec(spec.transform.rpartition(".")[0])
    return _text(Path(module.origin)) if module and module.origin else "not found"


def _kafka(spec: StreamSpec | None, settings: Settings) -> str:
    from oncelake.ingestion.lake.stream import Stream
    from oncelake.ingestion.recovery.topics import resolve_topics

    if spec is None:
        return "not asked"
    try:
        stream = resolve_topics(Stream(spec=spec, settings=settings))
        topics = stream.kafka.topics(spec.name, stream.spec.subscribed)
    except IngestionError as error:
        return type(error).__name__
    return f"{topics.cluster_id} {sorted(topics.ids.items())}"
