"""A container engine builds the image, and two hosts that run it ingest into one lake.

    python -m tests.image [--engine docker] [--debootstrap [--with PATH ...]]

Kafka and the lake's store run beside the containers, which share this machine's network. The base
is pulled; or debootstrap makes it of Debian's packages, as root, with files of this machine in it
that an administrator would add, such as authorities to trust.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from oncelake.ingestion.cli.demo.flights import Message
from oncelake.ingestion.delta.files import open_rows
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.local import broker
from oncelake.ingestion.local.produce import create, produce
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.lease import read_lease
from tests.support.store import environment_of_store, make_bucket, moto
from tests.support.world import JARS, ROOT

Answer = TypeVar("Answer")

_IMAGE = "oncelake-under-test"
_STREAM = "topic: orders\nschema: id BIGINT NOT NULL, status STRING\nkeys: [id]\n"
_BASE, _SUITE = "debian:13-slim", "trixie"
# How Debian's slim images differ from what debootstrap makes.
_SLIM = r"""
for each in doc info locale man; do
  echo "path-exclude /usr/share/$each/*" >>/etc/dpkg/dpkg.cfg.d/docker
  [ ! -d /usr/share/$each ] || find /usr/share/$each -not -type d -not -name copyright -delete
done
echo 'path-include /usr/share/doc/*/copyright' >>/etc/dpkg/dpkg.cfg.d/docker
cat >/etc/apt/apt.conf.d/docker-clean <<'END'
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb || true"; };
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
END
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb
"""
# What a clone has beside its files, and what steps leave behind.
_SURPLUS = """
find . -name planted
find /root/.cache /var/lib/apt/lists /var/cache/apt .jars/ivy -type f -size +0 2>/dev/null || :
"""


def main() -> None:
    """Build, use, and leave nothing behind."""
    parser = argparse.ArgumentParser("tests.image")
    parser.add_argument("--engine", default="podman")
    parser.add_argument("--debootstrap", action="store_true")
    parser.add_argument("--with", dest="files", action="append", type=Path, default=[])
    options = parser.parse_args()
    for program in (options.engine, *["debootstrap"] * options.debootstrap):
        if shutil.which(program) is None:
            sys.exit(
                f"image: {program} was not found. Next: install it (Debian, Ubuntu: apt install"
                f" {program}), or name another engine: make image ENGINE=docker"
            )
    engine, made = ContainerEngine(options.engine), [_IMAGE, *[_BASE] * options.debootstrap]
    with tempfile.TemporaryDirectory(prefix="image-") as folder, engine.emptied(made):
        if options.debootstrap:
            _make_base(engine, Path(folder) / "base", options.files)
        _build(engine, Path(folder) / "context")
        with _lake(Path(folder)) as lake:
            _use(engine, lake)
    print("image: it builds, and two hosts of it ingest every record once")


@dataclass(frozen=True)
class ContainerEngine:
    """A container engine: podman, or one with the same commands."""

    program: str

    def __call__(self, *words: object) -> str:
        """Execute a command to its end, which must be a good one, and return what it prints."""
        return _run(self.program, *words)

    @contextmanager
    def emptied(self, images: Sequence[str]) -> Iterator[None]:
        """Remove the containers, volumes and images when the block ends, however that is."""
        try:
            yield
        finally:
            for kind, removal in (("ps --all", "rm --force"), ("volume ls", "volume rm --force")):
                listed = self(*kind.split(), "--quiet", "--filter", f"name={_IMAGE}").split()
                if listed:
                    self(*removal.split(), *listed)
            for image in images:
                if self("images", "--quiet", image):
                    self("rmi", "--force", image)


@dataclass(frozen=True)
class Container:
    """A container that was started.

    Attributes:
        process: The engine's, which ends as the container does.
        log: What was printed.
    """

    engine: ContainerEngine
    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def kill(self, signal: str) -> None:
        """Send a signal to the container's first process."""
        self.engine("kill", "--signal", signal, self.name)

    def exit_code(self) -> int:
        """Wait for the end, and show the last that was printed."""
        code = self.process.wait(timeout=300)
        printed = self.log.read_text().splitlines(keepends=True)
        print(textwrap.indent("".join(printed[-5:]), "    "), end="", flush=True)
        return code


