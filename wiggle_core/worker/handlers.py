"""Handlers by the step they work, and what becomes of what they return or raise."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar, cast

from wiggle_core.engine.routes import ANY_STEP
from wiggle_core.engine.settling import MAX_ERROR
from wiggle_core.errors import PermanentError, TaskRejected, WorkerRejected
from wiggle_core.tasks.outcome import Done, Fail, Outcome, Release, Retry
from wiggle_core.tasks.submission import check_step
from wiggle_core.worker.context import TaskContext

Handler: TypeAlias = Callable[[TaskContext], object]
H = TypeVar("H", bound=Callable[[TaskContext], Any])  # Any: a handler returns an outcome, a result or an awaitable

_OUTCOMES = (Done, Retry, Fail, Release)
_log = logging.getLogger("wiggle.worker")


class Handlers:
    """The handlers of one worker. A step's own handler goes before `*`."""

    def __init__(self) -> None:
        self._by_step: dict[str, Handler] = {}

    @property
    def steps(self) -> tuple[str, ...]:
        """The handled steps, sorted; `*` among them when all are."""
        return tuple(sorted(self._by_step))

    def add(self, step: str, handler: Callable[[TaskContext], object]) -> None:
        """Register a handler, which may be `async def`. Raises WorkerRejected for a step that has one already."""
        try:
            name = check_step(step)
        except TaskRejected as error:
            raise WorkerRejected(str(error)) from None
        if name in self._by_step:
            raise WorkerRejected(f"step {name!r} has two handlers")
        self._by_step[name] = _blocking(handler) if _is_async(handler) else handler

    def run(self, context: TaskContext) -> Outcome:
        """Work the task and say how it ended. Whatever the handler raises is an outcome too."""
        step = context.task.step
        try:
            returned = self._by_step[step if step in self._by_step else ANY_STEP](context)
            # Here, since a proxy object may raise when it is asked for its class.
            return returned if isinstance(returned, _OUTCOMES) else Done(returned)
        except PermanentError as error:
            _log.warning("task %s (%s) failed for good", context.id, step, exc_info=True)
            return Fail(_describe(error))
        except BaseException as error:  # a handler that calls sys.exit must not end the thread it runs in
            _log.warning("task %s (%s) failed in run %d", context.id, step, context.attempt, exc_info=True)
            return Retry(_describe(error))


def _is_async(handler: object) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004  # it is the method that may be async


def _blocking(handler: Callable[[TaskContext], object]) -> Handler:
    """An `async def` handler as one that blocks its thread, with an event loop of its own for each run."""

    async def awaited(context: TaskContext) -> object:
        return await cast("Awaitable[object]", handler(context))

    return lambda context: asyncio.run(awaited(context))


def _describe(error: BaseException) -> str:
    """Type and message, on which `error_text` has the last word."""
    try:
        message = str(error)
    except Exception as unprintable:
        message = f"(its message raised {type(unprintable).__name__})"
    return f"{type(error).__name__}: {message[:MAX_ERROR]}" if message else type(error).__name__
