"""Checks under several processes, each with a store of its own on one database.

A fresh interpreter knows the database by its URL only: a store whose capability `processes` is true supplies the
fixture `store_url` beside `store_factory`. Its clock is the database's own.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier

import pytest
from sqlalchemy import make_url

from wiggle_core.conformance.plugin import ALL, TTL, StoreFactory, claim, drain, enqueue_all, ids, make_task
from wiggle_core.errors import WiggleError
from wiggle_core.stores.registry import open_store
from wiggle_core.stores.replay import Replaying
from wiggle_core.stores.store import Finish, Store
from wiggle_core.tasks.task import State, TaskId

PROCESSES = 3
_WAIT = 60
_NO_URL = "capabilities.processes is true: define a fixture `store_url`, the URL of the database of `store_factory`"

_SECRET = "s3cr3t-word"

_barrier: list[Barrier] = []


def _begin(barrier: Barrier) -> None:
    """A barrier reaches another process only while that one is made."""
    _barrier.append(barrier)


def _opened(url: str) -> Replaying:
    store = Replaying(open_store(url))
    _barrier[0].wait(_WAIT)
    return store


def enqueue_and_settle(url: str, number: int, names: list[TaskId]) -> tuple[int, int, list[TaskId]]:
    """One process of the first check: how many ids it inserted, how many tasks its first claim got, what it settled."""
    with closing(_opened(url)) as store:
        inserted = sum(len(store.enqueue([make_task(name)])) for name in (names if number % 2 else names[::-1]))
        _barrier[0].wait(_WAIT)
        first = claim(store, limit=3)
        _barrier[0].wait(_WAIT)  # everyone has claimed once before anyone can have drained the queue
        settled = list(store.apply([Finish(task.lease, State.DONE) for task in first]))
        for held in drain(store, limit=4, owner=f"process-{number}"):
            leases = [task.lease for task in held]
            assert store.extend(leases, TTL) == set(leases)
            settled += store.apply([Finish(lease, State.DONE) for lease in leases])
        return inserted, len(first), settled


def migrate(url: str) -> int:
    """One process of the second check: how many migrations it applied."""
    with closing(_opened(url)) as store:
        return len(store.migrate())


@contextmanager
def _processes() -> Iterator[ProcessPoolExecutor]:
    # Spawned, as on every platform: drivers do not survive a fork.
    context = get_context("spawn")
    barrier = context.Barrier(PROCESSES)
    with ProcessPoolExecutor(PROCESSES, context, _begin, (barrier,)) as pool:
        yield pool


def _url_of(store: Store, request: pytest.FixtureRequest) -> str:
    if not store.capabilities.processes:
        pytest.skip(f"{store.capabilities.name}: capability processes is false")
    try:
        url: str = request.getfixturevalue("store_url")
    except pytest.FixtureLookupError:
        pytest.fail(_NO_URL, pytrace=False)
    return url


def test_processes_settle_each_task_once(store_factory: StoreFactory, request: pytest.FixtureRequest) -> None:
    """L1, L4, O4: processes that enqueue the same ids, then claim and settle at once, insert and settle each once; none
    of them goes without."""
    with closing(store_factory()) as store:
        url = _url_of(store, request)
        store.migrate()
        enqueue_all(store, [make_task(f"early-{number:03d}") for number in range(60)])
        names = [f"late-{number:03d}" for number in range(60)]
        with _processes() as pool:
            runs = [pool.submit(enqueue_and_settle, url, number, names) for number in range(PROCESSES)]
        shares = [run.result() for run in runs]
        assert sum(inserted for inserted, _, _ in shares) == len(names)
        assert [first for _, first, _ in shares] == [3] * PROCESSES
        settled = Counter(task_id for _, _, share in shares for task_id in share)
        assert settled == Counter(ids(store.find(ALL, [State.DONE], 1_000)))
        assert (len(settled), set(settled.values())) == (120, {1})
        assert store.audit() == []


def test_processes_migrate_once(store_factory: StoreFactory, request: pytest.FixtureRequest) -> None:
    """Section 6: of processes that create the schema at once, one does and the others wait for it; then it is whole."""
    with closing(store_factory()) as store:
        url = _url_of(store, request)
        with _processes() as pool:
            runs = [pool.submit(migrate, url) for _ in range(PROCESSES)]
        assert sum(run.result() > 0 for run in runs) == 1
        store.verify()
        assert store.audit() == []


def test_a_password_is_never_shown(store_factory: StoreFactory, request: pytest.FixtureRequest) -> None:
    """Section 3: a store that a URL's user and password do not open shows the password nowhere: not in the error, its
    causes or any repr."""
    with closing(store_factory()) as store:
        url = make_url(_url_of(store, request)).set(username="wiggle_nobody", password=_SECRET)
    shown: list[str] = []
    try:
        with closing(open_store(url.render_as_string(hide_password=False))) as refused:
            shown.append(repr(refused))
            refused.verify()
    except WiggleError as error:
        shown += [repr(error), *traceback.format_exception(error)]
    assert shown
    assert not [text for text in shown if _SECRET in text]
