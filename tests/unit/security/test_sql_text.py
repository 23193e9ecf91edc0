"""SQL text is a function of the shape alone: no byte of a value or of an attribute name reaches it (section 6).

A store joins by a line in each of the two tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from inspect import isfunction
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.criteria.strategies import predicates
from tests.unit.security.rewording import HOSTILE, MARK, Recorder, Rewording, leaks, record_sqlite
from wiggle_core.conformance.plugin import START, ManualClock
from wiggle_core.conformance.strategies import Hostile
from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.tree import AttributeReference, In, Predicate, ValueType, normalize
from wiggle_core.engine.engine import Engine
from wiggle_core.errors import LeaseLost, RevisionConflict
from wiggle_core.stores.registry import open_store
from wiggle_core.stores.sql.writer import Bind, SqlDialect, SqlWriter
from wiggle_core.stores.store import ClaimRequest, Route, Store
from wiggle_core.tasks.attributes import Attribute
from wiggle_core.tasks.outcome import Done, Fail, Outcome, Release, Retry
from wiggle_core.tasks.retry import RetryPolicy
from wiggle_core.tasks.submission import NewTask
from wiggle_core.tasks.task import State
from wiggle_store_mysql import dialect as mysql
from wiggle_store_mysql.place import Product
from wiggle_store_postgres import dialect as postgres
from wiggle_store_sqlite import dialect as sqlite

WRITERS: dict[str, SqlWriter] = {
    "sqlite": sqlite.WRITER,
    "postgres": postgres.WRITER,
    "mysql": mysql.WRITERS[Product.MYSQL],
    "mariadb": mysql.WRITERS[Product.MARIADB],
}
"""What renders each store's predicates."""

STORES: dict[str, tuple[str, Recorder]] = {
    "sqlite": ("sqlite:///{folder}/tasks.db", record_sqlite),
}
"""The URL of an empty database, and what records the statements of the store's driver."""

HOSTILE_SEEDS = st.integers(0, 2**32).map(lambda seed: Hostile(seed).predicate())


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
@settings(max_examples=300, deadline=None)
@given(predicate=predicates | HOSTILE_SEEDS, offset=st.integers(0, 3))
def test_the_text_is_a_function_of_the_shape(writer: SqlWriter, predicate: Predicate, offset: int) -> None:
    """Section 6: with every value and attribute name exchanged the text stays the same, and holds none of them."""
    shape = normalize(predicate)
    written = writer.render(shape, offset)
    one, other = (writer.render(Rewording.of(series).predicate(shape), offset) for series in ("a", "bb"))
    assert written.text == one.text == other.text
    assert not leaks(one.text), one.text
    assert len(written.binds) == len(one.binds)


def _quoted(name: str, bind: Bind) -> str:
    return f"attributes ->> '{name}'"


def _inlined(value: str, bind: Bind) -> str:
    return "'" + value.replace("'", "''") + "'"


def _fewer(values: object, bind: Bind) -> str:
    return f"(SELECT {len(str(values))})"


@pytest.mark.parametrize("broken", [{"attribute": _quoted}, {"text": _inlined}, {"members": _fewer}], ids=str)
def test_a_writer_that_lets_values_in_is_found(broken: dict[str, Any]) -> None:  # Any: arguments of a dialect
    """Section 6: the checks above see a name, a literal or a mere length in the text."""
    good: dict[str, Any] = {"attribute": lambda name, bind: bind(name), "like": lambda value, parts, bind: bind(value)}
    shape = In(AttributeReference("a", ValueType.STRING), ("x",) * 17)
    for dialect, is_clean in ((good, True), (good | broken, False)):
        writer = SqlWriter(SqlDialect(**dialect))
        texts = [writer.render(Rewording.of(series).predicate(shape)).text for series in ("a", "bb")]
        assert (texts[0] == texts[1] and not leaks(texts[0])) is is_clean


@dataclass(frozen=True)
class Recorded:
    """An open store whose statements are written down."""

    store: Store
    statements: list[str]
    clock: ManualClock


Opening = Callable[[], Recorded]


@pytest.fixture(params=STORES.values(), ids=list(STORES))
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opening]:
    """Opens the store on an empty database of its own each time."""
    url, recorder = request.param
    opened: list[Store] = []
    with pytest.MonkeyPatch.context() as patch:
        statements = recorder(patch)

        def open_one() -> Recorded:
            folder = tmp_path / f"{MARK}{len(opened)}"
            folder.mkdir()
            clock = ManualClock(START)
            opened.append(open_store(url.format(folder=folder), clock=clock))
            opened[-1].migrate()
            opened[-1].verify()  # opens the connection that the store goes on with
            del statements[:]
            return Recorded(opened[-1], statements, clock)

        yield open_one
        for store in opened:
            store.close()


def test_claim_find_count_and_explain_send_no_value(opening: Opening) -> None:
    """Section 6: all statements that hold a predicate are the same for all predicates of its shape."""
    recorded, hostile = opening(), Hostile(7)
    for _ in range(150):
        shape = normalize(hostile.predicate())
        sent = []
        for series in ("a", "bb"):
            wording = Rewording.of(series)
            ask_all(recorded.store, wording, wording.predicate(shape))
            sent.append(recorded.statements.copy())
            del recorded.statements[:]
        assert sent[0] == sent[1]
        assert sent[0]
        assert not any(map(leaks, sent[0]))


