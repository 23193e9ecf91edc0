"""Task ids: UUIDv7 text that grows with every id made by this process.

Tasks created in one microsecond are claimed in the order of their ids (O1), so ids that only grow by the millisecond
would shuffle them.
"""

from __future__ import annotations

import os
from random import getrandbits
from threading import Lock
from time import time_ns

from wiggle_core.tasks.task import TaskId

_TAIL_BITS = 62
_TAIL_MASK = (1 << _TAIL_BITS) - 1
_VARIANT = 2 << _TAIL_BITS


class _Sequence:
    """The millisecond of the last id and the 74-bit number below it, counted up within the millisecond."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget the last id: a forked child must not count on where its parent does."""
        self._lock = Lock()
        self._millis = 0
        self._below = 0
        self._prefix = ""

    def next(self) -> tuple[str, int]:
        """The text of the millisecond, and the number below it."""
        with self._lock:
            millis = time_ns() // 1_000_000
            if millis > self._millis:
                digits = f"{millis:012x}"
                self._prefix = f"{digits[:8]}-{digits[8:]}-7"
                # The top bit stays clear, so that counting up never overflows.
                self._millis, self._below = millis, getrandbits(73)
            else:
                self._below += 1
            return self._prefix, self._below


_sequence = _Sequence()
os.register_at_fork(after_in_child=_sequence.restart)


def new_task_id() -> TaskId:
    """A UUIDv7 (RFC 9562) greater than all that this process made before, also when its clock steps back."""
    prefix, below = _sequence.next()
    digits = f"{below & _TAIL_MASK | _VARIANT:016x}"
    return f"{prefix}{below >> _TAIL_BITS:03x}-{digits[:4]}-{digits[4:]}"
