"""What enqueue accepts, refuses and stores."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from wiggle_core import DeclarationError, Engine, Enqueued, NewTask, QueueCriteria, RetryPolicy, State, TaskRejected
from wiggle_core.criteria.instants import from_micros
from wiggle_core.settings import Settings
from wiggle_core.stores.memory import MemoryStore
from wiggle_core.tasks.attributes import Attribute
from wiggle_core.tasks.ids import new_task_id

NOW = 1_800_000_000_000_000


@pytest.fixture
def engine() -> Engine:
    return Engine(MemoryStore(lambda: NOW))


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("queue", {"queue": ""}),
    ("queue", {"queue": "a\nb"}),
    ("queue", {"queue": "a\x85b"}),
    ("queue", {"queue": "q" * 256}),
    ("queue", {"queue": "\ud800"}),
    ("queue", {"queue": None}),
    ("queue", {"queue": ["q"]}),
    ("step", {"step": ""}),
    ("step", {"step": "a\0"}),
    ("step", {"step": "s" * 256}),
    ("step", {"step": 3}),
    ("kind", {"kind": ""}),
    ("workflow", {"workflow": "\udfff"}),
    ("node", {"node": "n" * 256}),
    ("correlation_id", {"correlation_id": 17}),
    ("version", {"version": True}),
    ("version", {"version": 2**63}),
    ("version", {"version": "1"}),
    ("id", {"id": ""}),
    ("id", {"id": "i" * 65}),
    ("id", {"id": "a\0"}),
    ("priority", {"priority": -1}),
    ("priority", {"priority": 2**31}),
    ("priority", {"priority": True}),
    ("priority", {"priority": 1.0}),
    ("delay", {"delay": timedelta(microseconds=-1)}),
    ("delay", {"delay": 5}),
    ("delay", {"delay": timedelta.max}),
    ("ready_at", {"ready_at": datetime(2030, 1, 1)}),  # naive
    ("ready_at", {"ready_at": "2030-01-01T00:00:00Z"}),
    ("ready_at", {"ready_at": datetime.now(timezone.utc), "delay": timedelta(0)}),
    ("retry", {"retry": 3}),
    ("payload", {"payload": {1, 2}}),
    ("payload", {"payload": {"x": float("nan")}}),
    ("payload", {"payload": [float("-inf")]}),
    ("payload", {"payload": {("a",): 1}}),
    ("payload", {"payload": "\ud800"}),
    ("payload", {"payload": "x" * (1024 * 1024)}),
    ("payload", {"payload": "é" * (512 * 1024)}),
    ("payload", {"payload": nested(501)}),
    ("payload", {"payload": nested(100_000)}),
    ("payload", {"payload": 10**5000}),
]


@pytest.mark.parametrize(("field", "given"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_bad_input_is_refused_by_field(engine: Engine, field: str, given: dict[str, Any]) -> None:
    """C7: what a store cannot hold is refused at enqueue, by name, and nothing is stored."""
    with pytest.raises(TaskRejected) as refused:
        engine.enqueue(**{"queue": "q", "step": "s", **given})
    assert refused.value.field == field
    assert len(str(refused.value)) < 300
    assert engine.store.slices() == []


def test_a_payload_that_holds_itself_is_refused(engine: Engine) -> None:
    """C7: a circular payload is no JSON."""
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(TaskRejected, match="payload"):
        engine.enqueue("q", "s", loop)


def test_the_bounds_themselves_are_accepted(engine: Engine) -> None:
    """C7: the limits are inclusive, counted in code points."""
    task_id = engine.enqueue(
        "𝄞" * 255,
        "s" * 255,
        nested(500),
        workflow="w" * 255,
        version=-(2**63),
        node="",
        kind="k\n",
        correlation_id="\t",
        id="i" * 64,
        priority=2**31 - 1,
    )
    task = engine.get(task_id)
    assert task is not None
    assert (task.id, task.queue, task.step, task.node) == ("i" * 64, "𝄞" * 255, "s" * 255, "")
    assert (task.version, task.priority) == (-(2**63), 2**31 - 1)


def test_a_payload_of_just_the_limit_is_accepted(engine: Engine) -> None:
    """C7: 1 MiB counts bytes of the JSON text."""
    assert engine.enqueue("q", "s", "x" * (1024 * 1024 - 2))


def test_the_payload_limit_is_a_setting() -> None:
    """Section 8: WIGGLE_PAYLOAD_MAX_BYTES."""
    engine = Engine(MemoryStore(), settings=Settings.from_environment({"WIGGLE_PAYLOAD_MAX_BYTES": "10"}))
    engine.enqueue("q", "s", "x" * 8)
    with pytest.raises(TaskRejected, match="11 bytes of JSON; 10 at most"):
        engine.enqueue("q", "s", "x" * 9)


def test_defaults(engine: Engine) -> None:
    """L1, O1: a task is READY at the store's time, and its own instance."""
    task = engine.get(engine.enqueue("q", "s", {"name": "Zoë", "n": 1.5}))
    assert task is not None
    assert (task.created_at, task.ready_at, task.state, task.attempt) == (NOW, NOW, State.READY, 1)
    assert task.instance_id == task.id
    assert task.payload == '{"name":"Zoë","n":1.5}'
    assert (task.kind, task.priority, task.retry) == ("task", 0, RetryPolicy())


