"""The processes of a campaign. Each is one life of one actor: `python -m tests.campaign.actors STAGE LIFE`, both JSON.

What an actor does follows from its name and the seed; so an enqueuer that starts again after a kill asks for the same
tasks under the same ids, from the batch before the first that was not acknowledged (L4).
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from threading import Event
from time import sleep
from types import FrameType

from benchmarks.ledger import Ledger, whole_lines
from tests.campaign.clock import SharedClock
from tests.campaign.plan import Life, Role
from tests.campaign.saboteurs import sabotage
from tests.campaign.watched import Notes, Told, Watched, meet_full_disk
from wiggle_core import (
    Attribute,
    Done,
    Engine,
    Fail,
    NewTask,
    PermanentError,
    QueueCriteria,
    Release,
    Retry,
    RetryPolicy,
    Task,
    TaskContext,
    Worker,
)
from wiggle_core.engine.routes import route_of
from wiggle_core.errors import StoreError
from wiggle_core.stores.registry import open_store
from wiggle_core.stores.replay import Replaying
from wiggle_core.tasks.outcome import Outcome
from wiggle_core.tasks.task import LIVE, State, TaskRecord

WORKFLOW, VERSION = "campaign", 1
ATTRIBUTES = (Attribute("region", str, "customer.region"), Attribute("total", int, "total"))
RETRIES = (
    RetryPolicy(6, timedelta(milliseconds=50), 2.0, timedelta(milliseconds=200)),
    RetryPolicy(8, timedelta(0), 1.0, timedelta(0)),
)
MAX_LIVE = 400
"""Enqueuers wait while more tasks than this are live: the campaign is about faults, not depth."""
PIECE = 60_000
"""Bytes of one piece of a ledger: below every limit that a full disk sets."""
_REGION, _TOTAL = Task.attr("region", str), Task.attr("total", int)
KINDS = (
    None,
    (Task.step == "charge") & (_TOTAL >= 500) | _REGION.is_null(),
    ~(_REGION == "eu") & (Task.attempt < 5),
)
"""What workers take; None is everything."""
# What becomes of each run; the last word is for all that follow. A run after an expired lease is often a slow one, so
# that a late settlement of the first meets a lease that is held.
_SCRIPTS = (["done"],) * 4 + (["done", "slow"],) * 5 + (
    ["raise", "done"], ["retry", "raise", "done"], ["permanent"], ["fail"], ["release", "done"], ["late", "done"],
    ["slow"], ["raise"] * 8,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stage:
    """What all processes of a campaign share. `lease` in seconds; `sabotage` names saboteurs."""

    url: str
    queue: str
    directory: str
    lease: float
    sabotage: str = ""

    def dump(self) -> str:
        """The text for a command line."""
        return json.dumps(asdict(self))

    @property
    def clock_file(self) -> Path:
        return Path(self.directory) / "clock"

    @property
    def ttl(self) -> timedelta:
        return timedelta(seconds=self.lease)

    def ledger(self, life: Life) -> Path:
        """The first piece of a life's ledger."""
        return Path(self.directory) / f"{life.name}-{life.number}.ledger"


@dataclass(frozen=True, slots=True)
class Actor:
    """A life on its stage, with an engine of its own."""

    stage: Stage
    life: Life
    engine: Engine
    notes: Notes
    random: Random
    is_over: Event

    @property
    def everything(self) -> QueueCriteria:
        return QueueCriteria(self.stage.queue)

    def patiently(self, action: Callable[[], object], pause: float) -> None:
        """Do it again and again until the end; a store in trouble is given a moment."""
        while not self.is_over.is_set():
            try:
                action()
            except StoreError:
                sleep(0.1)
            self.is_over.wait(self.random.uniform(0, pause))


# Enqueuers


def batch(seed: int, name: str, queue: str, number: int) -> list[NewTask]:
    """A batch of an enqueuer's tasks, the same however often it is asked for."""
    random = Random(f"{seed}/{name}/batch {number}")
    return [_task(random, queue, f"{name}-{number}-{place}") for place in range(random.choice((1, 1, 5, 20)))]


def _task(random: Random, queue: str, name: str) -> NewTask:
    payload = {
        "script": random.choice(_SCRIPTS),
        "customer": {"region": random.choice(("eu", "us", "asia", None))},
        "total": random.randrange(1000),
    }
    return NewTask(
        queue,
        random.choice(("charge", "refund", "ship")),
        payload,
        workflow=WORKFLOW,
        version=VERSION,
        id=f"{queue}-{name}",
        priority=random.choice((0, 0, 0, 5)),
        delay=random.choice((None, None, None, timedelta(seconds=random.uniform(0, 1)))),
        retry=random.choice(RETRIES),
    )


def enqueue(actor: Actor) -> None:
    """Put batch after batch on the queue, from the last one acknowledged in an earlier life."""
    life, stage = actor.life, actor.stage
    acknowledged = _acknowledged(stage, life)
    numbers = iter(range(max(0, acknowledged), sys.maxsize))
    tasks = batch(life.seed, life.name, stage.queue, next(numbers))

    def step() -> None:
        nonlocal tasks
        if actor.engine.count(actor.everything, LIVE, cap=MAX_LIVE) >= MAX_LIVE:
            return
        actor.engine.enqueue_many(tasks)
        actor.notes.write("told", "enqueued", [task.id for task in tasks])
        tasks = batch(life.seed, life.name, stage.queue, next(numbers))

    actor.patiently(step, 0.1)


def _acknowledged(stage: Stage, life: Life) -> int:
    """The number of the last batch that an earlier life of this actor was told to be stored, or -1."""
    found = -1
    for path in Path(stage.directory).glob(f"{life.name}-*.ledger*"):
        for line in whole_lines(path):
            if line.startswith('["told","enqueued"'):
                [_, _, ids] = json.loads(line)
                found = max(found, int(ids[0].rsplit("-", 2)[1]))
    return found


