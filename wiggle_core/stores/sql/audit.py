"""What is wrong with stored tasks and cannot be told in SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from wiggle_core.stores.sql.rows import Row
from wiggle_core.tasks.retry import RetryPolicy

_MESSAGES = {
    "task": "has a retry policy that cannot be read",
    "history": "is in history with a retry policy that cannot be read",
}


def unreadable_policies(
    ask: Callable[[str, Sequence[object]], Iterable[Row]], policies: str, tasks: str, shown: int
) -> Iterator[str]:
    """A sentence for each task whose retry policy cannot be read, and of each table at most `shown`.

    `ask` runs a statement with its binds. `policies` asks for the policies in `{table}`, of which there are few,
    however many tasks have one; `tasks` for the ids of the tasks with the one that is bound.
    """
    for table, message in _MESSAGES.items():
        found = (text for (text,) in ask(policies.format(table=table), ()))
        unreadable = [text for text in found if not RetryPolicy.can_load(text)][:shown]
        rows = (row for text in unreadable for row in ask(tasks.format(table=table), (text,)))
        yield from (f"task {task_id!r} {message}" for (task_id,) in islice(rows, shown))
