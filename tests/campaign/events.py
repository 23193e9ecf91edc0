"""The ledgers of all lives as what happened to each task: calls with their beginnings, ends and answers.

Times are monotonic microseconds. What a call did, it did between its start and its end. `held` is what the store
answered; None when nobody can know, because the process was killed or the answer was an AMBIGUOUS error.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.ledger import whole_lines
from tests.campaign.clock import FOREVER
from wiggle_core.tasks.task import TaskId

GRACE = 2_000_000
"""A server may still carry out what a client sent before it died, or before it lost the connection."""


@dataclass(frozen=True, slots=True)
class Arriving:
    """One task of an enqueue; `ready_at` is in database time, 0 for one that was READY at once; `held` is whether it
    was inserted now."""

    start: int
    end: int
    ready_at: int
    held: bool | None


@dataclass(frozen=True, slots=True)
class Leasing:
    """A lease that a claim answered with. `at` is when its process last read the clock within the call; `until` is the
    lease's end in database time."""

    start: int
    end: int
    at: int
    token: str
    attempt: int
    until: int


@dataclass(frozen=True, slots=True)
class Keeping:
    """An extension asked for by a token, by `ttl` microseconds."""

    start: int
    end: int
    token: str
    ttl: int
    held: bool | None


@dataclass(frozen=True, slots=True)
class Changing:
    """A change asked for; `settled` is the state in history that it leads to, None for one that leaves it live."""

    start: int
    end: int
    kind: str
    token: str | None
    settled: str | None
    held: bool | None


@dataclass(slots=True)
class Biography:
    """All that is known of one task."""

    arrivals: list[Arriving] = field(default_factory=list)
    leasings: list[Leasing] = field(default_factory=list)
    keepings: list[Keeping] = field(default_factory=list)
    changings: list[Changing] = field(default_factory=list)
    is_told: bool = False
    """Whether an enqueuer was told that it is stored."""
    told_settled: list[tuple[str, str]] = field(default_factory=list)
    """Token and state of each settlement that a claimer was told to hold."""


@dataclass(frozen=True, slots=True)
class Span:
    """A call of which nobody knows what it did."""

    start: int
    end: int


@dataclass(slots=True)
class Events:
    """What all ledgers say together."""

    tasks: defaultdict[TaskId, Biography] = field(default_factory=lambda: defaultdict(Biography))
    orphans: list[Span] = field(default_factory=list)
    """Claims that may have leased what no ledger tells."""
    cut_off: Counter[str] = field(default_factory=Counter)
    """Calls by method that a kill cut off."""
    errors: Counter[str] = field(default_factory=Counter)
    """What the store itself raised, by class."""
    by_lane: int = 0
    """Tasks that claims got through lanes."""


@dataclass(slots=True)
class _Call:
    start: int
    method: str
    asked: Any  # Any: parsed JSON
    end: int = FOREVER
    read_at: int = 0
    answer: Any = None  # Any: parsed JSON
    error: str | None = None

    @property
    def is_unknown(self) -> bool:
        return self.answer is None and self.error in (None, "AmbiguousStoreError")


def read_events(directory: Path, deaths: Mapping[str, int]) -> Events:
    """The events of every ledger in the directory. `deaths` tells when each life had ended, by the ledger's name."""
    events = Events()
    for name, lines in _ledgers(directory):
        calls: dict[int, _Call] = {}
        for line in lines:
            _read_line(json.loads(line), calls, events)
        for call in calls.values():
            _finish(call, deaths.get(name, FOREVER), events)
            _TAKE[call.method](call, events)
    return events


def _ledgers(directory: Path) -> Iterator[tuple[str, list[str]]]:
    """Each life's name and lines, its pieces in their order."""
    pieces: defaultdict[str, list[tuple[int, Path]]] = defaultdict(list)
    for path in directory.glob("*.ledger*"):
        name, _, number = path.name.partition(".ledger")
        pieces[name].append((int(number[1:] or 0), path))
    for name in sorted(pieces):
        yield name, [line for _, path in sorted(pieces[name]) for line in whole_lines(path)]


def _read_line(line: list[Any], calls: dict[int, _Call], events: Events) -> None:  # Any: parsed JSON
    match line:
        case ["begin", number, start, method, asked]:
            calls[number] = _Call(start, method, asked)
        case ["end", number, end, read_at, answer]:
            call = calls[number]
            call.end, call.read_at, call.answer = end, read_at, answer
        case ["error", number, end, name]:
            calls[number].end, calls[number].error = end, name
            events.errors[name] += 1
        case ["told", "enqueued", ids]:
            for task_id in ids:
                events.tasks[task_id].is_told = True
        case ["told", "settled", task_id, token, state]:
            events.tasks[task_id].told_settled.append((token, state))
        case _:
            raise ValueError(f"{line!r} is no line of a ledger")


def _finish(call: _Call, death: int, events: Events) -> None:
    """Bound what is unknown by the end of its process."""
    if call.is_unknown:
        if call.error is None:
            events.cut_off[call.method] += 1
        call.end = min(call.end, death) + GRACE


def _held(call: _Call, is_in_answer: bool) -> bool | None:
    return None if call.is_unknown else is_in_answer


def _take_enqueue(call: _Call, events: Events) -> None:
    inserted = set(call.answer or ())
    for task_id, ready_at in call.asked:
        held = _held(call, task_id in inserted)
        if call.error in (None, "AmbiguousStoreError"):
            events.tasks[task_id].arrivals.append(Arriving(call.start, call.end, ready_at, held))


def _take_claim(call: _Call, events: Events) -> None:
    token, _, lanes = call.asked
    if lanes:
        events.by_lane += len(call.answer or ())
    if call.is_unknown:
        events.orphans.append(Span(call.start, call.end))
    for task_id, attempt, until in call.answer or ():
        leasing = Leasing(call.start, call.end, call.read_at, token, attempt, until)
        events.tasks[task_id].leasings.append(leasing)


def _take_extend(call: _Call, events: Events) -> None:
    ttl, leases = call.asked
    held = {tuple(lease) for lease in call.answer or ()}
    for task_id, token in leases:
        keeping = Keeping(call.start, call.end, token, ttl, _held(call, (task_id, token) in held))
        events.tasks[task_id].keepings.append(keeping)


def _take_apply(call: _Call, events: Events) -> None:
    applied = set(call.answer or ())
    named = Counter(task_id for _, task_id, _, _ in call.asked)
    for kind, task_id, token, settled in call.asked:
        held = _held(call, task_id in applied)
        if held and named[task_id] > 1:
            held = None  # the ids do not tell which of several changes to one task held
        events.tasks[task_id].changings.append(Changing(call.start, call.end, kind, token, settled, held))


_TAKE = {"enqueue": _take_enqueue, "claim": _take_claim, "extend": _take_extend, "apply": _take_apply}
