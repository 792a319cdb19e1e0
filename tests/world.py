"""Tries Oncelake where only an account leads: python -m tests.world aws.

Or gcs, azure, msk, confluent, k8s, databricks; ``here`` needs none, and tries the script itself.
It makes a topic and a folder in the lake, loads, kills three runs, proves the table, and deletes
what it made. The line that it prints belongs into docs/world.md. Settings come from the
environment, as for any command.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from botocore.session import get_session
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from oncelake.ingestion.kafka.client import client_options
from oncelake.ingestion.local.process import run_and_capture
from oncelake.ingestion.settings import Settings, load_settings
from oncelake.ingestion.storage.location import Location
from tests.support.world import ROOT, changed, environment_of
from tests.trials.world import broker_in

_RECORDS, _KILLS, _SECONDS = 20_000, 3, 900


@dataclass(frozen=True, kw_only=True, slots=True)
class AccountPlace:
    """Where an account leads.

    Attributes:
        needs: Variables that must be set.
        sink: The declared sink; ``{name}`` is the stream's, other names are variables.
    """

    about: str
    needs: tuple[str, ...]
    sink: str = "delta"


_LAKE = "ONCELAKE_LAKE"
_LOGIN = ("ONCELAKE_KAFKA", "ONCELAKE_KAFKA_SECURITY_PROTOCOL", "ONCELAKE_KAFKA_SASL_MECHANISM")
_USER = ("ONCELAKE_KAFKA_SASL_USERNAME", "ONCELAKE_KAFKA_SASL_PASSWORD")
_GLUE = (
    '{{"delta": {{"catalog": {{"glue": {{"database": "{WORLD_DATABASE}", "table": "{name}"}}}}}}}}'
)
_UNITY = '{{"delta": {{"catalog": {{"unity": {{"table": "{WORLD_SCHEMA}.{name}"}}}}}}}}'
PLACES = {
    "here": AccountPlace(about="the embedded Kafka and a folder", needs=()),
    "aws": AccountPlace(
        about="S3 and Glue", needs=(_LAKE, "AWS_REGION", "WORLD_DATABASE"), sink=_GLUE
    ),
    "gcs": AccountPlace(about="Google Cloud Storage", needs=(_LAKE,)),
    "azure": AccountPlace(about="Azure Data Lake Storage", needs=(_LAKE,)),
    "msk": AccountPlace(about="Amazon MSK", needs=_LOGIN),
    "confluent": AccountPlace(about="Confluent Cloud", needs=(*_LOGIN, *_USER)),
    "k8s": AccountPlace(
        about="Spark on Kubernetes", needs=("ONCELAKE_SPARK_MASTER", _LAKE, "ONCELAKE_KAFKA")
    ),
    "databricks": AccountPlace(
        about="Unity Catalog",
        needs=(_LAKE, "ONCELAKE_UNITY", "ONCELAKE_UNITY_TOKEN", "WORLD_SCHEMA"),
        sink=_UNITY,
    ),
}


def main(names: list[str]) -> int:
    """Try a place, print what came of it, and return 1 when it did not hold."""
    name = names[0] if len(names) == 1 and names[0] in PLACES else ""
    if not name:
        print(f"world: name one of {', '.join(PLACES)}. Next: make world-aws")
        return 2
    place, began = PLACES[name], time.monotonic()
    if missing := [each for each in place.needs if not os.environ.get(each)]:
        print(f"world-{name}: {place.about} needs {', '.join(missing)}. Next: docs/world.md")
        return 2
    try:
        result = _try(place)
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        result = f"did not hold: {str(error).strip().splitlines()[-1]}"
        print(error, file=sys.stderr)
    today, seconds = dt.datetime.now(dt.UTC).date(), time.monotonic() - began
    oncelake = f"Oncelake {version('oncelake')}"
    print(f"| {name} | {today} | {oncelake}, {seconds:.0f} s | {result} |")
    return int(not result.startswith("held"))


def _try(place: AccountPlace) -> str:
    stream = f"world_{secrets.token_hex(4)}"
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="world-")))
        lake = (
            Location.of(load_settings().lake) / stream if _LAKE in os.environ else folder / "lake"
        )
        given = {"lake": str(lake), "state": str(folder / "state"), "streams": folder / "streams"}
        if "ONCELAKE_KAFKA" not in os.environ:
            given["kafka"] = ends.enter_context(broker_in(folder / "kafka"))
        trial = StreamTrial(stream, changed(load_settings(), **given))
        ends.callback(Location.of(str(lake)).delete_all)
        ends.enter_context(trial.topic())
        result = trial.play(place)
        _drop_entry(place, stream, trial.settings)
        return result


@dataclass(frozen=True)
class StreamTrial:
    """One stream of one topic, both named for this trial."""

    stream: str
    settings: Settings

    @contextmanager
    def topic(self) -> Iterator[None]:
        """Make the topic, with as many replicas as the cluster gives, and delete it in the end."""
        admin = AdminClient(client_options(self.settings))
        admin.create_topics([NewTopic(self.stream, 3)])[self.stream].result(60)
        try:
            yield
        finally:
            admin.delete_topics([self.stream])[self.stream].result(60)

    def play(self, place: AccountPlace) -> str:
        """Load, kill runs, and prove; return what came of it."""
        sink = place.sink.format(name=self.stream, **os.environ)
        declared = {
            "topic": self.stream,
            "schema": "id INT NOT NULL, name STRING, at INT",
            "keys": ["id"],
            "sequence_by": ["at"],
            "max_offsets_per_trigger": _RECORDS // 4,
            "sink": json.loads(sink) if sink.startswith("{") else sink,
        }
        self.settings.streams.mkdir(parents=True)
        (self.settings.streams / f"{self.stream}.yaml").write_text(json.dumps(declared))
        self._send(0)
        took = self._expect("run")
        kills = 0
        for nth in range(_KILLS):
            self._send(nth + 1)
            kills += self._kill_a_run(random.uniform(0.3, 0.9) * took)
        self._expect("run")
        self._expect("verify")
        read = _RECORDS * (_KILLS + 1)
        return f"held: {read:,} records, {kills} kills, the first {_RECORDS:,} in {took:.0f} s"

    def _send(self, nth: int) -> None:
        producer = Producer({**client_options(self.settings), "enable.idempotence": True})
        for at in range(nth * _RECORDS, (nth + 1) * _RECORDS):
            value = json.dumps({"id": at % 5_000, "name": f"n{at}", "at": at})
            producer.produce(self.stream, value, str(at % 5_000))
            producer.poll(0)
        assert producer.flush(120) == 0, "not all records were acknowledged"

    def _command(self, command: str) -> tuple[list[str], dict[str, str]]:
        words = [sys.executable, "-m", "ingestion", command, self.stream]
        return words, environment_of(self.settings)

    def _expect(self, command: str) -> float:
        """Run a command that must do what it does, and return how long it took."""
        words, environment = self._command(command)
        began = time.monotonic()
        done = run_and_capture(words, cwd=ROOT, env=environment, seconds=_SECONDS)
        print(done.stdout, done.stderr, flush=True)
        assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stderr}"
        return time.monotonic() - began

    def _kill_a_run(self, after_seconds: float) -> bool:
        """Kill a run, unless it has ended before; tell whether it was killed."""
        words, environment = self._command("run")
        process = subprocess.Popen(words, cwd=ROOT, env=environment, start_new_session=True)
        try:
            process.wait(after_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait(30) < 0
        return False


def _drop_entry(place: AccountPlace, stream: str, settings: Settings) -> None:
    """Drop the table's entry in its catalog; the files go with the lake's folder."""
    if place.sink == _GLUE:
        database = os.environ["WORLD_DATABASE"]
        glue = get_session().create_client("glue", region_name=os.environ["AWS_REGION"])
        glue.delete_table(DatabaseName=database, Name=stream)
    if place.sink == _UNITY:
        assert settings.unity_token is not None, "it was needed"
        table = f"{os.environ['WORLD_SCHEMA']}.{stream}"
        request = urllib.request.Request(
            f"{settings.unity}/api/2.1/unity-catalog/tables/{table}",
            headers={"Authorization": f"Bearer {settings.unity_token.get_secret_value()}"},
            method="DELETE",
        )
        urllib.request.urlopen(request, timeout=60).close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
