"""Which tasks a predicate takes, asked of the evaluator, or of a store's query, walk or lane."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from operator import attrgetter
from typing import TypeAlias
from uuid import uuid4

from wiggle_core.cli.failures import InputError
from wiggle_core.cli.files import read_lines
from wiggle_core.criteria.evaluate import matches
from wiggle_core.criteria.tree import Predicate
from wiggle_core.criteria.wire import parse_json
from wiggle_core.engine.placement import parts
from wiggle_core.errors import CriteriaError, TaskRejected
from wiggle_core.lanes.book import Knowledge, LaneBook
from wiggle_core.lanes.keeper import LaneKeeper
from wiggle_core.lanes.planner import LanePolicy, Planner
from wiggle_core.stores.lanes import LaneState, Placed
from wiggle_core.stores.store import ClaimRequest, GiveBack, Route, Store
from wiggle_core.tasks.task import State, TaskId, TaskRecord
from wiggle_core.tasks.wire import task_from_object

QUEUE = "match"
PAGE = 1000
CLAIM_LIMITS = (3, 1, 2, 50, 7, 400)
"""Varied, so that the order holds across the borders of claims of any size; one is large, for files of many tasks."""
LANES_AT_ONCE = 8
"""How many predicates are asked for while the lanes of all of them are open. Each lane costs a pass over the tasks to
fill, which they share, and a test of every task that is given back, which each of them does."""
_TTL_MICROS = 3600 * 1_000_000

Matching: TypeAlias = Callable[[Sequence[Predicate]], list[list[TaskId]]]
"""The ids of the tasks that match, in claim order, for each of some normal forms."""


def read_tasks(path: str) -> Iterator[TaskRecord]:
    """The tasks of a file, one a line, as given but all on one queue. Raises InputError with file and line."""
    seen: set[TaskId] = set()
    for line in read_lines(path):
        try:
            task = task_from_object(parse_json(line.text()))
        except (CriteriaError, TaskRejected) as error:
            raise InputError(f"{line.place}: {error}") from error
        if task.state is not State.READY:
            raise InputError(f"{line.place}: state: only READY tasks can be matched")
        if task.id in seen:
            raise InputError(f"{line.place}: id: {task.id!r} stands in an earlier line too")
        seen.add(task.id)
        yield replace(task, queue=QUEUE)


def by_evaluator(tasks: list[TaskRecord]) -> Matching:
    """By the reference evaluator, sorted by the claim order (C8, O1)."""
    ordered = sorted(tasks, key=attrgetter("order_key"))
    return lambda predicates: [[task.id for task in ordered if matches(each, task)] for each in predicates]


def by_find(store: Store) -> Matching:
    """By the store's own query, page by page."""

    def find(predicate: Predicate) -> list[TaskId]:
        route, ids, after = Route(QUEUE, predicate), [], None
        while page := store.find(route, {State.READY}, PAGE, after):
            ids += [task.id for task in page]
            after = page[-1].order_key
        return ids

    return lambda predicates: list(map(find, predicates))


def by_claim(store: Store, policy: LanePolicy) -> Matching:
    """By claiming until nothing is left, then giving everything back, attempt and ready_at kept (L3). Which predicates
    have a lane meanwhile is decided as for workers (N4). Raises InputError when all should and the store has none."""
    if policy is LanePolicy.ON and store.lanes is None:
        raise InputError(f"--lanes on: the store {store.capabilities.name} has no lanes")
    book = LaneBook(store)
    keeper = LaneKeeper(store, book, Planner(store, book, policy))

    def claim(predicates: Sequence[Predicate]) -> list[list[TaskId]]:
        routes = [Route(QUEUE, each) for each in predicates]
        with _lanes(keeper, routes):
            return [_claimed(store, book, route) for route in book.with_lanes(routes)]

    return claim


@contextmanager
def _lanes(keeper: LaneKeeper, routes: Sequence[Route]) -> Iterator[None]:
    """The lanes that these routes should have, open."""
    wanted = [route for route in dict.fromkeys(routes) if keeper.verdict(route).wanted is not None]
    lanes = keeper.open(wanted) if wanted else []
    if any(lane.state is not LaneState.OPEN for lane in lanes):
        raise InputError("the store did not open every lane, although nobody else uses the schema")
    yield
    if lanes:
        keeper.close([lane.id for lane in lanes])


def _claimed(store: Store, book: LaneBook, route: Route) -> list[TaskId]:
    claimed = list(_claims(store, route))
    _give_back(store, book, claimed)
    return [task.id for task in claimed]


def _give_back(store: Store, book: LaneBook, claimed: Sequence[TaskRecord]) -> None:
    """Make leased tasks READY again as they were given, in the lanes that they match (N2)."""
    returned = 0
    for part in parts(claimed, store.capabilities.max_batch):
        returned += len(_returned(store, book, part))
    if returned != len(claimed):
        raise InputError("the store did not take back every task that it had leased")


def _returned(store: Store, book: LaneBook, claimed: Sequence[TaskRecord]) -> set[TaskId]:
    changes = [GiveBack(task.lease, task.attributes) for task in claimed]

    def place(known: Knowledge) -> Placed:
        return Placed(known.epoch, [known.entered(task, QUEUE) for task in claimed])

    return book.place(place, lambda placed: store.apply(changes, placed))


def _claims(store: Store, route: Route) -> Iterator[TaskRecord]:
    for limit in cycle(CLAIM_LIMITS):
        request = ClaimRequest("criteria match", uuid4().hex, _TTL_MICROS, limit, (route,))
        tasks = store.claim(request)
        if not tasks:
            return
        yield from tasks
