"""Carries out a plan: starts the actors, kills, stops and replaces them, steps the clock, and drains in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import assert_never

from benchmarks.ledger import count_live
from tests.campaign.actors import ATTRIBUTES, VERSION, WORKFLOW, Stage
from tests.campaign.clock import SharedClock, Step, monotonic_micros
from tests.campaign.disk import SmallDisk
from tests.campaign.plan import Ballast, Blow, ClockStep, Life, Pause, Plan, Role, Strike, calm_life
from tests.campaign.server import StruckServer
from wiggle_core.engine.engine import Engine
from wiggle_core.stores.registry import open_store
from wiggle_core.stores.replay import Replaying
from wiggle_core.stores.store import Store

ROOT = Path(__file__).resolve().parents[2]
_LOOK = 0.01
OVERDUE = 10.0
"""Seconds after its time in which an armed process has to meet its point, else it is killed where it stands."""
STARTING = 180.0
STOPPING = 60.0
"""Seconds in which a process that is told to stop has to end."""
DRAINING = 180.0
_KILLED = (-signal.SIGKILL, -signal.SIGALRM)
_SETTINGS = {
    "WIGGLE_SWEEP_INTERVAL_MILLIS": "200",
    "WIGGLE_SCOPED_FALLBACK_MAX_MILLIS": "300",
    "WIGGLE_LANES": "on",  # workers open lanes, and keepers close them
    "WIGGLE_HISTORY_RETENTION_SECONDS": "86400",  # the audit needs all of it
}


@dataclass(slots=True)
class Record:
    """What the conductor did and saw; `deaths` by the ledger's name, on the monotonic clock."""

    steps: list[Step] = field(default_factory=list)
    deaths: dict[str, int] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each phase took."""
    pauses: int = 0
    full_disks: int = 0
    limited: int = 0
    """Lives planned to meet the limit of a file's size."""
    failures: list[str] = field(default_factory=list)
    """Processes that ended by themselves or would not end, and a drain that did not come to its end."""


class _Process:
    """One life that runs."""

    def __init__(self, stage: Stage, life: Life) -> None:
        self.life, self.is_struck, self._stage = life, False, stage
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        with self._errors.open("wb") as errors:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "tests.campaign.actors", stage.dump(), life.dump()],
                env={**os.environ, **_SETTINGS, "PYTHONPATH": path},
                cwd=stage.directory,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
            )

    @property
    def key(self) -> str:
        return f"{self.life.name}-{self.life.number}"

    @property
    def _errors(self) -> Path:
        return Path(self._stage.directory) / f"{self.key}.stderr"

    @property
    def has_begun(self) -> bool:
        """Whether it has a ledger, which it opens before anything else."""
        return self._stage.ledger(self.life).exists()

    def poll(self) -> int | None:
        return self._popen.poll()

    def signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def wait(self, seconds: float) -> int | None:
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def complaint(self) -> str:
        """The end of what it wrote to stderr."""
        return self._errors.read_text("utf-8", "replace")[-600:].strip()


