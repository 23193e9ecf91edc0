"""From criteria to the routes of a claim. Whether one walks or reads a lane is decided as it claims (N4)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.criteria.tree import FALSE, And, FieldReference, In, Predicate, normalize
from wiggle_core.errors import CriteriaError
from wiggle_core.stores.store import Route

ANY_STEP = "*"
"""As a handled step: every step."""


def route_of(criteria: QueueCriteria) -> Route:
    """The route of one criteria."""
    return Route(criteria.queue, criteria.normal)


def plan(criteria: Iterable[QueueCriteria]) -> tuple[Route, ...]:
    """The routes of a claim; what can match nothing is left out. Raises CriteriaError for a queue named twice."""
    routes: dict[str, Route] = {}
    for each in criteria:
        if each.queue in routes:
            raise CriteriaError(f"queue {each.queue!r} is named twice; join its predicates with |", "/queue")
        routes[each.queue] = route_of(each)
    return tuple(route for route in routes.values() if route.predicate != FALSE)


def with_steps(predicate: Predicate, steps: Collection[str]) -> Predicate:
    """The normal form of a predicate that also asks for one of the handled steps; unchanged when all are handled.

    The list may be longer than what users may write (C7): it is ours, and a worker may have more handlers.
    """
    if ANY_STEP in steps:
        return predicate
    return normalize(And((predicate, In(FieldReference("step"), tuple(sorted(steps))))))