@dataclass
class LakeOfHosts:
    """A topic and a lake in a store, beside the containers.

    Attributes:
        folder: What the machine has of them.
        options: What gives them to a container, as docs/deploy.md does.
        sent: How many records were produced, each of a key of its own.
    """

    settings: Settings
    folder: Path
    options: Sequence[str]
    sent: int = 0

    @property
    def paths(self) -> StreamPaths:
        """Where the stream's tables are."""
        return StreamPaths.of("orders", self.settings)

    def produce(self, records: int) -> None:
        """Produce some more records."""
        ids = range(self.sent, self.sent + records)
        values = (b'{"id": %d, "status": "new"}' % number for number in ids)
        now = int(time.time() * 1000)
        messages = (Message(value[:20], value, now, "", "on time") for value in values)
        self.sent += produce(self.settings, "orders", messages)

    def is_complete(self) -> bool:
        """Tell whether the table has a row for each record."""
        return open_rows(self.paths.data).count_rows() == self.sent

    def holder(self) -> str | None:
        """Return the name of the host that holds the stream."""
        assert self.paths.lease is not None
        lease = read_lease(self.paths.lease)
        return lease.host if lease else None


@dataclass(frozen=True)
class ContainerHost:
    """A machine that runs the image, with a volume of its own for ``/state``."""

    engine: ContainerEngine
    name: str
    lake: LakeOfHosts

    def start(self, *command: str) -> Container:
        """Start a container that executes a command, or the image's own."""
        print(f"  {self.name}: {' '.join(command) or 'the command of the image'}", flush=True)
        name = f"{_IMAGE}-{self.name}-{uuid.uuid4().hex[:6]}"
        words = [self.engine.program, "run", "--name", name, "--hostname", self.name]
        words += ["--add-host", f"{self.name}:127.0.0.1"]
        words += [*self.lake.options, "--volume", f"{_IMAGE}-{self.name}:/state", _IMAGE, *command]
        log = self.lake.folder / f"{name}.log"
        with log.open("wb") as printed:
            process = subprocess.Popen(words, stdout=printed, stderr=subprocess.STDOUT)
        return Container(self.engine, name, process, log)

    def run(self, *command: str) -> None:
        """Execute a command to its end, which must be a good one."""
        _must(self.start(*command).exit_code() == 0, "it ends with 0")


def _make_base(engine: ContainerEngine, root: Path, files: Sequence[Path]) -> None:
    """Make what FROM names, of packages from where this machine has its own."""
    assert f"FROM {_BASE}\n" in (ROOT / "Dockerfile").read_text()
    mine = platform.freedesktop_os_release()["VERSION_CODENAME"]
    listed = _run("apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI) $(RELEASE)")
    pockets = dict.fromkeys(re.findall(rf"^Debian (\S+) {mine}(\S*)$", listed, re.MULTILINE))
    mirror = next(uri for uri, pocket in pockets if not pocket)
    _run("debootstrap", "--variant=minbase", _SUITE, root, mirror)
    _run("chroot", root, "sh", "-e", "-c", _SLIM)
    lines = (f"deb {uri} {_SUITE}{pocket} main\n" for uri, pocket in pockets)
    (root / "etc/apt/sources.list").write_text("".join(lines))
    for file in files:
        _run("cp", "--recursive", "--parents", file.resolve(), root)
    _run("tar", "--create", "--file", root.with_suffix(".tar"), "--directory", root, ".")
    engine("import", root.with_suffix(".tar"), _BASE)