def ask_all(store: Store, wording: Rewording, predicate: Predicate) -> None:
    route, limit = Route(wording.text(), predicate), wording.whole()
    other = Route(wording.text(), predicate)
    page = store.find(route, list(State), limit)
    assert page == []
    store.count(route, list(State), limit)
    store.claim(ClaimRequest(wording.text(), wording.text(), 1, limit, (route, other)))
    assert not leaks(store.explain(route, limit).sql)


def test_a_whole_run_sends_no_value(opening: Opening) -> None:
    """Section 6: whatever tasks, workers and documents are named and hold, the statements sent are the same."""
    runs: list[list[str]] = []
    for series in ("a", "bb"):
        recorded = opening()
        called = work(recorded, Rewording.of(series))
        assert called >= ASKED, f"not tried: {sorted(ASKED - called)}"
        runs.append(recorded.statements.copy())
    assert len(runs[0]) > 50
    assert runs[0] == runs[1]
    assert [each for each in runs[0] if leaks(each)] == []


NAMELESS = {"close", "migrate", "schema_sql", "now"}
ASKED = {name for name, member in vars(Store).items() if isfunction(member) and name[0] != "_"} - NAMELESS
"""Every method of a store that reads or writes data."""


class Calls:
    """A store that notes which of its methods were called."""

    def __init__(self, store: Store) -> None:
        self.names: set[str] = set()
        self._store = store

    def __getattr__(self, name: str) -> Any:  # Any: whatever the store has
        self.names.add(name)
        return getattr(self._store, name)


def work(recorded: Recorded, wording: Rewording) -> set[str]:
    """One life of everything that an engine stores, all of it named with marked, hostile text."""
    calls = Calls(recorded.store)
    engine = Engine(cast("Store", calls))  # it has every method, by __getattr__
    queue = wording.text().replace("\n", "")  # the one character above that a queue's name may not hold
    criteria = enqueue_all_kinds(engine, wording, queue)
    claimed = engine.claim(wording.text(), criteria, limit=wording.whole())
    assert len(claimed) == 7
    assert len(engine.extend([task.lease for task in claimed])) == 7
    text = wording.text()
    outcomes: list[Outcome] = [
        Done({text: text}),
        Retry(text, timedelta(microseconds=wording.whole())),
        Retry(text),
        Fail(text),
    ]
    for task, outcome in zip(claimed, [*outcomes, Release()], strict=False):
        engine.settle(task, outcome)
    with suppress(LeaseLost):
        engine.settle(claimed[0], Done(text))
    assert engine.cancel(claimed[5].id)
    assert engine.retry(claimed[5].id)
    recorded.clock.move(60)
    engine.sweep()
    for each in criteria:
        page = engine.find(each, list(State), wording.whole())
        assert engine.count(each, list(State), wording.whole()) == len(page)
        engine.find(each, list(State), wording.whole(), page[0].order_key if page else None)
    ask_by_name(calls, wording, [*(task.id for task in claimed), wording.text()[:60]])
    recorded.clock.move(7 * 24 * 3600)
    engine.sweep()
    engine.backlog()
    engine.tidy()
    engine.forget_workers()
    return calls.names


def enqueue_all_kinds(engine: Engine, wording: Rewording, queue: str) -> list[QueueCriteria]:
    """Seven READY tasks and one that waits, and the two criteria that take them all."""
    workflow, name = wording.text(), f"{MARK}_name"
    engine.declare(workflow, version=wording.whole(), attributes=[])
    engine.declare(workflow, version=1, attributes=[Attribute(name, str, MARK), Attribute(f"{name}2", int, "n")])
    other = f"{queue}2"
    for number in range(8):
        text = wording.text()
        engine.enqueue(
            queue if number % 2 else other,
            text,
            {MARK: text, text: [text], "n": wording.whole()},
            workflow=workflow,
            version=1,
            node=text,
            kind=text,
            correlation_id=text,
            id=f"{number}{text}"[:60],
            priority=wording.whole() % 2**31,
            delay=None if number else timedelta(seconds=30),
            retry=RetryPolicy(max_attempts=7_070_707),
        )
    engine.enqueue_many([NewTask(f"{queue}3", wording.text(), id=wording.text()[:60]) for _ in range(60)])
    marked = Task.attr(name, str)
    where = (marked >= MARK) & Task.step.like(f"{MARK}%") & marked.like(f"_{MARK[1:]}%") & ~(Task.kind == HOSTILE)
    unlike = (Task.attr(f"{name}2", int) > wording.whole() - 10**6) | marked.in_([wording.text() for _ in range(20)])
    return [QueueCriteria(queue, where), QueueCriteria(other, unlike)]


def ask_by_name(store: Any, wording: Rewording, ids: list[str]) -> None:  # Any: a store in its recorder
    kind, key, body = wording.text(), wording.text(), f'"{MARK}"'
    store.put_document(kind, key, body)
    store.put_document(kind, key, body, 1)
    with suppress(RevisionConflict):
        store.put_document(kind, key, body, wording.whole())
    assert store.get_document(kind, key).body == body
    assert len(store.list_documents(kind)) == 1
    assert store.delete_document(kind, key)
    store.lookup(ids)
    store.leased(wording.text())
    store.explain(Route(wording.text()), wording.whole())
    store.verify()
    store.audit()
