"""Opening an engine, its settings, the facade for asyncio, and the public face."""

from __future__ import annotations

import asyncio
import inspect
from datetime import timedelta
from pathlib import Path

import pytest

import wiggle_core
from wiggle_core import (
    AsyncEngine,
    Attribute,
    Done,
    Engine,
    InvalidSetting,
    NewTask,
    QueueCriteria,
    SchemaError,
    State,
    Task,
    UnknownScheme,
    WiggleError,
    open_engine,
)
from wiggle_core.settings import Settings
from wiggle_core.stores.memory import MemoryStore


def test_open_asks_for_a_schema(tmp_path: Path) -> None:
    """Section 6: nothing but migrate makes a schema; the error names the command, and no file appears."""
    url = f"sqlite:///{tmp_path}/w.db"
    with pytest.raises(SchemaError, match="wiggle db upgrade"):
        open_engine(url)
    assert list(tmp_path.iterdir()) == []
    with open_engine(url, migrate=True) as engine:
        engine.enqueue("q", "s", id="a")
    with open_engine(url) as engine:
        assert engine.migrate() == []
        assert engine.get("a") is not None


def test_the_url_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 9: WIGGLE_DATABASE_URL, when none is given."""
    monkeypatch.setenv("WIGGLE_DATABASE_URL", "memory://")
    with open_engine() as engine:
        assert engine.store.capabilities.name == "memory"
    monkeypatch.setenv("WIGGLE_DATABASE_URL", "memroy://")
    with pytest.raises(UnknownScheme, match="memory"):
        open_engine()


def test_an_injected_clock_is_the_stores(tmp_path: Path) -> None:
    """L1: tests may inject the database's clock."""
    for url in ("memory://", "sqlite://"):
        with open_engine(url, clock=lambda: 5_000_000, migrate=True) as engine:
            task = engine.get(engine.enqueue("q", "s"))
            assert task is not None
            assert (task.created_at, engine.store.now()) == (5_000_000, 5_000_000)


def test_settings_come_from_the_environment() -> None:
    """Section 8: WIGGLE_SCOPED_FALLBACK_MAX_MILLIS and its kin; an empty one is none."""
    assert Settings.from_environment({}) == Settings()
    given = {"WIGGLE_SCOPED_FALLBACK_MAX_MILLIS": "500", "WIGGLE_SWEEP_INTERVAL_MILLIS": "", "WIGGLE_OTHER": "x"}
    assert Settings.from_environment(given) == Settings(scoped_fallback_max_millis=500)


@pytest.mark.parametrize("value", ["99", "-1", "soon", "1.5"])
def test_a_bad_setting_is_named(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 8: a clear error, before anything runs."""
    monkeypatch.setenv("WIGGLE_SCOPED_FALLBACK_MAX_MILLIS", value)
    with pytest.raises(InvalidSetting, match="WIGGLE_SCOPED_FALLBACK_MAX_MILLIS") as refused:
        Engine(MemoryStore())
    assert isinstance(refused.value, WiggleError)
    assert refused.value.variable == "WIGGLE_SCOPED_FALLBACK_MAX_MILLIS"


def test_sweeps_are_an_hour_apart_at_most() -> None:
    """Section 8: a typing error must not stop time for the tasks that wait for it."""
    named = "WIGGLE_SWEEP_INTERVAL_MILLIS"
    assert Settings.from_environment({named: "3600000"}).sweep_interval_millis == 3_600_000
    with pytest.raises(InvalidSetting, match=named):
        Settings.from_environment({named: "3600001"})


def test_the_facade_does_what_the_engine_does() -> None:
    """Section 8: async users get a thin facade over threads."""

    async def use() -> None:
        async with AsyncEngine(open_engine("memory://")) as engine:
            assert await engine.migrate() == []
            await engine.declare("w", version=1, attributes=[Attribute("n", int, "n")])
            await engine.enqueue("q", "s", {"n": 1}, id="a", workflow="w", version=1)
            assert (await engine.enqueue_many([NewTask("q", "s", id="b"), NewTask("q", "s", id="a")])).existing == 1
            criteria = QueueCriteria("q", Task.attr("n", int) == 1)
            (task,) = await engine.claim("w", [criteria], limit=5, lease=timedelta(seconds=9))
            assert await engine.extend([task.lease]) == {task.lease}
            await engine.settle(task, Done(1))
            done = await engine.get("a")
            assert done is not None
            assert done.result == "1"
            assert await engine.settle_many([(task, Done())]) == set()
            assert [found.id for found in await engine.find(QueueCriteria("q"))] == ["b"]
            assert await engine.cancel("b")
            assert await engine.retry("b")
            assert await engine.count(QueueCriteria("q"), {State.READY}) == 1
            assert await engine.workers() == []
            assert [each.count for each in (await engine.backlog()).uncovered] == [1]
            await engine.wake()
            assert (await engine.sweep()).promoted == 0

    asyncio.run(use())


def test_the_facade_has_the_engines_signatures() -> None:
    """Section 8: whatever a client may ask, with the same arguments."""
    threads_only = {
        "attribute_misses",
        "claim_routes",
        "forget_workers",
        "report",
        "subscribe",
        "subscribe_routes",
        "sweep_due",
        "tidy",
    }
    methods = {name for name in vars(Engine) if not name.startswith("_")} - threads_only
    assert methods == {name for name in vars(AsyncEngine) if not name.startswith("_")}
    for name in methods:
        assert inspect.signature(getattr(AsyncEngine, name)) == inspect.signature(getattr(Engine, name)), name


def test_the_public_face_is_sorted_and_there() -> None:
    """style.md: imports and a sorted `__all__`."""
    assert sorted(wiggle_core.__all__) == wiggle_core.__all__
    assert [name for name in wiggle_core.__all__ if not hasattr(wiggle_core, name)] == []
