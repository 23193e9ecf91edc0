"""The plan of a campaign: who lives how long, and which fault meets whom when. All of it follows from the seed.

Each actor draws from a stream of its own, so that a change to one does not shift the faults of the others. When a
fault strikes is planned; what the processes are just doing then is up to the machine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from operator import attrgetter
from random import Random
from typing import Any


class Role(StrEnum):
    """What a process does; see actors.py."""

    ENQUEUER = "enqueuer"
    WORKER = "worker"
    CLAIMER = "claimer"
    SWEEPER = "sweeper"
    MEDDLER = "meddler"
    KEEPER = "keeper"


class Point(StrEnum):
    """Where in a call to the store a process dies."""

    BEFORE = "before"
    """The call has not reached the store."""
    DURING = "during"
    """A timer runs out, most likely within the transaction."""
    AFTER = "after"
    """The store has committed, and its answer reaches nobody, not even the ledger."""
    ANSWERED = "answered"
    """The ledger has the answer, the caller does not."""


METHODS = {
    Role.ENQUEUER: ("enqueue", "enqueue", "count"),
    Role.WORKER: ("claim", "claim", "apply", "apply", "extend", "due", "put_document"),
    Role.CLAIMER: ("claim", "claim", "apply", "apply", "extend"),
    Role.SWEEPER: ("due", "apply", "apply", "purge"),
    Role.MEDDLER: ("apply", "apply", "find", "get"),
    Role.KEEPER: ("lanes.open", "lanes.open", "lanes.close", "lanes.fill", "lanes.finish", "lanes.clear"),
}
"""The calls of each role at which it may be armed to die, frequent ones named more than once."""

CREW = (
    Role.ENQUEUER, Role.WORKER, Role.CLAIMER, Role.SWEEPER, Role.CLAIMER, Role.KEEPER,
    Role.WORKER, Role.MEDDLER, Role.WORKER, Role.ENQUEUER, Role.CLAIMER,
)  # fmt: skip
_SPACING = 2.5
"""Seconds between two deaths of one actor at least, so that most lives get to work."""
_START = 1.5


@dataclass(frozen=True, slots=True)
class Arm:
    """Die at the first call of `method` that begins `after` so many seconds of life; DURING it, `micros` later."""

    method: str
    point: Point
    after: float
    micros: int


@dataclass(frozen=True, slots=True)
class FullDisk:
    """From `after` seconds of life on and for `seconds`, no file of this process may grow beyond `bytes`."""

    after: float
    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Life:
    """One process from start to death, at `until` seconds of the campaign; None when the campaign's end ends it."""

    role: Role
    name: str
    number: int
    seed: int
    until: float | None = None
    arm: Arm | None = None
    disk: FullDisk | None = None
    trouble: float = 0.0
    """The share of calls that fail by an injected error."""

    def dump(self) -> str:
        """The text for the process's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Life:
        """The life that `dump` wrote."""
        told: dict[str, Any] = json.loads(text)  # Any: parsed JSON
        arm, disk = told["arm"], told["disk"]
        told["arm"] = arm and Arm(**arm | {"point": Point(arm["point"])})
        return cls(**told | {"role": Role(told["role"]), "disk": disk and FullDisk(**disk)})


@dataclass(frozen=True, slots=True)
class Pause:
    """SIGSTOP for `actor` at `at` seconds, SIGCONT when its leases have run out."""

    at: float
    actor: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ClockStep:
    """Database time steps to `ahead` microseconds before or behind where it began."""

    at: float
    ahead: int


@dataclass(frozen=True, slots=True)
class Ballast:
    """The small disk, if there is one, is filled to the last byte for a while."""

    at: float
    seconds: float


class Blow(StrEnum):
    """What is done to a server that the campaign started itself."""

    TERMINATE = "sessions terminated"
    STATEMENT = "statements ended"
    BACKEND = "backends killed"
    """Upon which the server ends all the others too, and recovers."""
    STOP = "servers stopped at once"
    """As after a crash, nothing is put in order."""
    SERVER = "servers killed"


class Product(StrEnum):
    """Servers that a campaign can start, by the option that asks for them."""

    POSTGRES = "postgres"
    MYSQL = "mysql"
    MARIADB = "mariadb"

    @property
    def blows(self) -> tuple[Blow, ...]:
        """One round of blows. Processes of PostgreSQL are many, and each of their ends is another one; MySQL and
        MariaDB are one process, whose end is what counts."""
        if self is Product.POSTGRES:
            return (Blow.TERMINATE, Blow.BACKEND, Blow.STOP, Blow.SERVER)
        return (Blow.TERMINATE, Blow.STATEMENT, Blow.STOP, *(Blow.SERVER,) * 7)


@dataclass(frozen=True, slots=True)
class Strike:
    """One blow to the server. What it ends is started again after `seconds`."""

    at: float
    blow: Blow
    seconds: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """How long, how many and how hard. `kills` are of processes, `blows` meet the server of `product`; `lease` in
    seconds."""

    seconds: float = 600.0
    kills: int = 200
    seed: int = 1
    actors: int = len(CREW)
    lease: float = 2.0
    blows: int = 0
    product: Product = Product.POSTGRES


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is going to happen."""

    scenario: Scenario
    lives: list[list[Life]] = field(default_factory=list)
    """Of each actor, in order; the last has no end of its own."""
    pauses: list[Pause] = field(default_factory=list)
    steps: list[ClockStep] = field(default_factory=list)
    ballast: list[Ballast] = field(default_factory=list)
    strikes: list[Strike] = field(default_factory=list)


