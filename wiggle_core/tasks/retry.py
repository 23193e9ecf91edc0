"""Retry policies. A policy is stored with each task, so that any node's sweeper can apply it (L3)."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from datetime import timedelta

MAX_DELAY = timedelta(days=36_525)
"""The longest delay or lease, a hundred years: its end has to be a time that stores and calendars can hold."""

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how soon a failed or expired run is tried again; after `max_attempts` runs the task is FAILED.

    The delay before run n+1 is `initial_backoff * multiplier ** (n - 1)`, at most `max_backoff`, moved up or down at
    random by the share `jitter`. Raises ValueError for a policy that makes no sense.
    """

    max_attempts: int = 20
    initial_backoff: timedelta = timedelta(seconds=1)
    multiplier: float = 2.0
    max_backoff: timedelta = timedelta(minutes=5)
    jitter: float = 0.2

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError("max_attempts is at least 1")
        for backoff in (self.initial_backoff, self.max_backoff):
            if not timedelta(0) <= backoff <= MAX_DELAY:
                raise ValueError(f"a back-off is not negative, and at most {MAX_DELAY.days} days")
        if not 1 <= self.multiplier < math.inf:
            raise ValueError("multiplier is at least 1, and finite")
        if not 0 <= self.jitter <= 1:
            raise ValueError("jitter is between 0 and 1")

    def allows_another(self, attempt: int) -> bool:
        """Whether a run may follow the one numbered `attempt` (1 for the first)."""
        return attempt < self.max_attempts

    def delay(self, attempt: int) -> int:
        """Microseconds to wait after the failure of run `attempt`, jitter included."""
        first, longest = self.initial_backoff // _MICROSECOND, self.max_backoff // _MICROSECOND
        try:
            grown = first * self.multiplier ** (attempt - 1)
        except OverflowError:  # as 2.0 ** 1024 does, long after max_backoff was reached
            grown = longest if first else 0
        return round(min(grown, longest) * (1 + random.uniform(-self.jitter, self.jitter)))

    def dump(self) -> str:
        """The compact text that stores keep."""
        first, longest = self.initial_backoff // _MICROSECOND, self.max_backoff // _MICROSECOND
        return json.dumps([self.max_attempts, first, self.multiplier, longest, self.jitter], separators=(",", ":"))

    @classmethod
    def load(cls, text: str) -> RetryPolicy:
        """The policy that `dump` wrote. Raises ValueError for any other text."""
        try:
            attempts, first, multiplier, longest, jitter = json.loads(text)
            return cls(attempts, timedelta(microseconds=first), multiplier, timedelta(microseconds=longest), jitter)
        except (TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"no retry policy: {error}") from None

    @classmethod
    def can_load(cls, text: str) -> bool:
        """Whether `load` takes the text."""
        try:
            cls.load(text)
        except ValueError:
            return False
        return True


DEFAULT_RETRY = RetryPolicy()
