"""What servers of MySQL and MariaDB have in common: one process in a folder, and one kind of container."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.servers.finding import Unavailable
from tests.servers.folders import ServerFolder, place
from tests.servers.processes import free_port, give

# Tests kill servers, not machines: what the operating system has is not lost, so no commit waits for the disk. Pages
# are still written twice, because Linux may break off a write of 16 KiB in the middle when a process is killed.
_QUICK = {"innodb_flush_log_at_trx_commit": "2", "innodb_log_buffer_size": "8M"}

# The server answers under its address only: no name is looked up, and root has no way in but the socket.
_ALWAYS = {"bind_address": "127.0.0.1", "skip_name_resolve": "ON"}

# Each on a line of its own, as MariaDB reads them.
_INIT = """\
CREATE DATABASE wiggle;
CREATE USER wiggle@'%' IDENTIFIED BY 'wiggle';
GRANT ALL ON *.* TO wiggle@'%' WITH GRANT OPTION;
"""


@dataclass(frozen=True, slots=True)
class Programs:
    """A product's commands, to which options are added."""

    scheme: str
    server: Sequence[str]
    initialize: Sequence[str]
    """Makes the data folder of `--datadir`."""
    settings: Mapping[str, str]
    """What makes this product's server small and quick."""


class LocalMySQL:
    """One server in a temporary folder, which it does not outlive: nor, where Linux kills it, the process that we are.

    `durable` leaves the server's own settings and puts its data on a disk, for whoever measures commits. Settings are
    the server's options by name; `""` is for one that has no value.
    """

    def __init__(self, programs: Programs, settings: Mapping[str, str], durable: bool = False) -> None:
        self.port = free_port()
        self._programs = programs
        self._settings = {**_ALWAYS, **({} if durable else {**_QUICK, **programs.settings}), **settings}
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = ServerFolder(programs.scheme, place(durable))
        self.folder = self._folder.path
        self.log = self._folder.log
        self.data = self.folder / "data"

    @property
    def url(self) -> str:
        return f"{self._programs.scheme}://wiggle:wiggle@127.0.0.1:{self.port}/wiggle"

    @property
    def pid(self) -> int:
        """The server's process. Raises RuntimeError when it is stopped."""
        if self._process is None:
            raise RuntimeError("the server is stopped")
        return self._process.pid

    def start(self) -> None:
        """Make a new server and start it. Raises Unavailable."""
        made_for = {name: value for name, value in self._settings.items() if name.startswith(("innodb_", "lower_case"))}
        making = self._launch(self._programs.initialize, made_for)
        if making.wait():
            raise Unavailable(f"{self._programs.initialize[0]} failed: {self._folder.last_words()}")
        init = self.folder / "init.sql"
        init.write_text(_INIT)
        give(init)
        self._run({"init_file": str(init)})

    def start_again(self, **settings: str) -> None:
        """Start it after `stop` or `kill`, with its data; with other settings if need be. Raises Unavailable."""
        self._settings |= settings
        self._run({})

    def stop(self, seconds: float = 60) -> None:
        """End the server in order, as SIGTERM does."""
        os.kill(self.pid, signal.SIGTERM)
        self._await_end(seconds)

    def kill(self) -> None:
        """End the server by SIGKILL, and wait until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        self._await_end(60)

    def remove(self) -> None:
        """End the server if it runs, and remove its folder."""
        if self._process is not None:
            self.kill()
        self._folder.remove()

    def _run(self, once: Mapping[str, str], seconds: float = 60) -> None:
        if self._process is not None:
            raise RuntimeError("the server runs")
        own = {"port": str(self.port), "socket": str(self.folder / "socket"), "pid_file": str(self.folder / "pid")}
        self._process = self._launch(self._programs.server, {**own, **self._settings, **once})
        end = time.monotonic() + seconds
        while not _greets(self.port):
            if self._process.poll() is not None:
                self._process = None
                raise Unavailable(f"{self._programs.scheme} ended as it started: {self._folder.last_words()}")
            if time.monotonic() > end:
                self.kill()
                raise Unavailable(f"{self._programs.scheme} did not start: {self._folder.last_words()}")
            time.sleep(0.02)

    def _launch(self, program: Sequence[str], settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """The temporary files of a killed server are in its folder, too."""
        folders = (f"--datadir={self.data}", f"--tmpdir={self.folder}")
        options = (f"--{name}={value}" if value else f"--{name}" for name, value in settings.items())
        return self._folder.launch([*program, *folders, *options])

    def _await_end(self, seconds: float) -> None:
        if self._process is not None:
            self._process.wait(seconds)
        self._process = None


@contextmanager
def own_server(programs: Programs, settings: Mapping[str, str], durable: bool) -> Iterator[LocalMySQL]:
    """Start a server, and remove it in the end. Raises Unavailable."""
    server = LocalMySQL(programs, settings, durable)
    try:  # whatever fails from here on, the folder goes
        server.start()
        yield server
    finally:
        server.remove()


@contextmanager
def container(scheme: str, image: str) -> Iterator[str]:
    """The URL of a server in Docker. Raises Unavailable."""
    try:
        from testcontainers.community.mysql import MySqlContainer  # noqa: PLC0415 # only where Docker is
    except ImportError as error:
        raise Unavailable("Docker runs, but testcontainers 4.15 or newer is not installed") from error
    options = " ".join(f"--{name}={value}" for name, value in _QUICK.items())
    # As root: tests make databases and users.
    with MySqlContainer(image, username="root", password="wiggle", dbname="wiggle", command=options) as started:
        host, port = started.get_container_host_ip(), started.get_exposed_port(3306)
        yield f"{scheme}://root:wiggle@{'127.0.0.1' if host == 'localhost' else host}:{port}/wiggle"


def _greets(port: int) -> bool:
    """Whether the server answers: it speaks first, and MariaDB listens well before that."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as line:
            return bool(line.recv(1))
    except OSError:
        return False
