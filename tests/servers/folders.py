"""Folders and processes of servers that are no longer there than we are: a folder is locked while its owner lives, and
removed by the next one after that."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

from tests.servers.processes import as_unprivileged, ending_with_us, give

_DISK, _MEMORY = Path("/var/tmp"), Path("/dev/shm")
_ROOM = 4 * 2**30
"""Bytes that have to be free in memory for data to be put there; MySQL begins with 0.15 GB."""

# A server is killed when the thread that started it ends (`ending_with_us`), so this one starts all of them.
_STARTER = ThreadPoolExecutor(1, "starts servers")


class ServerFolder:
    """A temporary folder, and the processes in it. Called `wiggle-NAME-...`."""

    def __init__(self, name: str, place: Path) -> None:
        sweep(place)
        self._as_user = as_unprivileged()
        self.path = Path(tempfile.mkdtemp(prefix=f"wiggle-{name}-", dir=place))
        give(self.path)
        self._lock = lock(self.path)
        self.log = self.path / "log"

    def launch(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a process as the servers' user, its words going into the log. It does not outlive us."""
        with self.log.open("ab") as log:
            return _STARTER.submit(_popen, [*self._as_user, *ending_with_us(), *command], log).result()

    def last_words(self) -> str:
        """The end of the log."""
        return self.log.read_text(errors="replace").strip()[-800:]

    def remove(self) -> None:
        """Remove all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def place(durable: bool) -> Path:
    """Where the folder of a server is: in memory where that has room, since there a table of MariaDB is made in a third
    of the time and one of MySQL in two thirds; on a disk if it shall be durable."""
    if durable:
        return _DISK if _DISK.exists() else Path(tempfile.gettempdir())
    if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _ROOM:
        return _MEMORY
    return Path(tempfile.gettempdir())


def lock(folder: Path) -> IO[bytes]:
    """Show that the folder is in use, for as long as this process lives."""
    file = (folder / "new").open("wb")
    fcntl.flock(file, fcntl.LOCK_EX)
    (folder / "new").rename(folder / "lock")  # so whoever sees it sees it locked
    return file


def sweep(place: Path) -> None:
    """Remove the folders of test runs that were killed."""
    for found in place.glob("wiggle-*/lock"):
        with suppress(OSError), found.open("rb") as file:  # OSError: in use, or another user's
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(found.parent, ignore_errors=True)


def _popen(command: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """In a session of its own, where Ctrl-C in a terminal does not reach it."""
    nothing = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=nothing, stdout=log, stderr=log, cwd="/", start_new_session=True)
