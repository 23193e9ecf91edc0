"""Checks of attributes (A1-A3) and of what is refused before a store sees it (C6, C7): an engine over the store."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from importlib.resources import files
from typing import Any

import pytest

from wiggle_core.conformance.plugin import (
    ALL,
    QUEUE,
    SECOND,
    START,
    TTL,
    ManualClock,
    claim,
    claim_one,
    enqueue_all,
    ids,
    make_task,
    route,
    stored,
)
from wiggle_core.conformance.strategies import same_value
from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.criteria.check import MAX_TEXT
from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.tree import AttributeReference, IsNull, Value, ValueType
from wiggle_core.criteria.wire import criteria_from_object, value_from_wire
from wiggle_core.engine.engine import Engine
from wiggle_core.errors import CriteriaError, DeclarationError, TaskRejected
from wiggle_core.settings import Settings
from wiggle_core.stores.store import Cancel, Store
from wiggle_core.tasks.attributes import MAX_ATTRIBUTES, Attribute
from wiggle_core.tasks.outcome import Release, Retry
from wiggle_core.tasks.payload import JsonText
from wiggle_core.tasks.submission import NewTask
from wiggle_core.tasks.task import MAX_ID, State, TaskRecord

CASES: dict[str, Any] = json.loads(  # Any: parsed JSON
    files("wiggle_core.conformance").joinpath("cases/attributes.json").read_text("utf-8")
)
REGION = [Attribute("region", str, "customer.region"), Attribute("total", Decimal, "total")]
PAYLOAD = JsonText('{"customer":{"region":"eu"},"total":1250.10}')
READ: dict[str, Value] = {"region": "eu", "total": Decimal("1250.1")}


def _engine(store: Store) -> Engine:
    """An engine with the settings that the contract names, whatever this process's environment says."""
    return Engine(store, settings=Settings())


def _same(got: TaskRecord, wanted: dict[str, Value]) -> bool:
    return got.attributes.keys() == wanted.keys() and all(
        same_value(got.attributes[name], value) for name, value in wanted.items()
    )


def _enqueue(engine: Engine, task_id: str, payload: object = PAYLOAD, delay: timedelta | None = None) -> str:
    return engine.enqueue(QUEUE, "charge", payload, workflow="orders", version=1, id=task_id, delay=delay)


# Declaring


def test_a_declaration_is_read_by_every_node(store: Store, open_handle: Callable[[], Store]) -> None:
    """A1: what one node declared, another extracts by, at once; another version has nothing declared."""
    one, other = _engine(store), _engine(open_handle())
    _enqueue(other, "before")
    one.declare("orders", version=1, attributes=REGION)
    _enqueue(other, "after")
    other.enqueue(QUEUE, "charge", PAYLOAD, workflow="orders", version=2, id="other version")
    assert _same(stored(store, "before"), {})
    assert _same(stored(store, "after"), READ)
    assert _same(stored(store, "other version"), {})


def test_a_declaration_never_changes(store: Store, open_handle: Callable[[], Store]) -> None:
    """A1: the same declaration again is a no-op; another one for the same version is refused, on every node."""
    one, other = _engine(store), _engine(open_handle())
    one.declare("orders", version=1, attributes=REGION)
    other.declare("orders", version=1, attributes=REGION[::-1])
    for engine in (one, other, _engine(open_handle())):
        with pytest.raises(DeclarationError):
            engine.declare("orders", version=1, attributes=[Attribute("region", str, "region")])
    _enqueue(other, "a")
    assert _same(stored(store, "a"), READ)


def test_as_many_attributes_as_may_be_declared(store: Store) -> None:
    """A1: 16 attributes with the longest names are kept and found; a seventeenth is refused."""
    names = [f"{'x' * 60}_{number:02d}" for number in range(MAX_ATTRIBUTES + 1)]
    attributes = [Attribute(name, int, f"list.{number}") for number, name in enumerate(names)]
    engine = _engine(store)
    with pytest.raises(DeclarationError):
        engine.declare("orders", version=1, attributes=attributes)
    engine.declare("orders", version=1, attributes=attributes[:-1])
    _enqueue(engine, "a", {"list": list(range(MAX_ATTRIBUTES + 1))})
    assert _same(stored(store, "a"), {name: number for number, name in enumerate(names[:-1])})
    last = Task.attr(names[-2], int)
    assert ids(claim(store, route(last != MAX_ATTRIBUTES - 1))) == []
    assert ids(claim(store, route(last == MAX_ATTRIBUTES - 1))) == ["a"]


# Extracting


