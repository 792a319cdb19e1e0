"""The session is the engine's own, and keeps to its folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_spark_leaves_nothing_in_the_machines_temporary_folder(spark: SparkSession) -> None:
    """A JVM that is killed cannot tidy up, so all that it writes lies where the next one looks."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    folder = Path(jvm.System.getProperty("java.io.tmpdir"))

    assert folder.parent.name == "scratch"
    assert folder.is_dir()
    assert Path(spark.conf.get("spark.local.dir") or "") == folder
