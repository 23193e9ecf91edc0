"""Enqueueing inside a transaction of the caller's own (`Enlist`): tasks that exist if and only if it is committed."""

from __future__ import annotations

from collections.abc import Iterable

from wiggle_core.engine.declarations import Declarations
from wiggle_core.engine.placement import parts
from wiggle_core.errors import EnlistRejected, StoreError
from wiggle_core.stores.replay import log_error, within
from wiggle_core.stores.store import Enlist, Store
from wiggle_core.tasks.submission import NewTask, admit
from wiggle_core.tasks.task import TaskId


def enlist(
    store: Store, declarations: Declarations, longest_payload: int, connection: object, tasks: Iterable[NewTask]
) -> list[TaskId]:
    """Insert tasks by way of the caller's connection; their ids. Nothing is tried again: what fails takes the caller's
    transaction with it."""
    own = within(store)
    if not isinstance(own, Enlist):
        name = store.capabilities.name
        raise EnlistRejected(f"the store {name!r} has no transactions of callers to join: `enqueue` is what there is")
    now, attributes_of = store.now(), declarations.reading().attributes
    records = [admit(each, now, attributes_of, longest_payload) for each in tasks]
    try:
        for part in parts(sorted(records, key=lambda record: record.id), store.capabilities.max_batch):  # L7
            own.enlist(connection, part)
    except StoreError as error:
        log_error(error)
        raise
    return [each.id for each in records]
