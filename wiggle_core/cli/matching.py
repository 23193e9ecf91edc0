"""Which tasks a predicate takes, asked in three ways: of the evaluator, of a store's query, of a store's claim."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from wiggle_core.errors import CriteriaError, TaskRejected
from wiggle_core.stores.store import ClaimRequest, GiveBack, Route, Store
from wiggle_core.tasks.task import State, TaskId, TaskRecord
from wiggle_core.tasks.wire import task_from_object

QUEUE = "match"
PAGE = 1000
CLAIM_LIMITS = (3, 1, 2, 50, 7)
"""Varied, so that the order holds across the borders of claims of any size."""
_TTL_MICROS = 3600 * 1_000_000

Matching: TypeAlias = Callable[[Predicate], list[TaskId]]
"""The ids of the tasks that match a normal form, in claim order."""


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
    return lambda predicate: [task.id for task in ordered if matches(predicate, task)]


def by_find(store: Store) -> Matching:
    """By the store's own query, page by page."""

    def find(predicate: Predicate) -> list[TaskId]:
        route, ids, after = Route(QUEUE, predicate), [], None
        while page := store.find(route, {State.READY}, PAGE, after):
            ids += [task.id for task in page]
            after = page[-1].order_key
        return ids

    return find


def by_claim(store: Store) -> Matching:
    """By claiming until nothing is left, then giving everything back, attempt and ready_at kept (L3)."""

    def claim(predicate: Predicate) -> list[TaskId]:
        claimed = list(_claims(store, Route(QUEUE, predicate)))
        changes = [GiveBack(task.lease, task.attributes) for task in claimed]
        size = store.capabilities.max_batch
        returned = [store.apply(changes[start : start + size]) for start in range(0, len(changes), size)]
        if sum(map(len, returned)) != len(claimed):
            raise InputError("the store did not take back every task that it had leased")
        return [task.id for task in claimed]

    return claim


def _claims(store: Store, route: Route) -> Iterator[TaskRecord]:
    for limit in cycle(CLAIM_LIMITS):
        request = ClaimRequest("criteria match", uuid4().hex, _TTL_MICROS, limit, (route,))
        tasks = store.claim(request)
        if not tasks:
            return
        yield from tasks
