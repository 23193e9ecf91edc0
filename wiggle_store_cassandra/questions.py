"""Questions about tasks, and what is due."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge, nsmallest
from itertools import chain, islice
from typing import TypeVar
from uuid import UUID

from wiggle_core.criteria.evaluate import compile_predicate
from wiggle_core.errors import AmbiguousStoreError, StoreError
from wiggle_core.stores.changes import is_leased
from wiggle_core.stores.store import Fate, Route, Slice
from wiggle_core.tasks.task import SETTLED, OrderKey, State, TaskId, TaskRecord
from wiggle_store_cassandra import history
from wiggle_store_cassandra.order import Kind, of_number, read_time
from wiggle_store_cassandra.reading import Reading, Wanted, begin
from wiggle_store_cassandra.rows import TIMED, Statement, Stored, read_body
from wiggle_store_cassandra.shards import Shards

T = TypeVar("T")

RESERVATION_MICROS = 5_000_000
"""How long `due` keeps what it returned from other callers."""
MARK_MARGIN_MICROS = 60_000_000
"""How far behind the present the mark of a shard stays, and by how much at least it moves."""
PAGE = 1_000
READ_AT_ONCE = 200
LOOKS = 3
"""How often to look for tasks of several states: one that is missed each time has moved three times meanwhile, each in
the moment between two questions."""

_QUEUES = f"SELECT place FROM $shard WHERE space = ? AND number = ? AND kind = {Kind.QUEUE:d}"
_TIMES = """
    SELECT place, version, reserved_at FROM $shard
    WHERE space = ? AND number = ? AND kind = ? AND place >= ? AND place < ? LIMIT ?
"""
_FIRST = "SELECT place FROM $shard WHERE space = ? AND number = ? AND kind = ? AND place >= ? LIMIT 1"
_RESERVE = """
    UPDATE $shard SET reserved_at = ? WHERE space = ? AND number = ? AND kind = ? AND place = ?
    IF version = ? AND reserved_at = ?
"""
_EVER = b"\xff" * 9
_KINDS = sorted(set(TIMED.values()))


# What is due


@dataclass(frozen=True, slots=True)
class _Late:
    """A row by which something is to be done about a task, and the task."""

    number: int
    kind: Kind
    place: bytes
    version: UUID
    reserved_at: int | None
    task: TaskRecord

    def due_at(self) -> tuple[int, TaskId]:
        return _due_at(self.task), self.task.id

    def reserved(self, space: str, now: int) -> Statement:
        """The statement that keeps it from other callers, if none was quicker."""
        return _RESERVE, (now, space, self.number, self.kind, self.place, self.version, self.reserved_at)


def due(shards: Shards, now: int, limit: int) -> list[TaskRecord]:
    """SCHEDULED tasks that are due and leases that ran out, longest due first; settled tasks move to history, too."""
    numbers = list(range(shards.count))
    history.move(shards, now, numbers)
    _move_marks(shards, now, numbers)
    # The last of all: where something fails behind it, what was reserved would be nobody's for some seconds.
    ours = _reserved(shards, now, sorted(_late(shards, now, limit), key=_Late.due_at)[:limit])
    return [each.task for each in sorted(ours, key=_Late.due_at)]


def _late(shards: Shards, now: int, limit: int) -> list[_Late]:
    """What is due in all shards, and nobody's: as many of those that are due longest, and few more."""
    wanted = [
        (number, kind, shards.statics(number).mark)
        for number in range(shards.count)
        for kind in (Kind.SCHEDULED, Kind.LEASED)
    ]
    # Those that are reserved stand before others.
    asks = [
        (_TIMES, (shards.space, number, kind, of_number(mark), of_number(max(now, mark) + 1), limit + PAGE))
        for number, kind, mark in wanted
    ]
    rows = [
        (number, kind, place, version, reserved_at)
        for (number, kind, _), found in zip(wanted, shards.connections.many(asks), strict=True)
        for place, version, reserved_at in found
        # The lower bound is for a clock that stepped back: it must not stretch a reservation.
        if reserved_at is None or not reserved_at <= now < reserved_at + RESERVATION_MICROS
    ]
    late: list[_Late] = []
    for part in _parts(sorted(rows, key=lambda row: row[2])):
        tasks = shards.tasks([read_time(place)[1] for _, _, place, _, _ in part], whole=True)
        for number, kind, place, version, reserved_at in part:
            stored = tasks.get(read_time(place)[1])
            if stored is not None and _is_due(stored.task, now):
                late.append(_Late(number, kind, place, version, reserved_at, stored.task))
        if len(late) >= limit:
            break
    return late


