"""Heads of queues: lanes that spare walks what left a queue and could not be cleaned away (PG4).

While somebody holds an old snapshot, a database such as PostgreSQL keeps the index entries of tasks that were claimed
long ago, before all that are READY, and every walk passes by them. The lane of the predicate "before this place in the
claim order" has every task that is READY there or will be (N1), so a walk may begin at that place. When as much has
gathered behind it, another lane, further on, takes its turn.

The predicate is an ordinary one, and the lane an ordinary lane: by its predicate it is known to be a head.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from operator import attrgetter

from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.instants import from_micros, to_micros
from wiggle_core.criteria.tree import And, Compare, Or, Predicate, normalize
from wiggle_core.stores.lanes import Head, Lane, LaneState
from wiggle_core.tasks.task import OrderKey


def before(priority: int, created_at: int) -> Predicate:
    """The tasks that come before a bound in the claim order (O1), in normal form; `created_at` is in microseconds."""
    earlier = (Task.priority == priority) & (Task.created_at < from_micros(created_at))
    return normalize((Task.priority < priority) | earlier)


def head_of(lane: Lane) -> Head | None:
    """The lane as the head of its queue; None for a lane of another kind."""
    match lane.predicate:
        case Or((Compare(value=int(priority)), And((Compare(value=datetime() as at), _)))):
            created_at = to_micros(at)
            return Head(lane.id, priority, created_at) if lane.predicate == before(priority, created_at) else None
        case _:
            return None


def open_heads(lanes: Iterable[Lane]) -> dict[str, Head]:
    """The head of each queue that has one, the latest one where there are more."""
    by_age = sorted((lane for lane in lanes if lane.state is LaneState.OPEN), key=attrgetter("id"))
    return {lane.queue: head for lane in by_age if (head := head_of(lane)) is not None}


def is_filled(lanes: Iterable[Lane], last: OrderKey) -> bool:
    """Whether no task behind this place belongs into any of these lanes."""
    heads = [head_of(lane) for lane in lanes]
    return all(head is not None and not head.is_before(last) for head in heads)
