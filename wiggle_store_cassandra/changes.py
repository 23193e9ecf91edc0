"""Changes of tasks: read the task, ask the core what the change makes of it, and write that if nothing came between.

The guards and their meaning are the core's own (`wiggle_core.stores.changes`); what makes them hold is the version on
which each write is conditional.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from wiggle_core.errors import TransientStoreError
from wiggle_core.stores.changes import changed, is_leased, makes_ready, permits
from wiggle_core.stores.lanes import LaneId, Placed
from wiggle_core.stores.store import Change, Revive, change_id
from wiggle_core.tasks.task import SETTLED, Lease, State, TaskId, TaskRecord
from wiggle_store_cassandra import history
from wiggle_store_cassandra.book import Book
from wiggle_store_cassandra.enqueueing import BYTES_AT_ONCE, Inserting, Wanted, catch_up, next_ready_no, told_whole
from wiggle_store_cassandra.rows import Statement, Stored, become, new_version
from wiggle_store_cassandra.shards import TRIES, Shards, Statics

CHANGES_AT_ONCE = 100
"""How many tasks one batch changes."""


def extend(shards: Shards, now: int, leases: Sequence[Lease], ttl: int) -> set[Lease]:
    """Move the ends of leases; those that held (L2)."""
    held: set[Lease] = set()
    left = {lease.task_id: lease for lease in leases}
    # Two leases on one task: at most one of them is its last.
    twice = [lease for lease in leases if left[lease.task_id] != lease]
    for _ in range(TRIES):
        tasks = shards.tasks(list(left))
        left = {
            each: lease for each, lease in left.items() if each in tasks and is_leased(tasks[each].task, lease.token)
        }
        if not left:
            return held | extend(shards, now, twice, ttl) if twice else held
        turns: dict[int, list[tuple[Stored, Stored]]] = {}
        for number, ids in shards.by_number(list(left)).items():
            mark = shards.statics(number).mark
            turns[number] = [(tasks[each], _extended(tasks[each], now + ttl, mark)) for each in ids[:CHANGES_AT_ONCE]]
        for number, is_done in zip(turns, _write(shards, turns, {}), strict=True):
            if is_done:
                held.update(left.pop(old.task.id) for old, _ in turns[number])
            else:
                shards.reread([number])
    raise _too_fast(shards)


def _extended(old: Stored, lease_until: int, mark: int) -> Stored:
    return become(old, replace(old.task, lease_until=lease_until), due=max(lease_until, mark))


class Applying:
    """One call's changes, again and again until each took effect or is known not to."""

    def __init__(self, shards: Shards, book: Book, now: int, placed: Placed) -> None:
        self._shards = shards
        self._book = book
        self._now = now
        self._placed = placed
        self.done: set[TaskId] = set()

    def apply(self, changes: Sequence[Change]) -> set[TaskId]:
        """Apply guarded changes; the ids of those that took effect. Raises StaleLanes."""
        if any(map(makes_ready, changes)):
            self._book.require_epoch(self._placed.epoch)
        with told_whole(self.done):
            self._apply_all(changes)
        return self.done

    def _apply_all(self, changes: Sequence[Change]) -> None:
        left = list(enumerate(changes))
        while left:  # once, unless two of them are about one task
            first: dict[TaskId, tuple[int, Change]] = {}
            later = []
            for index, change in left:
                if change_id(change) in first:
                    later.append((index, change))
                else:
                    first[change_id(change)] = (index, change)
            self._apply(first)
            left = later

    def _apply(self, changes: dict[TaskId, tuple[int, Change]]) -> None:
        shards, left = self._shards, dict(changes)
        failures = 0
        while failures < TRIES:
            tasks = shards.tasks(list(left))
            self._revive({each: left.pop(each) for each in list(left) if self._is_in_history(left[each][1], tasks)})
            left = {
                each: told
                for each, told in left.items()
                if each in tasks and permits(tasks[each].task, told[1], self._now)
            }
            if not left:
                return
            turns, guards = self._turns(tasks, left)
            outcomes = _write(shards, turns, guards)
            for number, is_done in zip(turns, outcomes, strict=True):
                if is_done:
                    self._note(number, turns[number])
                    for old, _ in turns[number]:
                        del left[old.task.id]
            failed = [number for number, is_done in zip(turns, outcomes, strict=True) if not is_done]
            if failed:
                failures += 1
                self._look_again(failed, turns)
        raise _too_fast(shards)

    def _is_in_history(self, change: Change, tasks: dict[TaskId, Stored]) -> bool:
        return isinstance(change, Revive) and change.task_id not in tasks

    def _turns(
        self, tasks: dict[TaskId, Stored], left: dict[TaskId, tuple[int, Change]]
    ) -> tuple[dict[int, list[tuple[Stored, Stored]]], dict[int, list[Statement]]]:
        """For each shard the tasks before and after, and what they depend on beside."""
        shards = self._shards
        turns: dict[int, list[tuple[Stored, Stored]]] = {}
        guards: dict[int, list[Statement]] = {}
        for number, ids in shards.by_number(list(left)).items():
            statics, results = shards.statics(number), self._results(tasks, {each: left[each][1] for each in ids})
            ready = {task.queue for task in results.values() if task.state is State.READY}
            generations = {queue: shards.some_generations(number, queue) for queue in sorted(ready)}
            turns[number] = [
                (
                    tasks[each],
                    self._after(
                        tasks[each], task, statics, self._placed.of(left[each][0]),
                        generations[task.queue].open if task.queue in generations else 0,
                    ),
                )
                for each, task in results.items()
            ]  # fmt: skip
            expected = {"mark": statics.mark} | ({"epoch": self._placed.epoch} if ready else {})
            guards[number] = [
                shards.guard(number, **expected),
                *(shards.guard_open(number, queue, each) for queue, each in generations.items()),
            ]
        return turns, guards

    def _results(self, tasks: dict[TaskId, Stored], wanted: dict[TaskId, Change]) -> dict[TaskId, TaskRecord]:
        """What becomes of these tasks, as many as one batch changes."""
        results: dict[TaskId, TaskRecord] = {}
        size = 0
        for task_id, change in islice(wanted.items(), CHANGES_AT_ONCE):
            task = changed(tasks[task_id].task, change, self._now)
            size += len(task.result or "")
            if results and size > BYTES_AT_ONCE:
                break
            results[task_id] = task
        return results

    def _after(
        self, old: Stored, task: TaskRecord, statics: Statics, lanes: Sequence[LaneId], generation: int
    ) -> Stored:
        if task.state is State.READY:
            no = next_ready_no(old.ready_no)
            return Stored(task, new_version(), no, generation, tuple(lanes), back_from=old.back_from)
        due = task.finished_at if task.state in SETTLED else task.ready_at
        return become(old, task, due=max(due or 0, statics.mark))

    def _note(self, number: int, turn: Sequence[tuple[Stored, Stored]]) -> None:
        self.done.update(old.task.id for old, _ in turn)
        for old, _ in turn:
            if old.task.state is State.READY:
                self._shards.note_taken(number, old.task.queue, [old.generation])

    def _look_again(self, failed: Sequence[int], turns: dict[int, list[tuple[Stored, Stored]]]) -> None:
        statics = self._shards.reread(failed)
        for number in failed:
            ready = {new.task.queue for _, new in turns[number] if new.task.state is State.READY}
            for queue in ready:
                self._shards.forget_generations(number, queue)
            if ready:
                catch_up(self._shards, number, statics, self._placed.epoch, self.done)

    def _revive(self, changes: dict[TaskId, tuple[int, Change]]) -> None:
        """Bring tasks back that are in history: they are new to their shards, and then history forgets them."""
        if not changes:
            return
        shards = self._shards
        # Before history is read, as a guard of what is found there: another thread may know later ones.
        statics = {number: shards.statics(number) for number in shards.by_number(list(changes))}
        kept = history.get(shards, list(changes), whole=True)
        found = {
            each: kept[each]
            for each, (_, change) in changes.items()
            if each in kept and permits(kept[each].stored.task, change, self._now)
        }
        inserted = Inserting(shards, self._placed.epoch, self.done).insert(
            [
                Wanted(
                    changed(each.stored.task, changes[task_id][1], self._now),
                    self._placed.of(changes[task_id][0]),
                    each,
                )
                for task_id, each in found.items()
            ],
            statics,
        )
        for each in inserted:
            shards.connections.write(history.forgotten(shards.space, each, found[each].name))


def _write(
    shards: Shards, turns: dict[int, list[tuple[Stored, Stored]]], guards: dict[int, list[Statement]]
) -> list[bool]:
    writes = []
    for number, turn in turns.items():
        mark = [shards.guard(number, mark=shards.statics(number).mark)]
        writes.append(shards.update(number, turn, guards.get(number, mark)))
    return shards.write(writes)


def _too_fast(shards: Shards) -> TransientStoreError:
    return TransientStoreError(f"tasks in {shards.connections.place} change so fast that no other change can be made")
