"""`python -m tests.servers`: a PostgreSQL server for tests and trials, until it is interrupted or terminated."""

from __future__ import annotations

import signal
import sys
from threading import Event

from tests.servers.finding import Unavailable
from tests.servers.postgres import VARIABLE, running_postgres


def main() -> int:
    """Start it, print what to export, and wait; the exit code."""
    # Also SIGINT: what a script starts in the background is told to ignore it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        with running_postgres() as url:
            print(f"export {VARIABLE}={url}", flush=True)
            Event().wait()
    except Unavailable as reason:
        print(f"no PostgreSQL server: {reason}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
