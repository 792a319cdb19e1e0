"""The settings, read from the environment or, after it, from ``.env``, and only here.

Relative paths resolve against the project root, the nearest folder upward that contains
``dagster.yaml``, so that every command uses the same lake in any working directory.
"""

from __future__ import annotations

import os
import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from dotenv import dotenv_values
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from oncelake.ingestion.errors import DependencyError, InvalidSpecError, nearest

# A client's secret is sent there.
_TOKEN_ENDPOINT: Final = re.compile(
    r"(https://[^\s/@?#]+|http://(127\.0\.0\.1|localhost|\[::1\])(:\d+)?)(/\S*)?"
)
_OF_CATALOGS: Final = re.compile(r"https?://[^\s/@]+(/\S*)?|thrift://[^\s/:@]+:\d+")
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
# The field of a cluster whose variable is the cluster's own.
_ADDRESS: Final = "address"
_OF_GLUE: Final = re.compile(r"glue://[a-z0-9-]+/[\w.$#-]+", re.ASCII)
# Read elsewhere, and refused unless a test has set them.
_OF_TESTS: Final = ("ONCELAKE_CHAOS", "ONCELAKE_TESTING")

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"]
_MASTERS: Final = (
    r"local(\[(\*|[1-9]\d*)\])?",
    r"spark://[^\s/,:@]+:\d+(,[^\s/,:@]+:\d+)*",
    r"yarn",
    r"k8s://\S+",
)


def project_root(start: Path | None = None) -> Path:
    """Return the nearest folder at or above ``start`` that contains ``dagster.yaml``.

    If there is none, return ``start`` (default: the working directory).
    """
    start = (start or Path.cwd()).resolve()
    return next((at for at in (start, *start.parents) if (at / "dagster.yaml").exists()), start)


def _absolute(path: Path) -> Path:
    if _URL.match(str(path)):
        raise ValueError("must be a folder or file of this machine, not a URL")
    return project_root() / path.expanduser()


LocalPath = Annotated[Path, AfterValidator(_absolute)]


class KafkaCluster(BaseModel):
    """A Kafka cluster, and how to connect to it: ``ONCELAKE_KAFKA``, and what begins with it."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
    setting: ClassVar[str] = "kafka"

    address: str | None = Field(None, description="Bootstrap servers; default: the embedded Kafka.")
    security_protocol: Protocol | None = Field(None, description="Protocol of the brokers.")
    sasl_mechanism: Mechanism | None = Field(None, description="Mechanism of the login.")
    sasl_username: str | None = Field(None, description="User name for SASL.")
    sasl_password: SecretStr | None = Field(None, description="Password for SASL.")
    oauth_token_endpoint: str | None = Field(
        None, description="URL that gives tokens for OAUTHBEARER, by client credentials."
    )
    oauth_client_id: str | None = Field(None, description="Client id for the tokens.")
    oauth_client_secret: SecretStr | None = Field(None, description="Its secret.")
    oauth_scope: str | None = Field(None, description="Scope to request tokens for.")
    oauth_ca: LocalPath | None = Field(
        None, description="PEM file of the authorities trusted for the token endpoint."
    )
    ssl_ca: LocalPath | None = Field(None, description="PEM file of the trusted authorities.")
    ssl_certificate: LocalPath | None = Field(
        None, description="PEM file of the client certificate."
    )
    ssl_key: LocalPath | None = Field(None, description="PEM file (PKCS#8) of its key.")
    ssl_key_password: SecretStr | None = Field(None, description="Password of that key.")
    properties: LocalPath | None = Field(
        None, description="File of further properties of the Kafka clients, by Java's names."
    )

    @classmethod
    def setting_of(cls, field: str) -> str:
        """Return the setting that a field is read from."""
        return cls.setting if field == _ADDRESS else f"{cls.setting}_{field}"

    @classmethod
    def variable_of(cls, field: str = _ADDRESS) -> str:
        """Return the environment variable of a field."""
        return variable(cls.setting_of(field))

    @field_validator("address")
    @classmethod
    def _has_ports(cls, servers: str | None) -> str | None:
        for each in filter(None, map(str.strip, (servers or "").split(","))):
            if not re.search(r":\d+$", each):
                raise ValueError(f"{each!r} has no port; write host:port, such as {each}:9092")
        return servers

    @field_validator("oauth_token_endpoint")
    @classmethod
    def _is_encrypted(cls, url: str | None) -> str | None:
        if url and not _TOKEN_ENDPOINT.fullmatch(url):
            raise ValueError(
                "must be https://host/path, or http:// on this machine: the client's secret is "
                "sent there"
            )
        return url


class SinkKafkaCluster(KafkaCluster):
    """The cluster of ``sink: kafka``, where it is another; no login of the sources' goes there."""

    setting: ClassVar[str] = "sink_kafka"

    @field_validator("*")
    @classmethod
    def _has_effect(cls, value: Any, given: ValidationInfo) -> Any:
        if value is not None and given.field_name != _ADDRESS and not given.data.get(_ADDRESS):
            raise ValueError(f"has no effect without {cls.variable_of()}; set that, too")
        return value


