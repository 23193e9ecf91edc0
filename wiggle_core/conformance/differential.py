"""The differential test: a store's answers to hostile predicates against the reference evaluator, set and order (C8).

The suite runs some thousand pairs; `python -m wiggle_core.conformance differential` runs a million.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import uuid4

from wiggle_core.conformance.plugin import are_first, enqueue_all
from wiggle_core.conformance.reach import Reach
from wiggle_core.conformance.strategies import Hostile
from wiggle_core.criteria.evaluate import matches
from wiggle_core.criteria.tree import Predicate, normalize
from wiggle_core.criteria.wire import predicate_to_object
from wiggle_core.stores.store import ClaimRequest, GiveBack, Route, Store
from wiggle_core.tasks.task import State, TaskId, TaskRecord

PREDICATES_A_ROUND = 512
CLAIM_EVERY = 8
"""One predicate in so many is also tried by a claim, which costs as much as many finds."""

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

    store: Store
    queue: str
    tasks: list[TaskRecord]

    @classmethod
    def begin(cls, store: Store, hostile: Hostile, serial: int, size: int) -> Round:
        queue = hostile.queue(serial)
        tasks = [hostile.task(f"{serial}-{number}", queue) for number in range(size)]
        enqueue_all(store, tasks)
        return cls(store, queue, sorted(tasks, key=lambda task: task.order_key))

    def expected(self, predicate: Predicate) -> list[TaskId]:
        """The ids of the tasks that match, by the evaluator, in claim order."""
        return [task.id for task in self.tasks if matches(predicate, task)]

    def found(self, predicate: Predicate) -> list[TaskId]:
        """The ids that the store finds."""
        return [task.id for task in self.store.find(self._route(predicate), [State.READY], len(self.tasks) + 1)]

    def counted(self, predicate: Predicate) -> int:
        """How many the store counts."""
        return self.store.count(self._route(predicate), [State.READY], len(self.tasks) + 1)

    def claimed(self, predicate: Predicate, limit: int) -> list[TaskId]:
        """The ids that a claim takes, all released again afterwards."""
        request = ClaimRequest("differential", uuid4().hex, _TTL, limit, (self._route(predicate),))
        claimed = self.store.claim(request)
        self.store.apply([GiveBack(task.lease, task.attributes) for task in claimed])
        return [task.id for task in claimed]

    def _route(self, predicate: Predicate) -> Route:
        return Route(self.queue, normalize(predicate))


def compare(
    store: Store, pairs: int, seed: int, tasks: int = 128, progress: Callable[[Findings], None] | None = None
) -> Findings:
    """Try at least `pairs` (predicate, task) pairs on an empty store, a fresh queue of `tasks` every 512 predicates."""
    hostile, findings, serial = Hostile(seed), Findings(), 0
    while findings.pairs < pairs:
        _run(Round.begin(store, hostile, serial, tasks), hostile, findings, pairs)
        serial += 1
        if progress is not None:
            progress(findings)
    return findings


def _run(each: Round, hostile: Hostile, findings: Findings, pairs: int) -> None:
    for _ in range(PREDICATES_A_ROUND):
        if findings.pairs >= pairs:
            return
        predicate = hostile.predicate()
        if findings.predicates < PREDICATES_A_ROUND:
            findings.reach.note(predicate, each.tasks)
        expected = each.expected(predicate)
        findings.judge(Answer("find", predicate, expected, each.found(predicate)))
        findings.judge(Answer("count", predicate, [str(len(expected))], [str(each.counted(predicate))]))
        if findings.predicates % CLAIM_EVERY == 0:
            limit = hostile.random.randint(1, len(each.tasks))
            claimed = each.claimed(predicate, limit)
            first = claimed if are_first(each.store, claimed, expected, limit) else expected[:limit]
            findings.judge(Answer("claim", predicate, first, claimed))
            findings.claims += 1
        findings.predicates += 1
        findings.pairs += len(each.tasks)
        findings.matched += len(expected)
