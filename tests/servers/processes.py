"""How a server of our own is started: not as root, on a port that nobody has, and no longer alive than we are."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from pathlib import Path

from tests.servers.finding import Unavailable

USER = "wiggledb"
"""Whom servers run as when we are root."""


def as_unprivileged() -> list[str]:
    """What to put before a command so that it does not run as root, which servers refuse. Raises Unavailable."""
    if os.geteuid() != 0:
        return []
    try:
        pwd.getpwnam(USER)
    except KeyError:
        made = subprocess.run(["useradd", "--system", USER], capture_output=True, check=False)
        if made.returncode:
            raise Unavailable(f"root cannot run a server, and the user {USER} cannot be made") from None
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]


def ending_with_us() -> list[str]:
    """What to put before a command, after `as_unprivileged`, so that it is killed when the thread that starts it ends.
    It comes after because a change of user would take that back."""
    return ["setpriv", "--pdeathsig=KILL"] if shutil.which("setpriv") else []


def give(path: Path) -> None:
    """Make a file or folder the server's own."""
    if os.geteuid() == 0:
        shutil.chown(path, USER, USER)


def program(name: str) -> str | None:
    """The path of a program, also of one that Debian keeps from the PATH of users."""
    return shutil.which(name) or shutil.which(f"/usr/sbin/{name}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
