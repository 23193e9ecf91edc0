"""Turns of a SQLite database: first come, first served."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread

from sqlalchemy import make_url

from wiggle_core.stores.store import Route
from wiggle_core.tasks.task import State, TaskRecord
from wiggle_store_sqlite import open_store
from wiggle_store_sqlite.turns import Turns

SOON, LONG = 0.01, 30.0


def test_turns_come_in_the_order_asked_for() -> None:
    """SQ1: whoever has waited longest goes next, though others ask at the right moment."""
    turns, order = Turns(), list[int]()
    assert turns.acquire(LONG)

    def take(number: int) -> None:
        assert turns.acquire(LONG)
        order.append(number)

    threads = [Thread(target=take, args=(number,)) for number in range(5)]
    for number, thread in enumerate(threads, 1):
        thread.start()
        while len(turns._waiting) < number:
            pass
    for thread in threads:
        turns.release()
        thread.join()
    assert order == [0, 1, 2, 3, 4]


def test_a_turn_that_does_not_come_is_given_up() -> None:
    """SQ1: who gave up is passed over."""
    turns = Turns()
    assert turns.acquire(LONG)
    assert not turns.acquire(SOON)
    turns.release()
    assert turns.acquire(SOON)


def test_busy_readers_keep_nobody_from_the_database_in_memory() -> None:
    """SQ1: beside four threads that read without a pause, 100 writes come through, none waiting half a second."""
    store = open_store(make_url("sqlite://?timeout=0.5"))
    store.enqueue([_task(f"s{number}") for number in range(500)])
    is_over = Event()

    def read() -> None:
        while not is_over.is_set():
            assert len(store.find(Route("q"), {State.READY}, 100)) == 100

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read) for _ in range(4)]
        try:
            for number in range(100):
                assert store.enqueue([_task(f"t{number}")])
        finally:
            is_over.set()
    for reader in readers:
        reader.result()


def _task(task_id: str) -> TaskRecord:
    return TaskRecord(task_id, "q", "s", created_at=1, ready_at=1)
