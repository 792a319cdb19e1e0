"""Kafka, as Dagster sees it: the settings of one cluster, and questions to it."""

from __future__ import annotations

from oncelake.resources.part import SettingsPart, setting


class KafkaResource(SettingsPart):
    """The Kafka cluster that the streams read.

    Secrets are given as ``dg.EnvVar``, so that Dagster stores their variables' names only.
    """

    address: str | None = setting("kafka")
    security_protocol: str | None = setting("kafka_security_protocol")
    sasl_mechanism: str | None = setting("kafka_sasl_mechanism")
    sasl_username: str | None = setting("kafka_sasl_username")
    sasl_password: str | None = setting("kafka_sasl_password")
    oauth_token_endpoint: str | None = setting("kafka_oauth_token_endpoint")
    oauth_client_id: str | None = setting("kafka_oauth_client_id")
    oauth_client_secret: str | None = setting("kafka_oauth_client_secret")
    oauth_scope: str | None = setting("kafka_oauth_scope")
    oauth_ca: str | None = setting("kafka_oauth_ca")
    ssl_ca: str | None = setting("kafka_ssl_ca")
    ssl_certificate: str | None = setting("kafka_ssl_certificate")
    ssl_key: str | None = setting("kafka_ssl_key")
    ssl_key_password: str | None = setting("kafka_ssl_key_password")
    properties: str | None = setting("kafka_properties")
    timeout_seconds: float | None = setting("kafka_timeout_seconds")
