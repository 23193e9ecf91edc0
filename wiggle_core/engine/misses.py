"""How often declared attributes were absent, and why: what was read in this process is counted (A3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

from wiggle_core.tasks.attributes import Miss


@dataclass(frozen=True, slots=True)
class AttributeMiss:
    """A declared attribute that a payload did not give, and why."""

    workflow: str
    version: int
    attribute: str
    reason: Miss


class Misses:
    """The counts of one engine. There is a key for each declared attribute and reason at most. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: Counter[tuple[str, int, str, Miss]] = Counter()

    def add(self, workflow: str, version: int, misses: Mapping[str, Miss]) -> None:
        """Count what one extraction did not find."""
        with self._lock:
            for attribute, reason in misses.items():
                self._counts[workflow, version, attribute, reason] += 1

    def read(self) -> dict[AttributeMiss, int]:
        """The counts as they are now."""
        with self._lock:
            return {AttributeMiss(*key): count for key, count in self._counts.items()}
