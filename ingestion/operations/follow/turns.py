"""Whose turn it is to be run, told from what is known of each stream; pure.

Times are seconds of a clock that only goes forward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from oncelake.ingestion.declaration.parts import FollowPace
from oncelake.ingestion.errors import DONE, WRONG, IngestionError, TransientError

# How many streams run at once, and how often Kafka is asked, unless a person says otherwise.
JOBS: Final = 2
EVERY_SECONDS: Final = 5.0
# First and longest pause: what passes by itself is tried again soon, what a person must decide
# seldom, since a decision that shows on disk ends the pause.
_TRANSIENT_PAUSES: Final = (2.0, 60.0)
_REFUSED_PAUSES: Final = (30.0, 600.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """Where a stream stands between two runs.

    Attributes:
        began: When its last run began.
        waiting_since: When unread records were first seen after it.
        not_before: When it may be tried again after a failure,
        condition: unless what it failed under has changed: its declaration, its table.
        exit_code: What the stream adds to the exit code, if nothing more happens.
        is_transient: Whether the failure, if there is one, may pass by itself.
    """

    began: float = -math.inf
    waiting_since: float = math.inf
    failures: int = 0
    not_before: float = -math.inf
    condition: object = None
    message: str = ""
    exit_code: int = DONE
    is_transient: bool = False

    def seen(self, lag: int | None, now: float) -> Turn:
        """Take note of unread records."""
        return replace(self, waiting_since=math.inf if lag == 0 else min(self.waiting_since, now))

    def begun(self, now: float) -> Turn:
        """Begin a run."""
        return replace(self, began=now, waiting_since=math.inf)

    def ended(self, *, is_balanced: bool) -> Turn:
        """End a run that has a report."""
        return Turn(began=self.began, exit_code=DONE if is_balanced else WRONG)

    def failed(self, error: Exception, condition: object, now: float) -> Turn:
        """End an attempt that has none, and pause for longer each time."""
        is_transient = isinstance(error, TransientError)
        first, longest = _TRANSIENT_PAUSES if is_transient else _REFUSED_PAUSES
        pause = min(first * 2 ** min(self.failures, 16), longest)
        return replace(
            self,
            failures=self.failures + 1,
            not_before=now + pause,
            condition=condition,
            message=str(error),
            exit_code=error.exit_code if isinstance(error, IngestionError) else WRONG,
            is_transient=is_transient,
        )

    def is_due(self, pace: FollowPace, *, lag: int | None, condition: object, now: float) -> bool:
        """Tell whether the stream is to be run; its lag is ``None`` when only a run can tell."""
        if self.failures:
            return now >= self.not_before or condition != self.condition
        if lag == 0 or now - self.began < pace.every_seconds:
            return False
        has_waited = now - self.waiting_since >= pace.max_wait_seconds
        return lag is None or lag >= pace.min_records or has_waited
