"""What is imported of Oncelake by its name: the component ``oncelake.Streams``, and its parts."""

from assets.component import JobNames, SensorStates, Streams

__all__ = ["JobNames", "SensorStates", "Streams"]
