"""`wiggle lanes`: which lanes a store has, what each costs and brings; opening and closing some by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from wiggle_core.cli.criteria import JsonFileOption, QueueOption, TextOption, read_criteria
from wiggle_core.cli.failures import ExitCode, InputError
from wiggle_core.cli.options import JsonOption, StoreOption, opened_engine
from wiggle_core.cli.output import age, instant, print_json, print_line, print_table
from wiggle_core.criteria.text import format_text
from wiggle_core.criteria.wire import predicate_to_object
from wiggle_core.engine.engine import Engine
from wiggle_core.engine.routes import route_of, with_steps
from wiggle_core.lanes.keeper import LaneInfo
from wiggle_core.stores.lanes import Lane, LaneState
from wiggle_core.stores.store import Route

SIZE_CAP = 100_000
"""Rows of a lane are counted up to so many."""
MAX_LANE_ID = 2**63 - 1

group = typer.Typer(
    help="Lanes: list them, open or close some by hand. A lane holds the ready tasks that one predicate takes.",
    invoke_without_command=True,
)


@group.callback()
def lanes(context: typer.Context, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Lanes: list them (also without a command), open or close some by hand."""
    if context.invoked_subcommand is None:
        list_lanes(store, as_json)
    elif store is not None or as_json:
        raise InputError(f"give --store and --json behind the command: wiggle lanes {context.invoked_subcommand} ...")


@group.command("list")
def list_lanes(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the lanes that are not closed: predicate, state, rows, tasks claimed through each, age, why it was opened.

    A pinned lane was opened by hand and stays; others close when no worker has used them for 10 minutes.
    """
    with opened_engine(store) as engine:
        found = engine.lanes.infos(SIZE_CAP)
    if as_json:
        print_json([_info(each) for each in found])
    elif found:
        print_table(
            ("id", "queue", "predicate", "state", "tasks", "hits", "age", "why opened", "pinned"), map(_row, found)
        )
    else:
        print_line("no lanes: every claim walks its queue")


def _info(info: LaneInfo) -> dict[str, object]:
    return {
        **_lane(info.lane),
        "size": info.size,
        "capped": info.size >= SIZE_CAP,
        "hits": info.lane.hits,
        "age_seconds": info.age,
        "used_at": instant(info.lane.used_at),
    }


def _lane(lane: Lane) -> dict[str, object]:
    return {
        "id": lane.id,
        "queue": lane.queue,
        "text": format_text(lane.predicate),
        "where": predicate_to_object(lane.predicate),
        "state": lane.state.value,
        "reason": lane.reason,
        "pinned": lane.is_pinned,
        "opened_at": instant(lane.opened_at),
    }


def _row(info: LaneInfo) -> Sequence[object]:
    lane = info.lane
    return (
        lane.id,
        lane.queue,
        format_text(lane.predicate),
        lane.state.value,
        f"{info.size} or more" if info.size >= SIZE_CAP else info.size,
        lane.hits,
        age(round(info.age * 1_000_000)),
        lane.reason,
        "yes" if lane.is_pinned else "no",
    )


@group.command("open")
def open_lane(
    json_file: JsonFileOption = None,
    text: TextOption = None,
    queue: QueueOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Open a lane for criteria, or pin the one there is, and put the ready tasks into it. It stays until it is closed.

    It serves claims by exactly these criteria: those of a worker that handles some steps only ask for these, too.
    """
    route = route_of(read_criteria(json_file, text, queue))
    with opened_engine(store) as engine:
        opened = engine.lanes.open([route])
        users = _users(engine, route)
    if not opened:
        raise InputError("somebody closed the lane as it was opened")
    [lane] = opened
    if as_json:
        print_json({**_lane(lane), "workers": users})
        return
    print_line(f"lane {lane.id} of queue {lane.queue!r} is {_stands(lane)}: {format_text(lane.predicate)}")
    print_line(f"live workers with exactly these criteria: {', '.join(users) or 'none'}")


def _stands(lane: Lane) -> str:
    if lane.state is LaneState.OPEN:
        return "open"
    return "still being filled, by another process or, once older transactions have ended, by any worker"


def _users(engine: Engine, route: Route) -> list[str]:
    """The live workers whose claims are by this predicate."""
    return [
        worker.id
        for worker in engine.workers()
        if worker.is_live
        for each in worker.registration.criteria
        if route == Route(each.queue, with_steps(each.normal, worker.registration.steps))
    ]


@group.command("close")
def close_lanes(
    ids: Annotated[list[int], typer.Argument(metavar="ID...", help="The lanes' ids.", min=1, max=MAX_LANE_ID)],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Close lanes and delete their rows; tasks stay. Exit code 1 unless each was open or being filled.

    One that a worker gains by opens again; WIGGLE_LANES=off keeps workers from that.
    """
    with opened_engine(store) as engine:
        closed = {lane.id for lane in engine.lanes.close(ids)}
    unknown = [each for each in dict.fromkeys(ids) if each not in closed]
    if as_json:
        print_json({"changed": sorted(closed), "unchanged": unknown})
    else:
        for each in dict.fromkeys(ids):
            print_line(f"lane {each}  {'closed' if each in closed else 'not open'}")
    if unknown:
        raise typer.Exit(ExitCode.NO)
