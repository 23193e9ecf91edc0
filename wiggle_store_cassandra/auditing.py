"""What is wrong with stored tasks and lanes (`wiggle db check`): each shard is read whole and compared with itself."""

from __future__ import annotations

from collections.abc import Iterator

from wiggle_core.criteria.evaluate import Matcher, compile_predicate
from wiggle_core.stores.lanes import Lane, LaneState
from wiggle_core.tasks.task import SETTLED, State
from wiggle_store_cassandra import history
from wiggle_store_cassandra.book import Book
from wiggle_store_cassandra.order import Kind, of_ready
from wiggle_store_cassandra.rows import Place, Stored, read_body
from wiggle_store_cassandra.shards import Generations, Shards

_TASKS = f"SELECT version, body FROM $shard WHERE space = ? AND number = ? AND kind = {Kind.TASK:d}"
_PLACES = "SELECT place FROM $shard WHERE space = ? AND number = ? AND kind = ?"
_BESIDE = (Kind.READY, Kind.SCHEDULED, Kind.LEASED, Kind.SETTLED, Kind.LANE)
SHOWN = 20


def audit(shards: Shards, book: Book) -> list[str]:
    """A sentence for each thing that is wrong; empty when all is well."""
    epochs = {number: each.epoch for number, each in shards.reread(range(shards.count)).items()}
    epoch = book.numbers().epoch
    open_lanes = [each.lane for each in book.read()[1].values() if each.lane.state is LaneState.OPEN]
    matchers = {lane.id: (lane, compile_predicate(lane.predicate)) for lane in open_lanes}
    found = [
        f"shard {number} holds to lanes of a time to come: restore the table of lanes"
        for number, each in epochs.items()
        if each > epoch
    ]
    for number in range(shards.count):
        found += _audit(shards, number, matchers)
        if len(found) >= SHOWN:
            break
    return found[:SHOWN]


def _audit(shards: Shards, number: int, matchers: dict[int, tuple[Lane, Matcher]]) -> Iterator[str]:
    """Whatever differs is looked at again, task by task: the shard changes while it is read."""
    suspects = _suspects(shards, number, matchers)
    for _ in range(2):
        if not suspects:
            return
        suspects = {each: told for each, told in _suspects(shards, number, matchers).items() if each in suspects}
    yield from suspects.values()


def _suspects(shards: Shards, number: int, matchers: dict[int, tuple[Lane, Matcher]]) -> dict[str, str]:
    tasks = [read_body(*row) for row in shards.connections.rows(_TASKS, (shards.space, number))]
    answers = shards.connections.many([(_PLACES, (shards.space, number, kind)) for kind in _BESIDE])
    present: set[Place] = {(kind, place) for kind, rows in zip(_BESIDE, answers, strict=True) for (place,) in rows}
    found: dict[str, str] = {}
    for stored in tasks:
        task_id, beside = stored.task.id, set(stored.beside())
        if not beside <= present:
            found[f"lacks {task_id}"] = f"task {task_id!r} is {stored.task.state} but cannot be found as such"
        present -= beside
        found |= {f"{told} {task_id}": f"task {task_id!r} {told}" for told in _wrong(stored, matchers)}
        if shards.number_of(task_id) != number:
            found[f"shard {task_id}"] = f"task {task_id!r} is in shard {number}, where nobody looks for it"
        known = shards.generations(number, stored.task.queue) if stored.task.state is State.READY else None
        if known is not None and not _is_reached(stored, known):
            shards.forget_generations(number, stored.task.queue)
            found[f"passed {task_id}"] = f"task {task_id!r} is READY before the place where claims begin"
    for kind, place in present - _sealed(shards, number):
        found[f"{kind} {place.hex()}"] = f"shard {number} has a row among {Kind(kind).name} that belongs to no task"
    live = {each.task.id: each for each in tasks if each.task.state not in SETTLED}
    twice = [each for each, kept in history.get(shards, list(live)).items() if live[each].back_from != kept.name]
    return found | {f"kept {each}": f"task {each!r} is both live and in history" for each in twice}


def _wrong(stored: Stored, matchers: dict[int, tuple[Lane, Matcher]]) -> Iterator[str]:
    task = stored.task
    if task.state is State.RUNNING and (task.lease_until is None or task.token is None):
        yield "is RUNNING without a lease"
    if task.state is not State.READY:
        return
    for lane, is_match in matchers.values():
        is_in = lane.id in stored.lanes
        if lane.queue == task.queue and is_in != is_match(task):
            yield (
                f"is in lane {lane.id} without matching it" if is_in else f"is not in lane {lane.id}, which it matches"
            )


def _is_reached(stored: Stored, known: Generations) -> bool:
    """Whether reading its generation begins before it."""
    (_, place), *_ = stored.beside()
    return stored.generation in known.all and place >= known.begin(stored.task.queue, stored.generation)


def _sealed(shards: Shards, number: int) -> set[Place]:
    """The rows that tell that a generation is sealed."""
    queues = shards.connections.rows(
        f"SELECT place FROM $shard WHERE space = ? AND number = ? AND kind = {Kind.QUEUE:d}", (shards.space, number)
    )
    found: set[Place] = set()
    for (place,) in queues:
        known = shards.reread_generations(number, place.decode())
        if known is not None:
            found |= {(Kind.READY, of_ready(place.decode(), each)) for each in range(1, known.open)}
    return found