@pytest.mark.parametrize(
    ("given", "ready_at", "state"),
    [
        ({"delay": timedelta(0)}, NOW, State.READY),
        ({"delay": timedelta(microseconds=1)}, NOW + 1, State.SCHEDULED),
        ({"ready_at": from_micros(NOW + 5)}, NOW + 5, State.SCHEDULED),
        ({"ready_at": from_micros(NOW)}, NOW, State.READY),
        ({"ready_at": from_micros(NOW - 9)}, NOW, State.READY),
    ],
)
def test_waiting(engine: Engine, given: dict[str, Any], ready_at: int, state: State) -> None:
    """O3: delay and ready_at make a task SCHEDULED; a time that has passed gives no advantage (O1)."""
    task = engine.get(engine.enqueue("q", "s", **given))
    assert task is not None
    assert (task.ready_at, task.state, task.created_at) == (ready_at, state, NOW)


def test_the_same_id_again_is_a_no_op(engine: Engine) -> None:
    """L4: idempotent by id, live or settled."""
    assert engine.enqueue("q", "s", 1, id="a") == engine.enqueue("q", "s", 2, id="a") == "a"
    task = engine.get("a")
    assert task is not None
    assert task.payload == "1"
    again = [NewTask("q", "s", id="a"), NewTask("q", "s", id="b"), NewTask("q", "s", id="b")]
    assert engine.enqueue_many(again) == Enqueued(inserted=1, existing=2)


def test_ids_grow_within_one_microsecond(engine: Engine) -> None:
    """O1: tasks of one microsecond are claimed in the order of enqueue."""
    expected = [engine.enqueue("q", "s", number) for number in range(300)]
    assert [task.id for task in engine.claim("w", [QueueCriteria("q")], limit=300)] == expected


def test_ids_are_version_7() -> None:
    """L4: by default an id is a UUIDv7, and grows although the clock may step back."""
    made = [new_task_id() for _ in range(10_000)]
    assert made == sorted(set(made))
    assert {(each[14], each[19] in "89ab", len(each)) for each in made} == {("7", True, 36)}


def test_a_forked_child_makes_other_ids() -> None:
    """L4: two processes never make the same id."""
    new_task_id()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, "".join(new_task_id() for _ in range(100)).encode())
        os._exit(0)
    ours = {new_task_id() for _ in range(100)}
    os.waitpid(child, 0)
    text = os.read(reader, 3600).decode()
    os.close(reader)
    os.close(writer)
    assert len({text[at : at + 36] for at in range(0, 3600, 36)} | ours) == 200


def test_bulk_reads_the_stream_a_batch_at_a_time(engine: Engine) -> None:
    """Section 8: memory is bounded by the batch, not by the stream."""
    waiting = []

    def stream() -> Iterator[NewTask]:
        for number in range(10):
            waiting.append(number - engine.count(QueueCriteria("q")))
            yield NewTask("q", "s", number)

    assert engine.enqueue_many(stream(), batch=4).inserted == 10
    assert max(waiting) == 3


def test_a_refusal_in_a_stream_says_what_is_stored(engine: Engine) -> None:
    """Section 8: a batch is stored whole or not at all; the note tells where the stream stood."""
    tasks = [NewTask("q", "s", priority=-1 if number == 5 else 0) for number in range(9)]
    with pytest.raises(TaskRejected) as refused:
        engine.enqueue_many(tasks, batch=2)
    assert engine.count(QueueCriteria("q")) == 4
    assert refused.value.__notes__ == ["the 4 tasks before this batch are stored, 4 of them new"]


