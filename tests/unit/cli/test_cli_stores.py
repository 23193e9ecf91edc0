"""`wiggle plugins`, `db`, `task` and `backlog`: what operators ask of a store (section 9)."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.engine.engine import open_engine
from wiggle_core.stores.memory import MemoryStore
from wiggle_core.tasks.outcome import Done, Fail
from wiggle_core.worker.worker import Worker

from .conftest import Wiggle

# plugins


def test_plugins(wiggle: Wiggle) -> None:
    """Section 9: exactly these keys, for scripts; the same in a table."""
    ended = wiggle("plugins", "--json")
    assert ended.code == 0
    by_scheme = {each["scheme"]: each for each in ended.json}
    keys = ["scheme", "package", "version", "driver", "installed", "live_tested"]
    assert all(list(each) == keys for each in ended.json)
    assert by_scheme["sqlite"]["installed"] is True
    shown = wiggle("plugins").out
    assert all(scheme in shown for scheme in by_scheme)


# db


def test_upgrade_creates_the_schema_once(wiggle: Wiggle, tmp_path: Path) -> None:
    """Section 9: `db upgrade` makes what is missing, and nothing the second time."""
    url = f"sqlite:///{tmp_path}/new.db"
    first = wiggle("db", "upgrade", "--store", url, "--json")
    assert first.code == 0
    assert first.json["applied"]
    assert wiggle("db", "upgrade", "--store", url, "--json").json == {"applied": []}
    assert wiggle("db", "upgrade", "--store", url).out == f"{url} is up to date\n"


def test_only_upgrade_makes_a_file(wiggle: Wiggle, tmp_path: Path) -> None:
    """Section 9: nothing else runs DDL, or leaves an empty file behind."""
    url = f"sqlite:///{tmp_path}/none.db"
    for arguments in (("db", "check"), ("db", "sql"), ("backlog",), ("task", "show", "x"), ("enqueue",), ("lanes",)):
        wiggle(*arguments, "--store", url)
    assert not (tmp_path / "none.db").exists()


def test_check_of_a_good_store(wiggle: Wiggle, store: str) -> None:
    """Section 9: exit 0 when schema and data are in order."""
    assert wiggle("db", "check", "--store", store).code == 0
    assert wiggle("db", "check", "--store", store, "--json").json == {"ok": True, "findings": []}


def test_findings_are_a_no(wiggle: Wiggle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 9: exit 1 with what was found."""
    monkeypatch.setattr(MemoryStore, "audit", lambda store: ["task 't' is READY in one place only"])
    ended = wiggle("db", "check", "--store", "memory://", "--json")
    assert (ended.code, ended.json) == (1, {"ok": False, "findings": ["task 't' is READY in one place only"]})
    shown = wiggle("db", "check", "--store", "memory://")
    assert (shown.code, shown.out.splitlines()) == (1, ["task 't' is READY in one place only", "findings: 1"])


def test_the_printed_statements_are_the_schema(wiggle: Wiggle, tmp_path: Path) -> None:
    """Section 9: what `db sql` prints can be run by hand on an empty database."""
    statements = wiggle("db", "sql", "--store", "sqlite://").out
    assert statements == wiggle("db", "sql", "--store", "sqlite://", "--json").json["sql"] + "\n"
    with sqlite3.connect(tmp_path / "by-hand.db") as connection:
        connection.executescript(statements)
    connection.close()


def test_a_file_that_is_not_ours_is_refused(wiggle: Wiggle, tmp_path: Path) -> None:
    """A file of something else is neither read as a queue nor changed: exit 3."""
    strange = tmp_path / "strange.db"
    strange.write_bytes(b"this is no database\n" * 100)
    before = strange.read_bytes()
    for arguments in (("db", "upgrade"), ("db", "check"), ("backlog",), ("enqueue",)):
        ended = wiggle(*arguments, "--store", f"sqlite:///{strange}")
        assert (ended.code, ended.out, ended.err.count("\n")) == (3, "", 1)
    assert strange.read_bytes() == before


# task


@pytest.fixture
def settled(store: str) -> str:
    """A store with a task of each fate: done, failed, ready, later."""
    with open_engine(store) as engine:
        for name in ("done", "failed"):
            engine.enqueue("q", "charge", {"n": 1}, id=name, correlation_id="a\x1b[31m")
            [task] = engine.claim("me", [QueueCriteria("q")])
            engine.settle(task, Done({"ok": True}) if name == "done" else Fail("no such card"))
        engine.enqueue("q", "charge", {"n": 2}, id="ready")
    return store


def test_show_tells_everything(wiggle: Wiggle, settled: str) -> None:
    """Section 9: fields, payload, result, history; payload and result are JSON in JSON."""
    done = wiggle("task", "show", "done", "--store", settled, "--json").json
    assert (done["id"], done["state"], done["attempt"], done["owner"]) == ("done", "DONE", 1, "me")
    assert (done["payload"], done["result"]) == ({"n": 1}, {"ok": True})
    assert done["finished_at"].endswith("Z")
    assert done["retry"] == {
        "max_attempts": 20, "initial_backoff": 1.0, "multiplier": 2.0, "max_backoff": 300.0, "jitter": 0.2,
    }  # fmt: skip
    failed = wiggle("task", "show", "failed", "--store", settled)
    assert failed.code == 0
    assert "no such card" in failed.out
    assert "\x1b" not in failed.out


