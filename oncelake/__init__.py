"""What is imported of Oncelake by its name: ``oncelake.Streams``, its parts, ``oncelake.audited``.

The name of this module is also one for ``template_vars_module`` of a component.

They come with Dagster, which ``oncelake.testing`` does not need: they are imported once named.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncelake.assets.checks.audited import audited
    from oncelake.assets.component import JobNames, SensorStates, Streams
    from oncelake.assets.conditions import when_new_and_green
    from oncelake.assets.state import StateBackedStreams

__all__ = [
    "JobNames",
    "SensorStates",
    "StateBackedStreams",
    "Streams",
    "audited",
    "when_new_and_green",
]
_MODULES = {
    "StateBackedStreams": "state",
    "audited": "checks.audited",
    "when_new_and_green": "conditions",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"oncelake.assets.{_MODULES.get(name, 'component')}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return __all__
