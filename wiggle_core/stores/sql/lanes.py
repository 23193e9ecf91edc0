"""Lanes as SQL stores register them: by queue and predicate as it is written, with a digest of it for the index."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from operator import attrgetter

from wiggle_core.criteria.tree import Predicate
from wiggle_core.criteria.wire import predicate_to_object, stored_predicate
from wiggle_core.criteria.written import to_json
from wiggle_core.stores.lanes import Lane, LaneState, NewLane
from wiggle_core.stores.sql.rows import Row

LANE_COLUMNS = "id, queue, predicate, state, epoch, reason, is_pinned, opened_at, used_at, hits"
"""What `read_lanes` reads."""

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.25
"""How many seconds lie between two looks at epochs that are still held."""


def unique_lanes(wanted: Sequence[NewLane]) -> dict[tuple[str, str], NewLane]:
    """The lanes that are wanted by queue and digest, each once; pinned if this is asked for anywhere."""
    unique: dict[tuple[str, str], NewLane] = {}
    for new in wanted:
        name = new.queue, _digest(new.predicate)
        first = unique.setdefault(name, new)
        if new.is_pinned and not first.is_pinned:
            unique[name] = replace(first, is_pinned=True)
    return unique


def _digest(predicate: Predicate) -> str:
    """What tells predicates apart as the core does, which looks a lane up by its predicate: a fingerprint is the same
    for a LONG and a DECIMAL that ask the same, and the lane of one would not be found for the other."""
    return sha256(_written(predicate).encode()).hexdigest()


def lane_values(new: NewLane) -> tuple[str, str, bool]:
    """Predicate as written, reason, and whether it is pinned."""
    return _written(new.predicate), new.reason, new.is_pinned


def _written(predicate: Predicate) -> str:
    return to_json(predicate_to_object(predicate))


def read_lanes(rows: Iterable[Row]) -> tuple[Lane, ...]:
    """The lanes in rows of LANE_COLUMNS, by id."""
    return tuple(sorted(map(_read, rows), key=attrgetter("id")))


def _read(row: Row) -> Lane:
    lane, queue, predicate, state, epoch, reason, is_pinned, *others = row
    return Lane(lane, queue, _predicate(predicate), LaneState(state), epoch, reason, bool(is_pinned), *others)


@lru_cache(maxsize=20_000)
def _predicate(text: str) -> Predicate:
    """Read once: the same lanes are read again and again."""
    return stored_predicate(text)


def wait_until_free(is_held: Callable[[], bool], timeout: float) -> bool:
    """Wait until epochs are held by nobody, for at most `timeout` seconds; whether that came (N3).

    They are tried, and let go of at once: whoever queued for an exclusive lock would keep others waiting behind. Who
    comes later and holds one of these numbers finds that it is over.
    """
    end, pause = time.monotonic() + timeout, FIRST_PAUSE
    while is_held():
        if time.monotonic() + pause > end:
            return False
        time.sleep(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE)
    return True
