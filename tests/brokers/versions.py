"""The same story on brokers of several versions: python -m tests.brokers.versions [VERSION …].

The jars of each are fetched from Maven Central into build/brokers, by Ivy, and are in no lock. The
rows that are printed are those of docs/reliability.md.
"""

from __future__ import annotations

import datetime as dt
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oncelake.ingestion.errors import IngestionError
from oncelake.ingestion.kafka.java import find_java
from oncelake.ingestion.local import broker, jars
from oncelake.ingestion.local.process import run_and_capture
from tests.support.frail_broker import free_ports
from tests.support.traffic import Traffic
from tests.support.world import ROOT, World, row, settings_in, wait_until
from tests.trials.judge import differing_rows
from tests.trials.world import folder_of_its_own, open_world

VERSIONS = (
    "3.3.2",
    "3.6.2",
    "3.7.2",
    "3.8.1",
    "3.9.2",
    "4.0.2",
    "4.1.2",
    "4.2.2",
    "4.3.1",
    "4.4.0",
)
_IVY = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
<info organisation="oncelake" module="broker"/>
<configurations><conf name="broker"/></configurations><dependencies>
<dependency org="org.apache.kafka" name="kafka_2.13" rev="{version}" conf="broker->default"/>
<dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36" conf="broker->default"/>
{more}</dependencies></ivy-module>"""


def main(versions: list[str]) -> int:
    """Tell the story to each version, and return 1 when one of them did not hear it to its end."""
    results = {version: _result(version) for version in versions or VERSIONS}
    print("\n| broker | date | command | result |\n|---|---|---|---|")
    for version, result in results.items():
        command = f'`make brokers-versions VERSIONS="{version}"`'
        print(f"| {version} | {dt.datetime.now(dt.UTC):%Y-%m-%d} | {command} | {result} |")
    return int(any(not result.startswith("held") for result in results.values()))


def _result(version: str) -> str:
    try:
        home = fetch(version)
    except subprocess.CalledProcessError:
        return "could not be fetched"
    try:
        with folder_of_its_own("version") as folder, _broker(home, folder / "kafka") as address:
            return _story(address, folder)
    except (AssertionError, IngestionError) as error:
        return f"did not hold: {error}"


def fetch(version: str, name: str = "", more: str = "") -> Path:
    """Fetch the jars of a version into the folder of that name, unless they are there.

    Args:
        more: Further dependencies, as Ivy declares them.
    """
    home = ROOT / "build" / "brokers" / (name or version)
    if not any(home.glob("broker/kafka_*.jar")):
        home.mkdir(parents=True, exist_ok=True)
        (home / "ivy.xml").write_text(_IVY.format(version=version, more=more))
        cache, settings = home.parent / "ivy", Path(jars.__file__).with_name("ivysettings.xml")
        command = [find_java(), f"-Divy.default.ivy.user.dir={cache}", "-jar", str(jars._ivy())]
        command += ["-settings", str(settings), "-ivy", str(home / "ivy.xml"), "-cache", str(cache)]
        command += ["-confs", "broker", "-types", "jar", "bundle", "-warn"]
        command += ["-retrieve", f"{home}/[conf]/[artifact]-[revision](-[classifier]).[ext]"]
        subprocess.run(command, check=True, timeout=900)
    return home


@contextmanager
def _broker(jars: Path, folder: Path) -> Iterator[str]:
    """Run one; its voter is named, since before 3.9 none could be found otherwise."""
    client, controller = free_ports(2)
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.quorum.bootstrap.servers": "",
    }
    folder.mkdir()
    (folder / "properties").write_text(
        broker._server_properties(folder, port=None, settings=settings)
    )
    format_it = ("kafka.tools.StorageTool", "format", f"--cluster-id={secrets.token_urlsafe(16)}")
    command = broker._java(broker._classpath(jars), *format_it, f"--config={folder / 'properties'}")
    done = run_and_capture(command)
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        yield broker.up(folder, jars=jars, tied_to_caller=True, settings=settings).address
    finally:
        broker.down(folder)


def _story(address: str, folder: Path) -> str:
    """Read and prove; lose what was read, and what was not; make a topic anew and longer."""
    world = open_world(settings_in(folder, address), "told", partitions=3)
    world.declare(sequence_by=["at"], max_offsets_per_trigger=300)
    world.write_declaration()
    traffic = Traffic(settings=world.settings, topic=world.topic, partitions=3, seed=1, deletes=0)
    traffic.send(600)
    world.send(*(row(id, "plain", id) for id in range(1000, 1100)), partition=0)
    expect(world, "run", 0, "librdkafka")
    expect(world, "verify", 0)
    assert not list(differing_rows(world)), "the table differs from its topic"
    world.forget_before(0, 50)
    traffic.send(100)
    expect(world, "run", 0, "spark")
    expect(world, "verify", 0)
    traffic.send(100)
    world.forget_before(1, -1)
    for reader in ("librdkafka", "spark"):
        said = expect(world, "run", 3, reader)
        assert "has deleted" in said or "OffsetsExpired" in said, said
    expect(world, "accept --reason=told", 0)
    expect(world, "run", 0)
    world.delete_topic()
    topics = lambda: world.admin.list_topics(timeout=10).topics  # noqa: E731
    wait_until(lambda: world.topic not in topics(), "the topic stayed")
    world.create_topic(3)
    # Each partition is longer than what was read of it: the ids alone tell.
    for partition in range(3):
        world.send(*(row(id, "new", id) for id in range(2000)), partition=partition)
    for reader in ("librdkafka", "spark"):
        said = expect(world, "run", 3, reader)
        assert "was deleted and created again" in said, said
    return "held"


def expect(world: World, command: str, code: int, reader: str = "librdkafka") -> str:
    """Run a command of ``oncelake``, and return what it says."""
    words = [sys.executable, "-m", "ingestion", *command.split(), world.name]
    environment = {**world.environment(), "ONCELAKE_READER": reader}
    done = run_and_capture(words, cwd=ROOT, env=environment, seconds=180)
    said = done.stdout + done.stderr
    assert done.returncode == code, f"{command} by {reader}: {done.returncode}: {said[-800:]}"
    return said


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
