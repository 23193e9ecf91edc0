"""The workers of a store: each registers what it takes as a document, which it refreshes with its heartbeat."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TypeVar

from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.criteria.wire import criteria_from_object, criteria_to_object
from wiggle_core.errors import CriteriaError
from wiggle_core.stores.store import Document, Store

T = TypeVar("T")
_log = logging.getLogger("wiggle.engine")

KIND = "worker"
MISSED_HEARTBEATS = 3
"""A worker whose last heartbeat is older than this many is not live."""
FORGOTTEN_HEARTBEATS = 360
"""A worker that died without a word is forgotten after this many: an hour of the default ones."""
_ASSUMED_HEARTBEAT = 10_000_000
"""That of a registration which does not tell it: the default of a worker's."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What a worker tells of itself. `steps` holds `*` when it handles all; `heartbeat` and `started_at` are in
    microseconds, the second of the store's clock."""

    id: str
    host: str
    pid: int
    criteria: tuple[QueueCriteria, ...]
    steps: tuple[str, ...]
    heartbeat: int
    started_at: int

    def dump(self) -> str:
        """The JSON text of the document."""
        body = {
            "id": self.id,
            "host": self.host,
            "pid": self.pid,
            "criteria": [criteria_to_object(each) for each in self.criteria],
            "steps": self.steps,
            "heartbeat": self.heartbeat,
            "started_at": self.started_at,
        }
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def load(cls, text: str) -> Registration:
        """The registration that `dump` wrote. Raises ValueError or CriteriaError for any other text."""
        body = _read(text)
        criteria = tuple(criteria_from_object(each) for each in _typed(body, "criteria", list))
        steps = _typed(body, "steps", list)
        if not all(isinstance(step, str) for step in steps):
            raise ValueError("steps: text is expected")
        return cls(
            id=_typed(body, "id", str),
            host=_typed(body, "host", str),
            pid=_typed(body, "pid", int),
            criteria=criteria,
            steps=tuple(steps),
            heartbeat=_typed(body, "heartbeat", int),
            started_at=_typed(body, "started_at", int),
        )


def _read(text: str) -> dict[str, object]:
    try:
        body = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(body, dict):
        raise ValueError("an object is expected")
    return body


def _typed(body: dict[str, object], key: str, kind: type[T]) -> T:
    value = body.get(key)
    if not isinstance(value, kind):
        raise ValueError(f"{key}: {kind.__name__} is expected")
    return value


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A registered worker. `heartbeat_at` is when it was last heard of, in the store's epoch microseconds."""

    registration: Registration
    heartbeat_at: int
    is_live: bool

    @property
    def id(self) -> str:
        return self.registration.id


def register(store: Store, key: str, registration: Registration) -> None:
    """Write a worker's registration, or refresh it. `key` is one run of the worker's, so that two that share an id by
    mistake do not delete each other's."""
    store.put_document(KIND, key, registration.dump())


def unregister(store: Store, key: str) -> None:
    """Delete a registration."""
    store.delete_document(KIND, key)


@dataclass(frozen=True, slots=True)
class Workers:
    """All registered workers by id, and the document keys of the registrations that this version cannot read."""

    known: tuple[WorkerInfo, ...]
    unreadable: tuple[str, ...] = ()


def read_workers(store: Store) -> Workers:
    """All registered workers, those that went silent included. What cannot be read, as the registration of a newer
    version may be, is told in the log too."""
    now, known, unreadable = store.now(), list[WorkerInfo](), list[str]()
    for document in store.list_documents(KIND):
        try:
            known.append(_describe(document, now))
        except (ValueError, CriteriaError) as error:
            _log.warning("the registration %r of a worker cannot be read by this version: %s", document.key, error)
            unreadable.append(document.key)
    known.sort(key=lambda each: (each.id, each.registration.started_at))
    return Workers(tuple(known), tuple(unreadable))


def list_workers(store: Store) -> list[WorkerInfo]:
    """The registered workers by id whose registrations can be read."""
    return list(read_workers(store).known)


def forget_silent(store: Store) -> int:
    """Delete the registrations of workers that have long been silent; how many were."""
    now = store.now()
    silent = [each for each in store.list_documents(KIND) if _age(each, now) > FORGOTTEN_HEARTBEATS]
    return sum(store.delete_document(KIND, each.key) for each in silent)


def _describe(document: Document, now: int) -> WorkerInfo:
    registration = Registration.load(document.body)
    is_live = now - document.updated_at < MISSED_HEARTBEATS * registration.heartbeat
    return WorkerInfo(registration, document.updated_at, is_live)


def _age(document: Document, now: int) -> float:
    """The time since the last heartbeat, in heartbeats."""
    try:
        heartbeat = _typed(_read(document.body), "heartbeat", int)
    except ValueError:
        heartbeat = _ASSUMED_HEARTBEAT
    return (now - document.updated_at) / max(1, heartbeat)
