"""Servers of MySQL and MariaDB start for real, take settings, lose no commit to SIGKILL, and leave nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from types import ModuleType
from typing import TypeAlias

import pymysql
import pytest
from pymysql.constants import CLIENT
from sqlalchemy import make_url

from tests.servers import cache, mariadb, mysql, mysql_packages, mysql_process
from tests.servers.cache import CACHE
from tests.servers.finding import Unavailable, skip_or_fail
from tests.servers.folders import sweep
from tests.servers.mariadb import own_mariadb
from tests.servers.mysql import own_mysql
from tests.servers.mysql_greeting import of_version, without_tls
from tests.servers.mysql_process import LocalMySQL
from tests.servers.processes import ending_with_us
from tests.servers.proxy import Proxy

ROOT = Path(__file__).parents[2]
Own = Callable[..., AbstractContextManager[LocalMySQL]]
Connection: TypeAlias = "pymysql.Connection[pymysql.cursors.Cursor]"  # subscripted in its stubs only


@pytest.fixture(scope="module", params=[own_mysql, own_mariadb], ids=["mysql", "mariadb"])
def own(request: pytest.FixtureRequest) -> Own:
    """How a server of one product is started."""
    start: Own = request.param
    return start


@pytest.fixture(scope="module")
def server(own: Own) -> Iterator[LocalMySQL]:
    try:
        with own(max_connections="12") as own_server:
            yield own_server
    except Unavailable as reason:
        skip_or_fail(str(own), reason)


def started(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def connected(port: int) -> closing[Connection]:
    return closing(pymysql.connect(host="127.0.0.1", port=port, user="wiggle", password="wiggle", database="wiggle"))


def ask(server: LocalMySQL, statement: str) -> object:
    """The first value of the answer, on a connection of its own."""
    with connected(server.port) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        row = cursor.fetchone()
        connection.commit()
    return row and row[0]


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(is_so: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


# A server of our own


def test_it_is_the_product_that_was_asked_for(server: LocalMySQL) -> None:
    """And new enough: the machine's `mysqld` may be MariaDB under another name."""
    url, version = make_url(server.url), str(ask(server, "SELECT VERSION()"))
    assert ("MariaDB" in version) == (url.get_backend_name() == "mariadb")
    major, minor = map(int, re.findall(r"\d+", version)[:2])
    assert (major, minor) >= ((10, 6) if "MariaDB" in version else (8, 0))
    assert (url.port, url.username, url.database) == (server.port, "wiggle", "wiggle")


def test_settings_reach_the_server(server: LocalMySQL) -> None:
    """Those of the caller and those that make tests quick; a page is written twice all the same."""
    assert ask(server, "SELECT @@max_connections") == 12
    assert ask(server, "SELECT @@innodb_flush_log_at_trx_commit") == 2
    assert ask(server, "SELECT @@innodb_doublewrite") in (1, "ON")


def test_locks_can_be_looked_at(server: LocalMySQL) -> None:
    """By performance_schema.data_locks on MySQL, by information_schema.innodb_locks on MariaDB."""
    is_mysql = make_url(server.url).get_backend_name() == "mysql"
    table = "performance_schema.data_locks" if is_mysql else "information_schema.innodb_locks"
    assert ask(server, f"SELECT count(*) FROM {table}") == 0


def test_it_does_not_run_as_root(server: LocalMySQL) -> None:
    assert Path(f"/proc/{server.pid}").stat().st_uid != 0


def test_the_user_may_make_users_and_databases(server: LocalMySQL) -> None:
    for statement in (
        "CREATE DATABASE other",
        "CREATE USER other@'%' IDENTIFIED BY 'x'",
        "GRANT SELECT ON other.* TO other@'%'",
        "DROP USER other@'%'",
        "DROP DATABASE other",
    ):
        ask(server, statement)


