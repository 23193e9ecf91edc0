"""`wiggle enqueue`: JSON lines in, every key, every refusal with its line (section 9)."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from wiggle_core.cli import enqueue as command
from wiggle_core.cli.task_line import split_members
from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.engine.engine import Engine, open_engine
from wiggle_core.tasks.attributes import Attribute
from wiggle_core.tasks.retry import RetryPolicy
from wiggle_core.tasks.task import State, TaskRecord

from .conftest import Wiggle, write_lines

PLAIN = {"queue": "q", "step": "s"}


def stored(url: str, task_id: str) -> TaskRecord:
    with open_engine(url) as engine:
        task = engine.get(task_id)
    assert task is not None
    return task


def count(url: str, queue: str = "q") -> int:
    with open_engine(url) as engine:
        return engine.count(QueueCriteria(queue))


def test_every_key_reaches_the_task(wiggle: Wiggle, store: str, tmp_path: Path) -> None:
    """Section 8: what `Engine.enqueue` takes, a line can say; times in seconds and RFC 3339."""
    line = {
        "queue": "q", "step": "s", "payload": {"a": [1, "é", None]}, "workflow": "w", "version": 3, "node": "n",
        "kind": "k", "correlation_id": "c", "id": "t1", "priority": 7,
        "ready_at": "9999-01-01T00:00:00+01:00",
        "retry": {"max_attempts": 2, "initial_backoff": 0.5, "multiplier": 1, "max_backoff": 60, "jitter": 0},
    }  # fmt: skip
    ended = wiggle("enqueue", "--file", write_lines(tmp_path / "t", line), "--store", store, "--json")
    assert (ended.code, ended.json) == (0, {"inserted": 1, "existing": 0})
    task = stored(store, "t1")
    assert (task.queue, task.step, json.loads(task.payload)) == ("q", "s", {"a": [1, "é", None]})
    assert (task.workflow, task.version, task.node, task.kind) == ("w", 3, "n", "k")
    assert (task.correlation_id, task.instance_id, task.priority) == ("c", "t1", 7)
    assert (task.state, task.ready_at) == (State.SCHEDULED, 253370761200 * 1_000_000)
    assert task.retry == RetryPolicy(2, timedelta(seconds=0.5), 1, timedelta(seconds=60), 0)


def test_a_plain_task_is_ready_now(wiggle: Wiggle, store: str) -> None:
    """Section 8: only queue and step are needed; a delay makes a task wait."""
    lines = [PLAIN | {"id": "now"}, PLAIN | {"id": "later", "delay": 90.5}, PLAIN | {"id": "null", "payload": None}]
    ended = wiggle("enqueue", "--store", store, stdin="\n".join(map(json.dumps, lines)).encode())
    assert (ended.code, ended.out, ended.err) == (0, "3 tasks enqueued\n", "")
    now, later = stored(store, "now"), stored(store, "later")
    assert (now.state, now.payload, now.instance_id) == (State.READY, "null", "now")
    assert (later.state, later.ready_at - later.created_at) == (State.SCHEDULED, 90_500_000)


def test_fractions_stay_as_written(wiggle: Wiggle, store: str, tmp_path: Path) -> None:
    """A2: no fraction of a payload passes through a float on its way to the store."""
    number = "12345678901234567890.123456789012345678"
    payload = f'{{"total": {number}, "n": 1e3, "s": "\\u00e9, {{\\""}}'
    head = '{"queue": "q", "step": "s", "id": "t1", "workflow": "w", "version": 1, "payload" : '
    with open_engine(store) as engine:
        engine.declare("w", version=1, attributes=[Attribute("total", Decimal, "total")])
    file = write_lines(tmp_path / "t", f"{head}{payload} }}")
    assert wiggle("enqueue", "--file", file, "--store", store).code == 0
    task = stored(store, "t1")
    assert (task.payload, task.attributes) == (payload, {"total": Decimal(number)})


def test_the_same_file_again_changes_nothing(wiggle: Wiggle, store: str, tmp_path: Path) -> None:
    """L4: a task whose id is known is left alone, and counted."""
    file = write_lines(tmp_path / "t", *(PLAIN | {"id": f"t{n}"} for n in range(3)))
    assert wiggle("enqueue", "--file", file, "--store", store).out == "3 tasks enqueued\n"
    assert wiggle("enqueue", "--file", file, "--store", store).out == "0 tasks enqueued, 3 were known already\n"
    assert count(store) == 3


def test_nothing_to_enqueue(wiggle: Wiggle, store: str) -> None:
    assert wiggle("enqueue", "--store", store).out == "0 tasks enqueued\n"


BAD: list[tuple[Any, str]] = [  # Any: lines of every kind
    ("", "an empty line; JSON is expected"),
    ("   ", "an empty line; JSON is expected"),
    (b"\xff\xfe{", "not UTF-8 text (byte 1 of the line)"),
    (b'{"queue": "q", "step": "\xe9"}', "not UTF-8 text (byte 25 of the line)"),
    (b"\x00", "not JSON: '{' is expected at column 1"),
    ("[]", "not JSON: '{' is expected at column 1"),
    ('{"queue": "q"', "not JSON: '}' is expected at column 14"),
    ('{"queue": "q",}', "not JSON: a key in double quotes is expected at column 15"),
    ("{'queue': 1}", "not JSON: a key in double quotes is expected at column 2"),
    ('{"queue" "q"}', "not JSON: ':' is expected at column 10"),
    ('{"queue": }', "not JSON: Expecting value at column 11"),
    ('{"queue": "q", "step": "s"} {}', "more text after the object"),
    ('{"queue": "q", "queue": "r", "step": "s"}', "the key 'queue' stands twice"),
    ('{"queue": "q", "step": "s", "payload": NaN}', "NaN is no JSON"),
    ('{"queue": "q", "step": "s", "payload": [-Infinity]}', "-Infinity is no JSON"),
    ('{"queue": "q", "step": "s", "payload": ' + "9" * 5000 + "}", "a whole number of 5000 digits"),
    ('{"queue": "q", "step": "s", "payload": ' + "[" * 10_000, "JSON nested too deeply"),
    ('{"queue": "q", "step": "s", "payload": ' + "[" * 600 + "]" * 600 + "}", "payload: more than 500 levels"),
    (PLAIN | {"payload": "x" * 1024 * 1024}, "payload: 1048578 bytes of JSON; 1048576 at most"),
    ({"step": "s"}, "queue: Field required"),
    ({"queue": "q"}, "step: Field required"),
    (PLAIN | {"colour": "red"}, "colour: no such key"),
    (PLAIN | {"instance_id": "i"}, "instance_id: no such key"),
    (PLAIN | {"queue": "a\u0007b"}, "queue: a queue's name has no control characters"),
    (PLAIN | {"queue": ""}, "queue: a queue needs a name"),
    (PLAIN | {"queue": 5}, "queue: Input should be a valid string"),
    (PLAIN | {"step": "x" * 256}, "step: text of 256 characters; 255 at most"),
    (PLAIN | {"step": "a\u0000"}, "step: text with U+0000"),
    (PLAIN | {"step": "\ud800"}, "step: "),
    (PLAIN | {"priority": -1}, "priority: from 0, the most urgent"),
    (PLAIN | {"priority": 2**31}, "priority: from 0, the most urgent"),
    (PLAIN | {"priority": "1"}, "priority: Input should be a valid integer"),
    (PLAIN | {"priority": True}, "priority: Input should be a valid integer"),
    (PLAIN | {"version": 1.0}, "version: Input should be a valid integer"),
    (PLAIN | {"version": 2**63}, "version: "),
    (PLAIN | {"delay": -1}, "delay: Value error, a number of seconds"),
    (PLAIN | {"delay": "5"}, "delay: Value error, a number of seconds"),
    ('{"queue": "q", "step": "s", "delay": 1e999}', "delay: Value error, a number of seconds"),
    (PLAIN | {"delay": 10**11}, "delay: Value error, a number of seconds"),
    (PLAIN | {"ready_at": "2026-01-01T00:00:00"}, "ready_at: Value error, not an RFC 3339 instant"),
    (PLAIN | {"ready_at": 5}, "ready_at: Value error, RFC 3339 text"),
    (PLAIN | {"delay": 1, "ready_at": "2026-01-01T00:00:00Z"}, "give delay or ready_at, not both"),
    (PLAIN | {"id": ""}, "id: is empty"),
    (PLAIN | {"id": "x" * 65}, "id: text of 65 characters; 64 at most"),
    (PLAIN | {"retry": {"max_attempts": 0}}, "max_attempts is at least 1"),
    (PLAIN | {"retry": {"max_backoff": 10**10}}, "a back-off is not negative, and at most 36525 days"),
    (PLAIN | {"retry": {"jitter": 2}}, "jitter is between 0 and 1"),
    (PLAIN | {"retry": {"colour": 1}}, "retry.colour: no such key"),
    ('{"queue": "q", "step": "s", "retry": {"multiplier": 1e999}}', "retry.multiplier: "),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message"), BAD, ids=lambda each: str(each)[:50])
def test_a_bad_line_ends_the_command(wiggle: Wiggle, store: str, tmp_path: Path, line: object, message: str) -> None:
    """C7, section 9: exit 2, file and line, what was wrong, and how many tasks before it are enqueued."""
    file = write_lines(tmp_path / "tasks.jsonl", PLAIN, PLAIN, line, PLAIN)
    ended = wiggle("enqueue", "--file", file, "--store", store)
    assert (ended.code, ended.out) == (2, "")
    assert f"{file}:3: " in ended.err
    assert message in ended.err
    assert ended.err.endswith("; 2 tasks were enqueued before\n")
    assert len(ended.err) < 500
    assert count(store) == 2


def test_the_batch_before_a_bad_line_is_stored_once(
    wiggle: Wiggle, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L4: whatever the batch, each task before the bad line is stored, and none twice."""
    monkeypatch.setattr(command, "BATCH", 4)
    for bad in (PLAIN | {"priority": -1}, "nonsense"):
        for before in range(1, 10):
            queue = f"{before}{bad == 'nonsense'}"
            good = {"queue": queue, "step": "s"}
            file = write_lines(tmp_path / "t", *[good] * before, bad, good)
            ended = wiggle("enqueue", "--file", file, "--store", store, "--json")
            assert ended.json["error"].endswith(f"; {before} tasks were enqueued before")
            assert count(store, queue) == before


