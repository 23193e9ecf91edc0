"""Who in this process waits for tasks, and waking them only for tasks that they would take.

With a store that has `Notify`, other processes are told of tasks, too. They learn the queue only, so theirs are woken
whose criteria name it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from threading import Lock

from wiggle_core.criteria.evaluate import Matcher, compile_predicate
from wiggle_core.engine.notifying import Messenger
from wiggle_core.stores.replay import within
from wiggle_core.stores.store import Notify, Route, Store
from wiggle_core.tasks.task import TaskRecord

_log = logging.getLogger("wiggle.engine")


class Subscription:
    """A wish to be called when a task that matches becomes READY through this engine; `close` ends it."""

    __slots__ = ("_callback", "_matchers", "_owner")

    def __init__(self, owner: Subscriptions, routes: Iterable[Route], callback: Callable[[], None]) -> None:
        self._owner = owner
        self._callback = callback
        self._matchers: dict[str, list[Matcher]] = {}
        for route in routes:
            self._matchers.setdefault(route.queue, []).append(compile_predicate(route.predicate))

    def wants(self, task: TaskRecord) -> bool:
        """Whether the task matches one of the routes."""
        return any(is_match(task) for is_match in self._matchers.get(task.queue, ()))

    def is_about(self, queue: str) -> bool:
        """Whether one of the routes is on this queue."""
        return queue in self._matchers

    def notify(self) -> None:
        """Call back. What the callback raises is logged: it must not reach whoever enqueued the task."""
        try:
            self._callback()
        except Exception:
            _log.exception("a subscriber failed when it was woken")

    def close(self) -> None:
        """Be called no more. Safe to call twice."""
        self._owner.remove(self)


class Subscriptions:
    """The subscriptions of one engine. Thread-safe."""

    def __init__(self, store: Store) -> None:
        own = within(store)
        self._messenger = Messenger(own, self._hear) if isinstance(own, Notify) and own.notifies else None
        self._lock = Lock()
        # Replaced, never changed: readers need no lock.
        self._present: tuple[Subscription, ...] = ()

    def add(self, routes: Iterable[Route], callback: Callable[[], None]) -> Subscription:
        """A subscription to what matches any of the routes."""
        added = Subscription(self, routes, callback)
        with self._lock:
            self._present += (added,)
        if self._messenger is not None:
            self._messenger.listen()
        return added

    def remove(self, subscription: Subscription) -> None:
        """End a subscription, if it has not ended yet."""
        with self._lock:
            self._present = tuple(each for each in self._present if each is not subscription)

    def announce(self, tasks: Sequence[TaskRecord]) -> None:
        """Call each subscriber who wants one of these READY tasks, once; tell other processes of their queues."""
        for subscription in self._present:
            if any(map(subscription.wants, tasks)):
                subscription.notify()
        if self._messenger is not None:
            self._messenger.tell({task.queue for task in tasks})

    def wake_all(self) -> None:
        """Call every subscriber, whatever it waits for."""
        for subscription in self._present:
            subscription.notify()

    def close(self) -> None:
        """Hear other processes no more. Safe to call twice."""
        if self._messenger is not None:
            self._messenger.close()

    def _hear(self, queue: str | None) -> None:
        """Call each subscriber who may want what another process made READY; None for any queue."""
        for subscription in self._present:
            if queue is None or subscription.is_about(queue):
                subscription.notify()
