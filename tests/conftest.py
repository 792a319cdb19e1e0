"""What every test may ask for: a real broker, a real Spark, a lake of its own.

A stream's ``world`` has both where the test is marked ``spark`` and ``kafka``. Where it is marked
``kafka`` alone, librdkafka reads the broker, and there is no Spark. Without that mark its topics
are in memory, and its records come as Arrow: see ``tests.support.arrow_source``. Marked ``spark``
alone, Spark says what statements mean, and evaluates those that nothing else can.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from oncelake.ingestion.local import broker
from oncelake.ingestion.pipeline.spark.session import start_session
from oncelake.ingestion.pipeline.spark.stores import append_store_jars, store_config
from oncelake.ingestion.settings import Settings
from tests.cli.shell import home  # noqa: F401 (a fixture)
from tests.support.arrow_source import ArrowSession, without_spark
from tests.support.frail_broker import frail, frail_broker, frail_world  # noqa: F401 (fixtures)
from tests.support.places import kafka_for, reader_for, spark_for
from tests.support.postgres import postgres
from tests.support.registry import Subject, schema_registry
from tests.support.schedule import (  # noqa: F401 (hooks)
    pytest_collection_modifyitems,
    pytest_configure_node,
    pytest_xdist_make_scheduler,
)
from tests.support.secure_broker import secure_broker  # noqa: F401 (a fixture)
from tests.support.store import make_bucket, moto, use_store
from tests.support.store_proxy import StoreProxy
from tests.support.world import JARS, ROOT, World, settings_in

# In the background a shell ignores SIGINT; Dagster then ignores SIGTERM as well, and so would each
# broker that is started after it, which costs twenty seconds to end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def kafka_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One broker a session; it dies with the session, whatever happens to that."""
    folder = tmp_path_factory.mktemp("kafka")
    yield broker.up(folder, jars=JARS, tied_to_caller=True).address
    broker.down(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, store_address: str) -> Iterator[SparkSession]:
    """One Spark a session, which reaches the store, too: starting it costs more than most tests."""
    state = tmp_path_factory.mktemp("spark")
    settings = Settings(
        state=state,
        jars=JARS,
        spark_master="local[2]",
        spark_driver_memory="2g",
        # Of many small queries, compiling costs twice what it saves; and a heap that begins small
        # is collected twice as long.
        spark_java_options="-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xms1g -Xmn500m",
    )
    on_s3 = settings.model_copy(update={"lake": "s3://any"})
    with pytest.MonkeyPatch.context() as environment:
        use_store(store_address, environment)
        environment.setenv("SPARK_DIST_CLASSPATH", "")
        # Whatever folder the test works in that needs it first, Spark's workers find the toys.
        environment.setenv("PYTHONPATH", str(ROOT))
        append_store_jars(on_s3)
        # What is about the store alone: in folders tables are to be as they are without one.
        config = store_config(on_s3, state).items()
        more = {key: value for key, value in config if "s3" in key}
        session = start_session(settings, more)
    yield session
    session.stop()
    shutil.rmtree(state, ignore_errors=True)


@pytest.fixture(scope="session")
def registry_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One schema registry a session; it dies with the session."""
    with schema_registry(tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.fixture(scope="session")
def postgres_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server of PostgreSQL a session; it dies with the session."""
    folder = tmp_path_factory.mktemp("postgres")
    with postgres(folder) as address:
        yield address
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def store_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One object store a session; it dies with the session."""
    with moto(tmp_path_factory.mktemp("store")) as address:
        yield address


@pytest.fixture
def bucket(store_address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a lake of the test's own in the store, which clients find in the environment."""
    use_store(store_address, monkeypatch)
    return f"s3://{make_bucket(store_address)}/lake"


@pytest.fixture
def store_proxy(
    store_address: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StoreProxy]:
    """A proxy by which the clients of ``bucket`` reach the store."""
    with StoreProxy.before(store_address) as proxy:
        use_store(proxy.address, monkeypatch)
        yield proxy


@pytest.fixture(scope="session")
def arrow_session() -> Iterator[ArrowSession]:
    """What stands for Spark where streams run without it."""
    with without_spark() as session:
        yield session


@pytest.fixture
def session(request: pytest.FixtureRequest) -> SparkSession:
    """Spark's session, or what stands for it, for the worlds that a test makes itself."""
    return spark_for(request)


@pytest.fixture
def settings(tmp_path: Path, request: pytest.FixtureRequest) -> Settings:
    """A lake and a state folder of the test's own."""
    return settings_in(tmp_path, kafka_for(request), reader=reader_for(request))


@pytest.fixture
def world(settings: Settings, request: pytest.FixtureRequest) -> Iterator[World]:
    """A topic of the test's own, and a stream that reads it."""
    with World.made(settings, spark_for(request)) as made:
        yield made


@pytest.fixture(scope="module")
def module_world(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[World]:
    """A stream that the tests of a module share: ingested once, and damaged in copies."""
    folder = tmp_path_factory.mktemp("module")
    settings = settings_in(folder, kafka_for(request), reader=reader_for(request))
    with World.made(settings, spark_for(request)) as made:
        yield made
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the developer's own ONCELAKE_ variables out of every test."""
    for name in [name for name in os.environ if name.startswith("ONCELAKE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def registered(
    settings: Settings, request: pytest.FixtureRequest, registry_address: str
) -> Iterator[World]:
    """A stream whose schemas are in a real registry."""
    settings = settings.model_copy(update={"schema_registry": registry_address})
    with World.made(settings, spark_for(request)) as world:
        yield world


@pytest.fixture
def subject(registered: World, registry_address: str) -> Iterator[Subject]:
    """The subject of its values."""
    with Subject(registry_address, f"{registered.topic}-value") as made:
        yield made