# Claimers and workers


def _outcome(task: TaskRecord) -> Outcome:
    match _planned(task):
        case "raise" | "retry":
            return Retry("as planned")
        case "late":
            return Retry("later, as planned", timedelta(milliseconds=300))
        case "permanent" | "fail":
            return Fail("as planned")
        case "release" if task.lease.token[-1] in "01234567":  # every other lease, or it would never end
            return Release()
        case _:
            return Done({"by": task.owner})


def _planned(task: TaskRecord) -> str:
    """What this run is planned to come to."""
    script: list[str] = json.loads(task.payload)["script"]
    return script[min(task.attempt, len(script)) - 1]


def claim(actor: Actor) -> None:
    """Claim, work, now and then too slowly or with a heartbeat, and report whatever became of the leases."""
    random, engine, stage = actor.random, actor.engine, actor.stage

    def step() -> None:
        tasks = engine.claim(actor.life.name, [actor.everything], limit=random.randint(1, 20), lease=stage.ttl)
        sleep(random.choice((0.0, 0.01, 0.05, 0.2)))
        is_slow = any(_planned(task) == "slow" for task in tasks)
        if is_slow or random.random() < 0.2:
            engine.extend([task.lease for task in tasks], stage.ttl)
        if is_slow:
            actor.is_over.wait(0.9 * stage.lease)
        elif random.random() < 0.2:
            actor.is_over.wait(random.uniform(1.2, 2.5) * stage.lease)
        for part in (tasks[: len(tasks) // 2], tasks[len(tasks) // 2 :]):
            engine.settle_many([(task, _outcome(task)) for task in part])

    actor.patiently(step, 0.05)


def work(actor: Actor) -> None:
    """A Worker as users have it, with its heartbeat and sweeper, over one of several kinds of criteria."""
    ttl, random = actor.stage.ttl, actor.random
    worker = Worker(
        actor.engine,
        actor.life.name,
        criteria=[_criteria(actor)],
        concurrency=3,
        prefetch=random.choice((0, 0, 2)),
        lease=ttl,
        heartbeat=ttl / 3,
        grace=timedelta(seconds=3),
    )
    worker.task("*")(partial(_handle, actor))
    worker.run()


def _criteria(actor: Actor) -> QueueCriteria:
    wanted = KINDS[int(actor.life.name.rsplit("-", 1)[1]) % len(KINDS)]
    return actor.everything if wanted is None else QueueCriteria(actor.stage.queue, wanted)


def _handle(actor: Actor, context: TaskContext) -> object:
    match _planned(context.task):
        case "raise":
            raise RuntimeError("as planned")
        case "permanent":
            raise PermanentError("as planned")
        case "slow":
            sleep(1.2 * actor.stage.lease)
        case _:
            sleep(0.005)
    return _outcome(context.task)


# Sweepers and meddlers


def sweep(actor: Actor) -> None:
    """Sweep, and sweep again."""
    actor.patiently(actor.engine.sweep, 0.3)


def meddle(actor: Actor) -> None:
    """Cancel what lives and revive what ended, at random."""
    random, engine = actor.random, actor.engine

    def step() -> None:
        states = random.choice(([State.READY], [State.RUNNING], [State.SCHEDULED], [State.FAILED, State.CANCELLED]))
        found = engine.find(actor.everything, states, 50)
        if found:
            chosen = random.choice(found)
            (engine.cancel if chosen.state in LIVE else engine.retry)(chosen.id)

    actor.patiently(step, 0.6)


# Keepers of lanes


def keep(actor: Actor) -> None:
    """Open the lanes that workers claim by, a few at a time, and close them again, while all the others go on."""
    random, engine = actor.random, actor.engine
    routes = [route_of(QueueCriteria(actor.stage.queue, kind)) for kind in KINDS if kind is not None]

    def step() -> None:
        if engine.store.lanes is None:
            return
        if random.random() < 0.5:
            engine.lanes.open(random.sample(routes, random.randint(1, len(routes))), patience=actor.stage.lease)
        else:
            ids = [each.lane.id for each in engine.lanes.infos()]
            engine.lanes.close(random.sample(ids, min(len(ids), 1)), patience=actor.stage.lease)

    actor.patiently(step, 0.4)


ROLES: dict[Role, Callable[[Actor], None]] = {
    Role.ENQUEUER: enqueue,
    Role.WORKER: work,
    Role.CLAIMER: claim,
    Role.SWEEPER: sweep,
    Role.MEDDLER: meddle,
    Role.KEEPER: keep,
}


def main(stage: Stage, life: Life) -> None:
    """One life, until SIGTERM or its planned end."""
    logging.disable(logging.ERROR)  # what went wrong on purpose need not be told
    clock = SharedClock(stage.clock_file)
    notes = Notes(Ledger(stage.ledger(life), PIECE))
    inner = sabotage(open_store(stage.url, clock=clock), stage.sabotage)
    watched = Watched(inner, clock, notes, life)
    engine = Engine(Told(Replaying(watched.as_store()), notes).as_store())
    actor = Actor(stage, life, engine, notes, Random(f"{life.seed}/{life.name}/{life.number}"), Event())

    def end(number: int, frame: FrameType | None) -> None:
        actor.is_over.set()

    signal.signal(signal.SIGTERM, end)
    if life.disk is not None:
        meet_full_disk(life.disk)
    with engine:
        ROLES[life.role](actor)


if __name__ == "__main__":
    main(Stage(**json.loads(sys.argv[1])), Life.load(sys.argv[2]))
