"""`wiggle criteria`: check criteria, match them with tasks, explain how a store answers them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import islice
from typing import Annotated, TypeAlias

import typer

from wiggle_core.cli.failures import ExitCode, InputError
from wiggle_core.cli.files import Line, read_lines, read_whole
from wiggle_core.cli.matching import LANES_AT_ONCE, Matching, by_claim, by_evaluator, by_find, read_tasks
from wiggle_core.cli.options import JsonOption, StoreOption, opened_engine
from wiggle_core.cli.output import print_json, print_line
from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.criteria.check import MAX_JSON_BYTES
from wiggle_core.criteria.text import format_text, parse_text
from wiggle_core.criteria.wire import criteria_from_object, criteria_to_object, parse_json, predicate_to_object
from wiggle_core.engine.engine import Engine
from wiggle_core.engine.routes import route_of
from wiggle_core.errors import CriteriaError, StaleLanes, TransientStoreError, WiggleError
from wiggle_core.lanes.book import PLACEMENTS
from wiggle_core.lanes.planner import LanePolicy, Verdict
from wiggle_core.stores.registry import open_scratch
from wiggle_core.stores.store import Explanation, Route

DEFAULT_QUEUE = "default"
_CLAIM_LIMIT = 10

group = typer.Typer(help="Criteria: check them, match them with tasks, explain a claim.")

JsonFileOption: TypeAlias = Annotated[
    str | None, typer.Option("--json-file", metavar="FILE", help="Criteria in the JSON form; - for stdin.")
]
TextOption: TypeAlias = Annotated[
    str | None, typer.Option("--text", metavar="PREDICATE", help="A predicate in the SQL-92 form.")
]
QueueOption: TypeAlias = Annotated[
    str | None, typer.Option("--queue", metavar="NAME", help=f"The queue, where the file names none ({DEFAULT_QUEUE}).")
]


@group.command()
def check(
    json_file: JsonFileOption = None,
    text: TextOption = None,
    queue: QueueOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check criteria and print them in every form, as JSON. Refused ones end with code 2 and the offender's path."""
    try:
        criteria = read_criteria(json_file, text, queue)
    except (CriteriaError, InputError) as error:
        message, path = (error.message, error.path) if isinstance(error, CriteriaError) else (str(error), "")
        print_json({"ok": False, "error": message, "path": path})
        raise typer.Exit(ExitCode.WRONG_INPUT) from None
    print_json({"ok": True, **_forms(criteria), "fingerprint": criteria.fingerprint})


def _forms(criteria: QueueCriteria) -> dict[str, object]:
    predicate = criteria.normal if criteria.predicate is None else criteria.predicate
    return {"json": criteria_to_object(criteria), "text": format_text(predicate)}


def read_criteria(json_file: str | None, text: str | None, queue: str | None) -> QueueCriteria:
    """The criteria that the three options give. Raises CriteriaError, InputError."""
    if (json_file is None) == (text is None):
        raise InputError("give either --json-file or --text")
    if text is not None:
        return QueueCriteria(DEFAULT_QUEUE if queue is None else queue, parse_text(text))
    return _criteria_of(parse_json(read_whole(json_file or "", MAX_JSON_BYTES)), queue)


def _criteria_of(obj: object, queue: str | None) -> QueueCriteria:
    """Criteria of decoded JSON, whose queue may come from the option. An object that says neither is refused: it
    would mean everything on a queue that nobody named."""
    if not isinstance(obj, dict):
        return criteria_from_object(obj)
    if "queue" not in obj and "where" not in obj:
        raise CriteriaError("criteria need 'where' or 'queue'")
    if queue is not None and obj.get("queue", queue) != queue:
        raise CriteriaError("the file names another queue than --queue", "/queue")
    return criteria_from_object({"queue": DEFAULT_QUEUE if queue is None else queue, **obj})