def test_named_contexts_give_their_attributes(store: Store, clock: ManualClock) -> None:
    """A1, A3: each named context gives the expected attributes, a value that does not fit being absent, and claims see
    it so."""
    engine, cases = _engine(store), CASES["cases"]
    declared = [Attribute(each["name"], ValueType(each["type"]), each["path"]) for each in CASES["declare"]]
    engine.declare("orders", version=1, attributes=declared)
    tasks = [
        make_task(f"case {number:02d}", state=State.SCHEDULED, payload=case["context"], workflow="orders", version=1)
        for number, case in enumerate(cases)
    ]
    enqueue_all(store, tasks)
    assert engine.sweep(1_000).promoted == len(tasks)
    for task, case in zip(tasks, cases, strict=True):
        wanted = {name: value_from_wire(literal, "") for name, literal in case["expect"].items()}
        assert _same(stored(store, task.id), wanted), case["why"]
    for each in declared:
        present = [task.id for task, case in zip(tasks, cases, strict=True) if each.name in case["expect"]]
        is_there = IsNull(AttributeReference(each.name, each.type), negated=True)
        assert ids(store.find(route(is_there), [State.READY], 100)) == present


def test_attributes_are_read_whenever_a_task_becomes_ready(store: Store, clock: ManualClock) -> None:
    """A2: promotion, retry, release, expiry and revival read the attributes anew from the stored payload."""
    engine = _engine(store)
    _enqueue(engine, "promoted", delay=timedelta(seconds=1))
    for name in ("expired", "released", "retried", "revived"):
        _enqueue(engine, name)
    held = {task.id: task for task in engine.claim("w", [QueueCriteria(QUEUE)], limit=10)}
    store.apply([Cancel("revived")])
    engine.declare("orders", version=1, attributes=REGION)
    assert not any(stored(store, name).attributes for name in (*held, "promoted"))
    engine.settle(held["released"], Release())
    engine.settle(held["retried"], Retry(delay=timedelta(0)))
    assert engine.retry("revived")
    clock.move(TTL / SECOND)
    assert engine.sweep().moved == 2
    clock.move(3600)
    engine.sweep()
    for name in (*held, "promoted"):
        assert (stored(store, name).state, _same(stored(store, name), READ)) == (State.READY, True), name
    total = Task.attr("total", Decimal)
    assert len(claim(store, route(total == Decimal("1250.10")))) == 5


def test_only_declared_paths_are_copied(store: Store) -> None:
    """A2: nothing of the payload but the declared paths can be tested by a criteria."""
    engine = _engine(store)
    engine.declare("orders", version=1, attributes=REGION)
    _enqueue(engine, "a", {"customer": {"region": "eu", "card": "4111"}, "secret": "x"})
    assert _same(stored(store, "a"), {"region": "eu"})
    assert claim(store, route(Task.attr("secret", str).is_not_null())) == []
    assert claim(store, route(Task.attr("total", Decimal) >= 0)) == []
    assert ids(claim(store, route(~(Task.attr("total", Decimal) >= 0)))) == ["a"]


# What no store ever sees


REFUSED_FIELDS: dict[str, dict[str, Any]] = {  # Any: values of any type, right and wrong
    "queue": {"queue": "x" * (MAX_TEXT + 1)},
    "step": {"step": "a\0b"},
    "node": {"node": "\ud800"},
    "kind": {"kind": "x" * (MAX_TEXT + 1)},
    "correlation_id": {"correlation_id": "a\0"},
    "priority": {"priority": -1},
    "id": {"id": "x" * (MAX_ID + 1)},
    "version": {"version": 2**63},
    "payload": {"payload": float("nan")},
}


@pytest.mark.parametrize("field", REFUSED_FIELDS)
def test_what_is_out_of_bounds_is_not_stored(store: Store, field: str) -> None:
    """C7: a task with a field out of bounds is refused at enqueue by the field's name, and nothing is stored."""
    given: dict[str, Any] = {"queue": QUEUE, "step": "charge"} | REFUSED_FIELDS[field]  # Any: as above
    with pytest.raises(TaskRejected) as refused:
        _engine(store).enqueue(**given)
    assert refused.value.field == field
    assert store.slices() == []


def test_what_is_at_the_bounds_is_stored(store: Store) -> None:
    """C7: text fields of 255 code points and an id of 64 are stored, found by equality and claimed."""
    longest = "\U0001f600" * MAX_TEXT
    new = NewTask(longest, longest, node=longest, kind=longest, correlation_id=longest, id="\U0001f600" * MAX_ID)
    assert _engine(store).enqueue_many([new]).inserted == 1
    chosen = route((Task.step == longest) & (Task.node == longest) & (Task.correlation_id == longest), longest)
    assert ids(store.find(chosen, [State.READY], 10)) == ids(claim(store, chosen)) == [new.id]


def test_refused_criteria_lease_nothing(store: Store) -> None:
    """C6: criteria that cannot be right are refused before the claim; no task is leased by a part of them."""
    enqueue_all(store, [make_task()])
    engine = _engine(store)
    with pytest.raises(CriteriaError) as refused:
        criteria_from_object({"queue": QUEUE, "where": {"op": "=", "args": [{"field": "stepp"}, "charge"]}})
    assert refused.value.path.startswith("/where/args/0")
    with pytest.raises(CriteriaError):
        engine.claim("w", [QueueCriteria(QUEUE, Task.step == "charge"), QueueCriteria(QUEUE)])
    assert store.count(ALL, [State.RUNNING], 10) == 0
    assert claim_one(store).ready_at == START
