"""What is imported of Oncelake by its name: the component ``oncelake.Streams``, and its parts.

They come with Dagster, which ``oncelake.testing`` does not need: they are imported once named.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncelake.assets.component import JobNames, SensorStates, Streams

__all__ = ["JobNames", "SensorStates", "Streams"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("oncelake.assets.component"), name)


def __dir__() -> list[str]:
    return __all__