_CLUSTERS: Final = (KafkaCluster, SinkKafkaCluster)


class Settings(BaseModel):
    """The settings; each is an environment variable ``ONCELAKE_<NAME>``."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True
    )

    kafka: KafkaCluster = KafkaCluster()
    sink_kafka: SinkKafkaCluster = SinkKafkaCluster()
    kafka_timeout_seconds: float = Field(
        30.0, gt=0, allow_inf_nan=False, description="How long to wait for any answer from Kafka."
    )

    schema_registry: str | None = Field(
        None, description="URL of the schema registry; of AWS Glue's glue://region/registry."
    )
    schema_registry_username: str | None = Field(None, description="User name for the registry.")
    schema_registry_password: SecretStr | None = Field(None, description="Password for it.")
    schema_registry_ssl_ca: LocalPath | None = Field(
        None, description="PEM file of the authorities trusted for the registry."
    )

    postgres: SecretStr | None = Field(
        None, description="URL of the database of `sink: postgres`: postgresql://user@host/name."
    )

    unity: str | None = Field(
        None, description="URL of the Unity Catalog in which Delta tables have entries."
    )
    unity_token: SecretStr | None = Field(None, description="Bearer token for it.")
    hive_metastore: str | None = Field(
        None, description="Hive's metastore in which Delta tables have entries: thrift://host:port."
    )
    catalog_link: str | None = Field(
        None,
        description="URL of a table's page in its catalog, for Dagster: {name} is its name there, "
        "{database} and {table} what is before and behind the last point, {path} has / for points.",
    )

    lake: Path | str = Field(
        Path("lake"),
        description="Folder of the Delta tables, or its URL in a store: s3://bucket/prefix, "
        "gs://… or abfss://….",
    )
    state: LocalPath = Field(
        Path(".oncelake"), description="Folder of checkpoints and embedded Kafka."
    )
    streams: LocalPath = Field(Path("assets/streams"), description="Folder of the declarations.")
    jars: LocalPath = Field(
        Path(".jars"), description="Folder of the jars, which are fetched when they are needed."
    )
    maven: str | None = Field(
        None,
        description="URL of a mirror of Maven Central to fetch jars from; `off`: fetch none.",
    )
    lock: Literal["kernel", "lease"] = Field(
        "kernel",
        description="What makes a run the only writer of its stream: a lock of the kernel, or, on "
        "a file system without them, a lease. In a store it is always a lease.",
    )
    lease_seconds: float = Field(
        60.0, ge=1, allow_inf_nan=False, description="How long the lease of a killed run holds."
    )

    alert_webhook: SecretStr | None = Field(
        None, description="URL to which Dagster posts failed runs and checks, as JSON."
    )

    reader: Literal["spark", "librdkafka"] = Field(
        "spark",
        description="What reads Kafka in a run: Spark, or librdkafka in this process, which needs "
        "no Java. It takes streams of which nothing is evaluated by Spark.",
    )
    merge_engine: Literal["auto", "local", "spark"] = Field(
        "auto",
        description="What counts and commits a batch: `local`, which is DuckDB and delta-rs in "
        "this process, and far cheaper, or `spark`. `auto` takes `local` wherever it can.",
    )

    spark_master: str = Field(
        "local[*]",
        description="Spark's master: local[N] or local[*]; or a cluster's, spark://host:port, yarn "
        "or k8s://host:port.",
    )
    spark_defaults: LocalPath | None = Field(
        None, description="File of Spark's own settings, written as spark-defaults.conf."
    )
    spark_timeout_seconds: float = Field(
        300.0,
        gt=0,
        allow_inf_nan=False,
        description="How long to wait for a cluster's executors when none takes up a task.",
    )
    spark_driver_memory: str = Field(
        "3g", description="Heap of the driver, which in local mode does the work."
    )
    spark_java_options: str = Field("", description="Further options of the driver's JVM.")

    @model_validator(mode="before")
    @classmethod
    def _nested(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Treat ``ONCELAKE_X=`` as unset, and put what is of a cluster into the cluster."""
        rest = {name: value for name, value in values.items() if value != ""}
        for cluster in _CLUSTERS:
            names = {cluster.setting_of(field): field for field in cluster.model_fields}
            found = {field: rest.pop(name) for name, field in names.items() if name in rest}
            if isinstance(whole := found.get(_ADDRESS), KafkaCluster):
                found[_ADDRESS] = whole.model_dump()
            if isinstance(found.get(_ADDRESS), dict):
                found = {**found.pop(_ADDRESS), **found}
            rest[cluster.setting] = found
        return rest

    @field_validator("maven")
    @classmethod
    def _is_a_repository(cls, url: str | None) -> str | None:
        if url not in (None, "off") and not re.fullmatch(r"(https?|file)://[^\s@?#]+", url or ""):
            raise ValueError("must be a URL without login or query, as https://host/path, or `off`")
        return url

    @field_validator("alert_webhook")
    @classmethod
    def _is_a_url(cls, url: SecretStr | None) -> SecretStr | None:
        if url and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", url.get_secret_value()):
            raise ValueError("must be a URL, as http://host/path or https://host/path")
        return url

    @field_validator("unity", "hive_metastore", "catalog_link")
    @classmethod
    def _is_of_catalogs(cls, url: str | None) -> str | None:
        if url and not _OF_CATALOGS.fullmatch(url):
            raise ValueError("must be a URL without a login, as https://host or thrift://host:9083")
        return url

    @field_validator("unity_token")
    @classmethod
    def _is_sent_encrypted(cls, token: SecretStr | None, given: ValidationInfo) -> SecretStr | None:
        text = token.get_secret_value().strip() if token else ""
        if not re.fullmatch(r"[\x21-\x7e]*", text):
            raise ValueError("must be of ASCII characters without blanks")
        if text and not _TOKEN_ENDPOINT.fullmatch(given.data.get("unity") or ""):
            raise ValueError(f"is sent to {variable('unity')}: write https:// there")
        return SecretStr(text) if text else None

    @field_validator("merge_engine", mode="before")
    @classmethod
    def _by_its_other_name(cls, engine: str) -> str:
        return "local" if engine == "delta_rs" else engine

    @field_validator("schema_registry")
    @classmethod
    def _is_of_registries(cls, url: str | None) -> str | None:
        if url and "@" in url:
            raise ValueError("has a login, which messages show; set …_USERNAME and …_PASSWORD")
        is_http = all(re.match(r"https?://[^\s/]", each.strip()) for each in (url or "").split(","))
        if url and not is_http and not _OF_GLUE.fullmatch(url):
            raise ValueError(
                "must be a URL, as http://host:port or https://host:port; of AWS Glue's "
                "glue://region/registry"
            )
        return url

    @field_validator(*(f"schema_registry_{field}" for field in ("username", "password", "ssl_ca")))
    @classmethod
    def _is_sent(cls, value: Any, given: ValidationInfo) -> Any:
        """Refuse what has no effect on a request to the registry."""
        if value is None:
            return None
        user = "schema_registry_username"
        if given.field_name == "schema_registry_password" and given.data.get(user) is None:
            raise ValueError(f"has no effect without {variable(user)}; set that, too")
        if _OF_GLUE.fullmatch(given.data.get("schema_registry") or ""):
            raise ValueError("has no effect with AWS Glue's registry: botocore finds the login")
        return value

    @field_validator("lake")
    @classmethod
    def _folder_or_store(cls, lake: Path | str) -> Path | str:
        # Of any other character one layer takes what a URL spells it as for its name, and one not.
        if re.fullmatch(
            r"(s3|gs|abfss)://[^/\s?#:]+(/(?!\.{1,2}(/|$))[\w.~+=-]+)*/?", str(lake), re.ASCII
        ):
            return str(lake).rstrip("/")
        if _URL.match(str(lake)):
            raise ValueError(
                "must be a folder, or a URL s3://…, gs://… or abfss://…, whose path has no "
                "characters but a-z A-Z 0-9 . _ ~ + = -"
            )
        return project_root() / Path(lake).expanduser()

    @field_validator("spark_driver_memory")
    @classmethod
    def _as_java_writes_it(cls, size: str) -> str:
        """Take Spark's longer form, too, which its launcher hands to Java as it is."""
        found = re.fullmatch(r"([1-9]\d*[kmgt])b?", size.strip().lower())
        if found is None:
            raise ValueError("must be a number with k, m, g or t, such as 3g or 512m")
        return found[1]

    @field_validator("spark_master")
    @classmethod
    def _is_a_master(cls, master: str) -> str:
        if not any(re.fullmatch(form, master) for form in _MASTERS):
            raise ValueError(
                "must be local[N] or local[*], or a cluster's: spark://host:port, yarn or "
                "k8s://host:port"
            )
        return master

    @property
    def in_glue(self) -> bool:
        """Tell whether the schema registry is AWS Glue's."""
        return (self.schema_registry or "").startswith("glue:")

    @property
    def on_cluster(self) -> bool:
        """Tell whether Spark's executors run elsewhere: they reach no file of this machine."""
        return not self.spark_master.startswith("local")

    def of_sink_cluster(self) -> Settings:
        """Return the settings with the sinks' Kafka in the place of the sources'."""
        if self.sink_kafka.address is None:
            return self
        return self.model_copy(update={"kafka": self.sink_kafka})

    def at_kafka(self, servers: str) -> Settings:
        """Return the settings with the sources' Kafka at another address, by the same login."""
        return self.model_copy(update={"kafka": self.kafka.model_copy(update={_ADDRESS: servers})})

    def bootstrap_servers(self) -> str:
        """Return the brokers' addresses: the configured ones, else the embedded Kafka's.

        Raises:
            DependencyError: none is configured and the embedded Kafka is not up.
        """
        if self.kafka.address:
            return self.kafka.address
        address = self.state / "kafka" / "address"
        servers = address.read_text().strip() if address.exists() else ""
        if not servers:
            raise DependencyError(
                "no Kafka to use: ONCELAKE_KAFKA is not set and the embedded Kafka is not up. "
                "Next: oncelake kafka up (or set ONCELAKE_KAFKA)"
            )
        return servers


