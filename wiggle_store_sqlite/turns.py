"""A lock that is given in the order in which it was asked for.

A pool gives its only connection to whoever asks at the right moment: beside two threads that read without a pause a
third one was seen to wait for the database in memory for 30 s.
"""

from __future__ import annotations

from collections import deque
from threading import Lock


class Turns:
    """Who may go next. Not reentrant."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._is_taken = False
        self._waiting: deque[Lock] = deque()

    def acquire(self, timeout: float) -> bool:
        """Wait for one's turn for at most `timeout` seconds; whether it came."""
        with self._mutex:
            if not self._is_taken:
                self._is_taken = True
                return True
            mine = Lock()
            mine.acquire()
            self._waiting.append(mine)
        if mine.acquire(timeout=timeout):
            return True
        with self._mutex:
            # It may have been handed over in this very moment; then it has to be used.
            if mine not in self._waiting:
                return True
            self._waiting.remove(mine)
            return False

    def release(self) -> None:
        """Hand the turn to whoever has waited longest."""
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_taken = False
