"""One step of a life as a value, which hypothesis draws, and shrinks."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

# How often each is drawn, the plainest first: towards those hypothesis shrinks.
OPERATIONS = {
    "run": 5,
    "send": 2,
    "redrive": 2,
    "replay": 1,
    "rewind": 2,
    "maintain": 1,
    "rebuild": 1,
    "erase": 1,
    "evolve": 1,
    "widen": 1,
    "restore": 2,
    "lose": 1,
    "harm": 2,
}
_DEATHS = {"": 15, "exception": 4, "kill_group": 1, "kill_python": 1, "kill_jvm": 1}
_ENGINES = {"local": 5, "spark": 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What is done to a stream: a method of ``Subject``, or harm to a table of it.

    Attributes:
        records: How many are sent before it.
        death: How its first command dies; empty where it lives.
        place: Of the places that the command passes, where it dies; counted round and round.
        seed: Decides all else: what is in the records, which key, savepoint or entry is meant.
    """

    operation: str = "run"
    records: int = 0
    engine: str = "local"
    death: str = ""
    place: int = 0
    seed: int = 0


STEPS = st.builds(
    Step,
    operation=st.sampled_from([name for name, weight in OPERATIONS.items() for _ in range(weight)]),
    records=st.integers(0, 20),
    engine=st.sampled_from([name for name, weight in _ENGINES.items() for _ in range(weight)]),
    death=st.sampled_from([name for name, weight in _DEATHS.items() for _ in range(weight)]),
    place=st.integers(0, 29),
    seed=st.integers(0, 9_999),
)
