"""Errors as they pass from one process to another."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from wiggle_core import errors
from wiggle_core.errors import (
    CriteriaError,
    DeclarationError,
    InvalidSetting,
    LeaseLost,
    RevisionConflict,
    SchemaError,
    StaleLanes,
    StoreNotInstalled,
    TaskRejected,
    TransientStoreError,
    UnknownScheme,
    WiggleError,
)

RAISED = [
    CriteriaError("no such field", "/where/args/0"),
    DeclarationError("twice", "total"),
    TaskRejected("priority", "is negative"),
    LeaseLost("task-1"),
    RevisionConflict("worker", "w1"),
    StaleLanes(),
    UnknownScheme("mongo", "no store serves mongo"),
    StoreNotInstalled("postgresql", "pip install psycopg"),
    InvalidSetting("WIGGLE_LANES", "auto, on or off"),
    TransientStoreError("the database is busy"),
    SchemaError("the schema is missing"),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error: WiggleError) -> None:
    """An error that a worker process raises must not break the pool that it belongs to."""
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is type(error)
    assert (str(copied), copied.args, vars(copied)) == (str(error), error.args, vars(error))


def below(kind: type[WiggleError]) -> Iterator[type[WiggleError]]:
    for each in kind.__subclasses__():
        yield each
        yield from below(each)


def test_every_error_with_arguments_of_its_own_is_tried() -> None:
    """So that the next one is, too."""
    own = {each for each in below(WiggleError) if each.__module__ == errors.__name__ and "__init__" in vars(each)}
    tried = {base for error in RAISED for base in type(error).__mro__}
    assert own <= tried
