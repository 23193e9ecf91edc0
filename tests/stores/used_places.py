"""Places for stores that tests use one after the other: to make and drop tables for each takes longer than most tests
do, to empty them some milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import pytest

_USES = 50
"""After as many tests a place is dropped: what was deleted stays in tables and indexes for a while."""


@dataclass(slots=True)
class _Place:
    url: str
    fresh: object
    made: ExitStack
    uses: int = 0


class UsedPlaces:
    """Places with tables as a migration makes them, each lent to one test at a time.

    For tests to which it is all one who makes the tables. Those of migrations, of plans and of locks make their own.
    """

    def __init__(
        self,
        made: Callable[[], AbstractContextManager[str]],
        state: Callable[[str], object],
        cleaned: Callable[[str], object],
    ) -> None:
        """`made` migrates and drops a place, `state` tells how its tables are made and all that is in them, `cleaned`
        makes it as new and tells the same."""
        self._made, self._state, self._cleaned = made, state, cleaned
        self._free: list[_Place] = []

    @contextmanager
    def lent(self) -> Iterator[str]:
        """The URL of a place with empty tables. Fails the test that leaves them so that deletions do not help."""
        place = self._free.pop() if self._free else self._make()
        try:
            yield place.url
            state = self._cleaned(place.url)
            if state != place.fresh:
                pytest.fail(f"a test that leaves its tables so needs some of its own: {state}, and not {place.fresh}")
            place.uses += 1
            if place.uses < _USES:
                self._free.append(place)
        finally:
            if place not in self._free:
                place.made.close()

    def for_check(
        self, request: pytest.FixtureRequest, fresh: Callable[[], AbstractContextManager[str]]
    ) -> AbstractContextManager[str]:
        """For a check of the kit: those that have `open_handle` migrate see to the tables want to have them; for the
        others there are none yet."""
        return self.lent() if "open_handle" in request.fixturenames else fresh()

    def close(self) -> None:
        """Drop all places."""
        while self._free:
            self._free.pop().made.close()

    def _make(self) -> _Place:
        made = ExitStack()
        url = made.enter_context(self._made())
        return _Place(url, self._state(url), made)
