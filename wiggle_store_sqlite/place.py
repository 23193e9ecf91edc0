"""Where a SQLite store is: the file or memory that a URL names, and the options that go with it."""

from __future__ import annotations

import math
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL

from wiggle_core.errors import InvalidStoreUrl

OPTIONS = {"timeout": "seconds", "synchronous": "full|normal", "mode": "rw|ro"}
_MEMORY = (None, "", ":memory:")
_OLDEST = (3, 37, 0)


@dataclass(frozen=True, slots=True)
class Place:
    """A database by its full path, "" for one in memory, and its `name` as the user wrote it. `timeout` is how many
    seconds to wait for a lock."""

    path: str
    name: str = ""
    timeout: float = 30.0
    synchronous: str = "full"
    mode: str = "rw"

    @property
    def is_memory(self) -> bool:
        return not self.path

    @property
    def url(self) -> str:
        """The URL as a user would write it for `--store`; its options are left out."""
        return URL.create("sqlite", database=self.name or None).render_as_string()

    def __str__(self) -> str:
        return f"the database {self.name!r}" if self.path else "the database in memory"

    def uri(self, mode: str, extra: str = "") -> str:
        """SQLite's own URI. Without `mode=rwc` a missing file is not created."""
        return f"file:{quote(self.path)}?mode={mode}{extra}" if self.path else ":memory:"


def read_url(url: URL) -> Place:
    """The place that a URL names. Raises InvalidStoreUrl, listing the options that there are."""
    if sqlite3.sqlite_version_info < _OLDEST:
        raise InvalidStoreUrl(f"SQLite {sqlite3.sqlite_version} is too old: 3.37 brought STRICT tables")
    if url.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise InvalidStoreUrl(f"{url.drivername!r} is not known: Python's own sqlite3 is the only driver")
    if any((url.host, url.port, url.username, url.password)):
        raise InvalidStoreUrl("a SQLite file has no host: write sqlite:///file, or sqlite:////full/path/to/file")
    unknown = sorted(url.query.keys() - OPTIONS.keys())
    if unknown:
        known = ", ".join(f"{name}={form}" for name, form in OPTIONS.items())
        raise InvalidStoreUrl(f"no option {unknown[0]!r}; there are {known}")
    name = "" if url.database in _MEMORY else str(url.database)
    options = {name: _option(url, name) for name in url.query}
    return Place(
        # Full, since a program that changes its working directory opens further connections later.
        str(Path(name).absolute()) if name else "",
        name,
        timeout=_seconds(options.get("timeout", "30")),
        synchronous=_choice("synchronous", options.get("synchronous", "full")),
        mode=_choice("mode", options.get("mode", "rw")),
    )


def _option(url: URL, name: str) -> str:
    value = url.query[name]
    if not isinstance(value, str):
        raise InvalidStoreUrl(f"the option {name!r} is given twice")
    return value


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= 3600:
        raise InvalidStoreUrl(f"timeout={text[:40]!r}: seconds from 0 to 3600 are expected")
    return seconds


def _choice(name: str, value: str) -> str:
    if value.lower() not in OPTIONS[name].split("|"):
        raise InvalidStoreUrl(f"{name}={value[:40]!r}: {OPTIONS[name]} is expected")
    return value.lower()