def load_settings(**given: Any) -> Settings:
    """Read the settings: those ``given``, then the environment, then the project root's ``.env``.

    Raises:
        InvalidSpecError: a variable has a value that is not allowed, or is none of ours though it
            begins as ours do; names the variable only, never its value, which may be a secret.
    """
    written, known = _written(), setting_fields()
    problems = [
        _unknown(name)
        for name in map(variable, sorted(written.keys() - known.keys()))
        if name not in _OF_TESTS and not _is_of_others(name)
    ]
    values = {name: value for name, value in written.items() if value is not None}
    found = {name: values[name] for name in values.keys() & known.keys()}
    try:
        settings = Settings(**{**found, **given})
    except ValidationError as error:
        problems += [f"{_variable_at(found['loc'])}: {found['msg']}" for found in error.errors()]
    if problems:
        shown = "\n".join(problems)
        raise InvalidSpecError(f"the environment or .env is wrong:\n{shown}") from None
    return settings


def setting_fields() -> dict[str, FieldInfo]:
    """Return the fields of the settings, by the names that variables have after ``ONCELAKE_``."""
    whole = {
        name: field
        for name, field in Settings.model_fields.items()
        if name not in ("kafka", "sink_kafka")
    }
    of_clusters = {
        cluster.setting_of(name): field
        for cluster in _CLUSTERS
        for name, field in cluster.model_fields.items()
    }
    return {**of_clusters, **whole}


