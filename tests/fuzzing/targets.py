"""What is fuzzed: each target takes any bytes, and fails unless they are refused properly or read to the same again.
It says which.

Shared by the suite, which breaks valid input by Hypothesis, and by campaigns of any length (`python -m tests.fuzzing`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from wiggle_core.cli.failures import InputError
from wiggle_core.cli.files import Line
from wiggle_core.cli.task_line import new_task
from wiggle_core.conformance.strategies import Hostile
from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.criteria.evaluate import compile_predicate, like, matches
from wiggle_core.criteria.instants import format_instant, parse_instant
from wiggle_core.criteria.text import format_text, parse_text
from wiggle_core.criteria.tree import Predicate, Value, ValueType, Wildcard, fingerprint, normalize, pattern_parts
from wiggle_core.criteria.wire import (
    criteria_from_json,
    criteria_to_json,
    parse_json,
    predicate_from_object,
    predicate_to_object,
)
from wiggle_core.errors import CriteriaError, TaskRejected, WiggleError
from wiggle_core.stores.registry import open_store
from wiggle_core.stores.store import Route, Store
from wiggle_core.tasks.attributes import Attribute, Declaration
from wiggle_core.tasks.keys import decode_attributes, encode_attributes
from wiggle_core.tasks.submission import admit
from wiggle_core.tasks.task import State, TaskRecord
from wiggle_core.tasks.wire import task_from_object, task_to_object

NOW = 1_772_323_200_000_000
_DECLARED = Declaration([Attribute(kind.value, kind, "a") for kind in ValueType])
_LONGEST_MESSAGE = 2_000


def _properly(refusal: WiggleError) -> bool:
    """Not read; the refusal is short, and can be printed."""
    assert len(str(refusal)) < _LONGEST_MESSAGE
    str(refusal).encode()
    return False


def wire(data: bytes) -> bool:
    """Criteria in their JSON form."""
    try:
        criteria = criteria_from_json(data)
    except CriteriaError as refusal:
        return _properly(refusal)
    assert criteria_from_json(criteria_to_json(criteria)) == criteria
    return criteria.predicate is None or _has_all_forms(criteria.predicate)


def text(data: bytes) -> bool:
    """Predicates in their text form."""
    try:
        predicate = parse_text(data.decode("utf-8", "surrogateescape"))
    except CriteriaError as refusal:
        return _properly(refusal)
    return _has_all_forms(predicate)


def _has_all_forms(predicate: Predicate) -> bool:
    """Every form that a predicate is written in is read back as the same."""
    assert parse_text(format_text(predicate)) == predicate
    assert predicate_from_object(predicate_to_object(predicate)) == predicate
    assert QueueCriteria("q", predicate).predicate == predicate
    assert fingerprint(predicate) == fingerprint(normalize(predicate))
    return True


def meaning(data: bytes) -> bool:
    """The evaluator, its compiled form and SQL agree on whatever predicate the text is."""
    try:
        predicate = parse_text(data.decode("utf-8", "surrogateescape"))
    except CriteriaError:
        return False
    normal, compiled = normalize(predicate), compile_predicate(predicate)
    store, tasks = _stored_tasks()
    expected = [task.id for task in tasks if matches(predicate, task)]
    assert [task.id for task in tasks if compiled(task)] == expected
    assert [task.id for task in tasks if matches(normal, task)] == expected
    found = store.find(Route(tasks[0].queue, normal), [State.READY], len(tasks))
    assert [task.id for task in found] == expected
    return True


@cache
def _stored_tasks() -> tuple[Store, list[TaskRecord]]:
    """Hostile tasks in claim order, and a store that holds them."""
    hostile, store = Hostile(3), open_store("sqlite://")
    tasks = [hostile.task(f"{number}", "q") for number in range(48)]
    store.enqueue(tasks)
    return store, sorted(tasks, key=lambda task: task.order_key)


def task(data: bytes) -> bool:
    """Tasks as JSON objects."""
    try:
        record = task_from_object(parse_json(data))
    except (CriteriaError, TaskRejected) as refusal:
        return _properly(refusal)
    assert task_from_object(task_to_object(record)) == record
    return True


def line(data: bytes) -> bool:
    """Lines of `wiggle enqueue`, and what the engine makes of them."""
    try:
        record = admit(new_task(Line("file", 1, data)), NOW, lambda workflow, version, payload: _values(payload))
    except (InputError, TaskRejected) as refusal:
        return _properly(refusal)
    assert decode_attributes(encode_attributes(record.attributes)) == record.attributes
    return True


def payload(data: bytes) -> bool:
    """Attributes out of a payload's JSON text, kept as keys."""
    try:
        values = _values(data.decode("utf-8", "surrogatepass"))
    except UnicodeDecodeError:
        return False
    except TaskRejected as refusal:
        return _properly(refusal)
    assert decode_attributes(encode_attributes(values)) == values
    return True


def _values(json: str) -> Mapping[str, Value]:
    return _DECLARED.extract(json).values


def instant(data: bytes) -> bool:
    """Instants of RFC 3339."""
    try:
        moment = parse_instant(data.decode("utf-8", "replace"))
    except ValueError:
        return False
    assert parse_instant(format_instant(moment)) == moment
    return True


def pattern(data: bytes) -> bool:
    """LIKE against a table that is filled cell by cell. Zero bytes stand between escape, pattern and text."""
    escape, _, rest = data.decode("utf-8", "replace").partition("\0")
    wanted, _, subject = rest.partition("\0")
    sign = escape[0] if escape else None
    try:
        parts = pattern_parts(wanted[:256], sign)
    except ValueError:
        return False
    assert like(subject[:255], wanted[:256], sign) is _matches_by_table(subject[:255], parts)
    return True


def _matches_by_table(subject: str, parts: list[str | Wildcard]) -> bool:
    signs: list[str | Wildcard] = []
    for part in parts:
        signs += [part] if isinstance(part, Wildcard) else list(part)
    reached = [True] + [False] * len(subject)
    for sign in signs:
        before, reached = reached, [sign is Wildcard.ANY_RUN and reached[0]]
        for at, character in enumerate(subject):
            steps = before[at] and (sign is Wildcard.ANY_ONE or sign == character)
            reached.append(before[at + 1] or reached[at] if sign is Wildcard.ANY_RUN else steps)
    return reached[-1]


TARGETS: dict[str, Callable[[bytes], bool]] = {
    each.__name__: each for each in (wire, text, meaning, task, line, payload, instant, pattern)
}
