"""A user's own settings of Spark win over what is recommended, and never over the promise."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.pipeline.spark.defaults import read_spark_defaults, why_fixed
from oncelake.ingestion.pipeline.spark.session import _REQUIRED, spark_config
from oncelake.ingestion.settings import Settings
from tests.support.world import JARS

# Every way to write a key that Java knows.
FILE = r"""# a comment
! another

spark.a                    1
  spark.b=2
spark.c : 3
spark.d = = 4
spark.e
spark.f   a \
          b
spark.g   C:\\
spark.h = x#y
# spark.i 1 \
spark.j 5
spark.k \
"""


def written(folder: Path, text: str) -> Path:
    """Write the file."""
    file = folder / "spark-defaults.conf"
    file.write_text(text)
    return file


@pytest.mark.spark
def test_keys_are_read_as_java_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    """What is checked here is what Spark takes from the file, line by line."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    properties = jvm.java.util.Properties()
    properties.load(jvm.java.io.StringReader(FILE))
    java = {key: properties.getProperty(key).strip() for key in properties.stringPropertyNames()}

    ours = read_spark_defaults(written(tmp_path, FILE))

    assert {**ours, "spark.g": ours["spark.g"].replace("\\\\", "\\")} == java


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("spark.master", "set ONCELAKE_SPARK_MASTER instead"),
        ("spark.driver.memory", "set ONCELAKE_SPARK_DRIVER_MEMORY instead"),
        ("spark.submit.deployMode", "the driver is the run's own process"),
        ("spark.sql.session.timeZone", "in UTC"),
        ("spark.sql.extensions", "they are Delta's"),
        ("spark.databricks.delta.commit.idempotencyCheck.enabled", "written twice or not at all"),
        ("spark.databricks.delta.snapshotPartitionsX", "written twice or not at all"),
        ("spark.delta.logStore.s3.impl", "whether a commit can overwrite another"),
        ("spark.sql.streaming.checkpointLocation", "which offsets a batch has"),
        ("spark.sql.ansi.enabled", "whether a wrong one is noticed"),
        ("spark.sql.files.ignoreMissingFiles", "left out in silence"),
        ("spark.files.ignoreCorruptFiles", "left out in silence"),
        ("spark.sql.execution.arrow.maxRecordsPerBatch", "memory of the workers"),
        (r"spark.sql\.extensions", "without a backslash"),
    ],
)
def test_what_the_promise_hangs_on_is_refused(tmp_path: Path, key: str, reason: str) -> None:
    """The line is named, and the reason."""
    file = written(tmp_path, f"# ours\nspark.executor.memory 4g\n{key} whatever\n")

    with pytest.raises(InvalidSpecError) as raised:
        read_spark_defaults(file)

    assert str(raised.value).startswith(f"{file}, line 3: {key}: ")
    assert reason in str(raised.value)


def test_whatever_the_engine_requires_is_fixed() -> None:
    """No setting that it insists on could be made in the file without a word."""
    assert [key for key in _REQUIRED if why_fixed(key) is None] == []


def test_everything_else_is_the_users(tmp_path: Path) -> None:
    """Their value stands: the engine does not set it."""
    keys = ("spark.local.dir", "spark.sql.shuffle.partitions", "spark.ui.enabled")
    keys += ("spark.databricks.delta.snapshotPartitions", "spark.driver.host")
    file = written(tmp_path, "".join(f"{key} mine\n" for key in keys))

    ours = spark_config(Settings(jars=JARS, state=tmp_path))
    with_theirs = spark_config(Settings(jars=JARS, state=tmp_path, spark_defaults=file))

    assert ours.keys() - with_theirs.keys() == set(keys)
    assert with_theirs.items() <= ours.items()


def test_a_cluster_has_settings_of_its_own(tmp_path: Path) -> None:
    """Nothing of one machine's; the executors get the jars, UTC, and what a user has them get."""
    file = written(tmp_path, "spark.jars mine.jar\nspark.executor.extraJavaOptions -XX:+UseZGC\n")
    settings = Settings(
        jars=JARS,
        state=tmp_path,
        lake=tmp_path / "lake",
        spark_defaults=file,
        spark_master="spark://h:1",
    )

    config = spark_config(settings)

    of_one_machine = {
        "spark.driver.host",
        "spark.sql.adaptive.enabled",
        "spark.default.parallelism",
    }
    of_one_machine |= {"spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions"}
    assert of_one_machine & config.keys() == set()
    jars = config["spark.jars"].split(",")
    assert jars[-1] == "mine.jar"
    assert {Path(jar).name for jar in jars[:-1]} == {at.name for at in (JARS / "spark").iterdir()}
    assert config["spark.executor.extraJavaOptions"] == "-XX:+UseZGC -Duser.timezone=UTC"
    assert config["spark.oncelake.copies"] == f"file://{tmp_path}/lake/.scratch"
    assert spark_config(settings.model_copy(update={"lake": "s3://b/p"}))[
        "spark.oncelake.copies"
    ].endswith("//b/p/.scratch")


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    """Spark would say how to call its script."""
    with pytest.raises(InvalidSpecError, match=r"ONCELAKE_SPARK_DEFAULTS: .*none.*No such file"):
        read_spark_defaults(tmp_path / "none")
