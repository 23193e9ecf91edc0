"""A worker's tests: an engine that sweeps quickly, the log from INFO on, and no thread left behind."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from tests.unit.worker.at_work import QUICK, eventually
from wiggle_core import Engine
from wiggle_core.stores.memory import MemoryStore


@pytest.fixture
def engine() -> Engine:
    return Engine(MemoryStore(), settings=QUICK)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Every thread of a worker ends with it."""
    yield
    eventually(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("wiggle-")])
