"""Steps of a sink's own act, each of which can be made to fail, and time, which has an end.

A step is a line of the sink's own package, or a call into C that has done its work. A client that
is all C, and tells of no call, is seen by the lines before and after it.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from itertools import islice, pairwise
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

import pytest

# Modules of classes that are nobody's own.
_OF_ALL: Final = {"oncelake.ingestion.tables.table", "builtins", "abc", "typing", "contextlib"}
# A call of these changes no store.
_NO_STORE: Final = {"builtins", "_thread", "sys"}
# How many lines, and ends of functions, are tried right behind the step that does it.
_AFTER: Final = 2
# Where a frame ends before its function does, which must not fail there.
_SUSPENDS: Final = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


class StepFailedError(Exception):
    """What a step raises that was made to fail."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an act.

    Attributes:
        kind: ``line``, before which it fails; ``return`` or ``call``, after which it does.
        place: Where.
        time: Which of those of this place it is, from 0.
    """

    kind: str
    place: str
    time: int


class FailingStep:
    """Makes one step within a block fail, or notes all of them. What other threads do is not seen.

    Attributes:
        taken: The steps, where none is to fail.
        has_failed: Whether the step was reached.
    """

    def __init__(self, packages: Collection[str], due: Step | None = None) -> None:
        """Take the step that fails; ``packages`` are files, and folders with a slash."""
        self._packages, self._due = tuple(packages), due
        self.taken, self.has_failed = list[Step](), False
        self._times = Counter[tuple[str, str]]()
        self._is_own: dict[CodeType, bool] = {}
        self._raised: FrameType | None = None
        self._before: tuple[Any, Any] = (None, None)

    def __enter__(self) -> FailingStep:
        """Begin."""
        self._before = sys.gettrace(), sys.getprofile()
        sys.settrace(self._on_frame)
        sys.setprofile(self._on_call)
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        trace, profile = self._before
        sys.setprofile(profile)
        sys.settrace(trace)

    def __repr__(self) -> str:
        return f"failing at {self._due}" if self._due else "failing nowhere"

    def _on_frame(self, frame: FrameType, event: str, given: Any) -> Any:
        code = frame.f_code
        if code not in self._is_own:
            self._is_own[code] = code.co_filename.startswith(self._packages)
        return self._on_line if self._is_own[code] else None

    def _on_line(self, frame: FrameType, event: str, given: Any) -> Any:
        code = frame.f_code
        if event == "line":
            self._raised = None
            self._take("line", f"{_named(code)}:{frame.f_lineno}")
        elif event == "exception":
            self._raised = frame
        elif self._raised is not frame and not code.co_flags & _SUSPENDS:
            self._take("return", _named(code))
        return self._on_line

    def _on_call(self, frame: FrameType, event: str, called: Any) -> None:
        if event != "c_return":
            return
        owner = getattr(called, "__self__", None)
        module = owner.__name__ if isinstance(owner, ModuleType) else type(owner).__module__
        if module not in _NO_STORE:
            name = getattr(called, "__qualname__", repr(called))
            self._take("call", f"{name} in {_named(frame.f_code)}:{frame.f_lineno}")

    def _take(self, kind: str, place: str) -> None:
        step = Step(kind, place, self._times[kind, place])
        self._times[kind, place] += 1
        if self._due is None:
            self.taken.append(step)
        elif step == self._due:
            self.has_failed = True
            sys.setprofile(None)
            sys.settrace(None)
            raise StepFailedError(f"{step}")


def fail_at_steps(
    attempt: Callable[[FailingStep], bool],
    packages: Collection[str],
    *,
    most: int,
    has_calls: bool = False,
) -> None:
    """Attempt an act again and again, each time with another step of it failing.

    Between a step after which nothing is done and one after which all is, those in the middle are
    tried, until the two are neighbours: an act that is done in two steps fails there.

    Args:
        attempt: Acts within the step, checks what is there, and tells whether the act was done.
        packages: Files and folders of what is the sink's own.
        most: How many steps are tried, spread over all, beside those that are looked for.
        has_calls: Whether calls into C are steps, too, and not only lines.
    """
    whole = FailingStep(packages)
    assert attempt(whole), "the act is not done, though no step of it failed"
    steps = _first_and_last(whole.taken if has_calls else filter(_is_own, whole.taken))
    own = [number for number, step in enumerate(steps) if _is_own(step)]
    assert own, f"no line of {', '.join(packages)} was seen: no step of this store can fail"
    calls = [number for number, step in enumerate(steps) if not _is_own(step)]
    done: dict[int, bool] = {}

    def fail(number: int, otherwise: bool) -> None:
        if number not in done:
            step = FailingStep(packages, steps[number])
            is_done = attempt(step)
            # Another way may have been taken this time.
            done[number] = is_done if step.has_failed else otherwise

    fail(own[0], otherwise=False)
    fail(own[-1], otherwise=True)
    share = most // 2 if calls else most
    for number in sorted({*_spread(own, share), *_spread(calls, most - share)}):
        fail(number, otherwise=done[own[0]])
    while gap := _gap(done):
        fail(sum(gap) // 2, otherwise=done[gap[0]])
    assert {*done.values()} == {False, True}, (
        f"none of {len(done)} steps that failed, from {steps[own[0]]} to {steps[own[-1]]}, was "
        f"{'before' if done[own[0]] else 'after'} the one that does it"
    )
    boundary = next(each for each in sorted(done) if done[each] != done[own[0]])
    for kind in ("line", "return"):
        behind = (each for each in own if each > boundary and steps[each].kind == kind)
        for number in [*islice(behind, _AFTER)]:
            fail(number, otherwise=True)


def _is_own(step: Step) -> bool:
    return step.kind != "call"


def _first_and_last(steps: Iterable[Step]) -> list[Step]:
    """Keep the first and the last step of each place."""
    taken = [*steps]
    last = {(step.kind, step.place): step for step in taken}
    return [step for step in taken if not step.time or last[step.kind, step.place] == step]


def _spread(numbers: Sequence[int], most: int) -> list[int]:
    """Choose some, evenly."""
    count = min(most, len(numbers))
    return [numbers[at * len(numbers) // count] for at in range(count)]


def _gap(done: dict[int, bool]) -> tuple[int, int] | None:
    """Return the first two steps of another outcome that have others between them."""
    return next(
        ((a, b) for a, b in pairwise(sorted(done)) if done[a] != done[b] and b - a > 1), None
    )


def packages_of(*owned: object) -> frozenset[str]:
    """Return the files of single modules, and the folders of packages, that classes are from."""
    found = set()
    for kind in (kind for each in owned for kind in type(each).__mro__):
        module = sys.modules[kind.__module__]
        if module.__name__ not in _OF_ALL and (file := module.__file__):
            found.add(f"{Path(file).parent}/" if module.__package__ else file)
    return frozenset(found)


def _named(code: CodeType) -> str:
    return f"{Path(code.co_filename).name} {code.co_qualname}"


def in_bounded_time(tests: type) -> type:
    """Let each test of a class fail once it has taken as many ``seconds`` as the class says."""
    for name, test in [*vars(tests).items()]:
        if name.startswith("test_"):
            setattr(tests, name, _bounded(test))
    return tests


def _bounded(test: Callable[..., None]) -> Callable[..., None]:
    @wraps(test)
    def run(self: Any, *given: Any, **by_name: Any) -> None:
        raised = list[BaseException]()

        def act() -> None:
            try:
                test(self, *given, **by_name)
            except BaseException as error:  # noqa: BLE001 (raised below, where pytest waits)
                raised.append(error)

        thread = threading.Thread(target=act, daemon=True, name=test.__name__)
        thread.start()
        thread.join(self.seconds)
        if thread.is_alive():
            stack = "".join(traceback.format_stack(sys._current_frames().get(thread.ident or 0)))
            pytest.fail(
                f"{test.__name__} has not ended within {self.seconds} s: the sink waits, or is too "
                f"slow, for what it does here:\n{stack}",
                pytrace=False,
            )
        if raised:
            raise raised[0]

    return run
