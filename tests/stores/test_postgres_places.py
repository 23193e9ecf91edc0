"""URLs, schemas and migrations of the PostgreSQL store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import make_url

from tests.stores.postgres_schemas import connect_plainly, fresh_schema, open_url
from tests.stores.test_postgres_facts import claim, ids, ready
from wiggle_core.errors import InvalidSetting, InvalidStoreUrl, PermanentStoreError, SchemaError
from wiggle_core.stores.registry import list_plugins
from wiggle_core.stores.sql.migrations import TABLE, Migration
from wiggle_core.stores.store import Finish
from wiggle_core.tasks.task import State
from wiggle_store_postgres import open_scratch
from wiggle_store_postgres.place import PAGE_COST_VARIABLE, read_url
from wiggle_store_postgres.schema import MIGRATIONS


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    with fresh_schema(postgres_url) as fresh:
        yield fresh


def schema_of(url: str) -> str:
    return str(make_url(url).query["schema"])


# URLs


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:p@h:5433/n", {"host": "h", "port": "5433", "user": "u", "password": "p", "dbname": "n"}),
        ("postgres:///n", {"dbname": "n"}),
        ("postgresql+psycopg://h/n?sslmode=require", {"host": "h", "dbname": "n", "sslmode": "require"}),
        ("postgresql:///n?host=/var/run/postgresql", {"host": "/var/run/postgresql", "dbname": "n"}),
        ("postgresql:///n?host=a:1&host=b:2", {"host": "a,b", "port": "1,2", "dbname": "n"}),
        ("postgresql:///n?host=a&host=b", {"host": "a,b", "dbname": "n"}),
        ("postgresql://%40u:%2F%3A@h/n", {"host": "h", "user": "@u", "password": "/:", "dbname": "n"}),
        ("postgresql:///?service=prod", {"service": "prod"}),
    ],
)
def test_a_url_in_the_words_of_libpq(url: str, expected: dict[str, str]) -> None:
    """All forms of a URL that SQLAlchemy and libpq know reach libpq as its own options."""
    assert read_url(make_url(url)).parameters == expected


def test_options_of_ours_do_not_reach_libpq() -> None:
    """Our options set the place; the user's own settings come behind ours, and so override them."""
    url = "postgresql://h/n?schema=s&pool_size=3&pool_timeout=1.5&statement_timeout=2&options=-c%20jit%3Don"
    place = read_url(make_url(url))
    assert (place.schema, place.pool_size, place.pool_timeout) == ("s", 3, 1.5)
    parameters = place.connection_parameters()
    assert "-c statement_timeout=2000" in parameters["options"]
    assert parameters["options"].endswith(" -c jit=on")
    assert parameters["application_name"] == "wiggle"
    assert "schema" not in parameters
    named = read_url(make_url("postgresql://h/n?application_name=billing&connect_timeout=2"))
    assert named.connection_parameters()["application_name"] == "billing"
    assert named.connection_parameters()["connect_timeout"] == "2"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql+psycopg2://h/n", "'postgresql\\+psycopg2' is not known: psycopg is the only driver"),
        ("postgresql://h/n?colour=red", "no option 'colour'; there are schema=wiggle, pool_size=10"),
        ("postgresql://h/n?schema=Robert'); DROP", "lower-case letters, digits and _"),
        ("postgresql://h/n?schema=pg_catalog", "schema='pg_catalog'"),
        ("postgresql://h/n?pool_size=0", "pool_size='0': a number from 1 to 1000"),
        ("postgresql://h/n?pool_size=many", "pool_size='many'"),
        ("postgresql://h/n?statement_timeout=nan", "statement_timeout='nan'"),
        ("postgresql://h/n?sslmode=a&sslmode=b", "'sslmode' is given twice"),
        ("postgresql://h/n?password=x", "a password belongs before the host"),
    ],
)
def test_a_url_that_means_nothing_is_refused(url: str, message: str) -> None:
    """An unknown option or value is refused by name, not ignored."""
    with pytest.raises(InvalidStoreUrl, match=message):
        read_url(make_url(url))


def test_no_password_is_ever_shown() -> None:
    """What names the place shows no password, wherever the URL had it."""
    place = read_url(make_url("postgresql://u:hunter2@h/n?schema=s&sslpassword=hunter2"))
    assert place.url == "postgresql://u@h/n?schema=s"
    assert "hunter2" not in f"{place} {place!r}"


