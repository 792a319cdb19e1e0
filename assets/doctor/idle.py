"""Whose runs nothing starts: what ``oncelake status`` asks each time, and so without Dagster.

To import Dagster takes more time than all else that a status does. The few rows that tell are read
from the instance's own files, where SQLite keeps them; what is not there as this Dagster writes it,
is asked of Dagster.

    python -m oncelake.assets.doctor.idle FOLDER '{"orders": ["a run", …]}'

``FOLDER`` has the instance's files, and of each stream that the sensor is to start the runs that
wrote its newest batches are named.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shlex
import sqlite3
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from oncelake.ingestion.operations.doctor import findings
from oncelake.ingestion.operations.doctor.findings import Finding

LAG_SENSOR: Final = "lag"
FOLLOW_SENSOR: Final = "follow"
# The state of a schedule or sensor that nobody has switched on; its enum is Dagster's own.
STOPPED: Final = "STOPPED"
# Of runs that nobody started by hand: what did. Automation conditions are a sensor's, too.
STARTED_BY: Final = ("dagster/sensor_name", "dagster/schedule_name")
_HEARTBEAT_PATIENCE_SECONDS: Final = 120.0
_WORKSPACE: Final = "workspace.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Starters:
    """The daemons, sensors and schedules that start runs in an instance.

    Attributes:
        prefix: What goes before a command so that it means this instance.
        workspace: The option that names the file of its code locations.
        now: When this was looked up, in seconds since 1970.
        heartbeat: The daemon's latest sign of life, in seconds since 1970.
        switched_on: Sensors and schedules that only the daemon can evaluate.
        sensed: The streams whose runs the sensor is to start, and nothing else has started.
    """

    prefix: str
    workspace: str
    now: float
    heartbeat: float | None = None
    switched_on: tuple[str, ...] = ()
    sensed: tuple[str, ...] = ()

    @property
    def has_daemon(self) -> bool:
        """Tell whether a daemon gave a sign of life of late."""
        return self.heartbeat is not None and (
            self.now - self.heartbeat <= _HEARTBEAT_PATIENCE_SECONDS
        )


def diagnose_starters(facts: Starters, queued: Sequence[str]) -> Iterator[Finding]:
    """Say which streams nothing starts runs of, given the runs that wait for a daemon."""
    waiting = [*facts.switched_on, *(f"queued run {run_id[:8]}" for run_id in queued)]
    if waiting and not facts.has_daemon:
        last = "never" if facts.heartbeat is None else since(facts.heartbeat, facts.now)
        evidence = f"last sign of life: {last}; waiting: {', '.join(waiting)}"
        yield findings.NO_DAEMON.of(
            "dagster", evidence, prefix=facts.prefix, workspace=facts.workspace
        )
    # A translation may put something before the names.
    if not any(name.endswith((LAG_SENSOR, FOLLOW_SENSOR)) for name in facts.switched_on):
        for stream in facts.sensed:
            yield findings.SENSOR_OFF.of(
                stream,
                f"sensor {LAG_SENSOR}",
                prefix=facts.prefix,
                sensor=LAG_SENSOR,
                workspace=facts.workspace,
            )


def since(moment: float, now: float) -> str:
    """Write a moment, and how long ago it was."""
    at = dt.datetime.fromtimestamp(moment, dt.UTC).isoformat(timespec="seconds")
    return f"{at} ({dt.timedelta(seconds=int(now - moment))} ago)"


def is_started_by(tags: Mapping[str, str], switched_on: Collection[str]) -> bool:
    """Tell whether something started a run that is still on: a condition, a schedule, a sensor."""
    return any(tags.get(tag) in switched_on for tag in STARTED_BY)


def place_of(project: Path, home: str) -> dict[str, str]:
    """Return prefix and workspace of commands that mean the instance of a home.

    The workspace's file is the project's, or that of Dagster's home; another is the user's own.
    """
    workspace = "-w FILE, where FILE is the workspace file that this Dagster is started with"
    if (project / _WORKSPACE).exists():
        workspace = f"-w {_WORKSPACE}"
    elif (file := Path(home) / _WORKSPACE).exists():
        workspace = f"-w {shlex.quote(str(file.absolute()))}"
    prefix = f"cd {shlex.quote(str(project))} && DAGSTER_HOME={shlex.quote(home)} "
    return {"prefix": prefix, "workspace": workspace}


def read_starters(
    folder: Path, runs_of: Mapping[str, Sequence[str]], home: str
) -> tuple[Starters, list[str]]:
    """Read what starts runs, and the runs that are queued, from SQLite's files.

    Raises:
        sqlite3.Error: a file, or a table, is not there.
        ValueError, KeyError, TypeError: what is in it is not as this Dagster writes it.
    """
    with _opened(folder / "history" / "runs.db") as runs:
        beats = [json.loads(body) for (body,) in runs.execute("SELECT body FROM daemon_heartbeats")]
        queued = [id_ for (id_,) in runs.execute("SELECT run_id FROM runs WHERE status = 'QUEUED'")]
        with _opened(folder / "schedules" / "schedules.db") as schedules:
            query = f"SELECT instigator_body FROM instigators WHERE status <> '{STOPPED}'"
            states = [json.loads(body) for (body,) in schedules.execute(query)]
        switched_on = sorted({str(state["origin"]["job_name"]) for state in states})
        sensed = tuple(
            stream
            for stream, ids in runs_of.items()
            if not any(is_started_by(_tags(runs, run_id), switched_on) for run_id in ids)
        )
    facts = Starters(
        **place_of(Path.cwd(), home),
        now=time.time(),
        heartbeat=max((float(beat["timestamp"]) for beat in beats), default=None),
        switched_on=tuple(switched_on),
        sensed=sensed,
    )
    return facts, queued


def _opened(file: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True))


def _tags(runs: sqlite3.Connection, run_id: str) -> dict[str, str]:
    rows: list[tuple[str, Any]] = runs.execute(
        "SELECT key, value FROM run_tags WHERE run_id = ?", (run_id,)
    ).fetchall()
    return dict(rows)


def main(folder: str, runs_of: Mapping[str, Sequence[str]]) -> None:
    """Print the findings as JSON."""
    try:
        facts = read_starters(Path(folder), runs_of, os.environ["DAGSTER_HOME"])
    except (sqlite3.Error, ValueError, KeyError, TypeError):
        from oncelake.assets.doctor.__main__ import main as ask_dagster

        ask_dagster([*runs_of])
        return
    found = [asdict(finding) for finding in diagnose_starters(*facts)]
    sys.stdout.write(json.dumps({"findings": found}))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
