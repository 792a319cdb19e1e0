"""A part of the settings, as a Dagster resource: one vocabulary, read in one place.

Each field of a resource *is* a setting of ``ingestion.settings``: left out, it comes from the
environment or ``.env`` when a run begins, and what the component was given wins.
"""

from __future__ import annotations

from typing import Any

import dagster as dg
from pydantic import BaseModel, Field

from oncelake.ingestion.settings import Settings, load_settings, setting_fields, variable


def setting(name: str) -> Any:
    """Declare a field that stands for the setting ``name``; a secret stays out of ``repr``."""
    known = setting_fields()[name]
    return Field(
        default=None,
        description=f"{known.description} Left out: {variable(name)}, or its default.",
        repr="SecretStr" not in str(known.annotation),
        json_schema_extra={"setting": name},
    )


def is_secret(resource: type[BaseModel], name: str) -> bool:
    """Tell whether a field of a resource stands for a secret."""
    return not resource.model_fields[name].repr


class SettingsPart(dg.ConfigurableResource[Any]):
    """A resource whose fields are settings."""

    def given(self) -> dict[str, Any]:
        """Return the settings that were given here, by name."""
        found = {}
        for name, field in type(self).model_fields.items():
            extra = field.json_schema_extra
            value = getattr(self, name)
            if isinstance(extra, dict) and "setting" in extra and value is not None:
                found[str(extra["setting"])] = value
        return found


def settings_of(*parts: SettingsPart, most_seconds: float | None = None) -> Settings:
    """Read the settings as they are now, with what the resources were given on top.

    Args:
        parts: The resources.
        most_seconds: Wait for Kafka no longer, as where a sensor's tick has a minute.

    Raises:
        InvalidSpecError: a value is not allowed; names the setting, never the value.
    """
    given = {name: value for part in parts for name, value in part.given().items()}
    settings = load_settings(**given)
    if most_seconds is None:
        return settings
    seconds = min(settings.kafka_timeout_seconds, most_seconds)
    return settings.model_copy(update={"kafka_timeout_seconds": seconds})
