"""Retry policies: which make sense, and that each delay is a time that stores can hold."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from wiggle_core.tasks.retry import MAX_DELAY, RetryPolicy

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"max_attempts": 0}, "max_attempts is at least 1"),
        ({"initial_backoff": timedelta(microseconds=-1)}, "a back-off is not negative, and at most 36525 days"),
        ({"max_backoff": timedelta(microseconds=-1)}, "a back-off is not negative, and at most 36525 days"),
        ({"initial_backoff": MAX_DELAY + timedelta(microseconds=1)}, "a back-off is not negative, and at most"),
        ({"max_backoff": timedelta.max}, "a back-off is not negative, and at most 36525 days"),
        ({"multiplier": 0.99}, "multiplier is at least 1, and finite"),
        ({"multiplier": float("inf")}, "multiplier is at least 1, and finite"),
        ({"multiplier": float("nan")}, "multiplier is at least 1, and finite"),
        ({"jitter": 1.01}, "jitter is between 0 and 1"),
        ({"jitter": float("nan")}, "jitter is between 0 and 1"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(policy: dict[str, Any], message: str) -> None:
    """L3: the policy is stored with the task, so whatever no sweeper could apply is refused before."""
    with pytest.raises(ValueError, match=message):
        RetryPolicy(**policy)


def test_the_back_off_grows_up_to_its_bound() -> None:
    """Section 8: `initial_backoff * multiplier ** (n - 1)`, at most `max_backoff`."""
    policy = RetryPolicy(initial_backoff=timedelta(seconds=1), max_backoff=timedelta(seconds=5), jitter=0)
    assert [policy.delay(attempt) // SECOND for attempt in (1, 2, 3, 4, 2_000)] == [1, 2, 4, 5, 5]
    slow = RetryPolicy(multiplier=1.01, max_backoff=timedelta(days=1), jitter=0)
    assert slow.delay(500) == round(SECOND * 1.01**499)


@pytest.mark.parametrize("multiplier", [1, 2.0, 1e6, 1e300])
def test_no_attempt_and_no_multiplier_is_too_many(multiplier: float) -> None:
    """L3: an overflow here would end the sweep that took the task back, and with it that of all others."""
    policy = RetryPolicy(10**9, MAX_DELAY, multiplier, MAX_DELAY, jitter=1)
    longest = 2 * MAX_DELAY // timedelta(microseconds=1)
    assert all(0 <= policy.delay(attempt) <= longest for attempt in (1, 2, 60, 2_000, 10**9))
    assert RetryPolicy(10**9, timedelta(0), multiplier).delay(2_000) == 0


def test_a_policy_is_stored_as_text() -> None:
    """L3: any node reads back what another one stored."""
    policy = RetryPolicy(7, timedelta(microseconds=3), 1.5, MAX_DELAY, 0.25)
    assert RetryPolicy.load(policy.dump()) == policy


@pytest.mark.parametrize(
    "text", ["", "x", "1", "null", "[1]", '["a",1,2,3,4]', "[1,1e400,2,3,4]", "[0,1,2,3,0]", "[" * 9_999]
)
def test_what_is_no_policy_is_a_value_error(text: str) -> None:
    """L3: a stored policy that cannot be read is told by one error, whatever is wrong with it."""
    assert not RetryPolicy.can_load(text)
    with pytest.raises(ValueError, match=r"."):
        RetryPolicy.load(text)
