"""A wheel is built, installed into an empty environment, and used outside the clone.

    python -m tests.wheel        FRESH=1 fetches the jars anew, too
    python -m tests.wheel ends   with the oldest packages of every range, and with the newest

Every step is a command that a reader of docs/embedding.md types; the first that fails ends it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from tests.support.world import JARS, ROOT

_UV = Path(sys.executable).with_name("uv")
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


def main() -> None:
    """Build, install, use, and leave nothing behind."""
    with tempfile.TemporaryDirectory(prefix="wheel-") as folder:
        at = Path(folder)
        wheel = _build(at)
        if sys.argv[1:] == ["ends"]:
            for end in ("lowest-direct", "highest"):
                python = _install(at / end, wheel, extras=("dagster",), resolution=end)
                _use(at / f"with {end}", python)
                _use_in_dagster(at / f"with {end}", python)
        else:
            _use(at / "elsewhere", _install(at / "engine", wheel))
            _use_in_dagster(at / "elsewhere", _install(at / "dagster", wheel, extras=("dagster",)))
    print("wheel-test: the installed wheel ingests, proves and loads in Dagster")


def _build(at: Path) -> Path:
    """Build from what git knows, so that nothing else of the clone is in it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        (at / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, at / "source" / name, follow_symlinks=False)
    build = [_UV, "build", "--quiet", "--wheel", "--no-build-isolation", "--python", sys.executable]
    _run(*build, "--out-dir", at / "dist", at / "source", cwd=at)
    (wheel,) = (at / "dist").glob("*.whl")
    print(f"built {wheel.name}, {wheel.stat().st_size:,} bytes", flush=True)
    return wheel


def _install(
    at: Path, wheel: Path, *, extras: tuple[str, ...] = (), resolution: str | None = None
) -> Path:
    """Install a wheel and what it needs: as locked, or the oldest or newest that is allowed."""
    _run(_UV, "venv", "--quiet", "--python", sys.executable, at, cwd=ROOT)
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
    type_(oncelake, "jars")
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