def test_attributes_are_read_from_the_stored_text(engine: Engine) -> None:
    """A2: extraction reads the JSON that the step will receive, keys turned to text included."""
    engine.declare("orders", version=1, attributes=[Attribute("first", str, "names.0"), Attribute("n", int, "7")])
    task = engine.get(engine.enqueue("q", "s", {"names": ("eu", "us"), 7: 8}, workflow="orders", version=1))
    assert task is not None
    assert task.attributes == {"first": "eu", "n": 8}


def test_another_version_is_another_declaration(engine: Engine) -> None:
    """A1: a declaration belongs to one version; without one, or without a version, nothing is extracted."""
    engine.declare("orders", version=1, attributes=[Attribute("n", int, "n")])
    for workflow, version in [("orders", 2), ("orders", None), (None, 1), ("order", 1)]:
        task = engine.get(engine.enqueue("q", "s", {"n": 1}, workflow=workflow, version=version))
        assert task is not None
        assert task.attributes == {}


def test_declaring_again(engine: Engine) -> None:
    """A1: the same again is a no-op, another one asks for a new version; order does not matter."""
    first = [Attribute("a", int, "a"), Attribute("b", str, "b")]
    engine.declare("w", version=1, attributes=first)
    engine.declare("w", version=1, attributes=first[::-1])
    fresh = Engine(engine.store)
    fresh.declare("w", version=1, attributes=first)
    for other in (engine, fresh, Engine(engine.store)):
        with pytest.raises(DeclarationError, match="declare a new version"):
            other.declare("w", version=1, attributes=[Attribute("a", str, "a"), Attribute("b", str, "b")])
    assert len(engine.store.list_documents("declaration")) == 1


@pytest.mark.parametrize("workflow", ["", "a\0", 3, "w" * 256])
def test_a_declaration_needs_a_name(engine: Engine, workflow: Any) -> None:
    """A1, C7: the workflow's name obeys the text bounds."""
    with pytest.raises(DeclarationError):
        engine.declare(workflow, version=1, attributes=[])


@pytest.mark.parametrize("version", [True, 2**63, "1", None])
def test_a_declaration_needs_a_version(engine: Engine, version: Any) -> None:
    """A1, C7: the version is a whole number of 64 bits."""
    with pytest.raises(DeclarationError):
        engine.declare("w", version=version, attributes=[])


def test_names_with_colons_do_not_collide(engine: Engine) -> None:
    """A1: whatever a workflow is called, its declaration is its own."""
    engine.declare("1:w", version=1, attributes=[Attribute("a", int, "a")])
    engine.declare("w", version=1, attributes=[Attribute("b", int, "b")])
    engine.declare("1:1:w", version=-1, attributes=[])
    assert len(engine.store.list_documents("declaration")) == 3


def test_what_another_process_declares_is_seen_at_once() -> None:
    """A1: every node extracts alike, also one that looked for the declaration in vain before."""
    store = MemoryStore()
    here, there = Engine(store), Engine(store)
    here.enqueue("q", "s", {"n": 1}, workflow="w", version=1, id="before")
    there.declare("w", version=1, attributes=[Attribute("n", int, "n")])
    here.enqueue("q", "s", {"n": 1}, workflow="w", version=1, id="after")
    assert {task.id: dict(task.attributes) for task in here.find(QueueCriteria("q"))} == {
        "before": {},
        "after": {"n": 1},
    }


class CountingStore(MemoryStore):
    """Counts how often a document is read."""

    reads = 0

    def get_document(self, kind: str, key: str) -> Any:
        self.reads += 1
        return super().get_document(kind, key)


def test_a_missing_declaration_is_asked_for_once_a_batch() -> None:
    """Section 8: once for each call or batch while it is missing, and never again once it was found."""
    store = CountingStore()
    engine = Engine(store)
    engine.enqueue_many((NewTask("q", "s", workflow="w", version=1) for _ in range(10)), batch=5)
    assert store.reads == 2
    Engine(store).declare("w", version=1, attributes=[])
    for _ in range(5):
        engine.enqueue("q", "s", workflow="w", version=1)
    assert store.reads == 3


def test_the_payload_comes_back_as_it_was(engine: Engine) -> None:
    """Section 5: the payload is JSON and round-trips."""
    payload = {"a": [1, 2.5, None, True], "b": {"ü": "\u0000\n"}, "c": 2**80}
    task = engine.get(engine.enqueue("q", "s", payload))
    assert task is not None
    assert json.loads(task.payload) == payload
