"""Spark, as Dagster sees it: one session, started when an asset first asks for it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dagster_pyspark import LazyPySparkResource
from pydantic import Field, PrivateAttr

from oncelake.ingestion.errors import SetupError
from oncelake.ingestion.settings import Settings
from oncelake.resources.lake import LakeResource
from oncelake.resources.part import SettingsPart, setting, settings_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What a session cannot change once it runs, and what the guarantee rests on.
_FIXED = (
    "spark.master",
    "spark.sql.extensions",
    "spark.sql.catalog.spark_catalog",
    "spark.sql.session.timeZone",
    "spark.databricks.delta.commit.idempotencyCheck.enabled",
)


class SparkResource(SettingsPart, LazyPySparkResource):
    """The Spark session of a run: all of its assets share one JVM.

    Raises:
        SetupError: the jars are not there, ``spark_config`` contradicts a setting of the engine,
            or this process has another session already, which cannot become ours.
        InvalidSpecError: ``spark_config``, or the file of the settings, has what is not a user's.
    """

    lake: LakeResource
    spark_config: dict[str, Any] = Field(
        default={}, description="Settings of Spark's own beside the engine's; none may contradict."
    )
    master: str | None = setting("spark_master")
    defaults: str | None = setting("spark_defaults")
    timeout_seconds: float | None = setting("spark_timeout_seconds")
    driver_memory: str | None = setting("spark_driver_memory")
    java_options: str | None = setting("spark_java_options")
    _together: dict[tuple[str, str], Any] = PrivateAttr(default_factory=dict)

    @property
    def together(self) -> dict[tuple[str, str], Any]:
        """The runner of a stream with its siblings, by the run of Dagster and the stream."""
        return self._together

    def session_for(
        self, backlog: int, tell: Callable[[str], None] = lambda text: None
    ) -> "SparkSession":
        """Return the session, started for a backlog of so many records if it was not yet."""
        if self._spark_session is None:
            tell("starting Spark…")
        self._start(backlog)
        session: SparkSession = self.spark_session
        return session

    def _init_session(self) -> None:
        self._start(None)

    def _start(self, backlog: int | None) -> None:
        from oncelake.ingestion.pipeline.spark.session import start_session

        if self._spark_session is None:
            settings = settings_of(self.lake, self)
            more = {key: str(value) for key, value in self.spark_config.items()}
            _refuse_contradictions(more, settings)
            self._spark_session = start_session(settings, more, backlog=backlog)


def _refuse_contradictions(more: dict[str, str], settings: Settings) -> None:
    from pyspark.sql import SparkSession

    from oncelake.ingestion.pipeline.spark.defaults import refuse_fixed
    from oncelake.ingestion.pipeline.spark.session import spark_config

    ours = spark_config(settings)
    both = sorted(key for key in more.keys() & ours.keys() if more[key] != ours[key])
    if both:
        raise SetupError(
            f"spark_config contradicts the engine in {', '.join(both)}. "
            "Next: take these out of the resource; the engine's own are in "
            "ingestion/pipeline/spark/session.py"
        )
    refuse_fixed(more.keys() - ours.keys(), where="spark_config")
    running = SparkSession.getActiveSession()
    if running is None:
        return
    other = [key for key in _FIXED if running.conf.get(key, None) != ours[key]]
    if other:
        raise SetupError(
            f"this process runs a Spark session that is not ours (it differs in "
            f"{', '.join(other)}). Next: start no session beside the `spark` resource"
        )
