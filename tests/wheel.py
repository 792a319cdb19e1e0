"""A wheel is built, installed into an empty environment, and used outside the clone.

    python -m tests.wheel              FRESH=1 also fetches the jars; DIST=dist takes a built wheel
    python -m tests.wheel quickstart   only the commands of docs/embedding.md, and the tutorial
    python -m tests.wheel ends         with the oldest packages of every range, and with the newest
    python -m tests.wheel newest       with the newest Dagster there is, allowed or not: only warns

WITH=python3.13 is the Python that is installed into, JAVA_HOME the JDK.

Every step is a command that a reader of docs/embedding.md types; the first that fails ends it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench import dist
from tests.docs.test_printed import Project, differs, follow_the_tutorial, printed_on
from tests.support.world import JARS, ROOT

_UV = Path(sys.executable).with_name("uv")
_PYTHON = os.environ.get("WITH") or sys.executable
_STREAM = "topic: orders\nschema: id BIGINT NOT NULL, status STRING\nkeys: [id]\n"
_PRODUCE = """
import json, sys
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
admin = AdminClient({"bootstrap.servers": sys.argv[1]})
admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(30)
producer = Producer({"bootstrap.servers": sys.argv[1]})
for number in range(10):
    producer.produce("orders", json.dumps({"id": number % 7, "status": "new"}).encode())
assert producer.flush(30) == 0
"""
# As in a project that has packages of these names itself.
_WHERE = (
    "import assets, oncelake.ingestion; from importlib.util import find_spec; "
    "from oncelake import Streams; assert assets.IS_MINE; "
    "assert not any(map(find_spec, ('ingestion', 'resources', 'tests'))); "
    "print(oncelake.ingestion.__file__, Streams)"
)
_WITHOUT_DAGSTER = (
    "from importlib.util import find_spec; import oncelake; "
    "assert not any(map(find_spec, ('dagster', 'great_expectations', 'pyiceberg', 'psycopg')))"
)


# What docs/embedding.md types once the wheel is installed.
_QUICKSTART = (
    "oncelake new shop",
    "oncelake kafka up --sample",
    "oncelake init orders",
    "oncelake run orders",
    "oncelake verify orders",
)
_MINUTES = 5


def main() -> None:
    """Build, install, use, and leave nothing behind."""
    with tempfile.TemporaryDirectory(prefix="wheel-") as folder:
        at = Path(folder)
        wheel = _built(at)
        match sys.argv[1:]:
            case ["ends"]:
                for end in ("lowest-direct", "highest"):
                    python = _install(at / end, wheel, extras=("dagster",), resolution=end)
                    _use(at / f"with {end}", python)
                    _use_in_dagster(at / f"with {end}", python)
            case ["newest"]:
                _try_the_newest_dagster(at, wheel)
            case ["quickstart"]:
                _type_the_quickstart(at, wheel)
            case _:
                _use(at / "elsewhere", _install(at / "engine", wheel))
                python = _install(at / "dagster", wheel, extras=("dagster",))
                _use_in_dagster(at / "elsewhere", python)
                _type_the_quickstart(at, wheel)
    print("wheel-test: the installed wheel ingests, proves and loads in Dagster")


def _built(at: Path) -> Path:
    """Return the wheel of a folder where it was built, else build it and what goes with it."""
    given = os.environ.get("DIST")
    if not given:
        dist.main(at / "dist")
    (wheel,) = (ROOT / given if given else at / "dist").glob("*.whl")
    print(f"{wheel.name}, {wheel.stat().st_size:,} bytes", flush=True)
    return wheel.resolve()


def _type_the_quickstart(at: Path, wheel: Path) -> None:
    """From nothing to a proven table, with a JDK, and beside a broker without one."""
    bare = at / "bare"
    _run(_PYTHON, "-m", "venv", bare, cwd=ROOT)
    print(_run(bare / "bin" / "python", "--version", cwd=ROOT).strip(), flush=True)
    began = time.monotonic()
    chosen = ["--constraint", wheel.parent / "constraints.txt"]
    _run(bare / "bin" / "pip", "install", "--quiet", f"{wheel}[dagster]", *chosen, cwd=ROOT)
    installed = time.monotonic() - began
    print(f"{installed:.0f} s  pip install", flush=True)
    folder = at / "with a JDK"
    path = f"{bare / 'bin'}:{os.environ['PATH']}"
    seconds = installed + _type_in(folder, _QUICKSTART, PATH=path)
    print(f"{seconds:.0f} s  six commands, from nothing to a proven table", flush=True)
    # The machine may have other work than this.
    assert seconds < 60 * _MINUTES * float(os.environ.get("PATIENCE", "1")), seconds
    with _kafka_of(folder, path) as broker:
        here = {
            "PATH": str(bare / "bin"),
            "ONCELAKE_KAFKA": broker,
            "ONCELAKE_READER": "librdkafka",
        }
        others = [each for each in _QUICKSTART if "kafka" not in each]
        alone = _type_in(at / "without a JDK", others, **here)
        print(f"{installed + alone:.0f} s  five commands without a JDK", flush=True)
    _follow_the_tutorial(at / "tutorial", path)


@contextmanager
def _kafka_of(folder: Path, path: str) -> Iterator[str]:
    """Start the embedded Kafka of a folder's project, or find it; stop it in the end."""
    shop = folder / "shop"
    try:
        (broker,) = re.findall(r"127[.\d]+:\d+", _typed(shop, "oncelake kafka up", PATH=path))
        yield broker
    finally:
        _typed(shop, "oncelake kafka down", PATH=path)


