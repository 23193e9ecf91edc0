"""Places to measure in: an empty store of its own in the database that a URL names, dropped afterwards."""

from __future__ import annotations

import platform
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from sqlalchemy import URL, make_url

from benchmarks.bare import BareClaim, bare_mysql, bare_postgres, bare_sqlite
from wiggle_core import Engine
from wiggle_core.lanes.planner import LanePolicy
from wiggle_core.settings import Settings
from wiggle_core.stores.registry import open_scratch, open_store
from wiggle_core.stores.replay import Replaying
from wiggle_core.stores.store import Store

_SETTINGS = """
    SELECT name, current_setting(name) FROM pg_settings
    WHERE name IN ('server_version', 'fsync', 'synchronous_commit', 'shared_buffers')
"""

_MYSQL_SETTINGS = """
    SHOW GLOBAL VARIABLES WHERE Variable_name IN
    ('innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin', 'innodb_buffer_pool_size')
"""


@dataclass(frozen=True, slots=True)
class Place:
    """An engine over an empty store. `server` is product and version, `settings` what a commit waits for.

    `url` is for other processes, None where no other one can come; `bare` sends the statements of a claim without us,
    None where there are none or they are not known.
    """

    engine: Engine
    server: str
    settings: Mapping[str, str]
    url: str | None = None
    bare: BareClaim | None = None

    @property
    def name(self) -> str:
        return self.engine.store.capabilities.name

    @property
    def has_lanes(self) -> bool:
        return self.engine.store.lanes is not None


@contextmanager
def scratch(url: str, policy: LanePolicy) -> Iterator[Place]:
    """A place in the database of the URL. Raises as `open_store` does."""
    parsed = make_url(url)
    match parsed.drivername.partition("+")[0]:
        case "sqlite" if parsed.database not in (None, "", ":memory:"):
            place = _in_file(parsed, policy)
        case "postgresql" | "postgres":
            place = _in_schema(parsed, policy)
        case "mysql" | "mariadb":
            place = _in_tables(parsed, policy)
        case _:
            place = _anywhere(url, policy)
    with place as found:
        yield found


@contextmanager
def _in_file(url: URL, policy: LanePolicy) -> Iterator[Place]:
    file = Path(f"{url.database}.benchmark-{uuid4().hex[:12]}")
    own = url.set(database=str(file)).render_as_string(hide_password=False)
    try:
        with _engine(lambda: open_store(own), policy) as engine, closing(_connect(file)) as connection:
            settings = {"synchronous": str(url.query.get("synchronous", "full"))}
            yield Place(engine, f"SQLite {sqlite3.sqlite_version}", settings, own, bare_sqlite(connection))
    finally:
        for left in file.parent.glob(f"{file.name}*"):
            left.unlink()


def _connect(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(file, isolation_level=None)


@contextmanager
def _in_schema(url: URL, policy: LanePolicy) -> Iterator[Place]:
    # Imported here: the driver is there only where it is used.
    from wiggle_store_postgres.connections import connect  # noqa: PLC0415
    from wiggle_store_postgres.place import read_url  # noqa: PLC0415
    from wiggle_store_postgres.schema import drop  # noqa: PLC0415

    own = url.update_query_dict({"schema": f"wiggle_benchmark_{uuid4().hex[:12]}"})
    place, text = read_url(own), own.render_as_string(hide_password=False)
    try:
        with _engine(lambda: open_store(text), policy) as engine, closing(connect(place)) as connection:
            settings: dict[str, str] = dict(connection.execute(_SETTINGS).fetchall())
            server = f"PostgreSQL {settings.pop('server_version')}"
            yield Place(engine, server, settings, text, bare_postgres(connection, place, engine.store))
    finally:
        drop(place)


@contextmanager
def _in_tables(url: URL, policy: LanePolicy) -> Iterator[Place]:
    # Imported here: the driver is there only where it is used.
    from wiggle_store_mysql.connections import connect, set_up  # noqa: PLC0415
    from wiggle_store_mysql.place import read_url  # noqa: PLC0415
    from wiggle_store_mysql.schema import drop  # noqa: PLC0415

    own = url.update_query_dict({"prefix": f"benchmark_{uuid4().hex[:12]}_"})
    place, text = read_url(own), own.render_as_string(hide_password=False)
    try:
        with _engine(lambda: open_store(text), policy) as engine, closing(connect(place)) as connection:
            server, _ = set_up(connection, place)
            with connection.cursor() as cursor:
                cursor.execute(_MYSQL_SETTINGS)
                settings = {name: str(value) for name, value in cursor.fetchall()}
            yield Place(engine, str(server), settings, text, bare_mysql(connection, place))
    finally:
        drop(place)


@contextmanager
def _anywhere(url: str, policy: LanePolicy) -> Iterator[Place]:
    with _engine(lambda: open_scratch(url), policy) as engine:
        name = engine.store.capabilities.name
        yield Place(engine, f"{name}, Python {platform.python_version()}" if name == "memory" else name, {})


@contextmanager
def _engine(opened: Callable[[], Store], policy: LanePolicy) -> Iterator[Engine]:
    settings = Settings.from_environment().model_copy(update={"lanes": policy})
    with Engine(Replaying(opened()), settings=settings) as engine:
        engine.migrate()
        yield engine
