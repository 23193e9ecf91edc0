"""The rows of lanes, which stand in the shards of their tasks and change with them: none is ever dead (N1)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import islice

from wiggle_core.criteria.evaluate import compile_predicate
from wiggle_core.criteria.tree import Predicate
from wiggle_core.errors import AmbiguousStoreError, TransientStoreError
from wiggle_core.stores.lanes import Lane, LaneId, LaneRow, ReadyTasks
from wiggle_core.tasks.task import OrderKey, State, TaskId
from wiggle_store_cassandra.order import Kind, read_key
from wiggle_store_cassandra.reading import Reading, Wanted, begin, lane_part
from wiggle_store_cassandra.rows import Stored, new_version, read_body
from wiggle_store_cassandra.shards import TRIES, Shards

ROWS_AT_ONCE = 100
"""How many tasks one batch puts into lanes, or takes out of them."""

_ROWS = f"""
    SELECT place FROM $shard
    WHERE space = ? AND number = ? AND kind = {Kind.LANE:d} AND place >= ? AND place < ? LIMIT ?
"""
_PREFIX = 12
"""Bytes before the key: the lane and the generation."""


def ready_tasks(
    shards: Shards, queue: str, matching: Sequence[Predicate], after: OrderKey | None, size: int
) -> ReadyTasks:
    """The next READY tasks of a queue, in claim order over all shards."""
    wanted = [Wanted(number, queue, after=after) for number in range(shards.count)]
    readings = begin(shards, wanted, max(2, 2 * size // shards.count))
    part = list(islice(merge(*map(_found, readings.values()), key=lambda each: each[0]), size))
    are_matches = [compile_predicate(each) for each in matching]
    found = [
        (stored.task, stored.ready_no)
        for _, stored in part
        if not are_matches or any(is_match(stored.task) for is_match in are_matches)
    ]
    return ReadyTasks(tuple(found), part[-1][0] if len(part) == size else None)


def _found(reading: Reading) -> Iterator[tuple[OrderKey, Stored]]:
    for _, key, (_, version, body) in reading.rows():
        yield key, read_body(version, body)


def fill(shards: Shards, rows: Sequence[LaneRow], entered: Collection[LaneId]) -> None:
    """Put tasks into those of these lanes that tasks enter; one that is not as it was, is left."""
    wanted: dict[TaskId, tuple[int, set[LaneId]]] = {}
    for row in rows:
        if row.lane in entered:
            wanted.setdefault(row.key.id, (row.ready_no, set()))[1].add(row.lane)
    _change(shards, wanted)


def _change(shards: Shards, wanted: dict[TaskId, tuple[int, set[LaneId]]]) -> None:
    left = dict(wanted)
    failures = 0
    while failures < TRIES:
        tasks = shards.tasks(list(left))
        left = {each: told for each, told in left.items() if _lacks(tasks.get(each), *told)}
        if not left:
            return
        turns = {number: ids[:ROWS_AT_ONCE] for number, ids in shards.by_number(list(left)).items()}
        outcomes = _written(
            shards,
            {
                number: [(tasks[each], _with(tasks[each], {*tasks[each].lanes, *left[each][1]})) for each in ids]
                for number, ids in turns.items()
            },
        )
        failures += not all(outcomes)
    raise TransientStoreError(f"tasks in {shards.connections.place} change so fast that no lane can be filled")


def _lacks(stored: Stored | None, ready_no: int, lanes: set[LaneId]) -> bool:
    return (
        stored is not None
        and stored.task.state is State.READY
        and stored.ready_no == ready_no
        and not lanes.issubset(stored.lanes)
    )


def _with(stored: Stored, lanes: Collection[LaneId]) -> Stored:
    return replace(stored, version=new_version(), lanes=tuple(sorted(lanes)))


def _written(shards: Shards, turns: dict[int, list[tuple[Stored, Stored]]]) -> list[bool]:
    writes = [shards.update(number, turn) for number, turn in turns.items()]
    try:
        return shards.write(writes)
    except AmbiguousStoreError:
        return [False] * len(writes)  # reading them again tells


def clear(shards: Shards, lane: Lane, limit: int) -> int:
    """Take at most `limit` tasks out of a lane that none enters any more; how many were."""
    cleared = 0
    for number in range(shards.count):
        for part in _parts(shards, lane, number):
            cleared += _clear(shards, lane.id, number, part, limit - cleared)
    return cleared


def _clear(shards: Shards, lane: LaneId, number: int, part: tuple[bytes, bytes], limit: int) -> int:
    (place, end), cleared = part, 0
    for _ in range(TRIES):
        size = min(ROWS_AT_ONCE, limit - cleared)
        rows = shards.connections.rows(_ROWS, (shards.space, number, place, end, size)) if size else []
        if not rows:
            break
        tasks = shards.tasks([read_key(each[_PREFIX:]).id for (each,) in rows])
        turn = [(each, _with(each, {*each.lanes} - {lane})) for each in tasks.values() if lane in each.lanes]
        if turn and _written(shards, {number: turn}) == [True]:
            cleared += len(turn)
            place = rows[-1][0] + b"\0"  # not past what has just been deleted
    return cleared


def is_empty(shards: Shards, lane: Lane) -> bool:
    """Whether no task is in a lane any more."""
    return size_of(shards, lane, 1) == 0


def size_of(shards: Shards, lane: Lane, cap: int) -> int:
    """How many tasks are in a lane, counted up to `cap`."""
    asks = [
        (_ROWS, (shards.space, number, *part, cap))
        for number in range(shards.count)
        for part in _parts(shards, lane, number)
    ]
    return min(cap, sum(map(len, shards.connections.many(asks))))


def _parts(shards: Shards, lane: Lane, number: int) -> list[tuple[bytes, bytes]]:
    """From where to where a lane is to be read in a shard, past what was taken out of it (CA1)."""
    known = shards.reread_generations(number, lane.queue)
    return [] if known is None else [lane_part(known, lane.queue, lane.id, each) for each in known.all]