def _type_in(folder: Path, commands: Sequence[str], **environment: str) -> float:
    """Type commands below a new folder, those after the first in its project; return the time."""
    folder.mkdir()
    began = time.monotonic()
    for command in commands:
        here = folder if "new" in command else folder / "shop"
        started = time.monotonic()
        _typed(here, command, **environment)
        print(f"{time.monotonic() - started:.0f} s  {command}", flush=True)
    return time.monotonic() - began


def _typed(here: Path, command: str, **environment: str) -> str:
    """Type a command where nothing of this clone is set."""
    kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ}
    if "ONCELAKE_READER" in environment:
        kept.pop("JAVA_HOME", None)
    if not os.environ.get("FRESH"):
        kept["ONCELAKE_JARS"] = str(JARS)
    words = command.split()
    words[0] = str(Path(environment["PATH"].partition(":")[0]) / words[0])
    return _run(*words, cwd=here, env=kept | environment)


def _follow_the_tutorial(folder: Path, path: str) -> None:
    """Type every command of the tutorial, and compare what it shows with what is printed."""
    folder.mkdir()
    project = Project(folder, "")
    shutil.rmtree(project.folder)
    _typed(folder, "oncelake new shop", PATH=path)
    del project.environment["PYTHONPATH"]
    with _kafka_of(folder, path) as broker:
        project.environment |= {"PATH": path, "ONCELAKE_KAFKA": broker}
        printed = "".join(follow_the_tutorial(project))
    shown = "".join(text for _, text in printed_on(ROOT / "docs" / "tutorial.md"))
    if wrong := differs(shown, printed):
        sys.exit(f"wheel-test: the tutorial shows something else:\n{wrong}")
    print("0  the tutorial, word by word", flush=True)


def _try_the_newest_dagster(at: Path, wheel: Path) -> None:
    python = _install(at / "newest", wheel, extras=("dagster",))
    newest = ["--upgrade", "--prerelease", "if-necessary", "dagster", "dagster-pyspark"]
    _run(_UV, "pip", "install", "--quiet", "--python", python, *newest, cwd=ROOT)
    print(_run(python.with_name("dagster"), "--version", cwd=at).strip(), flush=True)
    try:
        _use(at / "with the newest", python)
        _use_in_dagster(at / "with the newest", python)
    except SystemExit as failed:
        # The forge shows such a line beside the run.
        print(f"::warning::the wheel fails with the newest Dagster: {failed}".replace("\n", "%0A"))


def _install(
    at: Path, wheel: Path, *, extras: tuple[str, ...] = (), resolution: str | None = None
) -> Path:
    """Install a wheel and what it needs: as locked, or the oldest or newest that is allowed."""
    _run(_UV, "venv", "--quiet", "--python", _PYTHON, at, cwd=ROOT)
    python = at / "bin" / "python"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    # Named here one by one: only what is asked for itself is taken at its oldest.
    needed = [*project["dependencies"], *(each for extra in extras for each in optional[extra])]
    chosen = ["--constraint", ROOT / "requirements.lock", "--no-verify-hashes"]
    if resolution:
        chosen = ["--resolution", resolution]
    _run(_UV, "pip", "install", "--quiet", "--python", python, *chosen, *needed, cwd=ROOT)
    _run(_UV, "pip", "install", "--quiet", "--python", python, "--no-deps", wheel, cwd=ROOT)
    _run(_UV, "pip", "check", "--python", python, cwd=ROOT)
    return python


def _shell(home: Path) -> dict[str, str]:
    jars = home / "jars" if os.environ.get("FRESH") else JARS
    given = {"ONCELAKE_STREAMS": "streams", "ONCELAKE_JARS": str(jars)}
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    return {**kept, **given, "DAGSTER_HOME": str(home / "dagster_home")}


def _use(home: Path, python: Path) -> None:
    (home / "streams").mkdir(parents=True)
    (home / "dagster_home").mkdir()
    (home / "dagster_home" / "dagster.yaml").touch()
    (home / "assets").mkdir()
    (home / "assets" / "__init__.py").write_text("IS_MINE = True\n")
    (home / "streams" / "orders.yaml").write_text(_STREAM)
    oncelake = python.with_name("oncelake")

    def type_(*words: object) -> str:
        return _run(*words, cwd=home, env=_shell(home))

    if home.name == "elsewhere":
        type_(python, "-c", _WITHOUT_DAGSTER)
    type_(oncelake, "validate")
    type_(oncelake, "kafka", "up")
    try:
        address = type_(oncelake, "kafka", "status").split()
        (broker,) = {word.strip(",.") for word in address if word.startswith("127.0.0.1:")}
        type_(python, "-c", _PRODUCE, broker)
        assert "7 rows" in type_(oncelake, "run", "orders")
        type_(oncelake, "verify", "orders")
    finally:
        type_(oncelake, "kafka", "down")


def _use_in_dagster(home: Path, python: Path) -> None:
    oncelake = python.with_name("oncelake")

    def type_(*words: object) -> str:
        return _run(*words, cwd=home, env=_shell(home))

    assert str(ROOT) not in type_(python, "-c", _WHERE)
    type_(oncelake, "kafka", "up")
    try:
        dagster = [python.with_name("dagster")]
        module = ["-m", "oncelake.assets.definitions"]
        type_(*dagster, "definitions", "validate", *module)
        type_(*dagster, "asset", "materialize", "--select", "orders", *module)
        type_(oncelake, "verify", "orders")
    finally:
        type_(oncelake, "kafka", "down")


def _run(*words: object, cwd: Path, env: dict[str, str] | None = None) -> str:
    shown = " ".join(Path(str(word)).name for word in words[:3]).partition("\n")[0]
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    print(f"{done.returncode}  {shown}", flush=True)
    if done.returncode:
        sys.exit(f"wheel-test: {shown} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
