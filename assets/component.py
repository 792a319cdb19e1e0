"""The wiring, and the only place of it: every declared stream becomes an asset; all share the rest.

Loading this reads files and the names of environment variables. It starts no Spark and connects to
no Kafka; an unreadable declaration becomes an asset that fails with its error.

Dagster reads the annotations of a component, so this module does not postpone them.
"""

import atexit
import gc
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from uuid import uuid4

import dagster as dg
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import BaseModel, Field, create_model

from oncelake.assets.alerts import alert_sensors
from oncelake.assets.asset_specs import asset_spec, side_specs, topic_spec, topics_of
from oncelake.assets.assets import Results, execute_stream, ingest_asset
from oncelake.assets.checks.proof import verify_job
from oncelake.assets.follow import follow_job, follow_sensor
from oncelake.assets.jobs.backfill import replay_assets
from oncelake.assets.jobs.jobs import ingest_job
from oncelake.assets.jobs.maintain import maintain_job, maintain_schedule
from oncelake.assets.jobs.operate import operate_job
from oncelake.assets.jobs.retention import retention_sensor
from oncelake.assets.scaffolder import StreamsScaffolder
from oncelake.assets.sensors import ingest_schedule, lag_sensor
from oncelake.assets.translation import AS_DECLARED, Translation
from oncelake.ingestion.declaration.files.loader import DeclaredStream, load_streams, siblings_of
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.settings import Settings, load_settings, variable
from oncelake.ingestion.storage.location import Location
from oncelake.resources.kafka import KafkaResource
from oncelake.resources.lake import LakeResource
from oncelake.resources.part import SettingsPart, is_secret
from oncelake.resources.spark import SparkResource

_SECRETS: Final = [name for name in KafkaResource.model_fields if is_secret(KafkaResource, name)]
State = Literal["running", "stopped"]


def _attributes_of(resource: type[SettingsPart]) -> type[BaseModel]:
    """Return what YAML may say of a resource: its settings, but for secrets, and its own fields.

    Dagster shows what a resource was given, and keeps it.
    """
    fields: dict[str, Any] = {
        name: (each.annotation | str | None, Field(None, description=each.description))
        for name, each in resource.model_fields.items()
        if each.description and not is_secret(resource, name)
    }
    return create_model(f"{resource.__name__}Attributes", __base__=dg.Model, **fields)


def _resolve_attributes(context: dg.ResolutionContext, model: BaseModel) -> Mapping[str, Any]:
    given = model.model_dump(exclude_unset=True).items()
    return {name: context.resolve_value(value) for name, value in given}


def _attributes(resource: type[SettingsPart], description: str) -> dg.Resolver:
    model = _attributes_of(resource)
    return dg.Resolver(_resolve_attributes, model_field_type=model, description=description)


class SensorStates(dg.Model, dg.Resolvable):
    """Which sensors run without anybody switching them on."""

    lag: State = "stopped"
    follow: State = "stopped"
    retention: State | None = Field(None, description="Left out: running, if alerts are posted.")
    failed_runs: State = Field(
        "running", description="Of alerts: posts each failed run of the whole code location."
    )
    conditions: State | None = Field(
        None, description="Of automation conditions. Left out: Dagster's own sensor sees to them."
    )


class JobNames(dg.Model, dg.Resolvable):
    """The names of jobs, sensors, schedules, ops and resources."""

    prefix: str = Field("", description="What the name of each begins with.")


