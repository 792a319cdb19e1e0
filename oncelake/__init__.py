"""What is imported of Oncelake by its name: ``oncelake.Streams``, its parts, ``oncelake.audited``.

They come with Dagster, which ``oncelake.testing`` does not need: they are imported once named.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncelake.assets.checks.audited import audited
    from oncelake.assets.component import JobNames, SensorStates, Streams

__all__ = ["JobNames", "SensorStates", "Streams", "audited"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "checks.audited" if name == "audited" else "component"
    return getattr(import_module(f"oncelake.assets.{module}"), name)


def __dir__() -> list[str]:
    return __all__
