"""MySQL for tests: a server of our own in a folder, from the machine's mysqld or Debian sid's package."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers.finding import Unavailable, docker_answers
from tests.servers.mysql_packages import cached_server
from tests.servers.mysql_process import LocalMySQL, Programs, container, own_server
from tests.servers.processes import program

VARIABLE = "WIGGLE_TEST_MYSQL_URL"
IMAGE = "mysql:8.4"

# The compiled-in folder for LOAD DATA is Debian's own, and a server does not start without it.
_OPTIONS = ("--secure-file-priv=", "--mysqlx=OFF")
_SETTINGS = {"skip_log_bin": "", "innodb_redo_log_capacity": "64M", "table_open_cache": "1000"}


@contextmanager
def running_mysql() -> Iterator[str]:
    """The URL of a server for this test run. Raises Unavailable."""
    if os.environ.get(VARIABLE):
        yield os.environ[VARIABLE]
    elif docker_answers():
        with container("mysql", IMAGE) as url:
            yield url
    else:
        with own_mysql() as server:
            yield server.url


@contextmanager
def own_mysql(durable: bool = False, **settings: str) -> Iterator[LocalMySQL]:
    """A server that a test may stop, kill and start again. Raises Unavailable."""
    with own_server(programs(), settings, durable) as server:
        yield server


def programs() -> Programs:
    """mysqld of the machine, else Debian sid's, fetched if it is not in the cache yet. Raises Unavailable."""
    server = [*(_installed() or cached_server()), *_OPTIONS]
    return Programs("mysql", server, [*server, "--initialize-insecure"], _SETTINGS)


def fetch() -> str:
    """Download what `running_mysql` would, so that tests need not; what it will use. Raises Unavailable."""
    if os.environ.get(VARIABLE):
        return VARIABLE
    if docker_answers():
        return f"Docker, {IMAGE}"
    version = [*programs().server, "--version"]
    asked = subprocess.run(version, capture_output=True, text=True, check=False)
    if asked.returncode:
        raise Unavailable(f"{' '.join(version)} failed: {asked.stderr.strip()[-500:]}")
    return asked.stdout.strip()


def _installed() -> list[str] | None:
    """The machine's, unless it is MariaDB under the same name or too old."""
    mysqld = program("mysqld")
    if mysqld is None:
        return None
    try:
        asked = subprocess.run([mysqld, "--no-defaults", "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise Unavailable(f"{mysqld} does not run: {error}") from error
    version = re.search(r"Ver (\d+)\.", asked.stdout)
    is_usable = version is not None and int(version[1]) >= 8 and "MariaDB" not in asked.stdout
    return [mysqld, "--no-defaults"] if is_usable else None
