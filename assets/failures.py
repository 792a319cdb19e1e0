"""Errors that Dagster shows as one sentence, without the stack of its code and of ours.

Dagster shows the stack of every exception, but for one that stands for an error of another process:
of that it shows what it was given. So ours are of this kind, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dagster as dg

# Dagster has no public name for an error whose text it shows without its own frames.
from dagster._core.errors import DagsterUserCodeProcessError
from dagster_shared.error import SerializableErrorInfo

from oncelake.ingestion.errors import IngestionError, TransientError, harmless


class StreamFailureError(DagsterUserCodeProcessError, dg.Failure):
    """A run that failed by an error of the engine."""

    def __init__(
        self,
        description: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        allow_retries: bool = False,
    ) -> None:
        dg.Failure.__init__(self, description, metadata, allow_retries)
        self.user_code_process_error_infos = _without_stack(description)

    @classmethod
    def of(cls, error: IngestionError) -> StreamFailureError:
        """Return the failure that shows an error: its text, its name, and what to do next."""
        metadata = {**metadata_of_failure(error), "exit_code": error.exit_code}
        may_retry = isinstance(error, TransientError)
        return cls(str(error), metadata=metadata, allow_retries=may_retry)


class StreamRetryError(DagsterUserCodeProcessError, dg.RetryRequested):
    """A run that is tried again, for a reason that passes by itself."""

    def __init__(self, reason: str, *, max_retries: int, seconds_to_wait: float) -> None:
        dg.RetryRequested.__init__(self, max_retries, seconds_to_wait)
        self.user_code_process_error_infos = _without_stack(reason)


class StreamInterruptedError(DagsterUserCodeProcessError, dg.DagsterExecutionInterruptedError):
    """A run that somebody terminated; Dagster's word for it stays what it was."""

    def __init__(self, says: str) -> None:
        dg.DagsterExecutionInterruptedError.__init__(self, says)
        self.user_code_process_error_infos = _without_stack(says)


_GOES_ON = "an open batch is as if never begun, and the next run goes on behind the last commit"


@contextmanager
def translate_errors(about: str, *, if_interrupted: str = _GOES_ON) -> Iterator[None]:
    """Turn what the engine raises, and a termination, into what Dagster shows as a sentence.

    Args:
        about: What is interrupted: a stream, or a job of several.
        if_interrupted: What a termination leaves behind.
    """
    try:
        yield
    except IngestionError as error:
        raise StreamFailureError.of(error) from error
    except dg.DagsterExecutionInterruptedError:
        raise StreamInterruptedError(f"{about}: interrupted; {if_interrupted}") from None


def metadata_of_failure(error: Exception) -> dict[str, str]:
    """Return what Dagster shows of an error beside its text: its name, and what to do next."""
    return {"error": type(error).__name__, "next": getattr(error, "remedy", "see the description")}


def as_markdown(text: str) -> str:
    """Write a text so that Dagster, which renders some as Markdown, shows it as it is.

    What a record put into it must be no picture that each reader's browser fetches from elsewhere,
    no link under another name, and no tag.
    """
    return re.sub(r"\](?=[(:])", r"]\\", harmless(text)).replace("<", "&lt;")


def _without_stack(says: str) -> list[SerializableErrorInfo]:
    return [SerializableErrorInfo(message=says, stack=[], cls_name=None)]
