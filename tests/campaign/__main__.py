"""`python -m tests.campaign --store URL`: kill, stop and starve processes on any store, and account for every task.

`python -m tests.campaign --start-postgres` starts a PostgreSQL server for it, and strikes that too; so do
`--start-mysql` and `--start-mariadb`.

Exit code 0 when nothing is wrong, 1 with the findings and the command that replays the same plan of faults, 2 when the
campaign cannot be run on that store.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from sqlalchemy import make_url

from benchmarks.ledger import read_history
from tests.campaign.actors import Stage
from tests.campaign.audit import Verdict, judge
from tests.campaign.clock import Timeline
from tests.campaign.conductor import Conductor, Record
from tests.campaign.disk import small_disk
from tests.campaign.events import Events, read_events
from tests.campaign.plan import CREW, Product, Scenario, make_plan, replay_command
from tests.campaign.saboteurs import check_names
from tests.campaign.server import struck_server
from tests.servers.finding import Unavailable
from wiggle_core.errors import WiggleError
from wiggle_core.stores.registry import hide_password, open_store
from wiggle_core.stores.store import Route
from wiggle_core.tasks.task import LIVE

SHOWN = 5
SERVERS_SHARE = 2
"""One kill of so many meets the server, if the campaign has one of its own."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a campaign did and what was found."""

    record: Record
    events: Events
    verdict: Verdict
    audit: list[str]
    lane_epoch: int
    """How often lanes began to open or to close."""

    @property
    def has_shown(self) -> bool:
        """Whether anything happened that could have gone wrong."""
        return self.verdict.figures["tasks"] > 0 and self.verdict.figures["finish held"] > 0

    @property
    def is_clean(self) -> bool:
        return self.has_shown and self.verdict.is_clean and not self.audit and not self.record.failures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one campaign and return the exit code."""
    given = _parser().parse_args(arguments)
    product: Product | None = given.start
    blows = given.kills // SERVERS_SHARE if product else 0
    scenario = Scenario(given.minutes * 60, given.kills - blows, given.seed, given.actors, given.lease, blows)
    if product:
        scenario = replace(scenario, product=product)
    extra = [*(["--small-disk"] if given.small_disk else []), *_option("--sabotage", given.sabotage)]
    store = [f"--start-{product}"] if product else ["--store", hide_password(given.store)]
    command = replay_command(store, scenario, extra)
    try:
        with ExitStack() as stack:
            struck = stack.enter_context(struck_server(product)) if product else None
            url = given.store if struck is None else struck.url
            _require_processes(url)
            directory = _ledger_directory(given.directory)
            print(command, flush=True)
            disk = stack.enter_context(small_disk(_place(url))) if given.small_disk else None
            queue = f"campaign-{scenario.seed}-{uuid4().hex[:8]}"
            stage = Stage(_absolute(url), queue, str(directory), scenario.lease, given.sabotage)
            conductor = Conductor(stage, make_plan(scenario), _say, disk=disk, server=struck)
            stack.callback(conductor.store.close)
            outcome = _campaign(conductor, stage)
    except (WiggleError, RuntimeError, Unavailable) as error:
        print(f"the campaign cannot be run: {error}", file=sys.stderr)
        return 2
    _tell(outcome, scenario)
    if outcome.is_clean:
        shutil.rmtree(directory)
        print("PASS")
        return 0
    print(f"FAIL: the ledgers are kept in {directory}; the same plan again, with seed {scenario.seed}:\n  {command}")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--store", help="URL of a store; the campaign uses a queue of its own in it")
    for product in Product:
        told = "on a server of its own, which every other one of the kills meets"
        where.add_argument(f"--start-{product}", dest="start", action="store_const", const=product, help=told)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults strike (10)")
    parser.add_argument("--kills", type=int, default=200, help="processes killed meanwhile (200)")
    parser.add_argument("--seed", type=int, default=1, help="of every random decision (1)")
    parser.add_argument("--actors", type=int, default=len(CREW), choices=range(5, len(CREW) + 1), help="processes")
    parser.add_argument("--lease", type=float, default=2.0, help="seconds of a lease (2)")
    parser.add_argument("--directory", type=Path, help="where ledgers go (TMPDIR, else ./build)")
    parser.add_argument("--small-disk", action="store_true", help="mount a tmpfs over the file's directory and fill it")
    parser.add_argument("--sabotage", type=check_names, default="", help="wrap the store in saboteurs: must FAIL")
    return parser


def _option(name: str, value: str) -> list[str]:
    return [name, value] if value else []


def _require_processes(url: str) -> None:
    """Raise RuntimeError for a store that lives in one process."""
    store = open_store(url)
    try:
        if not store.capabilities.processes:
            raise RuntimeError(f"{store.capabilities.name}: capability processes is false, so there is nobody to kill")
    finally:
        store.close()


def _ledger_directory(chosen: Path | None) -> Path:
    parent = chosen or Path(os.environ.get("TMPDIR") or "build")
    parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="campaign-", dir=parent)).resolve()


def _say(line: str) -> None:
    print(line, flush=True)


def _campaign(conductor: Conductor, stage: Stage) -> Outcome:
    conductor.run()
    record, store = conductor.record, conductor.store
    events = read_events(Path(stage.directory), record.deaths)
    live = store.find(Route(stage.queue), LIVE, 1_000_000)
    verdict = judge(events, [*live, *read_history(store, stage.queue)], Timeline(record.steps))
    lane_epoch = store.lanes.read(0).epoch if store.lanes is not None else 0
    return Outcome(record, events, verdict, store.audit(), lane_epoch)


def _place(url: str) -> Path:
    """The directory of the store's file. Raises RuntimeError for a store that has none."""
    parsed = make_url(url)
    if parsed.host or not parsed.database:
        raise RuntimeError("a small disk is for stores that are files")
    return Path(parsed.database).absolute().parent


