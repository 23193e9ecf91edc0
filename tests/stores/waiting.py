"""Waiting for what other threads, processes and servers do, on a machine of whatever speed."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds after which a test that waits in vain fails."""


def wait_until(is_so: Callable[[], bool], seconds: float = PATIENCE, pause: float = 0.01) -> None:
    """Look again and again; for what other processes do, which no clock of ours can hurry."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it never came to pass"
        time.sleep(pause)


def goes_on(end: float, is_enough: bool) -> bool:
    """Whether threads go on with what they do to each other: to the end, and beyond it for as long as one of them got
    too little done to tell anything by. Where one gets nothing done at all, the others let it go in the end."""
    now = time.monotonic()
    return now < end or (not is_enough and now < end + PATIENCE)