@group.command()
def match(
    *,
    tasks: Annotated[str, typer.Option("--tasks", metavar="FILE", help="Tasks as JSON, one a line, taken as given.")],
    criteria: Annotated[str, typer.Option("--criteria", metavar="FILE", help='{"where": ...}, one a line.')],
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="URL", help="Ask this store, in a scratch schema; else the evaluator answers."),
    ] = None,
    claim: Annotated[bool, typer.Option("--claim", help="Claim until nothing is left, then release all.")] = False,
    lanes: Annotated[
        LanePolicy,
        typer.Option("--lanes", help="Which criteria have a lane as they claim: all, none, or those that gain by it."),
    ] = LanePolicy.AUTO,
    as_json: JsonOption = False,
) -> None:
    """Print which tasks each criteria takes: a JSON list of ids a line, in claim order.

    All tasks are put on one queue. Refused criteria print {"error": ...}, and the next line follows.
    """
    if claim and store is None:
        raise InputError("--claim needs --store")
    if lanes is LanePolicy.ON and not claim:
        raise InputError("--lanes on needs --store and --claim: only a store's claim reads lanes")
    with _matching(tasks, store, claim, lanes) as ids_of:
        lines = read_lines(criteria)
        while group := [_wanted(line) for line in islice(lines, LANES_AT_ONCE if claim else 1)]:
            answers = iter(ids_of([each.normal for each in group if isinstance(each, QueueCriteria)]))
            for each in group:
                print_json(next(answers) if isinstance(each, QueueCriteria) else {"error": str(each)})


def _wanted(line: Line) -> QueueCriteria | WiggleError:
    """The criteria of a line, or why they are refused."""
    try:
        return _criteria_of(parse_json(line.text()), None)
    except (CriteriaError, InputError) as error:
        return error


@contextmanager
def _matching(path: str, url: str | None, claim: bool, lanes: LanePolicy) -> Iterator[Matching]:
    tasks = read_tasks(path)
    if url is None:
        yield by_evaluator(list(tasks))
        return
    with closing(open_scratch(url)) as scratch:
        while batch := list(islice(tasks, scratch.capabilities.max_batch)):
            scratch.enqueue(batch)
        yield by_claim(scratch, lanes) if claim else by_find(scratch)


@group.command()
def explain(
    json_file: JsonFileOption = None,
    text: TextOption = None,
    queue: QueueOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain how a store claims by these criteria: normal form, statement, binds, plan, rows read, walk or lane.

    Reads what a claim of 10 reads, for as long as that takes, and leases nothing.

    The claims of a worker ask for the steps that it handles, too: add them to see the same claim.
    """
    criteria = read_criteria(json_file, text, queue)
    with opened_engine(store) as engine:
        verdict, explanation = _explained(engine, route_of(criteria))
        name = engine.store.capabilities.name
    if as_json:
        print_json(_explanation(criteria, verdict, explanation, name))
    else:
        _show(criteria, verdict, explanation, name)


def _explained(engine: Engine, route: Route) -> tuple[Verdict, Explanation]:
    """How a claim by the route goes now."""
    for _ in range(PLACEMENTS):
        verdict = engine.lanes.verdict(route)
        # Its lane may be closed between the question and the statement.
        with suppress(StaleLanes):
            return verdict, engine.store.explain(replace(route, lane=verdict.lane, head=verdict.head), _CLAIM_LIMIT)
    raise TransientStoreError("the lanes of the store change so fast that no claim can be explained")


def _reason(verdict: Verdict) -> str:
    if verdict.lane is not None:
        return f"lane {verdict.lane} is open ({verdict.reason})"
    if verdict.wanted is not None:
        return f"{verdict.reason}; a worker with these criteria will have it opened ({verdict.wanted})"
    return verdict.reason


def _explanation(criteria: QueueCriteria, verdict: Verdict, explanation: Explanation, store: str) -> dict[str, object]:
    return {
        "queue": criteria.queue,
        "normal": predicate_to_object(criteria.normal),
        "text": format_text(criteria.normal),
        "fingerprint": criteria.fingerprint,
        "store": store,
        "sql": explanation.sql,
        "binds": [each if isinstance(each, (str, int)) else str(each) for each in explanation.binds],
        "plan": list(explanation.plan),
        "rows_read": explanation.rows_read,
        "verdict": verdict.plan,
        "reason": _reason(verdict),
    }


def _show(criteria: QueueCriteria, verdict: Verdict, explanation: Explanation, store: str) -> None:
    print_line(f"queue        {criteria.queue}")
    print_line(f"normal form  {format_text(criteria.normal)}")
    print_line(f"fingerprint  {criteria.fingerprint}")
    print_line(f"store        {store}")
    print_line(f"verdict      {verdict.plan}: {_reason(verdict)}")
    print_line(f"rows read    {'not known' if explanation.rows_read is None else explanation.rows_read}")
    for title, lines in (
        ("statement", explanation.sql.splitlines()),
        ("binds", [f"{index}  {bind!r}" for index, bind in enumerate(explanation.binds, 1)]),
        ("plan", explanation.plan),
    ):
        print_line(title)
        for line in lines or ["none"]:
            print_line(f"  {line}")