def _build(engine: ContainerEngine, context: Path) -> None:
    """Build from what git knows, and from a file of each kind that it ignores."""
    for name in filter(None, _run("git", "-C", ROOT, "ls-files", "-z").split("\0")):
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, context / name, follow_symlinks=False)
    ignored = re.findall(r"^[^#\n].*", (ROOT / ".gitignore").read_text(), re.MULTILINE)
    for pattern in (".git", "secret.env", *ignored):
        folder = context / pattern.strip("/").replace("*", "x")
        folder.mkdir(parents=True)
        (folder / "planted").touch()
    began = time.monotonic()
    engine("build", "--network", "host", "--no-cache", "--tag", _IMAGE, context)
    print(f"  built in {time.monotonic() - began:.0f} s", flush=True)
    print(engine("history", "--no-trunc", "--format", "{{.Size}}  {{.CreatedBy}}", _IMAGE))
    inside = ["run", "--rm", "--network", "none", "--user", "root", _IMAGE, "sh", "-c", _SURPLUS]
    _must(not (surplus := engine(*inside)), f"nothing superfluous is in the image\n{surplus}")


@contextmanager
def _lake(at: Path) -> Iterator[LakeOfHosts]:
    kafka = broker.up(at / "kafka", jars=JARS, tied_to_caller=True).address
    for name in ("streams", "store"):
        (at / name).mkdir()
    (at / "streams" / "orders.yaml").write_text(_STREAM)
    try:
        with moto(at / "store") as address:
            os.environ |= environment_of_store(address)
            place = f"s3://{make_bucket(address)}/lake"
            given = {"KAFKA": kafka, "LAKE": place, "LEASE_SECONDS": 10}
            given = {f"ONCELAKE_{name}": value for name, value in given.items()}
            lines = {**given, **environment_of_store(address)}.items()
            (at / "oncelake.env").write_text("".join(f"{name}={value}\n" for name, value in lines))
            options = ["--network", "host", "--env-file", f"{at}/oncelake.env"]
            options += ["--volume", f"{at}/streams:/opt/oncelake/assets/streams"]
            settings = Settings(kafka=kafka, lake=place, state=at / "state")
            create(settings, "orders", partitions=2)
            yield LakeOfHosts(settings, at, options)
    finally:
        broker.down(at / "kafka")


def _use(engine: ContainerEngine, lake: LakeOfHosts) -> None:
    """Let two hosts run, collide, follow and die, and prove the table."""
    one, two = (ContainerHost(engine, name, lake) for name in ("one", "two"))
    for host in (one, two):
        lake.produce(1_000)
        host.run("oncelake", "run", "orders")
    lake.produce(1_000)
    two.run("dagster", "asset", "materialize", "--select", "orders", "-m", "assets.definitions")
    lake.produce(50_000)
    both = [host.start("oncelake", "run", "orders") for host in (one, two)]
    _must(sorted(each.exit_code() for each in both) == [0, 4], "one of two at once ends with 4")
    _must(lake.is_complete(), "each record has a row")
    one.run("oncelake", "verify", "orders")
    _follow({host.name: host.start() for host in (one, two)}, lake)
    two.run("oncelake", "verify", "orders")


def _follow(followers: dict[str, Container], lake: LakeOfHosts) -> None:
    """Kill the follower that holds the stream, and end the other one, which takes over."""
    lake.produce(1_000)
    _await("each record has a row", lake.is_complete)
    lake.produce(500_000)
    killed = followers.pop(_await("one of them holds the stream", lake.holder))
    killed.kill("KILL")
    _must(killed.exit_code() == 137, "it is killed")
    _await("the other one has taken over, and each record has a row", lake.is_complete)
    (other,) = followers.values()
    other.kill("TERM")
    _must(other.exit_code() == 143, "SIGTERM ends it with 143")


def _await(what: str, ask: Callable[[], Answer | None]) -> Answer:
    began = time.monotonic()
    while not (answer := ask()):
        _must(time.monotonic() - began < 180, what)
        time.sleep(0.05)
    print(f"  {what}, after {time.monotonic() - began:.0f} s", flush=True)
    return answer


def _must(is_so: bool, what: str) -> None:
    if not is_so:
        sys.exit(f"image: this does not hold: {what}")


def _run(*words: object) -> str:
    command = [str(word) for word in words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"image: {' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
