"""`wiggle task`: look at a task, live or in history, cancel it, or bring it back."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, TypeAlias

import typer

from wiggle_core.cli.failures import ExitCode
from wiggle_core.cli.options import JsonOption, StoreOption, opened_engine
from wiggle_core.cli.output import print_json, print_line, print_raw
from wiggle_core.criteria.check import check_text
from wiggle_core.errors import CriteriaError
from wiggle_core.tasks.retry import RetryPolicy
from wiggle_core.tasks.task import MAX_ID, TaskRecord
from wiggle_core.tasks.wire import task_to_object

group = typer.Typer(help="Tasks: show one, cancel or retry some.")


def _task_id(text: str) -> str:
    """An argument need not be UTF-8, and then it is nobody's id."""
    try:
        return check_text(text, longest=MAX_ID)
    except CriteriaError as error:
        raise typer.BadParameter(error.message) from None


_ID = typer.Argument(metavar="ID", help="The task's id.", parser=_task_id)
_IDS = typer.Argument(metavar="ID...", help="The tasks' ids.", parser=_task_id)
IdArgument: TypeAlias = Annotated[str, _ID]
IdsArgument: TypeAlias = Annotated[list[str], _IDS]
_JSON_FIELDS = ("payload", "result")


@group.command()
def show(task_id: IdArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show everything about one task, live or settled. Exit code 1 when nobody knows it."""
    with opened_engine(store) as engine:
        task = engine.get(task_id)
    if task is None:
        _report(f"no task {task_id!r}", {"error": f"no task {task_id!r}"}, as_json)
        raise typer.Exit(ExitCode.NO)
    if as_json:
        print_raw(_as_json(task))
        return
    for name, value in (task_to_object(task) | {"retry": _policy(task.retry)}).items():
        if isinstance(value, dict):
            print_line(name)
            for each, held in value.items():
                print_line(f"  {each:<16}{held if isinstance(held, str) else json.dumps(held)}")
        else:
            print_line(f"{name:<18}{value}")


def _as_json(task: TaskRecord) -> str:
    """The task as one JSON object; payload and result are JSON already, and stand in it as they are stored."""
    fields = task_to_object(task) | {"retry": _policy(task.retry)}
    members = (f"{json.dumps(name)}: {_member(name, value)}" for name, value in fields.items())
    return "{" + ", ".join(members) + "}"


def _member(name: str, value: object) -> str:
    return value if name in _JSON_FIELDS and isinstance(value, str) else json.dumps(value)


def _policy(policy: RetryPolicy) -> dict[str, object]:
    """The form that `wiggle enqueue` reads: times in seconds."""
    return {
        "max_attempts": policy.max_attempts,
        "initial_backoff": policy.initial_backoff / timedelta(seconds=1),
        "multiplier": policy.multiplier,
        "max_backoff": policy.max_backoff / timedelta(seconds=1),
        "jitter": policy.jitter,
    }


@group.command()
def cancel(task_ids: IdsArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Cancel live tasks. A running one is not interrupted: its result is dropped. Exit code 1 unless all were live."""
    with opened_engine(store) as engine:
        _change(task_ids, engine.cancel, "cancelled", "not live", as_json)


@group.command()
def retry(task_ids: IdsArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Make FAILED or CANCELLED tasks READY again, attempt 1. Exit code 1 unless all were one of these."""
    with opened_engine(store) as engine:
        _change(task_ids, engine.retry, "ready again", "neither FAILED nor CANCELLED", as_json)


def _change(ids: list[str], change: Callable[[str], bool], done: str, not_done: str, as_json: bool) -> None:
    changed = {task_id: change(task_id) for task_id in ids}
    if as_json:
        print_json({"changed": [each for each in changed if changed[each]], "unchanged": [*_unchanged(changed)]})
    else:
        for task_id, is_changed in changed.items():
            print_line(f"{task_id}  {done if is_changed else not_done}")
    if not all(changed.values()):
        raise typer.Exit(ExitCode.NO)


def _unchanged(changed: dict[str, bool]) -> list[str]:
    return [task_id for task_id, is_changed in changed.items() if not is_changed]


def _report(line: str, value: object, as_json: bool) -> None:
    if as_json:
        print_json(value)
    else:
        print_line(line)
