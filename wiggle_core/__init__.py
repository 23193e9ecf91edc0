"""wiggle: criteria-query routing of heterogeneous work, on your own database. The names to import from."""

from __future__ import annotations

from wiggle_core.criteria.builder import QueueCriteria, cb
from wiggle_core.criteria.evaluate import compile_predicate, matches
from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.tree import ValueType
from wiggle_core.engine.asynchronous import AsyncEngine
from wiggle_core.engine.engine import Engine, Enqueued, open_engine
from wiggle_core.engine.misses import AttributeMiss
from wiggle_core.errors import (
    AmbiguousStoreError,
    CriteriaError,
    DeclarationError,
    EnlistRejected,
    InvalidSetting,
    InvalidStoreUrl,
    LeaseLost,
    PermanentError,
    PermanentStoreError,
    RevisionConflict,
    SchemaError,
    StoreError,
    StoreNotInstalled,
    TaskRejected,
    TransientStoreError,
    UnknownScheme,
    WiggleError,
    WorkerRejected,
)
from wiggle_core.tasks.attributes import Attribute, Miss
from wiggle_core.tasks.outcome import Done, Fail, Outcome, Release, Retry
from wiggle_core.tasks.retry import RetryPolicy
from wiggle_core.tasks.submission import NewTask
from wiggle_core.tasks.task import Lease, State, TaskRecord
from wiggle_core.worker.context import TaskContext
from wiggle_core.worker.worker import Worker

__all__ = [
    "AmbiguousStoreError",
    "AsyncEngine",
    "Attribute",
    "AttributeMiss",
    "CriteriaError",
    "DeclarationError",
    "Done",
    "Engine",
    "EnlistRejected",
    "Enqueued",
    "Fail",
    "InvalidSetting",
    "InvalidStoreUrl",
    "Lease",
    "LeaseLost",
    "Miss",
    "NewTask",
    "Outcome",
    "PermanentError",
    "PermanentStoreError",
    "QueueCriteria",
    "Release",
    "Retry",
    "RetryPolicy",
    "RevisionConflict",
    "SchemaError",
    "State",
    "StoreError",
    "StoreNotInstalled",
    "Task",
    "TaskContext",
    "TaskRecord",
    "TaskRejected",
    "TransientStoreError",
    "UnknownScheme",
    "ValueType",
    "WiggleError",
    "Worker",
    "WorkerRejected",
    "cb",
    "compile_predicate",
    "matches",
    "open_engine",
]
