"""``oncelake kafka up``, ``down``, ``status`` and ``send``: the embedded Kafka."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from oncelake.ingestion.cli import output
from oncelake.ingestion.cli.command import AsJson
from oncelake.ingestion.cli.commands.streams import load_settings
from oncelake.ingestion.errors import DONE, UNREACHABLE, counted

if TYPE_CHECKING:
    from oncelake.ingestion.local.broker import Broker
    from oncelake.ingestion.settings import Settings

_Port = Annotated[
    int | None,
    typer.Option(min=1, max=65_535, help="Where to listen; default: as last time, or a free one."),
]


def up(
    port: _Port = None,
    if_used: Annotated[
        bool, typer.Option("--if-used", help="Start nothing where ONCELAKE_KAFKA names others.")
    ] = False,
    sample: Annotated[
        bool,
        typer.Option("--sample", help="Also send ten records to a topic `orders`, if it is empty."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start the embedded Kafka, or find it running, and print its address.

    It listens on 127.0.0.1 only and keeps running until `oncelake kafka down`. The other commands
    find it by themselves, unless ONCELAKE_KAFKA names other brokers.
    """
    from oncelake.ingestion.local import broker
    from oncelake.ingestion.local.jars import require_jars

    settings = load_settings()
    if if_used and settings.kafka.address is not None:
        _report(broker.status(settings.state / "kafka"), settings, as_json)
        return
    require_jars(settings, "broker")
    if not as_json:
        output.note("starting Kafka…")
    running = broker.up(settings.state / "kafka", jars=settings.jars, port=port)
    if sample:
        from oncelake.ingestion.local.produce import SAMPLE_TOPIC, send_sample
        from oncelake.ingestion.settings import KafkaCluster

        here = {"kafka": KafkaCluster(address=running.address)}
        sent = send_sample(settings.model_copy(update=here))
        output.note(f"{counted(sent, 'record')} sent to {SAMPLE_TOPIC}")
    _report(running, settings, as_json)


def send(topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]) -> None:
    """Send each line of standard input to a topic, for trying things out: key, colon, value.

    `key:` without a value is a tombstone. Where one line is not `key:value`, nothing is sent (exit
    2). In the embedded Kafka the topic is created if it is missing; where ONCELAKE_KAFKA names
    other brokers, it must exist there.
    """
    from oncelake.ingestion.local import broker
    from oncelake.ingestion.local.produce import create, send_lines

    settings = load_settings()
    if _is_used(broker.status(settings.state / "kafka"), settings):
        create(settings, topic, partitions=2)
    sent = send_lines(settings, topic, sys.stdin)
    output.say(f"{counted(sent, 'record')} sent to {topic}")


def status(as_json: AsJson = False) -> None:
    """Tell whether the embedded Kafka runs, and where; exits with 5 when it does not."""
    from oncelake.ingestion.local import broker

    settings = load_settings()
    running = broker.status(settings.state / "kafka")
    _report(running, settings, as_json)
    raise typer.Exit(DONE if running else UNREACHABLE)


def down(as_json: AsJson = False) -> None:
    """Stop the embedded Kafka; its records stay for the next `oncelake kafka up`."""
    from oncelake.ingestion.local import broker

    was_up = broker.down(load_settings().state / "kafka")
    if as_json:
        output.document({"up": False, "was_up": was_up})
    else:
        output.say("Kafka is down" if was_up else "Kafka was not up")


def _is_used(broker: Broker | None, settings: Settings) -> bool:
    """Tell whether the other commands talk to the embedded Kafka."""
    return settings.kafka.address in (None, broker and broker.address)


def _report(broker: Broker | None, settings: Settings, as_json: bool) -> None:
    is_used = _is_used(broker, settings)
    if not is_used:
        output.note(
            f"ONCELAKE_KAFKA is set ({settings.kafka.address}): the other commands talk to that, "
            "not to the embedded Kafka",
            "yellow",
        )
    if as_json:
        fields = asdict(broker) if broker else {}
        output.document({"up": bool(broker), **fields, "used_by_other_commands": is_used})
    elif broker is None:
        output.say("Kafka is not up; oncelake kafka up starts it")
    else:
        address, pid, cluster = broker.address, broker.pid, broker.cluster_id
        output.say(f"Kafka is up at {address} (pid {pid}, cluster {cluster})")
