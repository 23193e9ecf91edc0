"""What is wrong with the rows of lanes (N1), asked within one read transaction."""

from __future__ import annotations

import sqlite3

from wiggle_core.criteria.wire import stored_predicate
from wiggle_core.stores.lanes import LaneId
from wiggle_store_sqlite.dialect import WRITER
from wiggle_store_sqlite.lane_rows import IS_IN_LANE

_SHOWN = 20

_OPEN = "SELECT id, queue, predicate FROM lane WHERE state = 'OPEN' ORDER BY id"
_MISSING = f"""
    SELECT id FROM task INDEXED BY task_dispatch
    WHERE queue = ? AND state = 'READY' AND {{condition}} AND NOT {IS_IN_LANE} LIMIT ?
"""
# A condition that does not hold may be NULL, for an attribute that is absent.
_WRONG = """
    SELECT id FROM (SELECT number AS own_number, ready_no AS own_no FROM lane_task WHERE lane = ?)
    CROSS JOIN task NOT INDEXED ON number = own_number
    WHERE ready_no = own_no AND state = 'READY' AND (queue = ? AND {condition}) IS NOT TRUE LIMIT ?
"""
_ORPHANS = "SELECT count(*) FROM lane_task WHERE lane NOT IN (SELECT id FROM lane WHERE state <> 'CLOSED')"


def audit(connection: sqlite3.Connection) -> list[str]:
    """READY tasks that are not in an OPEN lane that they match, live rows of tasks that do not match, rows of lanes
    that do not exist; a sentence each.

    Every lane is compared with its whole queue, which takes a walk of it.
    """
    found = []
    for lane, queue, predicate in connection.execute(_OPEN).fetchall():
        found += _audit_lane(connection, lane, queue, predicate)
    ((orphans,),) = connection.execute(_ORPHANS).fetchall()
    return found + ([f"{orphans} rows belong to no lane"] if orphans else [])


def _audit_lane(connection: sqlite3.Connection, lane: LaneId, queue: str, predicate: str) -> list[str]:
    condition = WRITER.render(stored_predicate(predicate))
    missing = connection.execute(
        _MISSING.format(condition=condition.text), (queue, *condition.binds, lane, _SHOWN)
    ).fetchall()
    wrong = connection.execute(
        _WRONG.format(condition=condition.text), (lane, queue, *condition.binds, _SHOWN)
    ).fetchall()
    return [f"task {task_id!r} is not in lane {lane}, though it matches" for (task_id,) in missing] + [
        f"task {task_id!r} is in lane {lane}, though it does not match" for (task_id,) in wrong
    ]
