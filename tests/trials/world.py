"""Where trials are played: a broker and a Spark of their own, and folders that go with them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from oncelake.ingestion.local import broker
from oncelake.ingestion.pipeline.spark.session import start_session
from oncelake.ingestion.settings import Settings
from tests.support.world import JARS, World


@contextmanager
def folder_of_its_own(name: str) -> Iterator[Path]:
    """Make a folder; it stays where an error ends the block, for who looks into that."""
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def broker_in(folder: Path) -> Iterator[str]:
    """Run a broker that dies with this process, and yield its address."""
    try:
        yield raise_broker(folder)
    finally:
        broker.down(folder)
        shutil.rmtree(folder, ignore_errors=True)


def raise_broker(folder: Path) -> str:
    """Start a broker if it is down, and return its address."""
    return broker.up(folder, jars=JARS, tied_to_caller=True).address


@contextmanager
def spark_of(settings: Settings) -> Iterator[SparkSession]:
    """Start Spark, and stop it in the end."""
    spark = start_session(settings)
    try:
        yield spark
    finally:
        spark.stop()


def open_world(settings: Settings, topic: str, *, partitions: int) -> World:
    """Make a topic that outlives its world, and the folders of a stream that another process runs.

    Who looks into what went wrong finds the records where the broker's folder is kept.
    """
    world = World.over(topic, settings)
    world.create_topic(partitions)
    for folder in (settings.streams, settings.lake, settings.state):
        Path(folder).mkdir(parents=True, exist_ok=True)
    return world
