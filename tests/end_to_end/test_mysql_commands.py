"""The commands as a user of MySQL or MariaDB meets them: a first journey, and what is told of all that can be wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import make_url

from tests.stores.mysql_prefixes import asked, fresh_place, open_url, plain
from tests.unit.cli.conftest import Ended, Wiggle, clean_place, wiggle, write_lines

__all__ = ["clean_place", "wiggle"]

SECRET = "hunter2"


@pytest.fixture
def url(mysql_like_url: str) -> Iterator[str]:
    """The URL of tables that are not there yet."""
    with fresh_place(mysql_like_url) as fresh:
        yield fresh


@pytest.fixture
def made(url: str, wiggle: Wiggle) -> str:
    assert wiggle("db", "upgrade", "--store", url).code == 0
    return url


def changed(url: str, **parts: object) -> str:
    return make_url(url).set(**parts).render_as_string(hide_password=False)  # type: ignore[arg-type]


def with_option(url: str, **options: str) -> str:
    return make_url(url).update_query_dict(options).render_as_string(hide_password=False)


@contextmanager
def account(url: str, *rights: str) -> Iterator[str]:
    """The URL with an account that has these rights on the database, and no other."""
    name, database = f"test_{uuid4().hex[:12]}", make_url(url).database
    with plain(url) as owner:
        host = asked(owner, "SELECT USER()")[0][0].rpartition("@")[2]
        asked(owner, f"CREATE USER '{name}'@'{host}' IDENTIFIED BY '{SECRET}'")
        try:
            for right in rights:
                asked(owner, f"GRANT {right} ON {database}.* TO '{name}'@'{host}'")
            yield changed(url, username=name, password=SECRET)
        finally:
            asked(owner, f"DROP USER '{name}'@'{host}'")


def require_told(ended: Ended, *told: str) -> None:
    """Exit code 3 and one line, which has all of this in it, and neither a statement nor a password."""
    assert (ended.code, ended.out, ended.err.count("\n")) == (3, "", 1)
    for each in told:
        assert each in ended.err
    for secret in (SECRET, ":wiggle@", "SELECT", "INSERT INTO", "CREATE TABLE"):
        assert secret not in ended.err.replace("CREATE, ALTER, INDEX, SELECT", "")


# A first journey


def test_from_nothing_to_a_settled_task(url: str, wiggle: Wiggle, clean_place: Path) -> None:
    """Section 9: each command says what to do next, until there is a store with tasks and lanes."""
    require_told(wiggle("backlog", "--store", url), "is missing: run `wiggle db upgrade --store m", "prefix=test_")
    assert wiggle("db", "upgrade", "--store", url, "--json").json == {"applied": ["0001_tasks", "0002_lanes"]}
    assert wiggle("db", "upgrade", "--store", url, "--json").json == {"applied": []}
    assert wiggle("db", "check", "--store", url, "--json").json["findings"] == []
    tasks = [{"queue": "q", "step": step, "payload": {"n": 1}, "id": step} for step in ("charge", "refund", "ship")]
    file = write_lines(clean_place / "tasks.jsonl", *tasks)
    assert wiggle("enqueue", "--file", file, "--store", url).out == "3 tasks enqueued\n"
    assert wiggle("backlog", "--store", url, "--json").json["slices"][0]["ready"] == 3
    criteria = ("--queue", "q", "--text", "step = 'refund'", "--store", url)
    assert wiggle("criteria", "explain", *criteria, "--json").json["rows_read"] == 3
    opened = wiggle("lanes", "open", *criteria, "--json").json
    assert [lane["id"] for lane in wiggle("lanes", "--store", url, "--json").json] == [opened["id"]]
    by_lane = wiggle("criteria", "explain", *criteria, "--json").json
    assert (by_lane["rows_read"], by_lane["verdict"]) == (2, "lane")  # a row of the lane, and its task
    assert wiggle("lanes", "close", str(opened["id"]), "--store", url).code == 0
    assert wiggle("task", "cancel", "ship", "--store", url).code == 0
    assert wiggle("task", "show", "ship", "--store", url, "--json").json["state"] == "CANCELLED"
    assert wiggle("db", "check", "--store", url, "--json").json["findings"] == []


@pytest.mark.parametrize("scheme", ["mysql", "mysql+pymysql", "mariadb", "mariadb+pymysql"])
def test_either_scheme_leads_to_either_product(made: str, wiggle: Wiggle, scheme: str) -> None:
    """Issue 6: what answers is asked, not read from the URL."""
    ended = wiggle("db", "check", "--store", changed(made, drivername=scheme), "--json")
    assert (ended.code, ended.json["findings"]) == (0, [])


def test_the_demo(made: str, wiggle: Wiggle) -> None:
    """Section 9: workers in processes of their own route the flights, and leave the slice that nobody takes."""
    ended = wiggle("demo", "--rows", "300", "--store", made)
    assert (ended.code, ended.err) == (0, "")
    with closing(open_url(made)) as store:
        assert store.audit() == []
        left = store.slices()
    assert {each.queue for each in left} <= {"flights"}


def test_processes_may_upgrade_at_once(url: str) -> None:
    """Section 9: `db upgrade` is safe to run by two at once: one applies, the other waits and finds nothing to do."""
    command = [str(Path(sys.executable).with_name("wiggle")), "db", "upgrade", "--store", url]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [(*each.communicate(timeout=300), each.returncode) for each in both]
    assert [(err, code) for _, err, code in told] == [("", 0), ("", 0)]
    assert sorted(out.count("applied") for out, _, _ in told) == [0, 2]


# What can be wrong

WRONG: dict[str, tuple[Callable[[str], str], str]] = {
    "no server": (lambda url: changed(url, port=1), "cannot be reached: check that the server runs"),
    "no host": (lambda url: changed(url, host="nowhere.invalid"), "is not known: check its name in the store URL"),
    "no user": (lambda url: changed(url, username="nobody"), "refuses this user: check its name and password"),
    "no password": (lambda url: changed(url, password=SECRET), "refuses this user: check its name and password"),
    "no database": (lambda url: changed(url, database="nothing"), "does not exist: run `wiggle db upgrade --store m"),
    "no tables": (lambda url: with_option(url, prefix="none_"), "is missing: run `wiggle db upgrade --store m"),
    "not verified": (lambda url: with_option(url, ssl_mode="VERIFY_IDENTITY"), "`?ssl_mode="),
}
COMMANDS = (
    *(("db", "check"), ("backlog",), ("enqueue",), ("task", "show", "x"), ("task", "cancel", "x"), ("lanes",)),
    *(("lanes", "open", "--queue", "q", "--text", "step = 'x'"), ("lanes", "close", "1")),
    *(("criteria", "explain", "--queue", "q", "--text", "step = 'x'"), ("demo", "--rows", "1")),
)


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_told(mysql_like_url: str, wiggle: Wiggle, what: str) -> None:
    """Section 9: every command names what is wrong and what to do, in one line."""
    change, told = WRONG[what]
    for command in COMMANDS if what in ("no server", "no tables") else COMMANDS[:1]:
        if not (what == "no tables" and command[0] == "demo"):  # it makes its own
            require_told(wiggle(*command, "--store", change(mysql_like_url)), told)


@pytest.mark.parametrize("option", ["prefx=a_", "prefix=A", "ssl_mode=yes", "charset=latin1", "password=hunter2"])
def test_an_option_that_cannot_be_used_is_named(mysql_like_url: str, wiggle: Wiggle, option: str) -> None:
    """Section 9: exit code 2, before anything is connected to."""
    ended = wiggle("db", "check", "--store", f"{changed(mysql_like_url, port=1)}?{option}")
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert option.partition("=")[0] in ended.err
    assert SECRET not in ended.err


def test_an_account_without_rights(made: str, wiggle: Wiggle) -> None:
    """It is told what grants them, and who may upgrade."""
    with account(made) as theirs:
        for command in COMMANDS:
            if command[0] != "demo":
                require_told(wiggle(*command, "--store", theirs), "may not use the database", "`wiggle db roles`")
        require_told(wiggle("db", "upgrade", "--store", theirs), "may not create what is missing", "`wiggle db sql`")
        absent = changed(theirs, database="nothing")
        require_told(wiggle("db", "upgrade", "--store", absent), "may not create what is missing", "`wiggle db sql`")


def test_an_account_that_only_reads(made: str, wiggle: Wiggle, clean_place: Path) -> None:
    """It may look at everything; whatever changes something names `wiggle db roles`, an upgrade the rights it needs."""
    file = write_lines(clean_place / "tasks.jsonl", {"queue": "q", "step": "s", "payload": 1})
    looking: list[tuple[str, ...]] = [("db", "check"), ("db", "upgrade"), ("backlog",), ("lanes",), COMMANDS[-2]]
    changing: list[tuple[str, ...]] = [("enqueue", "--file", file), COMMANDS[6]]
    with closing(open_url(made)) as store, account(made, "SELECT") as theirs:
        for command in looking:
            assert wiggle(*command, "--store", theirs).code == 0, command
        for command in changing:
            require_told(
                wiggle(*command, "--store", theirs), "may not do that", "`wiggle db roles` shows what it needs"
            )
        other = with_option(theirs, prefix="test_none_")
        require_told(wiggle("db", "upgrade", "--store", other), "may not create what is missing")
        assert store.slices() == []


def test_an_account_that_may_upgrade(url: str, wiggle: Wiggle) -> None:
    """The rights that an upgrade names are enough for it."""
    with account(url, "CREATE, ALTER, INDEX, SELECT, INSERT") as theirs:
        assert wiggle("db", "upgrade", "--store", theirs, "--json").json == {"applied": ["0001_tasks", "0002_lanes"]}
        assert wiggle("db", "check", "--store", theirs).code == 0


def test_an_older_schema_is_named(made: str, wiggle: Wiggle) -> None:
    """Section 9: exit code 3 and the command that helps; then it does."""
    book = f"{make_url(made).query['prefix']}migration"
    with plain(made) as owner:
        asked(owner, f"DELETE FROM {book} WHERE name LIKE '0002%'")
    require_told(
        wiggle("enqueue", "--store", made), "older than this version of wiggle", "`wiggle db upgrade --store m"
    )
    assert wiggle("db", "upgrade", "--store", made).code == 0
    assert wiggle("db", "check", "--store", made).code == 0


WITHOUT_DRIVER = """
import sys
sys.modules["pymysql"] = None
from importlib import util
find = util.find_spec
util.find_spec = lambda name, *more: None if name == "pymysql" else find(name, *more)
from wiggle_core.cli.app import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize("scheme", ["mysql", "mariadb"])
def test_a_missing_driver_is_named_with_its_cure(scheme: str) -> None:
    """Section 6: the extra to install, also where nothing is connected to; the plug-in is listed all the same."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT_DRIVER, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    for command in ("check", "sql"):
        done = run("db", command, "--store", f"{scheme}://u:{SECRET}@127.0.0.1:1/x")
        told = f"wiggle: the driver 'pymysql' for {scheme} is not installed: pip install 'wiggle-core[mysql]'\n"
        assert (done.returncode, done.stdout, done.stderr) == (3, "", told)
    listed = run("plugins", "--json")
    assert listed.returncode == 0
    assert f'"scheme": "{scheme}"' in listed.stdout


# For hand work


def test_the_printed_statements_need_no_server(wiggle: Wiggle) -> None:
    """Section 9: `db sql` connects to nothing. The scheme says for which product; the first line repeats it."""
    mysql = wiggle("db", "sql", "--store", "mysql://nobody@nowhere.invalid/x")
    mariadb = wiggle("db", "sql", "--store", "mariadb+pymysql://nobody@nowhere.invalid/x?prefix=p_")
    assert (mysql.code, mariadb.code) == (0, 0)
    assert mysql.out.startswith("-- For MySQL; name the store by mariadb:// for the other product.\n")
    assert mariadb.out.startswith("-- For MariaDB; name the store by mysql:// for the other product.\n")
    assert ("utf8mb4_0900_bin" in mysql.out, "utf8mb4_nopad_bin" in mysql.out) == (True, False)
    assert ("utf8mb4_0900_bin" in mariadb.out, "utf8mb4_nopad_bin" in mariadb.out) == (False, True)
    assert "CREATE TABLE IF NOT EXISTS `x`.`p_task` (" in mariadb.out


def test_the_printed_grants_need_no_server(wiggle: Wiggle) -> None:
    """`db roles` connects to nothing, quotes the account, and prints what JSON has."""
    store = ("--store", "mariadb://nobody@nowhere.invalid/x?prefix=p_")
    ended = wiggle("db", "roles", "--role", "a`b@10.0.0.%", *store)
    assert ended.out.startswith("GRANT SELECT, INSERT, UPDATE, DELETE ON `x`.`p_task` TO `a``b`@`10.0.0.%`;\n")
    assert ended.out == wiggle("db", "roles", "--role", "a`b@10.0.0.%", *store, "--json").json["sql"] + "\n"
    assert "`x`.`p_migration`" in ended.out
