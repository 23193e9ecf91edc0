"""`python -m benchmarks core`: what a predicate costs in the process, beside rule-engine and SQLAlchemy.

CPU time is taken, not time of day: nothing here waits, and other programs on the machine should not count.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from time import process_time

from rule_engine import Context, DataType, Rule, type_resolver_from_dict  # type: ignore[import-untyped]  # no py.typed
from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    Integer,
    MetaData,
    Table,
    Text,
    and_,
    create_engine,
    insert,
    not_,
    or_,
    select,
)
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect

from benchmarks.datasets import QUEUE, express, items, records, region, tier, total
from benchmarks.report import Contender, Report, interleave, timed
from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.criteria.evaluate import compile_predicate, matches
from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.tree import Predicate
from wiggle_core.tasks.task import TaskRecord

FIVE_LEAVES = QueueCriteria(
    QUEUE,
    (Task.step == "charge")
    & (region == "eu")
    & (total >= 1000)
    & (Task.attempt < 4)
    & Task.correlation_id.like("eu-%"),
)
RULE = "step == 'charge' and region == 'eu' and total >= 1000 and attempt < 4 and correlation_id =~ '^eu-.*'"
"""The same for rule-engine. `=~` is the quicker of its two ways to test a prefix (the other: `starts_with`)."""

_TEXT, _NUMBER = DataType.STRING, DataType.FLOAT
RULE_TYPES = {"step": _TEXT, "region": _TEXT, "total": _NUMBER, "attempt": _NUMBER, "correlation_id": _TEXT}

ORDERS = Table(
    "orders",
    MetaData(),
    Column("id", Text, primary_key=True),
    Column("step", Text),
    Column("kind", Text),
    Column("attempt", Integer),
    Column("priority", Integer),
    Column("correlation_id", Text),
    Column("workflow", Text),
    Column("region", Text),
    Column("tier", Text),
    Column("items", Integer),
    Column("express", Boolean),
)
"""A table with a column for each thing asked: plainer, and so cheaper to compile, than JSON expressions would be."""


def run(report: Report, *, tasks: int = 1000, repeats: int = 15) -> None:
    """Every part of the benchmark; `tasks` evaluated in each repeat."""
    sample = records(tasks)
    _evaluate(report, sample, repeats)
    _build(report, sample, repeats)


def _evaluate(report: Report, sample: Sequence[TaskRecord], repeats: int) -> None:
    report.head(f"Evaluating a 5-leaf predicate on {len(sample)} tasks, against rule-engine (answers compared first)")
    matching = [task for task in sample if matches(_predicate(FIVE_LEAVES), task)]
    report.figure("share that matches", 100 * len(matching) / len(sample), "%")
    _race(report, "any tasks", sample, repeats)
    _race(report, "tasks that match: all five leaves tested", matching, repeats)


def _race(report: Report, name: str, sample: Sequence[TaskRecord], repeats: int) -> None:
    predicate = _predicate(FIVE_LEAVES)
    compiled = compile_predicate(predicate)
    rule = Rule(RULE, context=Context(type_resolver=type_resolver_from_dict(RULE_TYPES)))
    # The list is long enough for the clock's step, and the rule gets flat dictionaries, the quickest it can read.
    tasks = [sample[index % len(sample)] for index in range(max(len(sample), 500))]
    things = [_thing(task) for task in tasks]
    answers = [rule.matches(thing) for thing in things]
    if [compiled(task) for task in tasks] != answers or [matches(predicate, task) for task in tasks] != answers:
        raise AssertionError("wiggle and rule-engine disagree")
    # The quick one runs over the list 20 times in a repeat, so that all are measured over a like time.
    contenders: dict[str, Contender] = {
        "compiled": timed(lambda: [[compiled(task) for task in tasks] for _ in range(20)], process_time),
        "matches": timed(lambda: [matches(predicate, task) for task in tasks], process_time),
        "rule-engine": timed(lambda: [rule.matches(thing) for thing in things], process_time),
    }
    seconds = interleave(contenders, repeats)
    seconds["compiled"] /= 20
    for contender, taken in seconds.items():
        report.figure(f"{name}: {contender}", taken / len(tasks) * 1e9, "ns")
    report.at_least(f"{name}: rule-engine / compiled", seconds["rule-engine"] / seconds["compiled"], 50)
    report.figure(f"{name}: rule-engine / matches", seconds["rule-engine"] / seconds["matches"], "x")


def _thing(task: TaskRecord) -> dict[str, object]:
    return {
        "step": task.step,
        "attempt": task.attempt,
        "correlation_id": task.correlation_id,
        "region": task.attributes["region"],
        "total": task.attributes["total"],
    }


def ten_leaves() -> QueueCriteria:
    """Ten leaves of every kind, built anew."""
    return QueueCriteria(
        QUEUE,
        (Task.workflow == "orders")
        & (Task.step.in_(["charge", "refund"]))
        & ~(Task.attempt >= 4)
        & (Task.priority < 100)
        & ((region == "eu") | (region == "us") | Task.correlation_id.like("apac-%"))
        & items.between(2, 9)
        & ((tier != "basic") | (express == True)),  # noqa: E712  # builds a predicate
    )


def ten_leaves_in_sql() -> ColumnElement[bool]:
    """The same in SQLAlchemy, built anew."""
    column = ORDERS.c
    return and_(
        column.workflow == "orders",
        column.step.in_(["charge", "refund"]),
        not_(column.attempt >= 4),
        column.priority < 100,
        or_(column.region == "eu", column.region == "us", column.correlation_id.like("apac-%")),
        column["items"].between(2, 9),
        or_(column.tier != "basic", column.express.is_(True)),
    )


def _build(report: Report, sample: Sequence[TaskRecord], repeats: int) -> None:
    report.head("Building a criteria of 10 leaves, against SQLAlchemy and the same WHERE for SQLite, without its cache")
    _compare_answers(sample)
    dialect = sqlite_dialect()
    built = ten_leaves_in_sql()

    runs: dict[str, Callable[[], object]] = {
        # The fingerprint normalises; building checks.
        "wiggle: build, check, normalise, fingerprint": lambda: ten_leaves().fingerprint,
        "SQLAlchemy: build": ten_leaves_in_sql,
        "SQLAlchemy: compile the WHERE built before": lambda: built.compile(dialect=dialect),
        "SQLAlchemy: build and compile": lambda: ten_leaves_in_sql().compile(dialect=dialect),
    }
    contenders = {name: timed(partial(_hundred, run), process_time) for name, run in runs.items()}
    seconds = interleave(contenders, repeats)
    for name, taken in seconds.items():
        report.figure(name, taken / 100 * 1e6, "us")
    mine, build, compiling, both = seconds.values()
    report.figure("SQLAlchemy build / wiggle", build / mine, "x")
    report.at_least("SQLAlchemy compile alone / wiggle", compiling / mine, 1)
    report.at_least("SQLAlchemy build and compile / wiggle", both / mine, 1)


def _hundred(run: Callable[[], object]) -> None:
    for _ in range(100):
        run()


def _compare_answers(sample: Sequence[TaskRecord]) -> None:
    """Both spellings must choose the same tasks, or the race means nothing."""
    predicate = _predicate(ten_leaves())
    expected = [task.id for task in sample if matches(predicate, task)]
    engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(":memory:"))
    with engine.begin() as connection:
        ORDERS.create(connection)
        connection.execute(insert(ORDERS), [_row(task) for task in sample])
        found = connection.scalars(select(ORDERS.c.id).where(ten_leaves_in_sql()).order_by(ORDERS.c.id)).all()
    engine.dispose()
    if list(found) != expected or not expected:
        raise AssertionError("wiggle and SQLAlchemy disagree")


def _row(task: TaskRecord) -> dict[str, object]:
    names = ("id", "step", "kind", "attempt", "priority", "correlation_id", "workflow")
    asked: dict[str, object] = {name: task.attributes[name] for name in ("region", "tier", "items", "express")}
    return {name: getattr(task, name) for name in names} | asked


def _predicate(criteria: QueueCriteria) -> Predicate:
    if criteria.predicate is None:
        raise ValueError("criteria without a predicate")
    return criteria.predicate
