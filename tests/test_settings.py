"""Settings come from the environment or ``.env``, and secrets go nowhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from oncelake.ingestion.errors import DependencyError, InvalidSpecError
from oncelake.ingestion.settings import Settings, load_settings, project_root
from tests.support.world import written

CANARY = "canary-5ecret"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty project, stand in a folder below it, and forget the machine's settings."""
    for name in list(os.environ):
        if name.upper().startswith("ONCELAKE_"):
            monkeypatch.delenv(name)
    (tmp_path / "dagster.yaml").touch()
    (tmp_path / "deep" / "down").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "down")
    return tmp_path


def test_relative_paths_mean_the_same_wherever_a_command_is_typed(project: Path) -> None:
    """Defaults and relative paths lie under the nearest folder with dagster.yaml."""
    settings = load_settings()

    assert project_root() == project
    assert settings.lake == project / "lake"
    assert settings.state == project / ".oncelake"
    assert settings.streams == project / "assets" / "streams"


def test_without_a_project_paths_lie_under_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder outside any project is its own root."""
    monkeypatch.chdir(tmp_path)

    assert project_root() == tmp_path


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        pytest.param("/mnt/lake", "/mnt/lake", id="absolute"),
        pytest.param("other/lake", "{project}/other/lake", id="relative"),
        pytest.param("~/lake", "{home}/lake", id="home"),
        pytest.param("", "{project}/lake", id="empty is unset"),
        pytest.param("s3://bucket/prefix/", "s3://bucket/prefix", id="store"),
        pytest.param("s3://b/env=prod/.a/A_1.~+-", "s3://b/env=prod/.a/A_1.~+-", id="characters"),
    ],
)
def test_a_path_is_resolved_once(
    project: Path, monkeypatch: pytest.MonkeyPatch, written: str, meant: str
) -> None:
    """However a path is written, the settings hold an absolute one."""
    monkeypatch.setenv("ONCELAKE_LAKE", written)

    assert str(load_settings().lake) == meant.format(project=project, home=Path.home())


def test_the_environment_wins_over_the_file(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``.env`` in the project's root is read, and a variable of the shell outweighs it."""
    (project / ".env").write_text(
        "ONCELAKE_KAFKA=file:9092\noncelake_kafka=again:9092\nONCELAKE_LAKE=from-file\nOTHER=1\n"
    )
    monkeypatch.setenv("ONCELAKE_KAFKA", "shell:9092")

    settings = load_settings()

    assert settings.bootstrap_servers() == "shell:9092"
    assert settings.lake == project / "from-file"


def test_a_misspelt_name_without_a_value_is_refused(project: Path) -> None:
    """A line of ``.env`` without ``=`` sets nothing, and still means a setting."""
    (project / ".env").write_text("ONCELAKE_KAFAK\n")

    with pytest.raises(InvalidSpecError, match=r"ONCELAKE_KAFAK\b.*ONCELAKE_KAFKA\b"):
        load_settings()