def make_plan(scenario: Scenario) -> Plan:
    """The plan that follows from the scenario, its seed included."""
    roles = CREW[: scenario.actors]
    lives = [_lives(scenario, number, role) for number, role in enumerate(roles)]
    pauses = [each for number, role in enumerate(roles) for each in _pauses(scenario, number, role)]
    pauses.sort(key=attrgetter("at"))
    return Plan(scenario, lives, pauses, _steps(scenario), _ballast(scenario), _strikes(scenario))


def _stream(scenario: Scenario, name: str) -> Random:
    return Random(f"{scenario.seed}/{name}")


def _lives(scenario: Scenario, number: int, role: Role) -> list[Life]:
    random = _stream(scenario, f"lives {number}")
    share, more = divmod(scenario.kills, scenario.actors)
    born, lives = 0.0, list[Life]()
    for until in [*_deaths(random, share + (number < more), scenario.seconds), None]:
        life = Life(role, f"{role}-{number}", len(lives), scenario.seed, until)
        span = (scenario.seconds if until is None else until) - born
        lives.append(_with_faults(life, random, max(0.1, span)))
        born = until or 0.0
    return lives


def _deaths(random: Random, count: int, seconds: float) -> list[float]:
    """Moments at random, a life's least length apart; closer where there is no room for that."""
    room = seconds - _START
    spacing = min(_SPACING, 0.8 * room / max(1, count))
    moments = sorted(random.uniform(0, room - spacing * count) for _ in range(count))
    return [_START + moment + spacing * place for place, moment in enumerate(moments)]


def _with_faults(life: Life, random: Random, span: float) -> Life:
    """Half of the deaths come at a call, half at any moment; some lives meet a full disk, some a failing store."""
    method, point = random.choice(METHODS[life.role]), random.choice(list(Point))
    arm = Arm(method, point, max(0.1, span - 1.0), round(10 ** random.uniform(2, 4.3)))
    disk = FullDisk(random.uniform(0, span), random.uniform(0.3, 2.0), random.randrange(300_000, 1_500_000))
    trouble = random.choice((0.0, 0.02, 0.1))
    is_armed, meets_full_disk = random.random() < 0.5 and life.until is not None, random.random() < 0.2
    return replace(life, arm=arm if is_armed else None, disk=disk if meets_full_disk else None, trouble=trouble)


def _pauses(scenario: Scenario, number: int, role: Role) -> list[Pause]:
    """Those who hold leases are stopped beyond their end, the others for as long."""
    random = _stream(scenario, f"pauses {number}")
    often = max(1, round(scenario.seconds / (20 if role in (Role.WORKER, Role.CLAIMER) else 60)))
    latest = max(1.0, scenario.seconds - 2 * scenario.lease)
    moments = [random.uniform(1.0, latest) for _ in range(often)]
    return [Pause(at, number, scenario.lease * random.uniform(1.2, 2.2)) for at in moments]


def _steps(scenario: Scenario) -> list[ClockStep]:
    random = _stream(scenario, "clock")
    count = max(2, round(scenario.seconds / 12))
    moments = sorted(random.uniform(0.5, scenario.seconds) for _ in range(count))
    return [ClockStep(at, random.randrange(-8_000_000, 8_000_000)) for at in moments]


def _ballast(scenario: Scenario) -> list[Ballast]:
    random = _stream(scenario, "ballast")
    count = max(1, round(scenario.seconds / 30))
    return [Ballast(at, random.uniform(0.5, 2.0)) for at in sorted(_deaths(random, count, scenario.seconds))]


def _strikes(scenario: Scenario) -> list[Strike]:
    """Round by round, each in an order of its own."""
    random = _stream(scenario, "strikes")
    moments = _deaths(random, scenario.blows, scenario.seconds)
    blows: list[Blow] = []
    while len(blows) < len(moments):
        blows += random.sample(scenario.product.blows, len(scenario.product.blows))
    return [Strike(at, blow, random.uniform(0.1, 2.0)) for at, blow in zip(moments, blows, strict=False)]


def calm_life(name: str, role: Role, seed: int) -> Life:
    """A process of the final drain, which no fault meets."""
    return Life(role, name, 0, seed)


def replay_command(store: Sequence[str], scenario: Scenario, extra: Sequence[str] = ()) -> str:
    """The command that makes the same plan again; `store` are the options that say on which store."""
    minutes = f"{scenario.seconds / 60:.10g}"
    options = f"--minutes {minutes} --kills {scenario.kills + scenario.blows} --seed {scenario.seed}"
    options += f" --actors {scenario.actors} --lease {scenario.lease:.10g}"
    return " ".join(["python -m tests.campaign", *store, options, *extra])
