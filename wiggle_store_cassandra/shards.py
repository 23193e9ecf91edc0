"""Shards: the partitions that hold every live task, what a process knows of them, and how they are changed.

A task's shard follows from its id, so everything about it, its uniqueness included, is decided in one partition, by one
conditional batch (CA2). What such a batch depends on beside the tasks stands in the partition's static columns:

- `epoch`: the lanes by which tasks are placed there (N3). It is raised by `raise_epoch` before a lane is filled.
- `moved`: grows when settled tasks move to history, so that an id which was not found in history is not there still.
- `mark`: no SCHEDULED or LEASED row stands before it (CA1).

READY tasks of a queue come in *generations*, so that no claim reads what others left behind (CA1): they enter the open
one, and once enough of them were taken from its beginning, it is sealed. Nothing enters a sealed generation, so its
first task only ever moves on, and where reading begins is kept.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import product
from threading import Lock
from typing import NamedTuple
from uuid import UUID

from wiggle_core.errors import AmbiguousStoreError, SchemaError, StoreError, TransientStoreError
from wiggle_core.stores.lanes import LaneId
from wiggle_core.stores.sql.migrations import upgrade_command
from wiggle_core.tasks.task import TaskId
from wiggle_store_cassandra.connections import Connections
from wiggle_store_cassandra.order import Kind, behind, of_ready
from wiggle_store_cassandra.rows import Statement, Stored, new_version, read_body, updated

TRIES = 30
"""How often a change is made anew after others were quicker, before it is given up as TRANSIENT."""

SEAL_AFTER = 256
"""How many tasks one process takes out of an open generation before it is sealed; also how often the beginnings of
sealed ones are noted. A read passes by no more than so many tombstones of each process that claims there."""

KNOWN = 100_000
"""Of how many queues and lanes of a shard something is kept in memory, before all of it is forgotten: names of queues
are the caller's, and lanes come and go."""

_SPACE = "SELECT shards FROM $space WHERE space = ?"
_STATICS = f"""
    SELECT epoch, moved, mark, version FROM $shard
    WHERE space = ? AND number = ? AND kind = {Kind.SHARD:d} AND place = 0x
"""
_GUARD = "UPDATE $shard SET touched = 0 WHERE space = ? AND number = ? IF {}"
_RAISE = "UPDATE $shard SET epoch = ? WHERE space = ? AND number = ? IF epoch = ?"
_MOVE = "UPDATE $shard SET moved = ? WHERE space = ? AND number = ? IF moved = ?"
_MARK = "UPDATE $shard SET mark = ? WHERE space = ? AND number = ? IF mark = ?"
_AT_QUEUE = f"WHERE space = ? AND number = ? AND kind = {Kind.QUEUE:d} AND place = ?"
_GENERATIONS = f"SELECT version, body FROM $shard {_AT_QUEUE}"
_ADD_GENERATIONS = f"""
    INSERT INTO $shard (space, number, kind, place, version, body) VALUES (?, ?, {Kind.QUEUE:d}, ?, ?, ?) IF NOT EXISTS
"""
_SET_GENERATIONS = f"UPDATE $shard SET version = ?, body = ? {_AT_QUEUE} IF version = ?"
_BEGINS = f"SELECT body FROM $shard WHERE space = ? AND number = ? AND kind = {Kind.BEGIN:d} AND place = ?"
_SET_BEGINS = f"INSERT INTO $shard (space, number, kind, place, body) VALUES (?, ?, {Kind.BEGIN:d}, ?, ?)"
_FIRST = f"""
    SELECT place FROM $shard WHERE space = ? AND number = ? AND kind = {Kind.READY:d} AND place >= ? AND place < ?
    LIMIT 1
"""
_SEALED = f"INSERT INTO $shard (space, number, kind, place) VALUES (?, ?, {Kind.READY:d}, ?)"
_TASKS = f"""
    SELECT version, body FROM $shard WHERE space = ? AND number = ? AND kind = {Kind.TASK:d} AND place IN ?
"""
_TASKS_WHOLE = _TASKS.replace("body", "body, payload")
_VERSION = f"SELECT version FROM $shard WHERE space = ? AND number = ? AND kind = {Kind.TASK:d} AND place = ?"


