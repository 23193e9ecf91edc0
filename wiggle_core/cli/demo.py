"""`wiggle demo`: the flights of 2013 routed to workers with criteria of their own, live, with a table at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from wiggle_core.cli.backlog import show_backlog
from wiggle_core.cli.options import JsonOption
from wiggle_core.cli.output import print_json, print_line, print_table
from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.criteria.tree import Or
from wiggle_core.demo.crew import Crew, gather_crew
from wiggle_core.demo.flights import ATTRIBUTES, QUEUE, ROWS, VERSION, WORKFLOW, read_flights
from wiggle_core.demo.workers import ROLES
from wiggle_core.engine.coverage import Backlog
from wiggle_core.engine.engine import Engine, open_engine
from wiggle_core.errors import StoreError, WiggleError
from wiggle_core.stores.registry import open_store
from wiggle_core.tasks.submission import NewTask
from wiggle_core.tasks.task import LIVE
from wiggle_core.worker.ledger import Counts

DEMO_FILE = "wiggle-demo.db"
_COVERED = QueueCriteria(QUEUE, Or(tuple(role.predicate for role in ROLES)))
_TICK = 0.2


@dataclass(frozen=True, slots=True)
class _Result:
    enqueue_seconds: float
    drain_seconds: float
    counts: dict[str, Counts]
    backlog: Backlog


def demo(
    rows: Annotated[int, typer.Option("--rows", min=1, max=ROWS, help="How many flights.")] = ROWS,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="URL", help=f"Where; else {DEMO_FILE} in this directory, made anew."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Route the real flights of 2013 to five workers, and show what each took, what that cost, and what nobody took."""
    url = store or _fresh_file()
    with open_engine(url, migrate=True) as engine:
        engine.declare(WORKFLOW, version=VERSION, attributes=ATTRIBUTES)
        result, is_durable = _run(engine, url, rows, as_json), engine.store.capabilities.durable
    if as_json:
        print_json(_as_object(result))
        return
    _show(result, rows)
    if is_durable:
        print_line(f"The database stays for you to look at: export WIGGLE_DATABASE_URL={url}")


def _fresh_file() -> str:
    """The URL of the demonstration's own file, the one of an earlier run removed. Anybody else's file is kept."""
    path, url = Path(DEMO_FILE), f"sqlite:///{DEMO_FILE}"
    if path.exists():
        try:
            with closing(open_store(url)) as store:
                store.verify()
        except StoreError as error:
            raise WiggleError(f"{DEMO_FILE} is in the way ({error}): move it, or give --store") from error
        for suffix in ("", "-wal", "-shm"):
            path.with_name(DEMO_FILE + suffix).unlink(missing_ok=True)
    return url


def _run(engine: Engine, url: str, rows: int, as_json: bool) -> _Result:
    with _progress(as_json) as progress:
        began = monotonic()
        engine.enqueue_many(_counted(read_flights(rows), progress, rows))
        enqueued = monotonic()
        crew = gather_crew(engine, url)
        crew.start()
        try:
            _await_drained(engine, crew, progress, rows)
            drained = monotonic()
            # Asked while the workers live: what they do not take is explained by their criteria.
            backlog = engine.backlog()
        finally:
            crew.stop()
    return _Result(enqueued - began, drained - enqueued, crew.counts(), backlog)


def _counted(flights: Iterator[NewTask], progress: Progress, rows: int) -> Iterator[NewTask]:
    bar = progress.add_task("enqueue", total=rows)
    for number, flight in enumerate(flights, 1):
        if number % 1000 == 0 or number == rows:
            progress.update(bar, completed=number)
        yield flight


def _await_drained(engine: Engine, crew: Crew, progress: Progress, rows: int) -> None:
    bars = {role.name: progress.add_task(role.name, total=rows) for role in ROLES}
    while True:
        for name, counts in crew.counts().items():
            progress.update(bars[name], completed=counts.done)
        if engine.count(_COVERED, LIVE, cap=1) == 0:
            return
        sleep(_TICK)


def _progress(as_json: bool) -> Progress:
    columns = [TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    return Progress(*columns, console=Console(stderr=True), disable=as_json or not sys.stderr.isatty())


def _show(result: _Result, rows: int) -> None:
    print_line(f"{rows} flights enqueued in {result.enqueue_seconds:.1f} s, drained in {result.drain_seconds:.1f} s")
    columns = ("worker", "criteria with", "took", "claims", "tasks a claim", "ms a claim", "µs a task", "empty claims")
    print_table(columns, [_row(role.name, role.shows, result.counts[role.name]) for role in ROLES], "Workers")
    show_backlog(result.backlog)


def _row(name: str, shows: str, counts: Counts) -> tuple[object, ...]:
    full = max(1, counts.claims - counts.empty_claims)
    return (
        name,
        shows,
        counts.done,
        counts.claims,
        round(counts.claimed / full, 1),
        round(counts.claim_seconds / max(1, counts.claims) * 1e3, 2),
        round(counts.claim_seconds / max(1, counts.claimed) * 1e6, 1),
        counts.empty_claims,
    )


def _as_object(result: _Result) -> dict[str, object]:
    return {
        "enqueue_seconds": result.enqueue_seconds,
        "drain_seconds": result.drain_seconds,
        "workers": [
            {
                "worker": role.name,
                "took": counts.done,
                "claims": counts.claims,
                "empty_claims": counts.empty_claims,
                "claim_seconds": counts.claim_seconds,
            }
            for role in ROLES
            for counts in [result.counts[role.name]]
        ],
        "uncovered": [{"queue": each.queue, "count": each.count} for each in result.backlog.uncovered],
    }
