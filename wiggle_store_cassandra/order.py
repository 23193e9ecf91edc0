"""Where rows stand in a shard: texts of bytes that sort as what they stand for.

A shard is one partition, and what it holds is told apart by `Kind`. Within a kind a row stands at a place: a task's by
its id, a READY one's by queue, generation and claim order (O1), and so on. Cassandra compares places byte by byte.
"""

from __future__ import annotations

from enum import IntEnum

from wiggle_core.stores.lanes import LaneId
from wiggle_core.tasks.task import OrderKey, TaskId

_SIGN = 2**63
_KEY = slice(0, 4), slice(4, 12), slice(12, 20)


class Kind(IntEnum):
    """What a row of a shard is. The numbers are stored."""

    SHARD = -1
    """Always there, and first: whoever asks for statics alone makes Cassandra look for the first row that lives."""

    TASK = 0
    """The task itself, at its id. The row that every change is conditional on."""
    READY = 1
    """A READY task in claim order, by queue and generation."""
    SCHEDULED = 2
    """When a SCHEDULED task is due."""
    LEASED = 3
    """When the lease of a RUNNING task runs out."""
    SETTLED = 4
    """A settled task that is not in history yet."""
    LANE = 5
    """A READY task in a lane, by generation and claim order."""
    QUEUE = 6
    """The generations of a queue."""
    BEGIN = 7
    """Where reading a lane begins in sealed generations."""


def of_number(number: int) -> bytes:
    """A number of 64 bits."""
    return (number + _SIGN).to_bytes(8, "big")


def of_key(key: OrderKey) -> bytes:
    """A place in the claim order (O1). UTF-8 sorts as code points do."""
    return b"%b%b%b%b" % (
        key.priority.to_bytes(4, "big"),
        of_number(key.created_at),
        of_number(key.ready_at),
        key.id.encode(),
    )


def read_key(place: bytes) -> OrderKey:
    """The key that `of_key` wrote."""
    priority, created_at, ready_at = (int.from_bytes(place[each], "big") for each in _KEY)
    return OrderKey(priority, created_at - _SIGN, ready_at - _SIGN, place[20:].decode())


def of_queue(queue: str) -> bytes:
    """A queue. Names have no U+0000 (C7), so that none is the beginning of another."""
    return queue.encode() + b"\0"


def of_ready(queue: str, generation: int) -> bytes:
    """What stands before the keys of READY tasks of a generation."""
    return of_queue(queue) + generation.to_bytes(4, "big")


def of_lane(lane: LaneId, generation: int) -> bytes:
    """What stands before the keys of a lane's tasks of a generation."""
    return lane.to_bytes(8, "big") + generation.to_bytes(4, "big")


def of_time(at: int, task_id: TaskId) -> bytes:
    """An instant, in epoch microseconds, at which something is to be done about a task."""
    return of_number(at) + task_id.encode()


def read_time(place: bytes) -> tuple[int, TaskId]:
    """The instant and the id that `of_time` wrote."""
    return int.from_bytes(place[:8], "big") - _SIGN, place[8:].decode()


def behind(prefix: bytes) -> bytes:
    """The first place that is behind every key with this prefix: a key begins with a priority of 31 bits."""
    return prefix + b"\xff"
