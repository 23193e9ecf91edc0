"""Valid input for each target, to be mutated: the kit's public cases in every form, and a few lines by hand."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from wiggle_core.criteria.text import format_text
from wiggle_core.criteria.wire import predicate_from_object

_CASES: dict[str, Any] = json.loads(  # Any: parsed JSON
    files("wiggle_core.conformance").joinpath("cases/criteria.json").read_text("utf-8")
)
_WHERE = [case["where"] for case in _CASES["cases"] if case["where"] is not None]
_TEXTS = [format_text(predicate_from_object(where)).encode() for where in _WHERE]
_EXTRACTED: dict[str, Any] = json.loads(  # Any: parsed JSON
    files("wiggle_core.conformance").joinpath("cases/attributes.json").read_text("utf-8")
)


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _payloads(value: object) -> list[object]:
    """Every value in the cases of attributes, wherever it stands."""
    if isinstance(value, dict):
        return [value, *(found for each in value.values() for found in _payloads(each))]
    return [value, *(found for each in value for found in _payloads(each))] if isinstance(value, list) else [value]


_LINE = {
    "queue": "q", "step": "s", "payload": {"a": 1.50, "b": [None, "é"]}, "workflow": "w", "version": 1, "node": "n",
    "kind": "task", "correlation_id": "c", "id": "i", "priority": 5, "delay": 1.5,
    "retry": {"max_attempts": 3, "initial_backoff": 1, "multiplier": 2.0, "max_backoff": 60, "jitter": 0.5},
}  # fmt: skip
_TIMED = {"queue": "q", "step": "s", "ready_at": "2026-03-05T12:00:00.000001+02:00", "payload": "x"}

SEEDS: dict[str, list[bytes]] = {
    "wire": [_dump({"queue": "payments", "where": where}) for where in _WHERE],
    "text": _TEXTS,
    "meaning": _TEXTS,
    "task": [_dump(task) for task in _CASES["tasks"]],
    "line": [
        _dump(_LINE),
        _dump(_TIMED),
        *(_dump({"queue": "q", "step": "s", "payload": each}) for each in _WHERE[:9]),
    ],
    "payload": [_dump({"a": value}) for value in _payloads(_EXTRACTED)][:400],
    "instant": [b"2026-03-05T12:00:00Z", b"0001-01-01 00:00:00.000001+00:00", b"9999-12-31t23:59:59.999999999+23:59"],
    "pattern": [b"!\0a%b_!%\0axxb1%", b"\0%a%a%a%\0aaaaaaaaaaab", b"%\0%%a_\0%ab", "\0_é%\0éé".encode()],
}
WORDS = (
    *("AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "BETWEEN", "IS NULL", "TRUE", "FALSE", "TIMESTAMP '", "attr.", ":"),
    *("'", "''", "(", ")", "%", "_", "<>", "1e38", "-0.0", "9223372036854775807", "1e-999999999", "NaN", "Infinity"),
    *('{"op":"', '"args":[', '{"field":"', '{"attr":"', '"type":"', '"escape":"'),
    *('{"long":"', '{"decimal":"', '{"instant":"', '"retry":{"jitter":', '"delay":', '"attributes":{', '"payload":'),
    *("[", "]", "{", "}", "\\u0000", "\\ud800", "\x00", "\ufeff", "\U0001f600", "2026-03-05T12:00:00Z", "null", "true"),
)  # fmt: skip
"""What a mutation puts in: words of both grammars, and values at their limits."""
