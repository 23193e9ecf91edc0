"""The installed `wiggle` command in processes of its own: pipes, signals, and a whole journey (section 9)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from time import monotonic, sleep

import pytest

from wiggle_core import StoreError, open_engine

CASES = json.loads(files("wiggle_core.conformance").joinpath("cases/criteria.json").read_text("utf-8"))
WIGGLE = Path(sys.executable).with_name("wiggle")
PATIENCE = 90.0
"""Seconds after which a test that waits in vain fails."""
MODULE = """
import os
from wiggle_core import QueueCriteria, Task, Worker, open_engine

def make(engine):
    worker = Worker(engine, "eu-1", criteria=[QueueCriteria("payments", Task.attempt < 4)], concurrency=2)

    @worker.task("charge")
    def charge(context):
        return {"charged": context.payload["n"]}

    return worker

ready_made = make(open_engine(os.environ["READY_MADE"])) if "READY_MADE" in os.environ else None
number = 5

def broken(engine):
    raise KeyError("no such setting")

def wrong(engine):
    return engine
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's module, a store named by the environment, and nothing else."""
    for name in [name for name in os.environ if name.startswith("WIGGLE_") and not name.startswith("WIGGLE_TEST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WIGGLE_DATABASE_URL", f"sqlite:///{tmp_path}/tasks.db")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(MODULE, encoding="utf-8")
    return tmp_path


def wiggle(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [WIGGLE, *arguments], input=stdin, capture_output=True, text=True, check=False, timeout=PATIENCE
    )


def tasks(count: int) -> str:
    lines = ({"queue": "payments", "step": "charge", "id": f"t{n}", "payload": {"n": n}} for n in range(count))
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def until(is_done: Callable[[], bool]) -> None:
    """Wait for another process, which has no clock to inject."""
    deadline = monotonic() + PATIENCE
    while not is_done():
        assert monotonic() < deadline, "too long"
        sleep(0.05)


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [WIGGLE, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def state_of(task_id: str) -> str:
    return str(json.loads(wiggle("task", "show", task_id, "--json").stdout)["state"])


def test_both_ways_to_call_it_are_one() -> None:
    """Section 9: `python -m wiggle_core.cli` is `wiggle`."""
    by_module = subprocess.run(
        [sys.executable, "-m", "wiggle_core.cli", "plugins", "--json"], capture_output=True, text=True, check=True
    )
    assert by_module.stdout == wiggle("plugins", "--json").stdout


def test_a_journey(place: Path) -> None:
    """Sections 8 and 9: upgrade, enqueue from a pipe, look, work until SIGTERM, look again."""
    missing = wiggle("backlog")
    assert (missing.returncode, missing.stdout) == (3, "")
    assert f"wiggle db upgrade --store sqlite:///{place}/tasks.db" in missing.stderr
    assert wiggle("db", "upgrade").returncode == 0
    assert wiggle("enqueue", "--json", stdin=tasks(20)).stdout == '{"inserted": 20, "existing": 0}\n'
    assert json.loads(wiggle("backlog", "--json").stdout)["uncovered"][0]["count"] == 20
    with running("worker", "shop:make", "--json") as worker:
        until(lambda: json.loads(wiggle("backlog", "--json").stdout)["slices"] == [] and state_of("t19") == "DONE")
        worker.send_signal(signal.SIGTERM)
        out, err = worker.communicate(timeout=PATIENCE)
    assert (worker.returncode, json.loads(out)["done"]) == (0, 20), err
    assert json.loads(wiggle("task", "show", "t7", "--json").stdout)["result"] == {"charged": 7}
    assert wiggle("db", "check").returncode == 0


def test_a_worker_with_an_engine_of_its_own(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 9: MODULE:NAME may be a Worker; SIGINT stops it gracefully too."""
    monkeypatch.setenv("READY_MADE", os.environ["WIGGLE_DATABASE_URL"])
    assert wiggle("db", "upgrade").returncode == 0
    assert wiggle("enqueue", stdin=tasks(1)).returncode == 0
    with running("worker", "shop:ready_made") as worker:
        until(lambda: state_of("t0") == "DONE")
        worker.send_signal(signal.SIGINT)
        out, err = worker.communicate(timeout=PATIENCE)
    assert (worker.returncode, "worker eu-1 stopped: " in out) == (0, True), err
    refused = wiggle("worker", "shop:ready_made", "--store", "memory://")
    assert (refused.returncode, "leave --store out" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("shop", "MODULE:NAME is expected"),
        (":make", "MODULE:NAME is expected"),
        ("nowhere:make", "nowhere cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        ("bad:make", "bad cannot be imported: SyntaxError"),
        ("shop:none", "shop has no none"),
        ("shop:number", "shop:number is neither a Worker nor a callable that returns one"),
        ("shop:broken", "shop:broken failed: KeyError: 'no such setting'"),
        ("shop:wrong", "shop:wrong returned Engine, not a Worker"),
    ],
)
def test_a_worker_that_cannot_be_had(place: Path, target: str, message: str) -> None:
    """Section 9: exit 2 and one line, whatever the module does."""
    (place / "bad.py").write_text("def make(:\n", encoding="utf-8")
    ended = wiggle("worker", target, "--store", "memory://")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_worker_whose_store_has_no_schema(place: Path) -> None:
    """Section 9: trouble with the store is code 3 and one line, also where the module itself opens the engine."""
    module = "from wiggle_core import open_engine\nengine = open_engine('sqlite:///none.db')\n"
    (place / "early.py").write_text(module, encoding="utf-8")
    ended = wiggle("worker", "early:worker")
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.splitlines()[-1].startswith("wiggle: the schema of the database 'none.db' is missing: run ")
    assert "Traceback" not in ended.stderr


def test_a_reader_that_went_away_is_no_error(place: Path) -> None:
    """Section 9: `wiggle ... | head -1` ends in silence."""
    (place / "contexts.jsonl").write_text('{"n": 1}\n' * 200_000, encoding="utf-8")
    command = f"{WIGGLE} attributes extract --declare n:long:n --contexts contexts.jsonl | head -n 1"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (ended.stdout, ended.stderr) == ('{"n": 1}\n', "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said() -> None:
    """Section 9: output that cannot be written is exit 3 and one line."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        ended = subprocess.run([WIGGLE, "plugins"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (3, "wiggle: output: No space left on device\n")


def test_an_interrupt_ends_with_130(place: Path) -> None:
    """Section 9: Ctrl-C while stdin is read: 130, and how far it came."""
    assert wiggle("db", "upgrade").returncode == 0
    with running("enqueue") as enqueue:
        assert enqueue.stdin is not None
        enqueue.stdin.write(tasks(1000))
        enqueue.stdin.flush()
        until(lambda: "1000" in wiggle("backlog", "--json").stdout)
        enqueue.send_signal(signal.SIGINT)
        _, err = enqueue.communicate(timeout=PATIENCE)
    assert (enqueue.returncode, err) == (130, "wiggle: interrupted; 1000 tasks were enqueued before\n")


def test_no_password_and_no_sql_in_what_is_printed(place: Path) -> None:
    """Section 3, failure classes: callers see class, reference id and what to do; WIGGLE_DEBUG=1 shows the rest."""
    (place / "strange.db").write_bytes(b"no database\n" * 1000)
    ended = wiggle("enqueue", "--store", "sqlite:///strange.db", stdin=tasks(1))
    assert ended.returncode == 3
    assert "(reference " in ended.stderr
    assert not any(word in ended.stderr for word in ("SELECT", "INSERT", "PRAGMA", "sqlalche.me"))
    debugging = subprocess.run(
        [WIGGLE, "enqueue", "--store", "sqlite:///strange.db"],
        input="", capture_output=True, text=True, check=False, env=os.environ | {"WIGGLE_DEBUG": "1"},
    )  # fmt: skip
    assert "Traceback" in debugging.stderr
    assert debugging.returncode == 3


def test_a_million_bytes_stream_through(place: Path) -> None:
    """Section 9: a file of any size is read line by line; what is enqueued is what it held."""
    assert wiggle("db", "upgrade").returncode == 0
    (place / "tasks.jsonl").write_text(tasks(10_000), encoding="utf-8")
    ended = wiggle("enqueue", "--file", "tasks.jsonl")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "10000 tasks enqueued\n", "")
    assert json.loads(wiggle("backlog", "--json").stdout)["slices"][0]["ready"] == 10_000


def _works(url: str) -> bool:
    try:
        with open_engine(url) as engine:
            return bool(engine.workers())
    except StoreError:  # not made yet
        return False


def test_ctrl_c_ends_the_demo_in_good_order(place: Path) -> None:
    """Section 9: a terminal sends it to each of them; there is one line, and all workers take their leave."""
    command = [str(WIGGLE), "demo", "--rows", "60000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            until(lambda: _works("sqlite:///wiggle-demo.db"))
            os.killpg(process.pid, signal.SIGINT)
            _, told = process.communicate(timeout=PATIENCE)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert (process.returncode, told) == (130, "wiggle: interrupted\n")
    with open_engine("sqlite:///wiggle-demo.db") as engine:
        assert engine.workers() == []


def lines(path: Path, objects: Iterable[object]) -> str:
    path.write_text("".join(f"{json.dumps(each)}\n" for each in objects), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def match(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that asks which of the cases' tasks match which of their criteria."""
    folder, every = tmp_path_factory.mktemp("match"), [{"where": each["where"]} for each in CASES["cases"]]
    every += [{"where": each["where"]} for each in CASES["refused"]]
    tasks, criteria = lines(folder / "t", CASES["tasks"]), lines(folder / "c", every)
    return ["criteria", "match", "--tasks", tasks, "--criteria", criteria]


@cache
def evaluated(*match: str) -> str:
    """What the evaluator says, where no store is named."""
    return wiggle(*match).stdout


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("lanes", ["on", "auto", "off"])
@pytest.mark.parametrize("scheme", ["memory", "sqlite", "postgres", "mysql", "mariadb", "cassandra"])
def test_every_case_is_claimed_as_expected(
    request: pytest.FixtureRequest, match: list[str], scheme: str, lanes: str
) -> None:
    """C8, O1, section 9: by lane or by walk, a store's claims take what the evaluator says, in its order."""
    is_embedded = scheme in ("memory", "sqlite")
    store = f"{scheme}://" if is_embedded else request.getfixturevalue(f"{scheme}_url")
    store += "?shards=1" if scheme == "cassandra" else ""  # the order is exact within one
    claimed = wiggle(*match, "--store", store, "--claim", "--lanes", lanes)
    assert (claimed.returncode, claimed.stderr) == (0, "")
    assert claimed.stdout == evaluated(*match)
    answers = [json.loads(line) for line in claimed.stdout.splitlines()]
    assert answers[: len(CASES["cases"])] == [case["expect"] for case in CASES["cases"]]
