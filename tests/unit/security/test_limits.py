"""Limits hold before anything is followed deep or counted far: hostile input is answered in bounded time (C6, C7).

Times are this process's own CPU, since the machine may be shared; the bounds leave room for one ten times slower.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import partial
from time import process_time
from typing import Any

import pytest

from wiggle_core.cli.failures import InputError
from wiggle_core.cli.files import MAX_LINE_BYTES, Line
from wiggle_core.cli.task_line import new_task
from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.criteria.check import MAX_JSON_BYTES
from wiggle_core.criteria.evaluate import compile_predicate
from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.text import MAX_TEXT_BYTES, parse_text
from wiggle_core.criteria.tree import And, Not, Or, ValueType
from wiggle_core.criteria.wire import criteria_from_json, criteria_from_object, criteria_to_json, value_from_wire
from wiggle_core.engine.engine import Engine
from wiggle_core.errors import CriteriaError, TaskRejected, WiggleError
from wiggle_core.stores.memory import MemoryStore
from wiggle_core.tasks.attributes import Attribute, Declaration, Miss, parse_payload
from wiggle_core.tasks.payload import MAX_PAYLOAD_BYTES, JsonText
from wiggle_core.tasks.submission import NewTask
from wiggle_core.tasks.wire import task_from_object
from wiggle_store_sqlite.dialect import WRITER

SECONDS = 1.0
"""For anything up to the size of a criteria or payload; the worst of them was measured to take 0.09."""

Hostile = dict[str, str]


def refused(reading: Callable[[], object], error: type[WiggleError], within: float = SECONDS) -> WiggleError:
    """The refusal, which must come in time and be short: it must not repeat what was given."""
    start = process_time()
    with pytest.raises(error) as raised:
        reading()
    spent = process_time() - start
    assert spent < within, f"{spent:.2f} s"
    assert len(str(raised.value)) < 1_000
    return raised.value


def _where(predicate: str) -> str:
    return f'{{"queue":"q","where":{predicate}}}'


def _literal(literal: str, attribute: str = '{"attr":"a","type":"decimal"}') -> str:
    return _where(f'{{"op":"=","args":[{attribute},{literal}]}}')


FULL = MAX_JSON_BYTES - 200
"""As much as is read at all."""

WIRE: Hostile = {
    "brackets": "[" * FULL,
    "closed brackets": "[" * (FULL // 2) + "]" * (FULL // 2),
    "objects": '{"a":' * (FULL // 5) + "1" + "}" * (FULL // 6),
    "nots": _where('{"op":"not","args":[' * (FULL // 24) + '{"op":"and","args":[]}' + "]}" * (FULL // 24)),
    "arguments": _where(f'{{"op":"and","args":[{",".join(["1"] * (FULL // 3))}]}}'),
    "nodes": _where('{"op":"or","args":[' + ",".join(['{"op":"and","args":[]}'] * (FULL // 24)) + "]}"),
    "values": _where(f'{{"op":"in","args":[{{"field":"step"}},[{",".join(["1"] * (FULL // 3))}]]}}'),
    "keys": "{" + ",".join(f'"{number}":0' for number in range(FULL // 9)) + "}",
    "one key": f'{{"{"k" * FULL}":0}}',
    "digits": _literal("9" * FULL),
    "negative digits": _literal("-" + "9" * FULL),
    "places": _literal("0." + "9" * FULL),
    "exponent": _literal("1e999999999"),
    "exponent beyond any": _literal("1e" + "9" * FULL),
    "small exponent": _literal("1e-999999999"),
    "exponent as text": _literal('{"decimal":"1e999999999"}'),
    "long as text": _literal(f'{{"long":"{"9" * FULL}"}}'),
    "decimal as text": _literal(f'{{"decimal":"{"9" * FULL}"}}'),
    "instant": _literal(f'{{"instant":"2026-01-01T00:00:00.{"0" * (FULL - 100)}1Z"}}', '{"attr":"a","type":"instant"}'),
    "pattern": _where(f'{{"op":"like","args":[{{"field":"step"}},"{"%a" * (FULL // 3)}"]}}'),
    "text": _literal(f'"{"x" * FULL}"', '{"field":"step"}'),
    "escapes": _literal('"' + "\\u0000" * (FULL // 8) + '"', '{"field":"step"}'),
    "operator": _where(f'{{"op":"{"x" * FULL}","args":[]}}'),
    "attribute": _literal("1", f'{{"attr":"{"a" * (FULL - 100)}","type":"long"}}'),
    "open text": '"' + "x" * FULL,
    "blanks": " " * FULL,
    "beyond the limit": "[" * 5_000_000,
}


@pytest.mark.parametrize("text", WIRE.values(), ids=WIRE)
def test_hostile_json_is_refused_in_time(text: str) -> None:
    """C6, C7: raw JSON, as text and as bytes, whatever it nests, repeats or writes at length."""
    refused(lambda: criteria_from_json(text), CriteriaError)
    refused(lambda: criteria_from_json(text.encode()), CriteriaError)


def test_the_size_is_looked_at_first() -> None:
    """C7: more than 64 KiB is not even decoded: the broken UTF-8 behind is never met."""
    assert "64 KiB" in str(refused(lambda: criteria_from_json(b"\xff" * (MAX_JSON_BYTES + 1)), CriteriaError))
    assert "64 KiB" in str(refused(lambda: criteria_from_json("é" * (MAX_JSON_BYTES // 2 + 1)), CriteriaError))
    assert "UTF-8" in str(refused(lambda: criteria_from_json(b"\xff" * MAX_JSON_BYTES), CriteriaError))


def _nested(depth: int, kind: str = "not") -> dict[str, object]:
    inner: dict[str, object] = {"op": "and", "args": []}
    for _ in range(depth):
        inner = {"op": kind, "args": [inner]}
    return inner


_CIRCLE: dict[str, Any] = {"op": "and"}  # Any: it holds itself
_CIRCLE["args"] = [_CIRCLE, _CIRCLE]
OBJECTS: dict[str, object] = {
    "deep": _nested(100_000),
    "circle": _CIRCLE,
    "wide": {"op": "or", "args": [_nested(0)] * 1_000_000},
    "values": {"op": "in", "args": [{"field": "step"}, ["x"] * 1_000_000]},
    "text": {"op": "=", "args": [{"field": "step"}, "x" * 5_000_000]},
    "whole": {"op": "=", "args": [{"field": "version"}, 1 << 10_000_000]},
    "decimal": {"op": "=", "args": [{"attr": "a", "type": "decimal"}, Decimal("1e999999999999999999")]},
    "fraction": {"op": "=", "args": [{"attr": "a", "type": "decimal"}, Decimal("0." + "1" * 1_000_000)]},
    "keys": dict.fromkeys(map(str, range(1_000_000))),
}


@pytest.mark.parametrize("where", OBJECTS.values(), ids=OBJECTS)
def test_hostile_objects_are_refused_in_time(where: object) -> None:
    """C6, C7: decoded JSON that no text of 64 KiB could hold, circles too."""
    refused(lambda: criteria_from_object({"queue": "q", "where": where}), CriteriaError)


TEXTS: Hostile = {
    "brackets": "(" * MAX_TEXT_BYTES,
    "nots": "NOT " * (MAX_TEXT_BYTES // 4),
    "lists": "AND (" * (MAX_TEXT_BYTES // 5),
    "chain": "TRUE AND " * (MAX_TEXT_BYTES // 9 - 1) + "TRUE",
    "leaves": "step = 'x' OR " * (MAX_TEXT_BYTES // 14 - 1) + "TRUE",
    "values": "step IN (" + "1," * (MAX_TEXT_BYTES // 2 - 10) + "1)",
    "digits": "priority = " + "9" * (MAX_TEXT_BYTES - 20),
    "places": "attr.a = 0." + "9" * (MAX_TEXT_BYTES - 20),
    "exponent": "attr.a = 1e999999999",
    "exponent beyond any": "attr.a = 1e" + "9" * (MAX_TEXT_BYTES - 20),
    "open quotes": "step = '" + "''" * (MAX_TEXT_BYTES // 2 - 10),
    "quotes": "step = '" + "''" * (MAX_TEXT_BYTES // 2 - 10) + "'",
    "pattern": "step LIKE '" + "%a" * (MAX_TEXT_BYTES // 2 - 10) + "'",
    "blanks": " " * (MAX_TEXT_BYTES - 1) + "$",
    "words": "a" * MAX_TEXT_BYTES,
    "lines": "\n" * (MAX_TEXT_BYTES - 1) + "$",
    "dots": "attr" + ".a" * (MAX_TEXT_BYTES // 2 - 10),
    "instant": "created_at = TIMESTAMP '2026-01-01T00:00:00." + "0" * (MAX_TEXT_BYTES - 100) + "1Z'",
    "beyond the limit": "(" * 5_000_000,
    "beyond the limit in bytes": "é" * (MAX_TEXT_BYTES - 1),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_hostile_text_is_refused_in_time(text: str) -> None:
    """C6, C7: the text form, whatever it nests, repeats or writes at length."""
    refused(lambda: parse_text(text), CriteriaError)


def _deep_not() -> Not:
    predicate = Not(And(()))
    for _ in range(100_000):
        predicate = Not(predicate)
    return predicate


BUILT: dict[str, Callable[[], object]] = {
    "deep": lambda: QueueCriteria("q", _deep_not()),
    "wide": lambda: QueueCriteria("q", Or((And(()),) * 1_000_000)),
    "values": lambda: QueueCriteria("q", Task.version.in_(range(1_000_000))),
    "text": lambda: QueueCriteria("q", Task.step == "x" * 5_000_000),
    "queue": lambda: QueueCriteria("q" * 5_000_000),
    "whole": lambda: QueueCriteria("q", Task.version == 1 << 10_000_000),
    "exponent": lambda: QueueCriteria("q", Task.attr("a", Decimal) == Decimal("1e999999999999999999")),
    "small exponent": lambda: QueueCriteria("q", Task.attr("a", Decimal) == Decimal("1e-999999999999999")),
    "digits": lambda: QueueCriteria("q", Task.attr("a", Decimal) == Decimal("1" * 1_000_000)),
    "pattern": lambda: QueueCriteria("q", Task.step.like("%_" * 1_000_000)),
    "escape": lambda: QueueCriteria("q", Task.step.like("x", "!" * 1_000_000)),
    "attribute": lambda: QueueCriteria("q", Task.attr("a" * 1_000_000, str).is_null()),
    "literal": lambda: value_from_wire({"instant": "2026-01-01T00:00:00." + "1" * 1_000_000 + "Z"}),
}


@pytest.mark.parametrize("build", BUILT.values(), ids=BUILT)
def test_hostile_trees_are_refused_in_time(build: Callable[[], object]) -> None:
    """C6, C7: predicates built in Python are held to the same limits when a criteria is built."""
    refused(build, CriteriaError)


TASK = {"id": "t", "queue": "q", "step": "s", "created_at": "2026-01-01T00:00:00Z", "ready_at": "2026-01-01T00:00:00Z"}
TASKS: dict[str, object] = {
    "no object": [TASK] * 1_000_000,
    "keys": dict.fromkeys(map(str, range(1_000_000)), 1) | TASK,
    "step": TASK | {"step": "s" * 5_000_000},
    "id": TASK | {"id": "s" * 5_000_000},
    "instant": TASK | {"ready_at": "2026-01-01T00:00:00." + "0" * 1_000_000},
    "deep attribute": TASK | {"attributes": {"a": _nested(100_000)}},
    "attributes": TASK | {"attributes": dict.fromkeys(map(str, range(1_000_000)), 1)},
    "whole": TASK | {"priority": 1 << 10_000_000},
    "decimal": TASK | {"attributes": {"a": {"decimal": "1e999999999"}}},
    "state": TASK | {"state": "R" * 5_000_000},
}


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_hostile_task_objects_are_refused_in_time(task: object) -> None:
    """C6, C7: tasks as JSON objects."""
    refused(lambda: task_from_object(task), TaskRejected)


def _line(members: str) -> bytes:
    return f'{{"queue":"q","step":"s"{members}}}'.encode()


LINES: dict[str, bytes] = {
    "deep": _line(',"payload":' + "[" * 16_000_000),
    "keys": _line("," + ",".join(f'"{number}":0' for number in range(1_000_000))),
    "one key": _line(f',"{"k" * 16_000_000}":0'),
    "retry's keys": _line(',"retry":{' + ",".join(f'"{number}":0' for number in range(1_000_000)) + "}"),
    "list for a name": _line(',"node":[' + "0," * 5_000_000 + "0]"),
    "long name": _line(f',"node":"{"x" * 16_000_000}"'),
    "digits": _line(',"priority":' + "9" * 16_000_000),
    "payload's digits": _line(',"payload":' + "9" * 16_000_000),
    "delay": _line(',"delay":0.' + "9" * 16_000_000),
    "blanks": b"{" + b" " * 16_000_000,
    "broken": b"\xff" * 16_000_000,
}


@pytest.mark.parametrize("raw", LINES.values(), ids=LINES)
def test_hostile_lines_are_refused_in_time(raw: bytes) -> None:
    """C6: lines of `wiggle enqueue`, as long as one may be. The worst, a retry policy of 16 MiB, takes 0.9 s."""
    assert len(raw) <= MAX_LINE_BYTES
    refused(lambda: new_task(Line("file", 1, raw)), InputError, within=10 * SECONDS)


PAYLOADS: dict[str, str] = {
    "digits": "9" * MAX_PAYLOAD_BYTES,
    "places": "0." + "9" * MAX_PAYLOAD_BYTES,
    "exponent": "1e999999999",
    "exponent beyond any": "1e" + "9" * 1_000_000,
    "text": '"' + "x" * MAX_PAYLOAD_BYTES + '"',
    "list": "[" + "0," * (MAX_PAYLOAD_BYTES // 2) + "0]",
    "nest": "[" * 900 + "]" * 900,
    "instant": '"2026-01-01T00:00:00.' + "0" * MAX_PAYLOAD_BYTES + '"',
}


@pytest.mark.parametrize("value", PAYLOADS.values(), ids=PAYLOADS)
def test_hostile_payloads_cost_extraction_little(value: str) -> None:
    """A3, C7: a value beyond the limits is absent, whatever its type, and found to be so in time."""
    declared = Declaration([Attribute(kind.value, kind, "deep.value") for kind in ValueType])
    start = process_time()
    extracted = declared.extract(f'{{"deep":{{"value":{value}}}}}')
    assert process_time() - start < SECONDS
    assert extracted.values == {}
    assert set(extracted.misses.values()) == {Miss.UNFIT}


def test_a_tiny_fraction_is_absent() -> None:
    """C7: below 38 places there is nothing to round to."""
    declared = Declaration([Attribute("a", Decimal, "a"), Attribute("n", int, "a")])
    assert declared.extract('{"a":1e-999999999}').values == {}
    assert declared.extract('{"a":0e-999999999}').values == {"a": 0, "n": 0}


def test_a_payload_without_end_is_refused_in_time() -> None:
    """C7: nests that no decoder follows, read back and at enqueue."""
    refused(lambda: parse_payload("[" * 10_000_000), TaskRejected)
    with Engine(MemoryStore(lambda: 0)) as engine:
        for text in ("[" * 900 + "]" * 900, "[" * 1_000_000, '"' + "x" * MAX_PAYLOAD_BYTES + '"', "9" * 5_000):
            refused(partial(engine.enqueue, "q", "s", JsonText(text)), TaskRejected)
        refused(lambda: engine.enqueue("q", "s", ["x" * 100] * 100_000), TaskRejected)
        refused(lambda: engine.enqueue("q" * 10_000_000, "s"), TaskRejected)
        refused(lambda: engine.enqueue("q", "s" * 10_000_000), TaskRejected)
        refused(lambda: engine.enqueue_many([NewTask("q", "s", id="i" * 10_000_000)]), TaskRejected)


def test_declarations_are_bounded() -> None:
    """A1: what becomes a document is refused before it is written: names, paths and their number."""
    with Engine(MemoryStore(lambda: 0)) as engine:
        for declared in (
            lambda: engine.declare("w", version=1, attributes=[Attribute("a", str, "x." * 1_000_000 + "x")]),
            lambda: engine.declare("w", version=1, attributes=[Attribute("a" * 1_000_000, str, "x")]),
            lambda: engine.declare("w", version=1, attributes=[Attribute(f"a{n}", str, "x") for n in range(10_000)]),
            lambda: engine.declare("w" * 10_000_000, version=1, attributes=[]),
            lambda: engine.declare("w", version=1 << 1_000_000, attributes=[]),
        ):
            refused(declared, WiggleError)
        assert engine.store.list_documents("declaration") == []


def test_what_is_at_the_limit_is_taken_in_time() -> None:
    """C7: criteria as large as they may be are read, written, rendered and compiled in time."""
    members = [f'"{number}{"x" * 250}"' for number in range(200)]
    leaf = '{"op":"in","args":[{"field":"step"},[' + ",".join(members) + "]]}"
    others = ',{"op":"like","args":[{"field":"kind"},"%a_%b_%c_%d_"]}' * 98
    text = _where('{"op":"or","args":[' + leaf + others + "]}")
    assert 0.85 * MAX_JSON_BYTES < len(text) <= MAX_JSON_BYTES
    start = process_time()
    read = criteria_from_json(text)
    assert criteria_from_json(criteria_to_json(read)) == read
    assert not compile_predicate(read.normal)(task_from_object(TASK | {"kind": "a" * 255}))
    assert WRITER.render(read.normal).binds
    assert process_time() - start < SECONDS