def _reserved(shards: Shards, now: int, late: Sequence[_Late]) -> list[_Late]:
    """Those of these in whose shard nobody else took one meanwhile. Raises StoreError when there is none for that."""
    parts: dict[int, list[_Late]] = defaultdict(list)
    for each in late:
        parts[each.number].append(each)
    batches = [[each.reserved(shards.space, now) for each in part] for part in parts.values()]
    outcomes = shards.connections.applied_all(batches)
    ours = [each for part, outcome in zip(parts.values(), outcomes, strict=True) if outcome is True for each in part]
    # Without an answer they are nobody's for some seconds.
    errors = [each for each in outcomes if isinstance(each, StoreError) and not isinstance(each, AmbiguousStoreError)]
    if errors and not ours:
        raise errors[0]
    return ours


def _is_due(task: TaskRecord, now: int) -> bool:
    return task.state in (State.SCHEDULED, State.RUNNING) and _due_at(task) <= now


def _due_at(task: TaskRecord) -> int:
    return task.lease_until or 0 if task.state is State.RUNNING else task.ready_at


def _move_marks(shards: Shards, now: int, numbers: Sequence[int]) -> None:
    """Have the next sweep begin behind what is done with (CA1)."""
    begins = {number: shards.statics(number).mark for number in numbers}
    begins = {number: mark for number, mark in begins.items() if mark < now - 2 * MARK_MARGIN_MICROS}
    for number, first in _firsts(shards, begins, now - MARK_MARGIN_MICROS).items():
        if first < begins[number] + MARK_MARGIN_MICROS:
            del begins[number]
        else:
            shards.move_mark(number, first, begins[number])
    # What was written meanwhile was so by the mark before, and may stand before the new one.
    for number, first in _firsts(shards, begins, now).items():
        shards.lower_mark(number, first)


def _firsts(shards: Shards, begins: Mapping[int, int], at_most: int) -> dict[int, int]:
    """Where the first row of these shards stands that something is to be done about, from these marks on."""
    asks = [
        (_FIRST, (shards.space, number, kind, of_number(mark))) for number, mark in begins.items() for kind in _KINDS
    ]
    answers = iter(shards.connections.many(asks))
    return {
        number: min([at_most, *(read_time(place)[0] for _ in _KINDS for (place,) in next(answers))])
        for number in begins
    }


# Single tasks


def get(shards: Shards, task_id: TaskId) -> TaskRecord | None:
    """One task, live or settled."""
    return _known(shards, [task_id]).get(task_id)


def lookup(shards: Shards, ids: Sequence[TaskId]) -> dict[TaskId, Fate]:
    """The fate of each known id (L6)."""
    found = _known(shards, list(dict.fromkeys(ids)), whole=False)
    return {each: Fate(task.state, task.token, task.attempt) for each, task in found.items()}


def _known(shards: Shards, ids: Sequence[TaskId], *, whole: bool = True) -> dict[TaskId, TaskRecord]:
    """By their shards, else by history, else by their shards again: one may have come back meanwhile."""
    found: dict[TaskId, TaskRecord] = {}
    for look in (_live, _kept, _live):
        missing = [each for each in ids if each not in found]
        if missing:
            found |= look(shards, missing, whole=whole)
    return found


def _live(shards: Shards, ids: Sequence[TaskId], *, whole: bool) -> dict[TaskId, TaskRecord]:
    return {each: stored.task for each, stored in shards.tasks(ids, whole=whole).items()}


def _kept(shards: Shards, ids: Sequence[TaskId], *, whole: bool) -> dict[TaskId, TaskRecord]:
    return {each: kept.stored.task for each, kept in history.get(shards, ids, whole=whole).items()}


def leased(shards: Shards, token: str) -> list[TaskRecord]:
    """The tasks RUNNING under a token, in claim order (L6)."""
    found = [
        each.task.id
        for part in _parts(_timed(shards, [Kind.LEASED]))
        for each in shards.tasks(part).values()
        if is_leased(each.task, token)
    ]
    held = (each.task for each in shards.tasks(found, whole=True).values())
    return sorted((task for task in held if is_leased(task, token)), key=_key)


# Many tasks


def find(
    shards: Shards, route: Route, states: Collection[State], limit: int, after: OrderKey | None
) -> list[TaskRecord]:
    """One page of the tasks that match, in claim order."""
    if set(states) == {State.READY}:
        page = list(islice(_ready(shards, route, after, limit), limit))
    else:
        page = nsmallest(limit, _any(shards, route, states, after, limit), key=_key)
    whole = _known(shards, [task.id for task in page])
    return [replace(task, payload=whole[task.id].payload) if task.id in whole else task for task in page]