def test_nobody_knows_the_task(wiggle: Wiggle, settled: str) -> None:
    """Section 9: exit 1 is the answer no."""
    assert wiggle("task", "show", "none", "--store", settled).code == 1
    ended = wiggle("task", "show", "none", "--store", settled, "--json")
    assert (ended.code, ended.json) == (1, {"error": "no task 'none'"})


def test_cancel_takes_live_tasks(wiggle: Wiggle, settled: str) -> None:
    """Section 9: exit 1 unless all could be cancelled; the others are."""
    ended = wiggle("task", "cancel", "ready", "done", "none", "--store", settled, "--json")
    assert (ended.code, ended.json) == (1, {"changed": ["ready"], "unchanged": ["done", "none"]})
    assert wiggle("task", "show", "ready", "--store", settled, "--json").json["state"] == "CANCELLED"


def test_retry_brings_back(wiggle: Wiggle, settled: str) -> None:
    """Section 8: `task retry` brings a FAILED or CANCELLED task back, attempt 1."""
    ended = wiggle("task", "retry", "failed", "--store", settled)
    assert (ended.code, ended.out) == (0, "failed  ready again\n")
    again = wiggle("task", "show", "failed", "--store", settled, "--json").json
    assert (again["state"], again["attempt"]) == ("READY", 1)
    assert wiggle("task", "retry", "done", "--store", settled).code == 1


# backlog


def test_an_empty_backlog(wiggle: Wiggle, store: str) -> None:
    """Section 8: nothing ready, nothing uncovered."""
    assert wiggle("backlog", "--store", store, "--json").json == {
        "slices": [],
        "uncovered": [],
        "unreadable_workers": [],
    }
    assert wiggle("backlog", "--store", store).out == "nothing is ready\n"


def test_the_backlog_names_workers_that_it_cannot_read(wiggle: Wiggle, store: str) -> None:
    """Section 8: one of a newer version does not end the command, and is not passed over in silence."""
    with open_engine(store) as engine:
        engine.store.put_document("worker", "newer", "{}")
    assert wiggle("backlog", "--store", store, "--json").json["unreadable_workers"] == ["newer"]
    ended = wiggle("backlog", "--store", store)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("The worker registered as 'newer' is left out")


def test_the_backlog_names_what_nobody_takes(wiggle: Wiggle, store: str) -> None:
    """Section 8: ready counts and oldest age by (workflow, version, queue), and the tasks of no live worker."""
    with open_engine(store) as engine:
        for n in range(3):
            engine.enqueue("payments", "charge", n, id=f"c{n}", workflow="orders", version=1, delay=None)
        engine.enqueue("payments", "refund", id="r", workflow="orders", version=1)
        engine.enqueue("mail", "send", id="m")
    found = wiggle("backlog", "--store", store, "--json").json
    assert [(each["workflow"], each["version"], each["queue"], each["ready"]) for each in found["slices"]] == [
        (None, None, "mail", 1),
        ("orders", 1, "payments", 4),
    ]
    assert found["slices"][1]["oldest_age_seconds"] >= 0
    assert {each["queue"]: each["count"] for each in found["uncovered"]} == {"mail": 1, "payments": 4}
    assert found["uncovered"][0]["samples"][0]["refusals"] == []
    assert "No live worker polls this queue." in wiggle("backlog", "--store", store).out


def test_a_live_worker_covers_its_tasks(wiggle: Wiggle, store: str) -> None:
    """Section 8: what a live worker's criteria and handlers take is covered; the rest says why not."""
    with open_engine(store) as engine:
        worker = Worker(engine, "eu-1", queues=["payments"], concurrency=1)
        worker.task("nothing")(lambda context: None)
        engine.enqueue("payments", "charge", id="c")
        with worker:
            found = wiggle("backlog", "--store", store, "--json").json
            shown = wiggle("backlog", "--store", store).out
    [uncovered] = found["uncovered"]
    [refusal] = uncovered["samples"][0]["refusals"]
    assert (uncovered["count"], refusal["workers"]) == (1, ["eu-1"])
    assert "'charge'" in refusal["failed"]
    assert "eu-1" in shown


def test_roles_prints_the_grants(wiggle: Wiggle) -> None:
    """`db roles` prints what to grant, quotes the role's name and connects to nothing; without roles it refuses."""
    url = "postgresql://nobody@nowhere.invalid/x?schema=jobs"
    statements = wiggle("db", "roles", "--role", 'a"b', "--store", url).out
    assert statements.startswith('GRANT USAGE ON SCHEMA "jobs" TO "a""b";\n')
    assert statements == wiggle("db", "roles", "--role", 'a"b', "--store", url, "--json").json["sql"] + "\n"
    ended = wiggle("db", "roles", "--store", "memory://")
    assert (ended.code, ended.err) == (2, "wiggle: memory:// has no roles\n")