class Statics(NamedTuple):
    """What the tasks of a shard have in common."""

    epoch: int
    moved: int
    mark: int


@dataclass(frozen=True, slots=True)
class Generations:
    """Those of one queue in one shard. `sealed` has the place where reading each of them begins."""

    version: UUID
    open: int
    sealed: dict[int, bytes] = field(default_factory=dict)

    def begin(self, queue: str, generation: int) -> bytes:
        """Where reading the READY tasks of a generation begins."""
        return self.sealed.get(generation, of_ready(queue, generation))

    @property
    def all(self) -> list[int]:
        return [*sorted(self.sealed), self.open]


@dataclass(frozen=True, slots=True)
class Write:
    """One conditional batch to a shard. By `old` and `new`, one of its tasks before and after, it is told whether it
    was applied when no answer came; None for a task that is not there."""

    number: int
    statements: Sequence[Statement]
    old: Stored | None
    new: Stored | None


class Shards:
    """The shards of one space, as one process knows them. Thread-safe: what is known is replaced, never changed."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.space = connections.place.space
        self._count = 0
        self._statics: dict[int, Statics] = {}
        self._generations: dict[tuple[int, str], Generations] = {}
        self._begins: dict[tuple[int, LaneId], dict[int, bytes]] = {}
        self._taken: Counter[tuple[int, str, int] | tuple[int, LaneId]] = Counter()
        self._lock = Lock()

    @property
    def count(self) -> int:
        """How many there are; fixed when the space was made. Raises SchemaError."""
        if not self._count:
            rows = self.connections.rows(_SPACE, (self.space,))
            if not rows:
                place = self.connections.place
                raise SchemaError(
                    f"{place} has no space {self.space!r} yet: run `{upgrade_command(place.url)}`, or name another by "
                    "`?space=`"
                )
            self.reread(range(int(rows[0][0])))
            self._count = int(rows[0][0])
        return self._count

    def there(self) -> Connections:
        """The connections, once it is sure that the space is there. Raises SchemaError."""
        _ = self.count
        return self.connections

    def number_of(self, task_id: TaskId) -> int:
        """The shard of a task."""
        return int.from_bytes(blake2b(task_id.encode(), digest_size=4).digest(), "big") % self.count

    def by_number(self, ids: Sequence[TaskId]) -> dict[int, list[TaskId]]:
        """The ids of each shard."""
        found: dict[int, list[TaskId]] = {}
        for each in ids:
            found.setdefault(self.number_of(each), []).append(each)
        return found

    # Tasks

    def tasks(self, ids: Sequence[TaskId], *, whole: bool = False) -> dict[TaskId, Stored]:
        """Those of these tasks that are in their shards; their payloads only where they are asked for as a whole."""
        cql = _TASKS_WHOLE if whole else _TASKS
        asks = [
            (cql, (self.space, number, [each.encode() for each in part]))
            for number, part in self.by_number(ids).items()
        ]
        found = (read_body(*row) for rows in self.connections.many(asks) for row in rows)
        return {each.task.id: each for each in found}

    # Statics

    def statics(self, number: int) -> Statics:
        """What was known last. Whoever relies on it guards it."""
        found = self._statics.get(number)
        return self.reread([number])[number] if found is None else found

    def reread(self, numbers: Sequence[int]) -> dict[int, Statics]:
        """The statics of these shards as they are now."""
        answers = self.connections.many([(_STATICS, (self.space, number)) for number in numbers])
        if not all(answers):
            raise SchemaError(f"{self.connections.place} has no space {self.space!r} any more: somebody deleted it")
        found = {number: Statics(*rows[0][:3]) for number, rows in zip(numbers, answers, strict=True)}
        self._statics.update(found)
        return found

    def guard(self, number: int, **expected: int) -> Statement:
        """The condition that these statics are as expected."""
        cql = _GUARD.format(" AND ".join(f"{name} = ?" for name in expected))
        return cql, (self.space, number, *expected.values())

    def raise_epoch(self, number: int, epoch: int) -> None:
        """From now on nothing is placed there by an older epoch (N3). Raises StoreError."""
        for _ in range(TRIES):
            present = self.reread([number])[number].epoch
            if present >= epoch:
                return
            try:
                self.connections.applied([(_RAISE, (epoch, self.space, number, present))])
            except AmbiguousStoreError:
                self.settle(number)
        raise TransientStoreError(f"a shard of {self.connections.place} changes so fast that nothing can be done")

    def move_mark(self, number: int, mark: int, present: int) -> None:
        """Begin there from now on, unless somebody else has changed it."""
        try:
            if self.connections.applied([(_MARK, (mark, self.space, number, present))]):
                self._statics[number] = self.statics(number)._replace(mark=mark)
        except AmbiguousStoreError:
            self.settle(number)
            self.reread([number])

    def lower_mark(self, number: int, mark: int) -> None:
        """Begin there at the latest, whoever else changes it. Raises StoreError."""
        for _ in range(TRIES):
            present = self.reread([number])[number].mark
            if present <= mark:
                return
            self.move_mark(number, mark, present)
        raise TransientStoreError(f"a shard of {self.connections.place} changes so fast that nothing can be done")

    def next_moved(self, number: int) -> Statement:
        """Tells others that tasks move to history, if nobody else did meanwhile."""
        moved = self.statics(number).moved
        return _MOVE, (moved + 1, self.space, number, moved)

    # Generations

    def generations(self, number: int, queue: str) -> Generations | None:
        """Those known last; None where the queue never had a READY task. Whoever relies on it guards it, or reads the
        open one from its beginning, where there is a row once it is sealed."""
        return self._generations.get((number, queue)) or self.reread_generations(number, queue)

    def reread_generations(self, number: int, queue: str) -> Generations | None:
        """As they are now."""
        rows = self.connections.rows(_GENERATIONS, (self.space, number, queue.encode()))
        return self.note_generations(number, queue, _read(*rows[0])) if rows else None

    def generations_of(self, asked: Sequence[tuple[int, str]]) -> dict[tuple[int, str], Generations]:
        """Those of several queues in several shards."""
        # Found once: another thread may forget them at any time.
        found = {each: known for each in asked if (known := self._generations.get(each)) is not None}
        missing = [each for each in asked if each not in found]
        asks = [(_GENERATIONS, (self.space, number, queue.encode())) for number, queue in missing]
        for (number, queue), rows in zip(missing, self.connections.many(asks), strict=True):
            if rows:
                found[number, queue] = self.note_generations(number, queue, _read(*rows[0]))
        return found

    def note_generations(self, number: int, queue: str, known: Generations) -> Generations:
        """Know these from now on."""
        if len(self._generations) >= KNOWN:
            self._generations.clear()
        self._generations[number, queue] = known
        return known

    def forget_generations(self, number: int, queue: str) -> None:
        """Ask again when they are needed."""
        self._generations.pop((number, queue), None)

    def some_generations(self, number: int, queue: str) -> Generations:
        """The generations of a queue, made if there are none."""
        found = self.generations(number, queue)
        while found is None:
            new = Generations(new_version(), 1)
            binds = (self.space, number, queue.encode(), new.version, _body(new))
            self.connections.applied([(_ADD_GENERATIONS, binds)])
            found = self.reread_generations(number, queue)
        return found

    def guard_open(self, number: int, queue: str, known: Generations) -> Statement:
        """The condition that these are the generations still, so that the open one is open."""
        return _SET_GENERATIONS, (known.version, _body(known), self.space, number, queue.encode(), known.version)

    def note_taken(self, number: int, queue: str, generations: Sequence[int]) -> None:
        """Tasks of these generations are READY no more, by this process's doing. Now and then the open one is sealed,
        and the beginnings of sealed ones are kept."""
        with self._lock:
            if len(self._taken) >= KNOWN:
                self._taken.clear()
            for each in generations:
                self._taken[number, queue, each] += 1
            full = [each for each in set(generations) if self._taken[number, queue, each] >= SEAL_AFTER]
            for each in full:
                del self._taken[number, queue, each]
        if full and (known := self.generations(number, queue)) is not None:
            self._change(number, queue, self._begun(number, queue, known), is_sealed=known.open in full)

    def _begun(self, number: int, queue: str, known: Generations) -> Generations:
        """The same by what is left of the sealed ones: who claims from lanes alone does not see it (CA1)."""
        asks = [
            (_FIRST, (self.space, number, place, behind(of_ready(queue, each)))) for each, place in known.sealed.items()
        ]
        left = zip(known.sealed, self.connections.many(asks), strict=True)
        return replace(known, sealed={each: rows[0][0] for each, rows in left if rows})

    def note_begin(self, number: int, queue: str, generation: int, begin: bytes | None) -> None:
        """Reading a sealed generation begins there, as has been seen; None where nothing is left of it."""
        known = self._generations.get((number, queue))
        if known is None or generation not in known.sealed:
            return
        if begin is not None:
            if begin > known.sealed[generation]:
                self.note_generations(number, queue, replace(known, sealed=known.sealed | {generation: begin}))
            return
        sealed = {each: place for each, place in known.sealed.items() if each != generation}
        self._change(number, queue, replace(known, sealed=sealed), is_sealed=False)

    def begins_of(self, asked: Sequence[tuple[int, LaneId]]) -> dict[tuple[int, LaneId], dict[int, bytes]]:
        """Where reading lanes begins in sealed generations, as far as that was noted."""
        found = {each: known for each in asked if (known := self._begins.get(each)) is not None}
        missing = [each for each in asked if each not in found]
        asks = [(_BEGINS, (self.space, number, lane.to_bytes(8, "big"))) for number, lane in missing]
        for each, rows in zip(missing, self.connections.many(asks), strict=True):
            told = json.loads(rows[0][0]) if rows else []
            found[each] = self._note_begins(each, {generation: bytes.fromhex(place) for generation, place in told})
        return found

    def _note_begins(self, at: tuple[int, LaneId], begins: dict[int, bytes]) -> dict[int, bytes]:
        if len(self._begins) >= KNOWN:
            self._begins.clear()
        self._begins[at] = begins
        return begins

    def forget_begins(self, lanes: Collection[LaneId]) -> None:
        """Begin these lanes where it was noted last."""
        for number, lane in product(range(self.count), lanes):
            self._begins.pop((number, lane), None)

    def note_lane_begin(self, number: int, lane: LaneId, generation: int, begin: bytes) -> None:
        """Reading a lane in a sealed generation begins there, as has been seen."""
        known = self._begins.get((number, lane), {})
        if begin > known.get(generation, b""):
            self._note_begins((number, lane), known | {generation: begin})

    def note_taken_from_lane(self, number: int, queue: str, lane: LaneId, count: int) -> None:
        """So many tasks left a lane, by this process's doing. Now and then it is kept where reading it begins."""
        with self._lock:
            if len(self._taken) >= KNOWN:
                self._taken.clear()
            self._taken[number, lane] += count
            if self._taken[number, lane] < SEAL_AFTER:
                return
            del self._taken[number, lane]
        known = self.generations(number, queue)
        sealed = {} if known is None else known.sealed
        begins = sorted((each, place) for each, place in self._begins.get((number, lane), {}).items() if each in sealed)
        body = json.dumps([[each, place.hex()] for each, place in begins])
        put = _SET_BEGINS, (self.space, number, lane.to_bytes(8, "big"), body)
        # Whether it is written matters as little as by whom: one that is older begins earlier.
        self.connections.applied_all([[self.guard(number, mark=self.statics(number).mark), put]])

    def _change(self, number: int, queue: str, known: Generations, *, is_sealed: bool) -> None:
        """Keep what is known; one that was changed by somebody else meanwhile is left as it is there."""
        new, marks = replace(known, version=new_version()), []
        if is_sealed:
            begin = of_ready(queue, known.open)
            # Behind the row that tells those who still take it for open.
            new = replace(new, open=known.open + 1, sealed=known.sealed | {known.open: begin + b"\0"})
            marks = [(_SEALED, (self.space, number, begin))]
        binds = (new.version, _body(new), self.space, number, queue.encode(), known.version)
        (outcome,) = self.connections.applied_all([[(_SET_GENERATIONS, binds), *marks]])
        if outcome is True:
            self.note_generations(number, queue, new)
        else:  # by somebody else, or not at all: the next one does it, and what called for it has been done
            self.forget_generations(number, queue)

    # Changes

    def update(self, number: int, turn: Sequence[tuple[Stored, Stored]], guards: Sequence[Statement] = ()) -> Write:
        """The batch that makes of these tasks what is beside each, if all are as they were and the guards hold."""
        changes = (each for old, new in turn for each in updated(self.space, number, old, new))
        return Write(number, [*guards, *changes], *turn[0])

    def write(self, writes: Sequence[Write]) -> list[bool]:
        """Send conditional batches side by side; whether each was applied.

        Raises AmbiguousStoreError when one may have been, or when one failed after another was applied.
        """
        outcomes = self.connections.applied_all([each.statements for each in writes])
        told = [self._settled(write, outcome) for write, outcome in zip(writes, outcomes, strict=True)]
        errors = [each for each in told if isinstance(each, StoreError)]
        if not errors:
            return [each is True for each in told]
        if any(each is True for each in told) and not isinstance(errors[0], AmbiguousStoreError):
            raise AmbiguousStoreError("a part of a change was applied, and a part was not") from errors[0]
        raise next((each for each in errors if isinstance(each, AmbiguousStoreError)), errors[0])

    def _settled(self, write: Write, outcome: bool | StoreError) -> bool | StoreError:
        """What came of a batch, found out by its task where no answer came (CA3).

        One that is not seen may wait for its turn on a node yet. It is sent again as it was: of the two, one at most
        takes effect, and then neither does later, for what they are conditional on does not come back.
        """
        if not isinstance(outcome, AmbiguousStoreError):
            return outcome
        found = self._is_applied(write)
        if found is None or found:
            return outcome if found is None else True
        (again,) = self.connections.applied_all([write.statements])
        if again is False:
            found = self._is_applied(write)
            return outcome if found is None else found
        return again if again is True else outcome

    def _is_applied(self, write: Write) -> bool | None:
        """Whether a task is as a batch leaves it, or as it was before; None for neither, and when nobody answers."""
        task = write.new or write.old
        assert task is not None, "a batch changes a task"
        try:
            rows = self.connections.serial_rows(_VERSION, (self.space, write.number, task.place))
        except StoreError:
            return None
        found = rows[0][0] if rows else None
        if found == (None if write.new is None else write.new.version):
            return True
        return False if found == (None if write.old is None else write.old.version) else None

    def settle(self, number: int) -> None:
        """Bring to an end what is under way in a shard."""
        self.connections.serial_rows(_STATICS, (self.space, number))


def _body(known: Generations) -> str:
    return json.dumps([known.open, [[each, place.hex()] for each, place in sorted(known.sealed.items())]])


def _read(version: UUID, body: str) -> Generations:
    opened, sealed = json.loads(body)
    return Generations(version, opened, {each: bytes.fromhex(place) for each, place in sealed})
