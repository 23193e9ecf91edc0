"""`python -m tests.servers [NAME ...]`: servers for tests and trials, until they are interrupted or terminated."""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import ExitStack
from threading import Event

from tests.servers import cassandra, mariadb, mysql, postgres
from tests.servers.finding import Unavailable

_SERVERS = {
    "postgresql": (postgres.VARIABLE, postgres.running_postgres),
    "mysql": (mysql.VARIABLE, mysql.running_mysql),
    "mariadb": (mariadb.VARIABLE, mariadb.running_mariadb),
    "cassandra": (cassandra.VARIABLE, cassandra.running_cassandra),
}
_FETCHED = {"mysql": mysql.fetch, "cassandra": cassandra.fetch}


def main() -> int:
    """Start those that are named, else all that can be had, print what to export, and wait; the exit code, which is 1
    when one that is named is missing, or all are."""
    parser = argparse.ArgumentParser("python -m tests.servers", description="Servers for tests and trials.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(_SERVERS)}; without names, all")
    parser.add_argument("--fetch", action="store_true", help="start none; download those that would be")
    given = parser.parse_args()
    named: list[str] = given.names
    if unknown := set(named) - set(_SERVERS):
        parser.error(f"no server {', '.join(sorted(unknown))}: there are {', '.join(_SERVERS)}")
    if given.fetch:
        return _fetch(named)
    # Also SIGINT: what a script starts in the background is told to ignore it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        with ExitStack() as servers:
            started = [_start(servers, name) for name in named or _SERVERS]
            if not (all(started) if named else any(started)):
                return 1
            Event().wait()
    except KeyboardInterrupt:
        pass
    return 0


def _fetch(named: list[str]) -> int:
    missing = 0
    for name, fetch in _FETCHED.items():
        if named and name not in named:
            continue
        try:
            print(f"{name} for tests: {fetch()}", flush=True)
        except Unavailable as reason:
            print(f"no {name} server: {reason}", file=sys.stderr)
            missing = 1
    return missing


def _start(servers: ExitStack, name: str) -> bool:
    """Start one for as long as the others, and print where it is; whether it could be had."""
    variable, running = _SERVERS[name]
    try:
        url = servers.enter_context(running())
    except Unavailable as reason:
        print(f"no {name} server: {reason}", file=sys.stderr)
        return False
    print(f"export {variable}={url}", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