def _written() -> dict[str, str | None]:
    """Return the settings as the environment and, after it, ``.env`` have them.

    A name of ``.env`` without ``=`` has no value.
    """
    begin, written = variable(""), dict[str, str | None]()
    for source in (dotenv_values(project_root() / ".env"), os.environ):
        named = {name.upper(): value for name, value in source.items()}
        written |= {
            name.removeprefix(begin).lower(): value
            for name, value in named.items()
            if name.startswith(begin)
        }
    return written


def _variable_at(place: tuple[int | str, ...]) -> str:
    """Return the variable of what is wrong somewhere in the settings."""
    return variable(*(str(part) for part in place if part != _ADDRESS))


def variables_of(begin: str) -> dict[str, str]:
    """Return the variables that begin so; the environment goes before ``.env``."""
    found = {**dotenv_values(project_root() / ".env"), **os.environ}
    return {
        name: value
        for name, value in found.items()
        if value is not None and name.upper().startswith(begin)
    }


def settings_of_sink(name: str) -> dict[str, str]:
    """Return the variables of a sink of another package, without what they begin with.

    ``ONCELAKE_<SINK>`` itself has an empty name. The environment goes before ``.env``.
    """
    begin = variable(name)
    return {
        key.removeprefix(begin).lstrip("_").lower(): value
        for key, value in variables_of(begin).items()
        if _is_of_sink(key, begin)
    }


def _is_of_sink(name: str, begin: str) -> bool:
    return name == begin or name.startswith(f"{begin}_")


def _is_of_others(name: str) -> bool:
    """Tell whether a variable is of a sink that another package has registered."""
    sinks = entry_points(group="oncelake.sinks").names
    return any(_is_of_sink(name, variable(sink)) for sink in sinks)


def _unknown(name: str) -> str:
    near = nearest(name.removeprefix(variable("")), [each.upper() for each in setting_fields()])
    hint = f"did you mean {variable(near)}?" if near else "docs/settings.md lists those there are"
    return f"{name}: there is no such setting; {hint}"


def variable(*setting: str) -> str:
    """Return the environment variable of a setting."""
    return "_".join(("ONCELAKE", *setting)).upper()