@pytest.mark.parametrize("end", [LocalMySQL.kill, LocalMySQL.stop])
def test_what_was_committed_is_there_again(server: LocalMySQL, end: Callable[[LocalMySQL], None]) -> None:
    """After SIGKILL and after an orderly end; the process is another one, the address the same."""
    ask(server, "CREATE TABLE kept (id INT PRIMARY KEY) ENGINE = InnoDB")
    ask(server, "INSERT INTO kept VALUES (1), (2)")
    first = server.pid
    end(server)
    assert not is_alive(first)
    with pytest.raises(RuntimeError, match="stopped"):
        _ = server.pid
    with pytest.raises(pymysql.err.OperationalError):
        ask(server, "SELECT 1")
    server.start_again()
    assert server.pid != first
    assert ask(server, "SELECT count(*) FROM kept") == 2
    ask(server, "DROP TABLE kept")


def test_a_thread_may_start_it_and_end(server: LocalMySQL) -> None:
    """The server lives on, although Linux ties it to the thread of its start."""
    server.kill()
    thread = Thread(target=server.start_again)
    thread.start()
    thread.join()
    time.sleep(0.1)
    assert ask(server, "SELECT 1") == 1


def test_a_durable_one_waits_for_the_disk(own: Own) -> None:
    """Its settings are the server's own, and its data is not in memory."""
    with own(durable=True) as server:
        assert ask(server, "SELECT @@innodb_flush_log_at_trx_commit") == 1
        assert not server.folder.is_relative_to("/dev/shm")
        folder = server.folder
    assert not folder.exists()


