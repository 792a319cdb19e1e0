"""Each command sends the store what the policy of the docs allows, and says what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession
from typer.testing import Result

from oncelake.ingestion.delta.log_files import log_files
from oncelake.ingestion.storage import location
from tests.cli.shell import oncelake
from tests.rights.page import part_of_page
from tests.support.long import IS_LONG, only_long, twins
from tests.support.store import make_bucket, use_store
from tests.support.store_proxy import Request, Requests, StoreProxy
from tests.support.world import World, row, settings_in

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_SECTION: Final = part_of_page("The store of the lake")
_POLICY: Final[Any] = json.loads(_SECTION.partition("```json")[2].partition("```")[0])
_BELOW: Final = re.findall(r"`([^`]+/)`", _SECTION.partition("objects are below")[2])
_LOOKING: Final = ("status", "plan", "doctor", "verify", "history", "ledger", "quarantine", "batch")
_TO_LOOK: Final = {"s3:ListBucket", "s3:GetObject"}
# In this order: what comes later needs, or takes away, what is before it.
_WRITING: Final = {
    "run": (),
    "redrive": (),
    "replay": ("--from", "earliest"),
    "rewind": ("--to", "seq:1", "--reason", "a test", "--yes"),
    "maintain": (),
    "erase": ("--key", '{"id": 1}', "--reason", "a test", "--yes"),
    "rebuild": (),
}
_RESET: Final = ("reset", "orders", "--reason", "a test", "--yes")
_TYPED: Final = [each for each in _WRITING if IS_LONG or each in ("run", "maintain")]
# The requests of an action, as the proxy matches them.
_REQUESTS: Final = {
    "s3:ListBucket": "^LIST ",
    "s3:GetObject": "^(GET|HEAD) ",
    "s3:PutObject": "^PUT ",
}
_FEW: Final = ("status", "verify", "run")
_OTHERS: Final = [each for each in (*_LOOKING, *_WRITING) if each not in _FEW]
_REFUSED: Final = [
    ("run", "s3:PutObject"),
    *((command, action) for command in _FEW for action in sorted(_TO_LOOK)),
    *twins(*((command, action) for command in _OTHERS for action in sorted(_TO_LOOK))),
]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stream of one batch in a store, behind a proxy."""

    world: World
    proxy: StoreProxy
    bucket: str

    def right_of(self, request: Request) -> tuple[str, str]:
        """Return the action that a request takes, and what it is done to: a key, or a prefix."""
        path, _, query = request.target.partition(" ")
        key = path.removeprefix(f"/{self.bucket}").removeprefix("/")
        if request.kind == "LIST":
            return "s3:ListBucket", query.partition(" ")[0].removeprefix("prefix=")
        if query.startswith("delete="):
            # Which keys these are stands in the body.
            return "s3:DeleteObject", "kafka/"
        if request.kind == "DELETE":
            return "s3:AbortMultipartUpload" if "uploadId" in query else "s3:DeleteObject", key
        return "s3:GetObject" if request.kind in ("GET", "HEAD") else "s3:PutObject", key


@pytest.fixture(scope="module")
def stage(
    store_address: str,
    kafka_address: str,
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stage]:
    """Ingest, with a record that goes to quarantine."""
    bucket, folder = make_bucket(store_address), tmp_path_factory.mktemp("rights")
    (folder / "dagster.yaml").touch()
    in_store = {"lake": f"s3://{bucket}/kafka"}
    settings = settings_in(folder, kafka_address).model_copy(update=in_store)
    with (
        StoreProxy.before(store_address) as proxy,
        pytest.MonkeyPatch.context() as environment,
        World.made(settings, spark) as world,
    ):
        use_store(proxy.address, environment)
        world.declare(name="orders", publish="checked")
        world.write_declaration()
        world.send(row(1, "a"), row(2, "b"), {"name": "of nobody"})
        world.run()
        yield Stage(world=world, proxy=proxy, bucket=bucket)
    location._store.cache_clear()