def test_the_page_cost_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """WIGGLE_PG_RANDOM_PAGE_COST reaches the sessions; 1.1 without it, and what is no number is refused."""
    url = make_url("postgresql://h/n")
    assert "-c random_page_cost=1.1" in read_url(url).connection_parameters()["options"]
    monkeypatch.setenv(PAGE_COST_VARIABLE, "2.5")
    assert "-c random_page_cost=2.5" in read_url(url).connection_parameters()["options"]
    monkeypatch.setenv(PAGE_COST_VARIABLE, "cheap")
    with pytest.raises(InvalidSetting, match=PAGE_COST_VARIABLE):
        read_url(url)


def test_both_schemes_are_listed() -> None:
    """`wiggle plugins` lists postgresql and its alias."""
    found = {each.scheme: each for each in list_plugins()}
    assert found["postgresql"].driver == found["postgres"].driver == "psycopg"
    assert found["postgresql"].installed


# Schemas


def test_opening_touches_nothing(url: str) -> None:
    """Only migrate makes the schema; a store that was merely opened leaves no trace."""
    store = open_url(url)
    with pytest.raises(SchemaError):
        store.verify()
    with connect_plainly(url) as connection:
        assert connection.execute("SELECT to_regnamespace(%s)", (schema_of(url),)).fetchall() == [(None,)]
    store.close()


def test_migrating_twice_applies_once(url: str) -> None:
    """The first migration makes everything, the second finds nothing to do."""
    store = open_url(url)
    assert store.migrate() == [migration.name for migration in MIGRATIONS]
    assert store.migrate() == []
    store.verify()
    assert store.audit() == []
    store.close()


def test_the_body_of_a_function_is_part_of_its_statement() -> None:
    """A semicolon at the end of a line ends a statement, but not between `$$` and `$$`."""
    sql = "SELECT 1;\nCREATE FUNCTION f() AS $$\nBEGIN\n    RETURN;\nEND\n$$;\n-- x;\nSELECT $$;\n$$, 2;\nSELECT 3"
    expected = ["SELECT 1", "CREATE FUNCTION f() AS $$\nBEGIN\n    RETURN;\nEND\n$$", "SELECT $$;\n$$, 2", "SELECT 3"]
    assert Migration("1", sql).statements == expected


@pytest.mark.parametrize(
    ("drop", "name"),
    [("FUNCTION {}.hold_epoch", "hold_epoch"), ("SEQUENCE {}.ready", "ready"), ("TABLE {}.lane", "lane")],
)
def test_what_is_missing_is_found(url: str, drop: str, name: str) -> None:
    """The audit names functions, sequences and tables that are gone."""
    store = open_url(url)
    store.migrate()
    with connect_plainly(url) as connection:
        connection.execute(f"DROP {drop.format(schema_of(url))}".encode())
    assert f"{name} is missing" in store.audit()
    store.close()


def test_migrations_at_once_all_succeed(url: str) -> None:
    """Migrations are applied once, under the database's lock, whoever comes first."""
    stores = [open_url(url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        applied = [each.result() for each in [pool.submit(store.migrate) for store in stores]]
    assert sorted(map(len, applied)) == [0, 0, 0, len(MIGRATIONS)]
    for store in stores:
        store.verify()
        store.close()


def test_a_schema_made_by_hand_is_migrated(url: str) -> None:
    """A schema that an administrator made, and left empty, is used: so the role needs no right to make one."""
    with connect_plainly(url) as connection:
        connection.execute(f"CREATE SCHEMA {schema_of(url)}".encode())
    store = open_url(url)
    assert store.migrate()
    store.verify()
    store.close()


def test_the_statements_for_hand_work_make_the_same_schema(url: str) -> None:
    """What `db sql` prints makes a schema that verify and audit accept, and migrate has nothing to add to."""
    store = open_url(url)
    with connect_plainly(url) as connection:
        connection.execute(store.schema_sql().encode())
    store.verify()
    assert store.migrate() == []
    assert store.audit() == []
    store.close()


def test_another_programs_schema_is_left_alone(url: str) -> None:
    """A schema with tables that wiggle did not make is refused, and not changed."""
    with connect_plainly(url) as connection:
        connection.execute(f"CREATE SCHEMA {schema_of(url)}".encode())
        connection.execute(f"CREATE TABLE {schema_of(url)}.task (id text)".encode())
        store = open_url(url)
        for use in (store.migrate, store.verify):
            with pytest.raises(SchemaError, match=r"belongs to another program: name another one with `\?schema=`"):
                use()
        tables = "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s)"
        assert connection.execute(tables, (schema_of(url),)).fetchall() == [("task",)]
    store.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (f"INSERT INTO {{s}}.{TABLE} VALUES ('9999_newer', 'x', 1)", "which this version of wiggle does not know"),
        (f"UPDATE {{s}}.{TABLE} SET checksum = 'x'", "was made by another 0001_tasks than this version's"),
        (f"DELETE FROM {{s}}.{TABLE}", "run `wiggle db upgrade --store postgresql://"),
    ],
)
def test_a_schema_of_another_version_is_refused(url: str, change: str, message: str) -> None:
    """A newer, altered or unfinished schema is told apart, with what helps."""
    store = open_url(url)
    store.migrate()
    with connect_plainly(url) as connection:
        connection.execute(change.format(s=schema_of(url)).encode())
    with pytest.raises(SchemaError, match=message):
        store.verify()
    store.close()


