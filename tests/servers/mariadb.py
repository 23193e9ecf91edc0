"""MariaDB for tests: a server of our own in a folder, from the machine's package."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers.finding import Unavailable, docker_answers
from tests.servers.mysql_process import LocalMySQL, Programs, container, own_server
from tests.servers.processes import program

VARIABLE = "WIGGLE_TEST_MARIADB_URL"
IMAGE = "mariadb:11.4"

# No anonymous user, and a root who needs no account of that name on the machine.
_INITIALIZE = ("--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal")
_SETTINGS = {"innodb_log_file_size": "32M"}


@contextmanager
def running_mariadb() -> Iterator[str]:
    """The URL of a server for this test run. Raises Unavailable."""
    if os.environ.get(VARIABLE):
        yield os.environ[VARIABLE]
    elif docker_answers():
        with container("mariadb", IMAGE) as url:
            yield url
    else:
        with own_mariadb() as server:
            yield server.url


@contextmanager
def own_mariadb(durable: bool = False, **settings: str) -> Iterator[LocalMySQL]:
    """A server that a test may stop, kill and start again. Raises Unavailable."""
    with own_server(programs(), settings, durable) as server:
        yield server


def programs() -> Programs:
    """mariadbd of the machine. Raises Unavailable."""
    server, initialize = program("mariadbd"), program("mariadb-install-db")
    if server is None or initialize is None:
        raise Unavailable(f"set {VARIABLE}, run Docker, or install the package mariadb-server, 10.6 or newer")
    asked = subprocess.run([server, "--no-defaults", "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"Ver (\d+)\.(\d+)", asked.stdout)
    if version is None or (int(version[1]), int(version[2])) < (10, 6):
        raise Unavailable(f"{server} is no MariaDB 10.6 or newer: {asked.stdout.strip() or asked.stderr.strip()}")
    return Programs("mariadb", [server, "--no-defaults"], [initialize, *_INITIALIZE], _SETTINGS)