def test_an_empty_variable_of_the_shell_undoes_the_file(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``ONCELAKE_KAFKA= oncelake run`` means the embedded Kafka, whatever ``.env`` says."""
    (project / ".env").write_text("ONCELAKE_KAFKA=file:9092\n")
    monkeypatch.setenv("ONCELAKE_KAFKA", "")

    assert load_settings().kafka.address is None


@pytest.mark.parametrize("name", ["ONCELAKE_KAFKA", "ONCELAKE_SINK_KAFKA"])
@pytest.mark.usefixtures("project")
def test_an_address_without_a_port_is_refused_by_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable and the address are named; with ports, several are taken."""
    monkeypatch.setenv(name, "one:9092, two")
    with pytest.raises(InvalidSpecError, match=rf"{name}: .*'two' has no port; write host:port"):
        load_settings()
    ports = "one:9092, [::1]:9092,PLAINTEXT://two:9093"
    monkeypatch.setenv(name, ports)

    assert written(load_settings())[name.removeprefix("ONCELAKE_").lower()] == ports


def test_the_embedded_kafka_is_found_by_the_address_it_wrote(project: Path) -> None:
    """Nothing is guessed: the port is the one that the running broker wrote down."""
    (project / ".oncelake" / "kafka").mkdir(parents=True)
    (project / ".oncelake" / "kafka" / "address").write_text("127.0.0.1:4711\n")

    assert load_settings().bootstrap_servers() == "127.0.0.1:4711"


@pytest.mark.parametrize("address", [None, "", "\n"], ids=["absent", "empty", "blank"])
def test_without_any_kafka_the_command_is_named(project: Path, address: str | None) -> None:
    """No address anywhere is an unreachable dependency, and the message says how to start one."""
    if address is not None:
        (project / ".oncelake" / "kafka").mkdir(parents=True)
        (project / ".oncelake" / "kafka" / "address").write_text(address)

    with pytest.raises(DependencyError, match="oncelake kafka up") as raised:
        load_settings().bootstrap_servers()
    assert raised.value.exit_code == 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ONCELAKE_KAFKA_SECURITY_PROTOCOL", CANARY),
        ("ONCELAKE_KAFKA_SASL_MECHANISM", CANARY),
        ("ONCELAKE_KAFKA_TIMEOUT_SECONDS", CANARY),
        ("ONCELAKE_LAKE", f"hdfs://{CANARY}/lake"),
        ("ONCELAKE_LAKE", f"s3://bucket/{CANARY}/sü"),
        ("ONCELAKE_LAKE", f"s3://bucket/{CANARY}/a%20b"),
        ("ONCELAKE_LAKE", f"s3://bucket/{CANARY}//a"),
        ("ONCELAKE_LAKE", f"s3://bucket/{CANARY}/../a"),
        ("ONCELAKE_LAKE", f"s3://bucket/{CANARY}/."),
        ("ONCELAKE_SPARK_MASTER", f"spark://me:{CANARY}@host:7077"),
        ("ONCELAKE_SCHEMA_REGISTRY", f"https://me:{CANARY}@registry:8081"),
        ("ONCELAKE_SCHEMA_REGISTRY", f"{CANARY}:8081"),
        ("ONCELAKE_SCHEMA_REGISTRY", f"http://registry:8081,{CANARY}:8081"),
        ("ONCELAKE_SCHEMA_REGISTRY", f"glue://{CANARY}"),
        ("ONCELAKE_SCHEMA_REGISTRY", f"glue://eu-west-1/{CANARY}/more"),
        ("ONCELAKE_KAFKA_OAUTH_TOKEN_ENDPOINT", f"http://login.example.com/{CANARY}"),
        ("ONCELAKE_ALERT_WEBHOOK", f"hooks.example.com/{CANARY}"),
        ("ONCELAKE_ALERT_WEBHOOK", f"https://hooks.example.com/a {CANARY}"),
    ],
)
@pytest.mark.usefixtures("project")
def test_a_wrong_variable_is_named_without_its_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """A value in the wrong place may be a secret, so only the variable's name is said."""
    monkeypatch.setenv(name, value)

    with pytest.raises(InvalidSpecError, match=name) as raised:
        load_settings()

    assert CANARY not in str(raised.value)
    assert raised.value.__suppress_context__