FINDINGS = {
    "INSERT INTO {s}.history (id, queue, step, kind, created_at, ready_at, finished_at, attempt, priority, state, "
    "attributes) SELECT id, queue, step, kind, 1, 1, 1, 1, 0, 'DONE', '{{}}' FROM {s}.task": "'a' is both live",
    "DELETE FROM {s}.payload": "task 'a' has no payload",
    "UPDATE {s}.task SET attributes = '{{\"x\": 1}}'": "task 'a' has attributes that cannot be read",
    "UPDATE {s}.task SET attributes = '[]'": "task 'a' has attributes that cannot be read",
    "UPDATE {s}.task SET state = 'LOST'": "task 'a' is live in a state that is settled or unknown",
    "UPDATE {s}.task SET state = 'RUNNING'": "task 'a' is RUNNING without a lease",
    "UPDATE {s}.task SET lease_until = 1": "task 'a' has a lease but is not RUNNING",
    "UPDATE {s}.task SET retry = '[1]'": "task 'a' has a retry policy that cannot be read",
    "UPDATE {s}.task SET priority = -1": "task 'a' has a priority or attempt that no task can have",
    "DELETE FROM {s}.task": "1 payloads belong to no task",
    "DROP INDEX {s}.task_dispatch": "task_dispatch is missing",
    'ALTER TABLE {s}.task ALTER step TYPE text COLLATE "POSIX"': 'task.step is not in the collation "C"',
    "UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{s}.task_leased'::regclass": "task_leased is not valid",
}


@pytest.mark.parametrize("damage", FINDINGS)
def test_the_audit_finds_what_is_wrong(url: str, damage: str) -> None:
    """`wiggle db check` names each contradiction in the data, and each index or column that is not as it was made."""
    store = open_url(url)
    store.migrate()
    store.enqueue([ready("a")])
    assert store.audit() == []
    with connect_plainly(url) as connection:
        connection.execute(damage.format(s=schema_of(url)).encode())
    assert any(FINDINGS[damage] in finding for finding in store.audit())
    store.close()


def test_a_scratch_store_leaves_nothing_behind(postgres_url: str) -> None:
    """A scratch store is a schema of its own beside the store's, dropped when it is closed, twice too."""
    with connect_plainly(postgres_url) as connection:
        schemas = "SELECT nspname FROM pg_namespace ORDER BY 1"
        before = connection.execute(schemas).fetchall()
        scratch = open_scratch(make_url(postgres_url))
        scratch.enqueue([ready("a")])
        assert len(connection.execute(schemas).fetchall()) == len(before) + 1
        scratch.close()
        scratch.close()
        assert connection.execute(schemas).fetchall() == before


def test_a_closed_store_says_so(url: str) -> None:
    """After close a store answers with words, not with a new connection."""
    store = open_url(url)
    store.migrate()
    store.close()
    store.close()
    with pytest.raises(PermanentStoreError, match="open the store again"):
        store.get("a")


FORK = """
import os, sys
from wiggle_core.stores.registry import open_store
from wiggle_core.stores.store import ClaimRequest, Route

store = open_store(sys.argv[1])
store.verify()
child = os.fork()
name = "parent" if child else "child"
held = store.claim(ClaimRequest(name, name, 30_000_000, 1, (Route("q"),)))
assert [task.owner for task in held] == [name]
assert store.leased(name) == held
store.close()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_store_goes_on_in_a_forked_process(url: str) -> None:
    """A fork gets connections of its own: neither side reads the other's answers, nor closes its connections."""
    store = open_url(url)
    store.migrate()
    store.enqueue([ready("a", 1), ready("b", 2)])
    ran = subprocess.run([sys.executable, "-c", FORK, url], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert claim(store) == []
    store.close()


def test_two_schemas_in_one_database_are_strangers(url: str) -> None:
    """Ids, tasks and documents of one schema mean nothing in another."""
    store = open_url(url)
    store.migrate()
    other = open_scratch(make_url(url))
    assert store.enqueue([ready("a")]) == other.enqueue([ready("a")]) == {"a"}
    (held,) = claim(store)
    assert store.apply([Finish(held.lease, State.DONE)]) == {"a"}
    assert ids(claim(other)) == ["a"]
    other.close()
    store.close()
