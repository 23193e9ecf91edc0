"""The database's time for all processes of a campaign: it can step forward and backward, and every step is known.

It is the machine's monotonic clock plus an offset that all processes read from one file. So what the database's time
can have been during a call follows from two monotonic readings, whatever steps came between.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from threading import local
from time import monotonic_ns, time_ns

_OFFSET = struct.Struct("<q")
FOREVER = 1 << 62


def monotonic_micros() -> int:
    """Microseconds that all processes of the machine count alike, and that never step."""
    return monotonic_ns() // 1000


@dataclass(frozen=True, slots=True)
class Step:
    """From some moment between `earliest` and `latest` (monotonic) on, database time is `offset` ahead of monotonic."""

    earliest: int
    latest: int
    offset: int


class SharedClock:
    """Database time, read from a file. `read_at` is when this thread last read it, on the monotonic clock."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._shared = mmap(file.fileno(), _OFFSET.size)
        self._last = local()

    @classmethod
    def create(cls, path: Path) -> tuple[SharedClock, Step]:
        """A clock that begins with this machine's time."""
        path.write_bytes(bytes(_OFFSET.size))
        clock = cls(path)
        step = clock.set_offset(time_ns() // 1000 - monotonic_micros())
        return clock, Step(-FOREVER, step.earliest, step.offset)

    def __call__(self) -> int:
        now = self._last.at = monotonic_micros()
        return now + self.offset

    @property
    def read_at(self) -> int:
        return getattr(self._last, "at", 0)

    @property
    def offset(self) -> int:
        (offset,) = _OFFSET.unpack_from(self._shared)
        return int(offset)

    def set_offset(self, offset: int) -> Step:
        """Step the clock of every process, by one aligned write."""
        earliest = monotonic_micros()
        _OFFSET.pack_into(self._shared, 0, offset)
        return Step(earliest, monotonic_micros(), offset)


class Timeline:
    """What database time can have been. `steps` in the order in which they were made."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps

    def latest(self, start: int, end: int) -> int:
        """The highest database time between two monotonic ones."""
        return max(until + offset for _, until, offset in self._reigns(start, end))

    def earliest(self, start: int, end: int) -> int:
        """The lowest database time between two monotonic ones."""
        return min(since + offset for since, _, offset in self._reigns(start, end))

    def _reigns(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """The stretches of the interval, each with an offset that may have been in force."""
        ends = [step.latest for step in self._steps[1:]] + [FOREVER]
        for step, ended in zip(self._steps, ends, strict=True):
            since, until = max(start, step.earliest), min(end, ended)
            if since <= until:
                yield since, until, step.offset
