"""Where servers that are downloaded for tests are kept, once and for all test runs of a machine."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.servers.finding import Unavailable
from tests.servers.processes import as_unprivileged

CACHE = "WIGGLE_TEST_CACHE"
"""The variable that names another folder for the cache."""


def cache_folder() -> Path:
    """Outside the repository. For root it is not in the home, which the server's user may not enter."""
    if os.environ.get(CACHE):
        return Path(os.environ[CACHE])
    if os.geteuid() == 0:
        return Path("/var/cache/wiggle")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wiggle"


def fetched(name: str, fetch: Callable[[Path, Path], None]) -> Path:
    """A folder of the cache. If it is not there, `fetch` makes it under the second path, and may use the folder of the
    first: it gets to its place whole or not at all. Raises Unavailable."""
    cache = cache_folder()
    wanted = cache / name
    if not wanted.exists():
        with _locked(cache):
            if not wanted.exists():  # another process may have fetched it meanwhile
                _fetch(wanted, fetch)
    return wanted


def require_access(path: str | Path) -> None:
    """Raise Unavailable unless the servers' user can enter the folder, or run the program."""
    if subprocess.run([*as_unprivileged(), "test", "-x", path], check=False).returncode:
        raise Unavailable(f"the server's user cannot enter {cache_folder()}: name another folder in {CACHE}")


def _fetch(wanted: Path, fetch: Callable[[Path, Path], None]) -> None:
    for killed in wanted.parent.glob("fetch-*"):  # we have the lock, so nobody is at it
        shutil.rmtree(killed, ignore_errors=True)
    with TemporaryDirectory(prefix="fetch-", dir=wanted.parent) as name:
        folder = Path(name)
        folder.chmod(0o755)
        fetch(folder, folder / wanted.name)
        (folder / wanted.name).rename(wanted)


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    try:
        cache.mkdir(mode=0o755, parents=True, exist_ok=True)
        file = (cache / "lock").open("w")
    except OSError as error:
        raise Unavailable(f"no cache for servers: {error}; name another folder in {CACHE}") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
