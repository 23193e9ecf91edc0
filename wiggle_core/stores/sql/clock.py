"""The database's time in the process, as an estimate (L1): for stores whose database tells the time itself."""

from __future__ import annotations

import time
from collections.abc import Callable

REFRESH_SECONDS = 1.0


class EstimatedClock:
    """The database's time as far as this process can tell: asked once a second, carried on in between.

    It is for what an engine stamps, such as the time of a new task: asking for each would cost every enqueue a second
    round trip. It is off by at most the round trip of its question. Leases are decided in statements, by the
    database's own clock.
    """

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask = ask
        self._asked_at = float("-inf")
        self._offset = 0

    def __call__(self) -> int:
        now = time.monotonic()
        if now - self._asked_at >= REFRESH_SECONDS:
            answer, after = self._ask(), time.monotonic()
            self._offset, self._asked_at = answer - _micros((now + after) / 2), after
            now = after
        return self._offset + _micros(now)


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)
