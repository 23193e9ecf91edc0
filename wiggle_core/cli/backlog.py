"""`wiggle backlog`: what is ready, and what no live worker takes, with the reason."""

from __future__ import annotations

from dataclasses import asdict

from wiggle_core.cli.options import JsonOption, StoreOption, opened_engine
from wiggle_core.cli.output import age, instant, print_json, print_line, print_table
from wiggle_core.engine.coverage import Backlog, Uncovered, UncoveredTask
from wiggle_core.stores.store import Slice
from wiggle_core.tasks.wire import task_to_object

_SHOWN_WORKERS = 3


def backlog(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the ready tasks by workflow, version and queue, and those that no live worker's criteria match."""
    with opened_engine(store) as engine:
        found = engine.backlog()
    if as_json:
        print_json(
            {
                "slices": [_slice(each, found.now) for each in found.slices],
                "uncovered": _uncovered(found),
                "unreadable_workers": found.unreadable_workers,
            }
        )
    else:
        show_backlog(found)


def _slice(each: Slice, now: int) -> dict[str, object]:
    return {
        "workflow": each.workflow,
        "version": each.version,
        "queue": each.queue,
        "ready": each.ready,
        "oldest_ready_at": instant(each.oldest_ready_at),
        "oldest_age_seconds": max(0, now - each.oldest_ready_at) / 1_000_000,
    }


def _uncovered(found: Backlog) -> list[dict[str, object]]:
    return [
        {
            "queue": each.queue,
            "count": each.count,
            "capped": each.capped,
            "samples": [_sample(sample) for sample in each.samples],
        }
        for each in found.uncovered
    ]


def _sample(sample: UncoveredTask) -> dict[str, object]:
    task = task_to_object(sample.task)
    task.pop("payload", None)
    return {"task": task, "refusals": [asdict(refusal) for refusal in sample.refusals]}


def show_backlog(found: Backlog) -> None:
    """Both tables, for people."""
    for key in found.unreadable_workers:
        print_line(f"The worker registered as {key!r} is left out: this version cannot read what it takes.")
    if not found.slices:
        print_line("nothing is ready")
        return
    rows = [
        (each.workflow, each.version, each.queue, each.ready, age(found.now - each.oldest_ready_at))
        for each in found.slices
    ]
    print_table(("workflow", "version", "queue", "ready", "oldest"), rows, "Ready tasks")
    if not found.uncovered:
        print_line("live workers cover all of them")
    for each in found.uncovered:
        _show_uncovered(each)


def _show_uncovered(found: Uncovered) -> None:
    """How many nobody takes, and of the first one why: the condition of each criteria that it does not meet."""
    count = f"{found.count} or more" if found.capped else str(found.count)
    print_line(f"No live worker takes {count} ready tasks of queue {found.queue!r}.")
    for sample in found.samples[:1]:
        if sample.refusals:
            rows = [(_names(refusal.workers), refusal.failed) for refusal in sample.refusals]
            print_table(("worker", "what does not hold"), rows, f"Why not task {sample.task.id}")
        else:
            print_line("No live worker polls this queue.")


def _names(workers: tuple[str, ...]) -> str:
    more = len(workers) - _SHOWN_WORKERS
    return ", ".join(workers[:_SHOWN_WORKERS]) + (f" and {more} more" if more > 0 else "")