def test_a_batch_of_large_lines_is_short(
    wiggle: Wiggle, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Section 8: memory is bounded by the bytes of a batch, too, and no line is lost between two."""
    monkeypatch.setattr(command, "BATCH_BYTES", 300)
    sizes: list[int] = []
    really = Engine.enqueue_many

    def counting(engine: Engine, tasks: Any, *, batch: int) -> Any:  # Any: passed on as it comes
        sizes.append(len(tasks))
        return really(engine, tasks, batch=batch)

    monkeypatch.setattr(Engine, "enqueue_many", counting)
    file = write_lines(tmp_path / "t", *[PLAIN | {"payload": "x" * 100}] * 7)
    assert wiggle("enqueue", "--file", file, "--store", store).out == "7 tasks enqueued\n"
    assert count(store) == 7
    assert sizes == [3, 3, 1, 0]


def test_an_interrupt_says_how_far_it_came(
    wiggle: Wiggle, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Section 9: 130, and what is stored already."""
    monkeypatch.setattr(command, "BATCH", 2)
    stored_batches: list[int] = []
    really = Engine.enqueue_many

    def once(engine: Engine, tasks: Any, *, batch: int) -> Any:  # Any: passed on as it comes
        if stored_batches:
            raise KeyboardInterrupt
        stored_batches.append(batch)
        return really(engine, tasks, batch=batch)

    monkeypatch.setattr(Engine, "enqueue_many", once)
    ended = wiggle("enqueue", "--file", write_lines(tmp_path / "t", *[PLAIN] * 5), "--store", store)
    assert (ended.code, ended.err) == (130, "wiggle: interrupted; 2 tasks were enqueued before\n")


@pytest.mark.parametrize(
    "text",
    ["{}", " { } ", '{"a": 1}', '{"a":{"b":[1,2]},"c":"}"}', '{"\\u0061": 1.50 , "b":null}', '{"a b": "\\"", "c": []}'],
)
def test_members_are_split_as_json_reads_them(text: str) -> None:
    """The reader of lines agrees with the JSON module, and keeps each member's text."""
    members = split_members(text.strip())
    assert {name: value for name, (value, _) in members.items()} == json.loads(text)
    assert all(json.loads(written) == value and written in text for value, written in members.values())