class Conductor:
    """One campaign. `say` gets a line now and then."""

    def __init__(
        self,
        stage: Stage,
        plan: Plan,
        say: Callable[[str], None],
        *,
        disk: SmallDisk | None = None,
        server: StruckServer | None = None,
    ) -> None:
        self.record = Record()
        self._stage, self._plan, self._say = stage, plan, say
        self._disk, self._server = disk, server
        self._clock, first = SharedClock.create(stage.clock_file)
        self._began = self._clock.offset
        self.record.steps.append(first)
        self._running: list[_Process] = []
        self._draining: list[_Process] = []
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.store: Store = open_store(stage.url, clock=self._clock)

    def run(self) -> None:
        """Everything from an empty queue to a drained one."""
        self.store.migrate()
        Engine(Replaying(self.store)).declare(WORKFLOW, version=VERSION, attributes=ATTRIBUTES)
        try:
            for phase in (self._start, self._strike, self._calm_down, self._drain):
                began = monotonic()
                phase()
                self.record.seconds[phase.__name__.strip("_")] = monotonic() - began
        finally:
            for process in (*self._running, *self._draining):
                process.signal(signal.SIGKILL)
                process.wait(STOPPING)

    # Faults

    def _start(self) -> None:
        """Wait until all have begun and there is work, too: on a busy machine the first faults would meet nobody."""
        self._running = [_Process(self._stage, lives[0]) for lives in self._plan.lives]
        end = monotonic() + STARTING
        while not self._is_under_way() and monotonic() < end:
            sleep(_LOOK)

    def _is_under_way(self) -> bool:
        if not all(process.has_begun for process in self._running):
            return False
        has_died = any(process.poll() is not None for process in self._running)
        return has_died or count_live(self.store, self._stage.queue) > 0

    def _strike(self) -> None:
        started = monotonic()
        plan = self._plan
        for fault in (*plan.pauses, *plan.steps, *plan.strikes, *(plan.ballast if self._disk else ())):
            self._schedule(fault.at, self._deed(fault))
        told = 0.0
        while (passed := monotonic() - started) < self._plan.scenario.seconds or self._is_kill_left():
            while self._agenda and self._agenda[0][0] <= passed:
                heappop(self._agenda)[2]()
            for actor in range(len(self._running)):
                self._care_for(actor, passed)
            if passed - told >= 30:
                told = passed
                self._say(f"  {passed:5.0f} s: {self.record.kills.total()} killed")
            sleep(_LOOK)

    def _schedule(self, at: float, deed: Callable[[], None]) -> None:
        heappush(self._agenda, (at, next(self._order), deed))

    def _is_kill_left(self) -> bool:
        return any(process.life.until is not None for process in self._running)

    def _care_for(self, actor: int, passed: float) -> None:
        """Kill whose time has come, and put the next life in the place of a dead one."""
        process = self._running[actor]
        until, code = process.life.until, process.poll()
        if code is None:
            deadline = until if until is None or process.life.arm is None else until + OVERDUE
            if deadline is not None and passed >= deadline and not process.is_struck:
                process.is_struck = True
                process.signal(signal.SIGKILL)
            return
        self._note_end(process)
        if code in _KILLED and until is not None:
            arm = None if process.is_struck else process.life.arm
            self.record.kills["at any moment" if arm is None else f"{arm.point} a call"] += 1
        else:
            self.record.failures.append(f"{process.key} ended by itself with {code}: {process.complaint()}")
        lives = self._plan.lives[actor]
        following = process.life.number + 1
        self._running[actor] = _Process(self._stage, lives[following] if following < len(lives) else self._spare(actor))

    def _note_end(self, process: _Process) -> None:
        self.record.deaths[process.key] = monotonic_micros()
        self.record.limited += process.life.disk is not None

    def _spare(self, actor: int) -> Life:
        """A life beyond the plan, for an actor that ended by itself."""
        last = self._running[actor].life
        return Life(last.role, last.name, last.number + 1, last.seed)

    def _deed(self, fault: Pause | ClockStep | Ballast | Strike) -> Callable[[], None]:
        match fault:
            case Pause(at, actor, seconds):
                return lambda: self._pause(at, actor, seconds)
            case ClockStep(_, ahead):
                return lambda: self.record.steps.append(self._clock.set_offset(self._began + ahead))
            case Ballast(at, seconds):
                return lambda: self._fill_disk(at, seconds)
            case Strike(at, blow, seconds):
                return lambda: self._strike_server(at, blow, seconds)
            case _:
                assert_never(fault)

    def _pause(self, at: float, actor: int, seconds: float) -> None:
        process = self._running[actor]
        process.signal(signal.SIGSTOP)
        self.record.pauses += 1
        self._schedule(at + seconds, lambda: process.signal(signal.SIGCONT))

    def _fill_disk(self, at: float, seconds: float) -> None:
        if self._disk is not None:
            self._disk.fill()
            self.record.full_disks += 1
            self._schedule(at + seconds, self._disk.relieve)

    def _strike_server(self, at: float, blow: Blow, seconds: float) -> None:
        if self._server is not None:
            self.record.kills[blow] += self._server.strike(blow)
            self._schedule(at + seconds, self._server.restore)

    # The end

    def _calm_down(self) -> None:
        """End every fault, and ask all who live to stop as users would, while others begin to finish what is left."""
        while self._agenda:
            heappop(self._agenda)[2]()
        if self._disk is not None:
            self._disk.relieve()
        seed, names = self._plan.scenario.seed, ("drain-0", "drain-3")  # numbers whose worker takes everything
        self._draining = [_Process(self._stage, calm_life(name, Role.WORKER, seed)) for name in names]
        for process in self._running:
            process.signal(signal.SIGCONT)
            process.signal(signal.SIGTERM)
        self._await_end(self._running)

    def _await_end(self, processes: list[_Process]) -> None:
        end = monotonic() + STOPPING
        for process in processes:
            code = process.wait(5.0)
            if code is None:  # one that had just started may have met the signal before it could route it
                process.signal(signal.SIGTERM)
                code = process.wait(max(0.1, end - monotonic()))
            if code is None:
                process.signal(signal.SIGKILL)
                process.wait(STOPPING)
                self.record.failures.append(f"{process.key} did not stop within {STOPPING:g} s")
            elif code not in (0, -signal.SIGTERM):
                self.record.failures.append(f"{process.key} ended with {code}: {process.complaint()}")
            self._note_end(process)
        processes.clear()

    def _drain(self) -> None:
        """Wait until nothing is live."""
        end = monotonic() + DRAINING
        while (left := count_live(self.store, self._stage.queue)) and monotonic() < end:
            sleep(0.1)
        if left:
            self.record.failures.append(f"{left} tasks were still live after {DRAINING:g} s of draining")
        for process in self._draining:
            process.signal(signal.SIGTERM)
        self._await_end(self._draining)