def test_a_setting_that_it_does_not_know_is_told(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is the server's, and the folder goes also then."""
    with TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        monkeypatch.setattr(mysql_process, "place", lambda _: Path(place))
        with pytest.raises(Unavailable, match="no_such_setting"), own(no_such_setting="1"):
            pass
        assert list(Path(place).iterdir()) == []


def test_it_does_not_outlive_a_killed_test_run(own: Own) -> None:
    """Linux ends the server with its owner; the folder goes when the next server is about to start."""
    if not ending_with_us():
        pytest.skip("setpriv is not here")
    program = f"from {own.__module__} import {own.__name__} as own\n"
    program += "with own() as server:\n    print(server.pid, server.folder, flush=True)\n    input()"
    with started("-c", program) as owner:
        pid, folder = first_line(owner).split()
        assert is_alive(int(pid))
        owner.kill()
        wait_until(lambda: not is_alive(int(pid)))
    assert Path(folder).exists()
    sweep(Path(folder).parent)
    assert not Path(folder).exists()


# What stands between


def test_a_proxy_loses_the_answer_to_a_commit(server: LocalMySQL) -> None:
    """All statements of one packet are run and committed; the client sees the line cut."""
    ask(server, "CREATE TABLE moved (id INT PRIMARY KEY) ENGINE = InnoDB")
    with Proxy(server.port) as proxy:
        proxy.greeting = without_tls
        with pymysql.connect(
            host="127.0.0.1",
            port=proxy.port,
            user="wiggle",
            password="wiggle",
            database="wiggle",
            client_flag=CLIENT.MULTI_STATEMENTS,
        ) as connection:
            before = proxy.requests
            connection.cursor().execute("SELECT 1")
            assert proxy.requests == before + 1
            proxy.cut_at = b"COMMIT"
            with pytest.raises(pymysql.err.OperationalError, match="Lost connection"):
                connection.cursor().execute("BEGIN; INSERT INTO moved VALUES (1); SELECT SLEEP(0.05); COMMIT")
    assert ask(server, "SELECT count(*) FROM moved") == 1
    ask(server, "DROP TABLE moved")


@pytest.mark.parametrize("version", ["5.7.44", "5.5.5-10.5.29-MariaDB"])
def test_a_proxy_has_the_server_say_another_version(server: LocalMySQL, version: str) -> None:
    """The driver reads it and goes on."""
    with Proxy(server.port) as proxy:
        proxy.greeting = of_version(version)
        with connected(proxy.port) as connection:
            assert connection.get_server_info() == version  # type: ignore[no-untyped-call] # so in its stubs
            connection.ping(reconnect=False)


# Where they come from


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_servers_by_hand_end_when_they_are_told_to(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m tests.servers mariadb` prints what to export, and a signal ends all of it."""
    monkeypatch.delenv(mariadb.VARIABLE, raising=False)
    with started("-m", "tests.servers", "mariadb") as program:
        line = first_line(program)
        if not line:
            skip_or_fail("MariaDB", Unavailable(program.communicate()[1]))
        variable, _, url = line.removeprefix("export ").strip().partition("=")
        assert variable == mariadb.VARIABLE
        port = make_url(url).port
        assert port is not None
        with connected(port):
            program.send_signal(number)
            assert program.wait(60) == 0
        with pytest.raises(pymysql.err.OperationalError, match="Connection refused"):
            connected(port)


@pytest.mark.parametrize("module", [mysql, mariadb], ids=["mysql", "mariadb"])
def test_a_server_that_is_named_is_taken(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """WIGGLE_TEST_MYSQL_URL and WIGGLE_TEST_MARIADB_URL come first."""
    monkeypatch.setenv(module.VARIABLE, "mysql://named/x")
    running = mysql.running_mysql if module is mysql else mariadb.running_mariadb
    with running() as url:
        assert url == "mysql://named/x"


def test_mariadb_is_not_taken_for_mysql(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Debian's mariadb-server brings a `mysqld`, too: it is passed over, and so is a MySQL that is too old."""
    monkeypatch.setattr(mysql, "cached_server", lambda: ["cached"])
    for version, is_taken in (("8.0.36", True), ("10.11.6-MariaDB", False), ("5.7.44", False)):
        mysqld = tmp_path / "mysqld"
        mysqld.write_text(f"#!/bin/sh\necho 'mysqld  Ver {version} for Linux on x86_64'\n")
        mysqld.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        assert mysql.programs().server[0] == (str(mysqld) if is_taken else "cached")


def test_mariadb_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason says what to do."""
    monkeypatch.setattr(mariadb, "program", lambda _: None)
    with pytest.raises(Unavailable, match=r"WIGGLE_TEST_MARIADB_URL, .* mariadb-server"):
        mariadb.programs()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "Types: deb\nURIs: http://near/debian\nSuites: x\n\nURIs: http://near/debian-security\n",
            "http://near/debian",
        ),
        (
            "deb http://sec/debian-security x main\ndeb [signed-by=/k] http://near/debian/ x main\n",
            "http://near/debian/",
        ),
        ("# deb http://near/debian x main\n", "http://deb.debian.org/debian"),
        ("deb http://archive.ubuntu.com/ubuntu x main\n", "http://deb.debian.org/debian"),
    ],
)
def test_the_mirror_is_the_machines_own(text: str, found: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In either format of sources; else Debian's."""
    (tmp_path / "sources").write_text(text)
    monkeypatch.setattr(mysql_packages, "SOURCES", (tmp_path / "missing", tmp_path / "sources"))
    assert mysql_packages.mirror() == found


def test_a_machine_without_apt_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unavailable, match="set WIGGLE_TEST_MYSQL_URL, run Docker, or put mysqld"):
        mysql_packages.cached_server()


@pytest.mark.skipif(not Path("/usr/bin/apt-get").exists(), reason="no apt-get here")
def test_a_download_that_fails_is_told_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What failed, and why; the next try begins anew."""
    monkeypatch.setenv(CACHE, str(tmp_path))
    monkeypatch.setattr(mysql_packages, "mirror", lambda: "http://127.0.0.1:9/debian")
    monkeypatch.setattr(mysql_packages, "_require_debian", lambda: None)
    with pytest.raises(Unavailable, match=r"(?s)apt-get -qq update failed: .*127\.0\.0\.1"):
        mysql_packages.cached_server()
    assert [each.name for each in tmp_path.iterdir()] == ["lock"]


def test_two_at_once_fetch_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second one waits, and takes what the first one fetched."""
    made = []

    def fetch(folder: Path, root: Path) -> None:
        made.append(root)
        time.sleep(0.2)
        root.mkdir()

    monkeypatch.setenv(CACHE, str(tmp_path))
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(lambda _: cache.fetched("thing", fetch), range(2)))
    assert len(made) == 1
    assert folders == [tmp_path / "thing"] * 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["lock", "thing"]