@dg.scaffold_with(StreamsScaffolder)
@dataclass(kw_only=True)
class Streams(dg.Component, dg.Resolvable):
    """Kafka topics into tables of Delta Lake, Iceberg or PostgreSQL: every record once, proven.

    Each declared stream is an asset with checks. Jobs and sensors serve all of them.
    """

    streams: Annotated[
        str | Mapping[str, Mapping[str, Any]] | None,
        dg.Resolver.default(
            description="The folder of the streams' files, from this one's folder; or the streams "
            "themselves, by name. Left out: ONCELAKE_STREAMS."
        ),
    ] = None
    lake: Annotated[
        str | None,
        dg.Resolver.default(description="Where the tables go. Left out: ONCELAKE_LAKE."),
    ] = None
    state: Annotated[
        str | None,
        dg.Resolver.default(description="What the engine keeps. Left out: ONCELAKE_STATE."),
    ] = None
    kafka: Annotated[
        Mapping[str, Any],
        _attributes(KafkaResource, "The cluster; its secrets come from the environment."),
    ] = field(default_factory=dict)
    spark: Annotated[
        Mapping[str, Any], _attributes(SparkResource, "Spark, where a stream asks for it.")
    ] = field(default_factory=dict)
    sensors: SensorStates = field(default_factory=SensorStates)
    jobs: JobNames = field(default_factory=JobNames)
    side_assets: Annotated[
        bool, dg.Resolver.default(description="Whether quarantine and ledger are assets.")
    ] = True
    topic_assets: Annotated[
        bool,
        dg.Resolver.default(
            description="Whether topics are assets here; of two components that read one, in one."
        ),
    ] = True
    translation: (
        Annotated[
            TranslationFn[StreamSpec],
            TranslationFnResolver[StreamSpec](lambda stream: {"stream": stream}),
        ]
        | None
    ) = None
    topics: (
        Annotated[TranslationFn[str], TranslationFnResolver[str](lambda topic: {"topic": topic})]
        | None
    ) = None

    def __post_init__(self) -> None:
        """Begin with the names of the declarations."""
        self._translation = AS_DECLARED
        self._tables: Location | None = None

    def get_asset_spec(self, stream: DeclaredStream) -> dg.AssetSpec:
        """Describe the asset of a stream; ``translation`` has the last word. To be overridden."""
        return asset_spec(stream, topic_key=self._topic_key, lake=self._tables)

    def execute(self, context: dg.AssetExecutionContext, stream: DeclaredStream) -> Results:
        """Run a stream once, and yield what came out, with its checks. To be overridden."""
        yield from execute_stream(context, stream, translation=self._translation)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Wire the streams that are declared here, or in the folder that is named."""
        return self.definitions(folder_of(context))

    def definitions(self, base: Path = Path()) -> dg.Definitions:
        """Wire the streams; a folder of their files that is relative begins at ``base``."""
        with _nothing_is_garbage():
            return self._wire(self._lake_resource(base))

    def _lake_resource(self, base: Path) -> LakeResource:
        lake = LakeResource(lake=self.lake, state=self.state)
        if self.streams is None:
            return lake
        if isinstance(self.streams, str):
            folder = base / self.streams
        else:
            folder = write_files(_as_files(self.streams), load_settings(**lake.given()).state)
        return lake.reading(folder)

    def _wire(self, lake: LakeResource) -> dg.Definitions:
        settings = load_settings(**lake.given())
        self._tables = Location.of(settings.lake)
        streams = load_streams(settings.streams)
        specs = {each.name: self._spec_of(each) for each in streams}
        self._translation = translation = Translation(
            keys={name: spec.key for name, spec in specs.items()},
            topic_key=self._topic_key,
            has_side_assets=self.side_assets,
            prefix=self.jobs.prefix,
        )
        kafka = KafkaResource(**self.kafka, **_secrets())
        spark = SparkResource(lake=lake, **self.spark)
        upkeep = maintain_job(streams, translation)
        read = [each.spec for each in streams if each.spec is not None]
        shared = dg.Definitions(
            assets=[self._topic_spec(topic) for topic in topics_of(read) if self.topic_assets],
            resources=dict(zip(translation.resource_keys(), (kafka, lake, spark), strict=True)),
            jobs=[
                ingest_job(streams, translation),
                operate_job(translation),
                follow_job(translation),
                verify_job(streams, translation),
                upkeep,
            ],
            schedules=[maintain_schedule(upkeep, translation)],
            sensors=self._sensors(streams, settings),
        )
        groups = siblings_of(streams)
        return dg.Definitions.merge(
            shared,
            *(self._of_stream(each, specs[each.name], group) for group in groups for each in group),
        )

    def _sensors(
        self, streams: Sequence[DeclaredStream], settings: Settings
    ) -> list[dg.SensorDefinition]:
        """Return the sensors; a webhook starts those of alerts, and what they are to tell of."""
        translation, states = self._translation, self.sensors
        specs = [each.spec for each in streams if each.spec is not None]
        webhook = settings.alert_webhook
        retention = states.retention or ("stopped" if webhook is None else "running")
        sensors = [
            lag_sensor(streams, translation, _STATES[states.lag]),
            follow_sensor(translation, _STATES[states.follow]),
            retention_sensor(specs, _STATES[retention], translation),
        ]
        if states.conditions:
            of_streams = dg.AssetSelection.keys(*translation.keys.values())
            name, state = f"{translation.prefix}conditions", _STATES[states.conditions]
            sensors.append(
                dg.AutomationConditionSensorDefinition(
                    name, target=of_streams, default_status=state
                )
            )
        if webhook is None:
            return sensors
        failed_runs = _STATES[states.failed_runs]
        return [
            *sensors,
            *alert_sensors(streams, webhook.get_secret_value(), translation, failed_runs),
        ]

    def _of_stream(
        self, declared: DeclaredStream, spec: dg.AssetSpec, siblings: Sequence[DeclaredStream] = ()
    ) -> dg.Definitions:
        """Wire one stream; a broken one is there as well, and breaks no other."""
        translation, group = self._translation, spec.group_name
        asset = ingest_asset(
            declared,
            translation=translation,
            spec=spec,
            execute=self.execute,
            siblings=siblings,
        )
        if declared.spec is None:
            # The sensor starts the run that tells of it.
            return dg.Definitions(assets=[asset])
        try:
            schedule = ingest_schedule(declared, translation)
            return dg.Definitions(
                assets=[
                    asset,
                    *side_specs(declared.spec, translation, lake=self._tables),
                    *replay_assets(declared.spec, translation, group=group),
                ],
                schedules=[schedule] if schedule else [],
            )
        except (InvalidSpecError, dg.DagsterInvalidDefinitionError) as error:
            wrong = InvalidSpecError(f"{declared.path.name}: {error}")
            declared = replace(declared, spec=None, error=wrong)
            broken = self._spec_of(declared).replace_attributes(key=spec.key)
            return self._of_stream(declared, broken)

    def _spec_of(self, declared: DeclaredStream) -> dg.AssetSpec:
        spec = self.get_asset_spec(declared)
        if self.translation is None:
            return spec
        # A broken declaration has a name, and the defaults of all else.
        broken = StreamSpec.model_construct(name=declared.name, ddl="")
        return self.translation(spec, declared.spec or broken)

    def _topic_spec(self, topic: str) -> dg.AssetSpec:
        spec = topic_spec(topic)
        return self.topics(spec, topic) if self.topics else spec

    def _topic_key(self, topic: str) -> dg.AssetKey:
        return self._topic_spec(topic).key


def folder_of(context: dg.ComponentLoadContext) -> Path:
    """Return the folder of a component, which may be one file."""
    return context.path if context.path.is_dir() else context.path.parent


_STATES: Final = {
    "running": dg.DefaultSensorStatus.RUNNING,
    "stopped": dg.DefaultSensorStatus.STOPPED,
}


@contextmanager
def _nothing_is_garbage() -> Iterator[None]:
    """Let nobody look for garbage meanwhile: of a thousand definitions a third of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        # What lasts to the end would be told as leaks by libraries that count their objects.
        atexit.register(gc.unfreeze)


def _as_files(streams: Mapping[str, Mapping[str, Any]]) -> dict[str, bytes]:
    """Return the files that would declare streams.

    Raises:
        InvalidSpecError: a name is that of no file.
    """
    if wrong := [name for name in streams if Path(name).name != name]:
        raise InvalidSpecError(f"streams: {wrong[0]!r} is no name of a stream; write letters")
    return {
        f"{name}.yaml": json.dumps(fields, indent=2, default=str).encode()
        for name, fields in streams.items()
    }


def write_files(files: Mapping[str, bytes], state: Path) -> Path:
    """Write a folder of streams that runs read again; what was written once stays as it is."""
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    digest = hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()[:16]
    folder = state / "declared" / digest
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        # In pods the ids of processes are the same ones.
        path, written = folder / name, folder / f".{name}.{uuid4().hex}"
        if not path.exists():
            written.write_bytes(content)
            written.replace(path)
    return folder


def _secrets() -> dict[str, Any]:
    """Give secrets by the names of their variables; Dagster refuses one that is not set."""
    return {
        name: dg.EnvVar(variable("kafka", name))
        for name in _SECRETS
        if variable("kafka", name) in os.environ
    }
