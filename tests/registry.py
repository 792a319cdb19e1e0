"""A real schema registry: Apicurio, which answers Confluent's API, on a free port of loopback."""

from __future__ import annotations

import json
import shutil
import socket
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from ingestion.local.java import find_java
from ingestion.local.process import Process, launch
from tests.world import ROOT

_MAIN = "io.quarkus.runner.GeneratedMain"


@contextmanager
def schema_registry(folder: Path) -> Iterator[str]:
    """Yield the address of a registry that lives as long as the block, and no longer than us."""
    found = list((ROOT / ".jars" / "registry").glob("*.tar.gz"))
    assert found, "the registry of the tests is not there; run: make .jars/.tests-fetched"
    with tarfile.open(found[0]) as packed:
        packed.extractall(folder, filter="data")
    (runner,) = folder.glob("*-runner.jar")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [find_java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    command += ["-cp", f"{runner}:{folder}/lib/*", _MAIN]
    launch(command, pid_file=folder / "pid", log=folder / "log", tied=True)
    address = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    _await(f"{address}/subjects", folder / "log")
    try:
        yield address
    finally:
        pid = int((folder / "pid").read_text())
        Process(pid=pid, command_ends_with=_MAIN).stop(grace_seconds=5)
        shutil.rmtree(folder, ignore_errors=True)


def _await(url: str, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.1)
        else:
            return


class Subject:
    """Registers schemas under one subject, and frames payloads by their ids."""

    def __init__(self, address: str, subject: str) -> None:
        """Take the registry's address and the subject's name."""
        self.name = subject
        self.client = SchemaRegistryClient({"url": address})

    def __enter__(self) -> Subject:
        return self

    def __exit__(self, *_: object) -> None:
        self.client._rest_client.session.close()

    def register(
        self, text: str, type: str = "AVRO", references: tuple[SchemaReference, ...] = ()
    ) -> int:
        """Register a schema, and return its id."""
        return self.client.register_schema(self.name, Schema(text, type, list(references)))

    def avro(self, schema: object, *records: object) -> list[bytes]:
        """Write records by a schema, as confluent-kafka's own serializer does."""
        serialize = AvroSerializer(self.client, json.dumps(schema))
        topic, _, field = self.name.rpartition("-")
        context = SerializationContext(topic, MessageField(field))
        return [serialize(each, context) for each in records]

    def json(self, schema: object, *records: object) -> list[bytes]:
        """Write records by a JSON Schema, as confluent-kafka's own serializer does."""
        serialize = JSONSerializer(json.dumps(schema), self.client)
        context = SerializationContext(self.name.rpartition("-")[0], MessageField.VALUE)
        return [serialize(each, context) for each in records]

    def protobuf(self, *messages: Any) -> list[bytes]:
        """Write messages of one type, as confluent-kafka's own serializer does."""
        serialize = ProtobufSerializer(type(messages[0]), self.client)
        context = SerializationContext(self.name.rpartition("-")[0], MessageField.VALUE)
        return [serialize(each, context) for each in messages]


def framed(schema_id: int, payload: bytes) -> bytes:
    """Put Confluent's header in front of a payload."""
    return b"\0" + schema_id.to_bytes(4) + payload
