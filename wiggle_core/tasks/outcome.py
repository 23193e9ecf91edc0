"""What a handler reports of a run, and what `Engine.settle` takes: Done, Retry, Fail or Release."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Done:
    """The work is done. `result` is kept in history as JSON."""

    result: object = None


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again after `delay`, or after the policy's back-off when it is None; FAILED when no attempt is left (L3)."""

    error: str | None = None
    delay: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """Give up at once: FAILED, whatever the retry policy says."""

    error: str


@dataclass(frozen=True, slots=True)
class Release:
    """Hand the task back untouched: READY again, attempt and place in the order kept (L3)."""


Outcome: TypeAlias = Done | Retry | Fail | Release