def _absolute(url: str) -> str:
    """The URL for processes that run in another directory."""
    parsed = make_url(url)
    if parsed.host or parsed.port or not parsed.database:
        return url
    path = str(Path(parsed.database).absolute())
    return parsed.set(database=path).render_as_string(hide_password=False)


def _tell(outcome: Outcome, scenario: Scenario) -> None:
    record, events, verdict = outcome.record, outcome.events, outcome.verdict
    phases = ", ".join(f"{name.replace('_', ' ')} {seconds:.1f} s" for name, seconds in record.seconds.items())
    print(f"phases: {phases}")
    kills = ", ".join(f"{count} {where}" for where, count in sorted(record.kills.items()))
    cut_off = ", ".join(f"{count} {method}" for method, count in sorted(events.cut_off.items()))
    errors = ", ".join(f"{count} {name}" for name, count in sorted(events.errors.items()))
    print(f"killed {record.kills.total()} of {scenario.kills + scenario.blows} planned: {kills}")
    print(f"calls cut off by a kill: {cut_off or 'none'}")
    print(f"stopped beyond their leases {record.pauses} times, clock stepped {len(record.steps) - 1} times")
    print(f"lanes opened or closed {outcome.lane_epoch} times, {events.by_lane:,} tasks leased through them")
    print(f"disk filled {record.full_disks} times, files kept from growing in {record.limited} lives")
    print(f"errors of the store itself: {errors or 'none'}")
    for name, number in sorted(verdict.figures.items()):
        print(f"  {name:<28} {number:>8,}")
    for kind, findings in verdict.findings.items():
        print(f"  {kind:<48} {len(findings):>4}")
        _list(findings)
    print(f"  {'found by the audit of the store':<48} {len(outcome.audit):>4}")
    _list(outcome.audit)
    print(f"  {'processes that failed by themselves':<48} {len(record.failures):>4}")
    _list(record.failures)
    if not outcome.has_shown:
        print("  no task was finished, so that nothing is shown")


def _list(findings: Sequence[str]) -> None:
    for each in findings[:SHOWN]:
        print(f"    {each}")


if __name__ == "__main__":
    # However it is told to end, it ends its actors and its server. Python would leave them behind at SIGTERM, and a
    # script's background process is made to ignore SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    sys.exit(main())