@pytest.fixture
def anew(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """The same on a machine that has nothing of the lake yet."""
    settings = stage.world.settings.model_copy(update={"state": tmp_path})
    replace(stage.world, settings=settings).set_environment(monkeypatch)
    log_files.cache_clear()
    return stage


def assert_named(result: Result, refused: str) -> None:
    """See that one sentence says what is refused, and what to do."""
    said = " ".join(result.output.split())
    assert f"orders: the store of the lake refuses {refused}" in said
    assert "(403 Forbidden" in said
    assert "give its keys the rights of docs/rights.md" in said
    assert "unexpected" not in said


@pytest.mark.parametrize(("command", "action"), _REFUSED)
def test_a_command_says_which_request_is_refused(anew: Stage, command: str, action: str) -> None:
    """One sentence names it, the bucket and the remedy, and the exit code says: try again."""
    if command == "run":
        anew.world.send(row(4, "d"))

    with anew.proxy.fault("denied", _REQUESTS[action]) as met:
        result = oncelake(command, "orders", *_WRITING.get(command, ()))

    assert result.exit_code == (1 if command == "doctor" else 5), result.output
    assert_named(result, f"{met[0].kind} s3://{anew.bucket}/kafka/")


@pytest.mark.parametrize("command", [*_LOOKING, *_TYPED])
def test_a_command_needs_no_other_right(anew: Stage, command: str) -> None:
    """Its requests are allowed by the policy; one that looks has them listed and read only."""
    if command == "run":
        anew.world.send(row(3, "c"))
    if command == "erase":
        # What a rewind has taken back.
        anew.world.run()

    with anew.proxy.counted() as requests:
        result = oncelake(command, "orders", *_WRITING.get(command, ()))

    assert result.exit_code == 0, result.output
    rights = rights_of(anew, requests)
    taken = {action for action, key in rights if not key.startswith("kafka/.proofs/")}
    assert command not in _LOOKING or taken <= _TO_LOOK


def test_a_proof_that_may_not_be_kept_holds_all_the_same(anew: Stage) -> None:
    """It says why the next one begins anew."""
    with anew.proxy.fault("denied", _REQUESTS["s3:PutObject"]):
        result = oncelake("verify", "orders", "--whole")

    said = " ".join(result.output.split())
    assert result.exit_code == 0, result.output
    assert "the next proof begins anew: this one is not kept: " in said
    assert "403 Forbidden" in said


def rights_of(anew: Stage, requests: Requests) -> set[tuple[str, str]]:
    """See that the policy allows each request; return their actions, and what these are done to."""
    listing, objects = _POLICY["Statement"]
    resource = objects["Resource"].replace("company-lake", anew.bucket)
    [prefix] = listing["Condition"]["StringLike"]["s3:prefix"]
    below = [f"kafka/{each.replace('<stream>', 'orders')}" for each in _BELOW]
    rights = {anew.right_of(request) for request in requests}
    assert rights
    for action, key in rights:
        if action == "s3:ListBucket":
            assert action in listing["Action"]
            assert fnmatchcase(key, prefix)
        else:
            assert action in objects["Action"]
            assert fnmatchcase(f"arn:aws:s3:::{anew.bucket}/{key}", resource)
        # Whether a folder is there is asked by its name alone, too.
        assert key == "kafka/" or any(fnmatchcase(f"{key}/", f"{each}*") for each in below), key
    return rights


@only_long
def test_a_file_that_the_store_refuses_is_told_in_the_same_words(anew: Stage) -> None:
    """The library wraps the store's answer in words of its own, which are left out."""
    anew.world.send(row(5, "e"))

    with anew.proxy.fault("denied", r"^PUT .*/orders/part-"):
        result = oncelake("run", "orders")

    assert result.exit_code == 5, result.output
    assert_named(result, f"PUT s3://{anew.bucket}/kafka/orders/part-")


def test_a_reset_deletes_what_it_has_copied(anew: Stage) -> None:
    """Refused that, it says so, and the next one goes on; it comes last here."""
    with anew.proxy.fault("denied", "^(DELETE .*|POST .* delete=)$"):
        refused = oncelake(*_RESET)
    with anew.proxy.counted() as requests:
        result = oncelake(*_RESET)

    assert (refused.exit_code, result.exit_code) == (5, 0), result.output
    assert_named(refused, f"DELETE s3://{anew.bucket}/kafka/orders")
    assert "s3:DeleteObject" in {action for action, _ in rights_of(anew, requests)}