def count(shards: Shards, route: Route, states: Collection[State], cap: int) -> int:
    """How many tasks match, counted up to `cap`."""
    is_ready = set(states) == {State.READY}
    found = _ready(shards, route, None, cap) if is_ready else _any(shards, route, states, None, cap)
    return sum(1 for _ in islice(found, cap))


def _key(task: TaskRecord) -> OrderKey:
    return task.order_key


def _ready(shards: Shards, route: Route, after: OrderKey | None, limit: int) -> Iterator[TaskRecord]:
    """The READY tasks that match, in claim order over all shards; payloads left out."""
    is_match = compile_predicate(route.predicate)
    wanted = [Wanted(number, route.queue, after=after) for number in range(shards.count)]
    readings = begin(shards, wanted, max(10, min(PAGE, 2 * limit // shards.count)))
    for task in merge(*map(_tasks, readings.values()), key=_key):
        if is_match(task):
            yield task


def _tasks(reading: Reading) -> Iterator[TaskRecord]:
    for _, _, (_, version, body) in reading.rows():
        yield read_body(version, body).task


def _any(
    shards: Shards, route: Route, states: Collection[State], after: OrderKey | None, limit: int
) -> Iterator[TaskRecord]:
    """The tasks of these states that match, each once, in no order, of the READY ones the first `limit`; payloads left
    out."""
    is_match = compile_predicate(route.predicate)
    seen: set[TaskId] = set()
    for stored in chain(_in_shards(shards, route, states, after, limit), _in_history(shards, states)):
        task = stored.task
        is_wanted = task.queue == route.queue and task.state in states and (after is None or task.order_key > after)
        if is_wanted and task.id not in seen and is_match(task):
            seen.add(task.id)
            yield task


def _in_shards(
    shards: Shards, route: Route, states: Collection[State], after: OrderKey | None, limit: int
) -> Iterator[Stored]:
    """Found by the rows beside tasks, which lead past what is not there any more (CA1). One that goes from one of these
    states to another meanwhile is in none of the places looked at, or in two, so they are looked at again."""
    kinds = sorted({TIMED[state] for state in states if state is not State.READY})
    ids: set[TaskId] = set()
    for _ in range(1 if len(states) == 1 else LOOKS):
        if State.READY in states:
            ids.update(task.id for task in islice(_ready(shards, route, after, limit), limit))
        ids.update(_timed(shards, kinds))
    for part in _parts(ids):
        yield from shards.tasks(part).values()


def _timed(shards: Shards, kinds: Sequence[Kind]) -> list[TaskId]:
    """Those about which something is to be done some time."""
    asks = [
        (_TIMES, (shards.space, number, kind, of_number(shards.statics(number).mark), _EVER, 2**31 - 1))
        for number in range(shards.count)
        for kind in kinds
    ]
    return [read_time(place)[1] for rows in shards.connections.many(asks) for place, _, _ in rows]


def _in_history(shards: Shards, states: Collection[State]) -> Iterator[Stored]:
    """Behind the shards: what moved meanwhile is there. What came back is in its shard."""
    if not SETTLED & set(states):
        return
    for part in _parts(history.each_settled(shards)):
        back = shards.tasks([stored.task.id for stored in part])
        yield from (stored for stored in part if stored.task.id not in back)


def _parts(whole: Iterable[T]) -> Iterator[list[T]]:
    left = iter(whole)
    while part := list(islice(left, READ_AT_ONCE)):
        yield part


def slices(shards: Shards) -> list[Slice]:
    """The READY tasks by workflow, version and queue. Reads all of them."""
    ready: dict[tuple[str | None, int | None, str], list[int]] = defaultdict(lambda: [0, 2**63])
    for queue in queues(shards):
        for task in _ready(shards, Route(queue), None, PAGE * shards.count):
            told = ready[task.workflow, task.version, task.queue]
            told[0] += 1
            told[1] = min(told[1], task.ready_at)
    return sorted((Slice(*names, *told) for names, told in ready.items()), key=_slice_order)


def queues(shards: Shards) -> list[str]:
    """The queues that ever had a READY task."""
    answers = shards.connections.many([(_QUEUES, (shards.space, number)) for number in range(shards.count)])
    return sorted({place.decode() for rows in answers for (place,) in rows})


def _slice_order(each: Slice) -> tuple[bool, str, bool, int, str]:
    """By workflow, version and queue, an absent one first."""
    return (each.workflow is not None, each.workflow or "", each.version is not None, each.version or 0, each.queue)