@pytest.mark.usefixtures("project")
def test_aws_glues_registry_has_no_login_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is set would not be used."""
    monkeypatch.setenv("ONCELAKE_SCHEMA_REGISTRY", "glue://eu-west-1/my.registry-1")
    assert load_settings().in_glue
    monkeypatch.setenv("ONCELAKE_SCHEMA_REGISTRY_USERNAME", CANARY)

    with pytest.raises(InvalidSpecError, match=r"_USERNAME: .*has no effect with AWS") as raised:
        load_settings()

    assert CANARY not in str(raised.value)


@pytest.mark.parametrize(
    ("alone", "other"),
    [
        ("ONCELAKE_SINK_KAFKA_SASL_PASSWORD", "ONCELAKE_SINK_KAFKA"),
        ("ONCELAKE_SCHEMA_REGISTRY_PASSWORD", "ONCELAKE_SCHEMA_REGISTRY_USERNAME"),
    ],
)
@pytest.mark.usefixtures("project")
def test_what_has_no_effect_is_refused(
    monkeypatch: pytest.MonkeyPatch, alone: str, other: str
) -> None:
    """Who sets it means a cluster, or a login, that would not be used."""
    monkeypatch.setenv(alone, CANARY)

    with pytest.raises(
        InvalidSpecError, match=rf"\b{alone}: .*has no effect without {other};"
    ) as raised:
        load_settings()
    monkeypatch.setenv(other, "there:9092")

    assert CANARY not in str(raised.value)
    settings, usual = written(load_settings()), written(Settings())
    assert {name: value for name, value in settings.items() if value != usual[name]} == {
        alone.lower().removeprefix("oncelake_"): SecretStr(CANARY),
        other.lower().removeprefix("oncelake_"): "there:9092",
    }


@pytest.mark.parametrize(
    ("master", "on_cluster"),
    [
        *((master, False) for master in ("local", "local[1]", "local[16]", "local[*]")),
        *((master, True) for master in ("spark://a:7077", "spark://a:7077,b-1.c:7077", "yarn")),
        ("k8s://https://host:6443", True),
    ],
)
@pytest.mark.usefixtures("project")
def test_spark_runs_on_this_machine_or_on_a_cluster(
    monkeypatch: pytest.MonkeyPatch, master: str, on_cluster: bool
) -> None:
    """Any number of this machine's cores may be named, or any cluster that Spark knows."""
    monkeypatch.setenv("ONCELAKE_SPARK_MASTER", master)

    settings = load_settings()

    assert (settings.spark_master, settings.on_cluster) == (master, on_cluster)


@pytest.mark.parametrize(
    "master",
    [
        "spark://host",
        "mesos://host:5050",
        "k8s://",
        "local-cluster[2,1,1024]",
        "local[0]",
        "sc://h",
    ],
)
@pytest.mark.usefixtures("project")
def test_what_is_no_master_is_refused(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    """Spark would fail later, and at length."""
    monkeypatch.setenv("ONCELAKE_SPARK_MASTER", master)

    with pytest.raises(
        InvalidSpecError, match=r"ONCELAKE_SPARK_MASTER: .*local\[N\] or local\[\*\].*spark://"
    ):
        load_settings()


@pytest.mark.parametrize(
    ("written", "java"), [("3g", "3g"), ("3gb", "3g"), ("512M", "512m"), ("2 gigabytes", None)]
)
@pytest.mark.usefixtures("project")
def test_a_heap_is_written_as_java_reads_it(
    monkeypatch: pytest.MonkeyPatch, written: str, java: str | None
) -> None:
    """Spark's own longer form would end as a Java that does not start."""
    monkeypatch.setenv("ONCELAKE_SPARK_DRIVER_MEMORY", written)

    if java is None:
        with pytest.raises(InvalidSpecError, match=r"ONCELAKE_SPARK_DRIVER_MEMORY: .*3g or 512m"):
            load_settings()
    else:
        assert load_settings().spark_driver_memory == java


@pytest.mark.parametrize("written", ["local", "delta_rs"])
@pytest.mark.usefixtures("project")
def test_an_engine_has_one_name(monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    """The library's name, which stands in many a ``.env``, means the engine of this process."""
    monkeypatch.setenv("ONCELAKE_MERGE_ENGINE", written)

    assert load_settings().merge_engine == "local"


@pytest.mark.usefixtures("project")
def test_secrets_are_in_no_text_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No repr, str, dump or JSON holds a secret; only asking for it by name does."""
    monkeypatch.setenv("ONCELAKE_KAFKA_SASL_PASSWORD", CANARY)
    monkeypatch.setenv("ONCELAKE_KAFKA_SSL_KEY_PASSWORD", f"{CANARY}-too")

    settings = load_settings()

    texts = (repr(settings), str(settings), str(settings.model_dump()), settings.model_dump_json())
    assert [text for text in texts if CANARY in text] == []
    assert settings.kafka.sasl_password == SecretStr(CANARY)


@pytest.mark.usefixtures("project")
def test_an_error_of_the_class_itself_hides_values() -> None:
    """Who builds Settings directly sees no value in the error either."""
    with pytest.raises(ValidationError) as raised:
        Settings(kafka_security_protocol=CANARY)

    assert CANARY not in str(raised.value)


@pytest.mark.usefixtures("project")
def test_settings_cannot_be_changed() -> None:
    """What was read at the start holds to the end."""
    with pytest.raises(ValidationError, match="frozen"):
        load_settings().kafka = "other:9092"  # type: ignore[misc]
