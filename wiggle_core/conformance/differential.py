"""The differential test: a store's answers to hostile predicates against the reference evaluator, set and order (C8).

The suite runs some thousand pairs; `python -m wiggle_core.conformance differential` runs a million.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from wiggle_core.conformance.laned import Laned, by_lane
from wiggle_core.conformance.plugin import are_first
from wiggle_core.conformance.reach import Reach
from wiggle_core.conformance.strategies import Hostile
from wiggle_core.criteria.evaluate import matches
from wiggle_core.criteria.tree import Predicate, normalize
from wiggle_core.criteria.wire import predicate_to_object
from wiggle_core.stores.lanes import Lane
from wiggle_core.stores.store import ClaimRequest, GiveBack, Route, Store
from wiggle_core.tasks.task import State, TaskId, TaskRecord

PREDICATES_A_ROUND = 512
CLAIM_EVERY = 8
"""One predicate in so many is also tried by a claim, which costs as much as many finds."""
PRUNE_EVERY = 8
"""Each claim leaves dead rows in the lanes of the others. A store may pass by a thousand of them at most in a claim,
and then come back with fewer tasks than there are (O2, N4): somebody has to prune, as in life."""

_TTL = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Answer:
    """What a store answered, and what the evaluator says. For `count` the lists hold the numbers, as text."""

    by: str
    predicate: Predicate
    expected: list[str]
    got: list[str]

    def to_object(self) -> dict[str, object]:
        """For JSON: the predicate in wire form, and what was missing, surplus or merely out of order."""
        return {
            "by": self.by,
            "where": predicate_to_object(self.predicate),
            "missing": [each for each in self.expected if each not in self.got],
            "surplus": [each for each in self.got if each not in self.expected],
            "expected": self.expected,
            "got": self.got,
        }


@dataclass(slots=True)
class Findings:
    """What a run compared and found."""

    predicates: int = 0
    pairs: int = 0
    claims: int = 0
    by_lanes: int = 0
    matched: int = 0
    disagreements: list[Answer] = field(default_factory=list)
    reach: Reach = field(default_factory=Reach)

    def judge(self, answer: Answer) -> None:
        """Keep an answer that was not the evaluator's."""
        if answer.got != answer.expected:
            self.disagreements.append(answer)


@dataclass(frozen=True, slots=True)
class Round:
    """One queue of hostile tasks, in claim order, on the store."""

    laned: Laned
    queue: str
    tasks: list[TaskRecord]
    lanes: dict[Predicate, Lane]

    @classmethod
    def begin(cls, store: Store, hostile: Hostile, serial: int, size: int, in_lanes: Sequence[Predicate] = ()) -> Round:
        """A new queue; tasks find the lanes of the first half of `in_lanes` there, those of the rest are filled."""
        queue = hostile.queue(serial)
        tasks = [hostile.task(f"{serial}-{number}", queue) for number in range(size)]
        laned, half = Laned.over(store), len(in_lanes) // 2
        lanes = laned.open(*in_lanes[:half], queue=queue) if half else []
        for start in range(0, size, store.capabilities.max_batch):
            laned.enqueue(tasks[start : start + store.capabilities.max_batch])
        lanes += laned.open(*in_lanes[half:], queue=queue) if in_lanes else []
        by_predicate = {lane.predicate: lane for lane in lanes}
        return cls(laned, queue, sorted(tasks, key=lambda task: task.order_key), by_predicate)

    @property
    def store(self) -> Store:
        return self.laned.store

    def end(self) -> None:
        """Close what it opened."""
        if self.lanes:
            self.laned.close(*self.lanes.values())

    def expected(self, predicate: Predicate) -> list[TaskId]:
        """The ids of the tasks that match, by the evaluator, in claim order."""
        return [task.id for task in self.tasks if matches(predicate, task)]

    def found(self, predicate: Predicate) -> list[TaskId]:
        """The ids that the store finds."""
        return [task.id for task in self.store.find(self._route(predicate), [State.READY], len(self.tasks) + 1)]

    def counted(self, predicate: Predicate) -> int:
        """How many the store counts."""
        return self.store.count(self._route(predicate), [State.READY], len(self.tasks) + 1)

    def claimed(self, predicate: Predicate, limit: int, lane: Lane | None = None) -> list[TaskId]:
        """The ids that a claim takes, by a walk or by a lane, all released again afterwards."""
        chosen = self._route(predicate) if lane is None else by_lane(lane)
        claimed = self.store.claim(ClaimRequest("differential", uuid4().hex, _TTL, limit, (chosen,)))
        self.laned.apply([(GiveBack(task.lease, task.attributes), task) for task in claimed])
        return [task.id for task in claimed]

    def _route(self, predicate: Predicate) -> Route:
        return Route(self.queue, normalize(predicate))


def compare(
    store: Store,
    pairs: int,
    seed: int,
    tasks: int = 128,
    progress: Callable[[Findings], None] | None = None,
    *,
    by_lanes: bool = False,
) -> Findings:
    """Try at least `pairs` (predicate, task) pairs on an empty store, a fresh queue of `tasks` every 512 predicates.

    With `by_lanes`, each predicate that is tried by a claim has a lane, and is tried by a claim through it, too.
    """
    hostile, findings, serial = Hostile(seed), Findings(), 0
    while findings.pairs < pairs:
        size = min(PREDICATES_A_ROUND, -(-(pairs - findings.pairs) // tasks))
        predicates = [hostile.predicate() for _ in range(size)]
        tried = Round.begin(store, hostile, serial, tasks, predicates[::CLAIM_EVERY] if by_lanes else ())
        _run(tried, predicates, hostile, findings)
        tried.end()
        serial += 1
        if progress is not None:
            progress(findings)
    return findings


def _run(each: Round, predicates: Sequence[Predicate], hostile: Hostile, findings: Findings) -> None:
    for number, predicate in enumerate(predicates):
        if findings.predicates < PREDICATES_A_ROUND:
            findings.reach.note(predicate, each.tasks)
        expected = each.expected(predicate)
        findings.judge(Answer("find", predicate, expected, each.found(predicate)))
        findings.judge(Answer("count", predicate, [str(len(expected))], [str(each.counted(predicate))]))
        if number % CLAIM_EVERY == 0:
            _claim(each, predicate, hostile.random.randint(1, len(each.tasks)), expected, findings)
        findings.predicates += 1
        findings.pairs += len(each.tasks)
        findings.matched += len(expected)


def _claim(each: Round, predicate: Predicate, limit: int, expected: list[TaskId], findings: Findings) -> None:
    lane = each.lanes.get(normalize(predicate))
    if lane is not None and findings.by_lanes % PRUNE_EVERY == 0:
        each.laned.prune()
    ways = {"claim": None} if lane is None else {"claim": None, "claim by lane": lane}
    for by, chosen in ways.items():
        got = each.claimed(predicate, limit, chosen)
        first = got if are_first(each.store, got, expected, limit) else expected[:limit]
        findings.judge(Answer(by, predicate, first, got))
    findings.claims += 1
    findings.by_lanes += lane is not None
